"""A drafted model through hotfuse: with passes and without, at every setting of its sizes, held to the oracle's results.

`failures` says what is wrong; `shrink` finds the shortest beginning of the model that is wrong too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import hotfuse
from hotfuse.config import Config
from hotfuse.frontends.onnx_model import load_onnx
from hotfuse.ir.dim import substitute
from hotfuse.ir.graph import Graph
from hotfuse.ir.text import parse_graph, print_graph
from hotfuse.ir.types import TensorType
from hotfuse.ir.verify import verify
from hotfuse.numerics import GOOD, Verdict, close_to_exact, same_bits, within_ulp
from hotfuse.runtime.session import Session
from tests.fuzz.onnx_draft import Draft, Tensor, compute, read_names

# operators that may answer with either zero when asked to choose between 0.0 and -0.0
CHOOSING = ("Clip", "Min", "Max", "Relu", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool")


@dataclass(frozen=True)
class Case:
    """A finished model: what to feed and what to expect are in its tensors."""

    proto: onnx.ModelProto
    outputs: tuple[Tensor, ...]
    draft: Draft

    def feeds(self, setting: int) -> dict[str, Any]:
        return {i.name: self.draft.tensors[i.name].data[setting] for i in self.proto.graph.input}


def finish(draft: Draft, outputs: Sequence[Tensor]) -> Case:
    """The model that computes `outputs`, without the nodes that none of them needs."""
    needed = {t.name for t in outputs}
    nodes = []
    for node in reversed(draft.nodes):
        if needed & set(node.output):
            nodes.append(node)
            needed |= read_names(node)
    graph = helper.make_graph(
        nodes[::-1],
        "fuzz",
        [i for i in draft.inputs if i.name in needed],
        [helper.make_tensor_value_info(t.name, helper.np_dtype_to_tensor_dtype(t.dtype), None) for t in outputs],
        [numpy_helper.from_array(t.data[0], t.name) for t in draft.tensors.values() if t.constant and t.name in needed],
    )
    opsets = [helper.make_opsetid("", draft.opset)]
    return Case(helper.make_model(graph, opset_imports=opsets, ir_version=10), tuple(outputs), draft)


def failures(case: Case, threads: bool = False) -> list[str]:
    """Everything that is wrong with how hotfuse runs the model; an empty list when all is well."""
    try:
        imported = load_onnx(case.proto, Config())
        plain = Session(imported.graph, imported.output_names, Config(), imported.opaque)
        found = [*_structure("imported", imported.graph), *_results("without passes", plain, case)]
        optimized = hotfuse.load(case.proto, strict=True)
        found += [*_structure("optimised", optimized.graph), *_results("with passes", optimized, case)]
        if threads and not found:
            found += _from_two_threads(optimized, case)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return found


def _structure(stage: str, graph: Graph) -> Iterable[str]:
    verify(graph)
    text = print_graph(graph)
    again = print_graph(parse_graph(text, all_constants(graph)))
    if again != text:
        yield f"{stage}: the text form does not round-trip"


def all_constants(graph: Graph) -> dict[str, Any]:
    return {name: constant for g in graph.walk() for name, constant in g.constants.items()}


def _results(stage: str, session: Session, case: Case) -> Iterable[str]:
    for i, sizes in enumerate(case.draft.settings):
        feeds = case.feeds(i)
        kept = {n: x.copy() for n, x in feeds.items()}
        found = session.run(None, feeds)
        for n, x in feeds.items():
            if not np.array_equal(x, kept[n]):
                yield f"{stage}, sizes {dict(sizes)}: input {n} was changed"
        for tensor, ours, signature in zip(case.outputs, found, session.outputs, strict=True):
            verdict = judge(case, tensor, np.asarray(ours), i)
            if not verdict:
                yield f"{stage}, sizes {dict(sizes)}: {tensor.name}: {verdict.reason}"
            elif isinstance(signature.type, TensorType) and signature.type.shape is not None:
                told = tuple(substitute(d, sizes) for d in signature.type.shape)
                if 0 in told and any(n.op_type == "Reshape" for n in case.proto.graph.node):
                    continue  # a computed size that turns out 0 copies another size, which only a call can tell
                if len(told) != ours.ndim or any(isinstance(d, int) and d != s for d, s in zip(told, ours.shape, strict=True)):
                    yield f"{stage}, sizes {dict(sizes)}: {tensor.name} has shape {ours.shape}, the session says {told}"
    for a, b in zip(session.run(None, case.feeds(0)), session.run(None, case.feeds(0)), strict=True):
        if np.asarray(a).tobytes() != np.asarray(b).tobytes():
            yield f"{stage}: two calls differ"


def judge(case: Case, tensor: Tensor, ours: Any, setting: int) -> Verdict:
    original, exact = tensor.data[setting], tensor.exact[setting]
    if tensor.bits:
        alike = same_bits(ours, original)
        choosing = any(node.op_type in CHOOSING for node in case.proto.graph.node)
        return GOOD if choosing and ours.dtype == original.dtype and np.array_equal(ours, original) else alike
    verdict = close_to_exact(ours, original, exact)
    if verdict or ours.shape != original.shape or ours.dtype != original.dtype or not tensor.is_float:
        return verdict
    if within_ulp(ours, exact.astype(original.dtype), 2):  # right by the rule of arithmetic; the original was lucky
        return GOOD
    noisy = [jittered(case, setting, seed)[tensor.name] for seed in range(4)]
    worst = max((original, *noisy), key=lambda x: float(np.abs(x - exact).sum()))
    return close_to_exact(ours, worst, exact)


def jittered(case: Case, setting: int, seed: int) -> dict[str, Any]:
    """The oracle's values when every intermediate is rounded otherwise, by up to a unit in its last place: what a row of few
    elements, or one that cancels, owes to luck."""
    rng = np.random.default_rng(seed)
    draft = case.draft
    values = {n: t.data[setting] for n, t in draft.tensors.items()}
    for node in case.proto.graph.node:
        reads = {n: draft.tensors[n] for n in read_names(node)}
        (results,) = compute(node, reads, draft.opset, [{n: values[n] for n in reads}])
        for name, x in zip(node.output, results, strict=True):
            if x.dtype.kind == "f" and name and not draft.tensors[name].bits:
                x = np.asarray(x * (1 + rng.uniform(-1, 1, x.shape) * np.finfo(x.dtype).eps), x.dtype)
            values[name] = x
    return values


def _from_two_threads(session: Session, case: Case) -> list[str]:
    """Both threads walk the settings, in opposite order; results must be those of a lone caller."""
    orders = [list(range(len(case.draft.settings))) * 3, list(range(len(case.draft.settings)))[::-1] * 3]
    alone = [session.run(None, case.feeds(i)) for i in orders[0][: len(case.draft.settings)]]
    found: list[str] = []

    def work(order: Sequence[int]) -> None:
        try:
            for i in order:
                for a, b in zip(session.run(None, case.feeds(i)), alone[i], strict=True):
                    if np.asarray(a).tobytes() != np.asarray(b).tobytes():
                        found.append(f"two threads: sizes {dict(case.draft.settings[i])}: another result than alone")
        except Exception as error:
            found.append(f"two threads: {type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(order,)) for order in orders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def shrink(case: Case) -> Case:
    """The shortest beginning of the model that fails, with one node's results for outputs; the whole case if none does."""
    for node in case.proto.graph.node:
        shorter = finish(case.draft, [case.draft.tensors[n] for n in node.output if n])
        if failures(shorter):
            return shorter
    return case


def story(case: Case, seed: int) -> str:
    """What to print of a failing case."""
    small = shrink(case)
    lines = [f"seed {seed}, opset {case.draft.opset}, settings {[dict(s) for s in case.draft.settings]}", *failures(case)]
    lines += ["the shortest failing beginning:", *failures(small), onnx.printer.to_text(small.proto)[:4000]]
    try:
        lines.append(print_graph(hotfuse.load(small.proto).graph)[:4000])
    except Exception as error:
        lines.append(f"it does not load: {error}")
    return "\n".join(lines)
