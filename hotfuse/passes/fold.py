"""Folding: what can be computed when a model is loaded is computed then.

  fold_shapes     integer values whose contents are known as sizes become constants, or `dims` of the graph's input sizes; the
                  Shape / Gather / Concat chains behind them are then dead
  fold_constants  nodes over constants alone become constants

Neither reads weights, which may change. A fold never makes a model larger than what it replaces, but for `SLACK_BYTES`: a few
bytes of model that expand to gigabytes stay unexpanded, and long arithmetic stays in the calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotfuse.ir.dim import Expr, Symbol, symbols_of
from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.op import OPS, Call, FreshSymbols, Pattern
from hotfuse.ir.types import BOOL, I64, STRING, TensorType, numel, type_of
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, is_pure, rewrite

SLACK_BYTES = 64 * 1024
MAX_FLOPS = 200_000_000  # of one folded node; keeps loading short. A guess: not measured yet


@on_every_graph
def fold_shapes(graph: Graph) -> Graph:
    own = _input_symbols(graph)

    def fold(draft: Draft, node: Node) -> Value | None:
        value = draft.graph.values[node.id]
        contents, type = value.contents, value.type
        if (
            contents is None
            or node.op == "dims"
            or len(node.outputs) != 1
            or not isinstance(type, TensorType)
            or not is_pure(node)
        ):
            return None
        if all(isinstance(d, int) for d in contents):
            return _as_constant(draft, value, type)
        if not all(s.name in own for s in symbols_of(contents)):
            return None
        if type.dtype is BOOL:
            return None
        found = draft.add("dims", dims=tuple(contents), scalar=not type.shape)
        return found if type.dtype is I64 else draft.add("cast", found, to=type.dtype)

    return rewrite(graph, fold)


def _as_constant(draft: Draft, value: Value, type: TensorType) -> Value | None:
    assert value.contents is not None
    array = np.array(value.contents, dtype=object).reshape(() if type.shape == () else (-1,))
    if type.dtype is not BOOL and type.dtype.bits >= 8:
        limits = np.iinfo(type.dtype.numpy)
        if not all(limits.min <= int(d) <= limits.max for d in value.contents):  # type: ignore[arg-type]
            return None  # the node itself wraps around; sizes do not
    return draft.define(array.astype(type.dtype.numpy), value.device)


def _input_symbols(graph: Graph) -> set[str]:
    """The sizes that a call tells: those that are a bare dim of an input or weight, or an input themselves."""
    found: set[str] = set()
    for name in (*graph.inputs, *graph.weights):
        value = graph.values[name]
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        symbols = (_bare_symbol(dim) for dim in (*(shape or ()), *(value.contents or ())))
        found.update(s.name for s in symbols if s is not None)
    return found


def _bare_symbol(dim: Any) -> Symbol | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        (monomial, coefficient) = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Symbol):
            return monomial[0][0]
    return None


@on_every_graph
def fold_constants(graph: Graph) -> Graph:
    return rewrite(graph, _fold_constant)


def _fold_constant(draft: Draft, node: Node) -> tuple[Value, ...] | None:
    record = OPS[node.op]
    if not node.inputs or not all(n is None or n in draft.builder.constants for n in node.inputs):
        return None
    if record.reference is None or record.pattern is Pattern.OPAQUE or not is_pure(node):
        return None
    results = [draft.graph.values[name] for name in node.outputs]
    inputs = draft.inputs(node)
    if not _is_bounded(node, inputs, results):
        return None
    try:
        with np.errstate(all="ignore"):
            computed = record.reference(*(_glance(draft, v) for v in inputs), **node.attrs)
    except Exception:
        return None  # the node fails where it stands, with its place in the model, if it is ever run
    many = computed if isinstance(computed, (tuple, list)) else (computed,)
    if not record.view:  # a view goes on looking
        for name in node.uses:
            draft.builder.constants[name].release()
    arrays = [immutable(np.asarray(a)) for a in many]
    if len(arrays) < len(results) or any(type_of(a) != v.type for a, v in zip(arrays, results, strict=False)):
        return None
    return tuple(draft.define(Constant.of(a), v.device) for a, v in zip(arrays, results, strict=False))


def _glance(draft: Draft, value: Value | None) -> np.ndarray[Any, Any] | None:
    return None if value is None else draft.builder.constants[value.name].glance()


def immutable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, for looking only."""
    view = array.view()
    view.flags.writeable = False
    return view


def _is_bounded(node: Node, inputs: list[Value | None], results: list[Value]) -> bool:
    """Whether the results take no more room than the inputs, and the arithmetic little time."""
    sizes = [_bytes(v) for v in results]
    given = [_bytes(v) for v in inputs if v is not None]
    if any(s is None for s in sizes) or any(g is None for g in given):
        return False
    if sum(s for s in sizes if s is not None) > sum(g for g in given if g is not None) + SLACK_BYTES:
        return False
    record = OPS[node.op]
    if record.flops is None:
        return sum(g for g in given if g is not None) <= SLACK_BYTES
    call = Call(node.op, inputs, node.attrs, node.graphs, FreshSymbols(), len(results))
    flops = record.flops(call, [v.type for v in results])
    return isinstance(flops, int) and flops <= MAX_FLOPS


def _bytes(value: Value) -> int | None:
    type = value.type
    if not isinstance(type, TensorType) or not type.is_static or type.dtype is STRING:
        return None
    size = numel(type.shape or ())
    return size * type.dtype.bytes if isinstance(size, int) else None
