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
from hotfuse.numerics import GOOD, Verdict, close_to_exact, same_bits, spacing, within_ulp
from hotfuse.runtime.session import Session
from tests.fuzz.onnx_draft import Draft, Tensor, compute, read_names

# operators whose float results jump; operators that may answer with either zero when asked to choose between 0.0 and -0.0
JUMPS = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Mod", "Hardmax")
CHOOSING = ("Clip", "Min", "Max", "Relu", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool")


FEW = 16


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
    outputs = [t for i, t in enumerate(outputs) if t.name not in {o.name for o in outputs[:i]}]
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
    strided = {n: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x for n, x in case.feeds(0).items()}
    for a, b in zip(session.run(None, case.feeds(0)), session.run(None, strided), strict=True):
        if np.asarray(a).tobytes() != np.asarray(b).tobytes():
            yield f"{stage}: two calls differ, the second with inputs that are not contiguous"


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
    if ours.size < FEW:  # a mean over so few is luck; the bound on the largest error holds
        scale = spacing(np.abs(exact).max(), original.dtype.name)
        if float(np.abs(ours - exact).max()) <= 8 * float(np.abs(worst - exact).max()) + 4 * float(scale):
            return GOOD
    return close_to_exact(ours, worst, exact)


def jittered(case: Case, setting: int, seed: int) -> dict[str, Any]:
    """The oracle's values when inputs and intermediates are off by up to a unit in the last place: what a row of few elements,
    or one that cancels, owes to luck. Where that would take another branch, inputs stay as they are."""
    draft = case.draft
    jumps = any(node.op_type in JUMPS for node in case.proto.graph.node)
    for everything in (False,) if jumps else (True, False):
        rng = np.random.default_rng(seed)
        values = {n: t.data[setting] for n, t in draft.tensors.items()}
        free = {n for n, t in draft.tensors.items() if t.is_float and (not t.bits or (everything and not t.constant))}
        values |= {i.name: _off_by_a_unit(values[i.name], rng) for i in case.proto.graph.input if i.name in free}
        for node in case.proto.graph.node:
            reads = {n: draft.tensors[n] for n in read_names(node)}
            (results,) = compute(node, reads, draft.opset, [{n: values[n] for n in reads}])
            values |= {n: _off_by_a_unit(x, rng) if n in free else x for n, x in zip(node.output, results, strict=True)}
        same = [np.array_equal(values[n], t.data[setting]) for n, t in draft.tensors.items() if not t.is_float]
        if all(same):
            break
    return values


def _off_by_a_unit(x: Any, rng: np.random.Generator) -> Any:
    return np.asarray(x * (1 + rng.uniform(-1, 1, x.shape) * np.finfo(x.dtype).eps), x.dtype)


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
