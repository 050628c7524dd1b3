"""A drafted model through hotfuse: with passes and without, at every setting of its sizes, held to the oracle's results.

`failures` says what is wrong; `shrink` finds the shortest beginning of the model that is wrong too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import DimError
from hotfuse.frontends.onnx_model import load_onnx
from hotfuse.ir.dim import substitute
from hotfuse.ir.graph import Graph
from hotfuse.ir.text import parse_graph, print_graph
from hotfuse.ir.types import TensorType
from hotfuse.ir.verify import verify
from hotfuse.numerics import GOOD, Verdict, close_to_exact, same_bits, within_ulp
from hotfuse.runtime.session import Session
from tests.fuzz.onnx_draft import Draft, Rejected, Tensor, random_array, read_names, run_optimized, run_reference, widen

ORACLES_APART = "the oracles break the rule between themselves"
POOLED = "short rows judged over more inputs"
REFUSED = "a reshape of nothing is refused"
FEW = 16  # elements of a row, or inputs in place of them


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
        if threads and not found and not case.draft.discarded[REFUSED]:
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
        try:
            found = session.run(None, feeds)
        except DimError as error:
            if "Reshape reads as another size" not in str(error) or all(t.data[i].size for t in case.draft.tensors.values()):
                raise
            case.draft.discarded[REFUSED] += 1
            continue
        for n, x in feeds.items():
            if not np.array_equal(x, kept[n]):
                yield f"{stage}, sizes {dict(sizes)}: input {n} was changed"
        for tensor, ours, signature in zip(case.outputs, found, session.outputs, strict=True):
            verdict = judge(case, tensor, np.asarray(ours), i, session)
            if not verdict:
                yield f"{stage}, sizes {dict(sizes)}: {tensor.name}: {verdict.reason}"
            elif isinstance(signature.type, TensorType) and signature.type.shape is not None:
                told = tuple(substitute(d, sizes) for d in signature.type.shape)
                if len(told) != ours.ndim or any(isinstance(d, int) and d != s for d, s in zip(told, ours.shape, strict=True)):
                    yield f"{stage}, sizes {dict(sizes)}: {tensor.name} has shape {ours.shape}, the session says {told}"
    if case.draft.discarded[REFUSED]:
        return
    strided = {n: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x for n, x in case.feeds(0).items()}
    for a, b in zip(session.run(None, case.feeds(0)), session.run(None, strided), strict=True):
        if np.asarray(a).tobytes() != np.asarray(b).tobytes():
            yield f"{stage}: two calls differ, the second with inputs that are not contiguous"


def judge(case: Case, tensor: Tensor, ours: Any, setting: int, session: Session | None = None) -> Verdict:
    """The strictest rule that applies. Where another oracle breaks it too, against the oracle, ours is held to that one. A mean
    over a short row is luck: where it fails, `session` is asked about more inputs, and the rule holds over all of them."""
    original = tensor.data[setting]
    verdict = by_rule(tensor, ours, original, setting)
    if verdict:
        return verdict
    for theirs in other_oracles(case, tensor, setting):
        if not by_rule(tensor, theirs, original, setting) and by_rule(tensor, ours, theirs, setting):
            case.draft.discarded[ORACLES_APART] += 1
            return GOOD
    short = ours.shape == original.shape and (ours.shape or (1,))[-1] < FEW
    if session is None or tensor.bits or tensor.ulp or not tensor.is_float or not short:
        return verdict
    draws = [(ours, original, tensor.exact[setting]), *drawn(case, tensor, setting, session)]
    if len(draws) < FEW:
        return verdict
    case.draft.discarded[POOLED] += 1
    return close_to_exact(*(np.stack(column, -1) for column in zip(*draws, strict=True)))


def drawn(case: Case, tensor: Tensor, setting: int, session: Session) -> Iterable[tuple[Any, Any, Any]]:
    """Our value, the oracle's and the exact one for other inputs of the same sizes."""
    place = [t.name for t in case.outputs].index(tensor.name)
    for seed in range(2 * FEW):
        rng = np.random.default_rng(seed)
        with contextlib.suppress(Rejected):
            values = {i.name: redraw(rng, case.draft.tensors[i.name], setting) for i in case.proto.graph.input}
            for node in case.proto.graph.node:
                reads = {n: values.get(n) or case.draft.tensors[n] for n in read_names(node)}
                again = Draft(case.draft.rng, case.draft.opset, [{}], tensors=reads)
                values |= {t.name: t for t in again.results(node, False)}
            feeds = {i.name: values[i.name].data[0] for i in case.proto.graph.input}
            found = values[tensor.name]
            yield np.asarray(session.run(None, feeds)[place]), found.data[0], found.exact[0]


def redraw(rng: np.random.Generator, tensor: Tensor, setting: int) -> Tensor:
    data = random_array(rng, tensor.dtype, tensor.data[setting].shape, -2, 2)
    return Tensor(tensor.name, (data,), (widen(data),), True)


def by_rule(tensor: Tensor, ours: Any, original: Any, setting: int) -> Verdict:
    """Bits; units in the last place of one elementwise operator; the float64 rule for all else."""
    exact = tensor.exact[setting]
    if tensor.bits or not tensor.is_float:
        return same_bits(ours, original)
    if tensor.ulp:  # float64 is nobody's exact value: there the original has to do
        return within_ulp(ours, original if tensor.dtype == np.float64 else exact.astype(tensor.dtype), tensor.ulp)
    return close_to_exact(ours, original, exact)


def other_oracles(case: Case, tensor: Tensor, setting: int) -> Iterable[Any]:
    """The tensor as ONNX Runtime with all its optimisations computes it, and as onnx's own evaluator does."""
    proto = finish(case.draft, [tensor]).proto
    feeds = {i.name: case.draft.tensors[i.name].data[setting] for i in proto.graph.input}
    for run in (run_optimized, run_reference):
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            yield np.asarray(run(proto, feeds)[0])


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
