"""ONNX reductions and running folds. The axes are an attribute in older opsets and an input in newer ones."""

from __future__ import annotations

from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.convert import cast_to
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, F64


def _open_axes(n: OnnxNode) -> Decline | None:
    """The case that has no operator here: nobody knows whether the axes are an empty list, which would mean all of them."""
    if n.has(1) and not n.attr("noop_with_empty_axes", 0) and not isinstance((n.type(1).shape or (None,))[0], int):
        return Decline("only a run tells how many axes are folded")
    return None


def _fold(n: OnnxNode, op: str, x: Value) -> Value:
    """`op` over the axes that the node names; `late` where only a run tells which they are."""
    keepdims = bool(n.attr("keepdims", 1))
    named = tuple(n.attr("axes") or ())
    if n.has(1):
        found = n.ints(1)
        count = (n.type(1).shape or (None,))[0]
        if found is None and count != 0:
            rank = n.rank()
            if rank is not None and not keepdims:
                rank = rank - count if isinstance(count, int) else None
            return n.add("late", x, n.input(1), of=op, names=("axes",), keepdims=keepdims, rank=rank)
        named = found or ()
    nothing = () if n.attr("noop_with_empty_axes", 0) else None
    return n.add(op, x, axes=named or nothing, keepdims=keepdims)


_PLAIN = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
}  # fmt: skip


@onnx_op(*_PLAIN)
def reduce(n: OnnxNode) -> Imported:
    return _open_axes(n) or _fold(n, _PLAIN[n.op_type], n.input(0))


@onnx_op("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduce_composed(n: OnnxNode) -> Imported:
    """A map before the fold or after it. Half types take both in float32, roots and logarithms of whole numbers in float64."""
    x, dtype, declined = n.input(0), n.dtype(), _open_axes(n)
    if declined is not None:
        return declined
    if dtype.is_float and dtype.bits < 32:
        x = cast_to(n, x, F32)
    elif dtype.is_integer and n.op_type not in ("ReduceL1", "ReduceSumSquare"):
        x = cast_to(n, x, F64)
    return cast_to(n, _composed(n, x), dtype)


def _composed(n: OnnxNode, x: Value) -> Value:
    if n.op_type == "ReduceL1":
        return _fold(n, "reduce_sum", n.add("abs", x))
    if n.op_type == "ReduceLogSum":
        return n.add("log", _fold(n, "reduce_sum", x))
    if n.op_type == "ReduceLogSumExp":
        return _fold(n, "logsumexp", x)
    squares = _fold(n, "reduce_sum", n.add("mul", x, x))
    return squares if n.op_type == "ReduceSumSquare" else n.add("sqrt", squares)


@onnx_op("ArgMax", "ArgMin")
def arg(n: OnnxNode) -> Imported:
    return n.add(
        n.op_type.lower(), n.input(0), axis=n.attr("axis", 0), keepdims=bool(n.attr("keepdims", 1)),
        last=bool(n.attr("select_last_index", 0)),
    )  # fmt: skip


@onnx_op("CumSum", "CumProd")
def cumulative(n: OnnxNode) -> Imported:
    x, op = n.input(0), n.op_type.lower()
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    axis = n.ints(1)
    if axis is not None:
        return n.add(op, x, axis=axis[0], exclusive=exclusive, reverse=reverse)
    place = n.add("squeeze", n.input(1), axes=(0,)) if n.rank(1) == 1 else n.input(1)
    return n.add("late", x, place, of=op, names=("axis",), exclusive=exclusive, reverse=reverse, rank=n.rank())


def mean_and_variance(n: OnnxNode, x: Value, axes: tuple[int, ...], keepdims: bool = True) -> tuple[Value, Value]:
    """Mean and (biased) variance of a value over some axes."""
    mean = n.add("reduce_mean", x, axes=axes, keepdims=True)
    centered = n.add("sub", x, mean)
    variance = n.add("reduce_mean", n.add("mul", centered, centered), axes=axes, keepdims=keepdims)
    return (mean if keepdims else n.add("squeeze", mean, axes=axes)), variance
