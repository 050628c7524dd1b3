"""ONNX operators that move data: shapes, joining and cutting, padding, fills.

What ONNX passes as an input but we keep as an attribute (axes, steps, sizes of parts) is an attribute where its numbers are
known now, and stays an input of `late` where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import ONNX_DTYPES, Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, I64, TensorType, dtype_of

NOT_KNOWN = object()  # an input is there, its numbers come with the data


def numbers(n: OnnxNode, i: int, attribute: str) -> Any:
    """Integers that are an attribute or, in later opsets, input i: a tuple, None where absent, or NOT_KNOWN."""
    if not n.has(i):
        found = n.attr(attribute)
        return None if found is None else tuple(found)
    found = n.ints(i)
    return NOT_KNOWN if found is None else found


def length(value: Value) -> int | None:
    """How many elements a vector has, where that is known."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape[0] if shape and isinstance(shape[0], int) else None


def int64s(n: OnnxNode, value: Value) -> Value:
    """An integer input as int64."""
    assert isinstance(value.type, TensorType)
    return value if value.type.dtype is I64 else n.add("cast", value, to=I64)


def sizes(n: OnnxNode, x: Value, start: int, end: int | None = None) -> Value:
    """The sizes of x from one axis to another, as a vector."""
    return n.add("shape_of", x, start=start, **({} if end is None else {"end": end}))


def product(n: OnnxNode, vector: Value) -> Value:
    """The product of a vector's elements, as a vector of one."""
    return n.add("reduce_prod", vector, axes=(0,), keepdims=True)


def joined(n: OnnxNode, parts: Sequence[Value | int]) -> Value:
    """One vector of several, where plain numbers stand for themselves."""
    return n.add("concat", *(n.constant([p], I64) if isinstance(p, int) else p for p in parts), axis=0)


@onnx_op("Shape")
def shape(n: OnnxNode) -> Imported:
    end = n.attr("end")
    return sizes(n, n.input(0), n.attr("start", 0), None if end is None else int(end))


@onnx_op("Reshape")
def reshape(n: OnnxNode) -> Imported:
    target = n.input(1) if n.has(1) else n.constant(n.attr("shape", []), I64)
    return n.add("reshape", n.input(0), int64s(n, target), allow_zero=bool(n.attr("allowzero", 0)))


@onnx_op("Flatten")
def flatten(n: OnnxNode) -> Imported:
    axis = n.attr("axis", 1)
    rank = n.rank()
    if rank is not None and not -rank <= axis <= rank:
        raise InvalidModel(f"Flatten: axis {axis} is out of range for a tensor of rank {rank}")
    x = n.input(0)
    target = joined(n, [product(n, sizes(n, x, 0, axis)), product(n, sizes(n, x, axis))])
    return n.add("reshape", x, target, allow_zero=True)


@onnx_op("Transpose")
def transpose(n: OnnxNode) -> Imported:
    perm, rank = n.attr("perm"), n.rank()
    if perm is None and rank is not None:
        perm = range(rank)[::-1]
    return n.add("transpose", n.input(0), perm=None if perm is None else tuple(perm))


@onnx_op("Squeeze")
def squeeze(n: OnnxNode) -> Imported:
    axes = numbers(n, 1, "axes")
    if axes is NOT_KNOWN:
        return _with_late_axes(n, "squeeze", -1)
    return n.add("squeeze", n.input(0), axes=axes)


@onnx_op("Unsqueeze")
def unsqueeze(n: OnnxNode) -> Imported:
    axes = numbers(n, 1, "axes")
    if axes is NOT_KNOWN:
        return _with_late_axes(n, "unsqueeze", 1)
    return n.add("unsqueeze", n.input(0), axes=axes)


def _with_late_axes(n: OnnxNode, op: str, sign: int) -> Value:
    axes = n.input(1) if n.rank(1) != 0 else n.add("reshape", n.input(1), n.constant([1], I64))
    rank, count = n.rank(), length(axes)
    found = None if rank is None or count is None else rank + sign * count
    return n.add("late", n.input(0), axes, of=op, names=("axes",), rank=found)


@onnx_op("Concat")
def concat(n: OnnxNode) -> Imported:
    return n.add("concat", *(n.input(i) for i in range(len(n.inputs))), axis=n.attr("axis", 1))


@onnx_op("Split")
def split(n: OnnxNode) -> Imported:
    axis, parts = n.attr("axis", 0), n.num_outputs
    found = numbers(n, 1, "split")
    if n.attr("num_outputs", parts) != parts:
        raise InvalidModel(f"Split: {n.attr('num_outputs')} parts are asked for, the node has {parts} outputs")
    if found is NOT_KNOWN:
        if parts == 1:
            return n.input(0)
        inputs = (n.input(0), n.input(1))
        return n.add_many("late", inputs, parts, of="split", names=("sizes",), axis=axis, rank=n.rank())
    if found is not None and len(found) != parts:
        raise InvalidModel(f"Split: {len(found)} sizes are given, the node has {parts} outputs")
    return n.add_many("split", [n.input(0)], parts, axis=axis, sizes=parts if found is None else found)


@onnx_op("Slice")
def slice_(n: OnnxNode) -> Imported:
    x = n.input(0)
    if n.version < 10:
        starts, ends = n.attr("starts", []), n.attr("ends", [])
        axes = tuple(n.attr("axes", range(len(starts))))
        return n.add("slice", x, n.constant(starts, I64), n.constant(ends, I64), axes=axes, steps=(1,) * len(axes))
    starts, ends = n.input(1), n.input(2)
    axes, steps = numbers(n, 3, ""), numbers(n, 4, "")
    count = len(axes) if isinstance(axes, tuple) else length(starts)
    if axes is not NOT_KNOWN and steps is not NOT_KNOWN and count is not None:
        every, plain = tuple(range(count)), (1,) * count
        return n.add("slice", x, starts, ends, axes=every if axes is None else axes, steps=plain if steps is None else steps)
    places = n.optional(3) or n.add("arange", n.constant(0, I64), n.add("size", starts), n.constant(1, I64))
    strides = n.optional(4) or n.add("full", sizes(n, starts, 0), value=1, dtype=I64)
    return n.add("late", x, starts, ends, places, strides, of="slice", names=("axes", "steps"), rank=n.rank())


@onnx_op("Pad")
def pad(n: OnnxNode) -> Imported:
    x = n.input(0)
    if n.has(1):
        value = n.optional(2)
        return n.add("pad", x, int64s(n, n.input(1)), value, _axes(n), mode=n.attr("mode", "constant"))
    pads = n.required("paddings" if n.version < 2 else "pads")
    value = n.scalar(n.attr("value", 0.0), x)
    return n.add("pad", x, n.constant(pads, I64), value, None, mode=n.attr("mode", "constant"))


def _axes(n: OnnxNode) -> Value | None:
    return int64s(n, n.input(3)) if n.has(3) else None


@onnx_op("Tile")
def tile(n: OnnxNode) -> Imported:
    x, repeats = n.input(0), int64s(n, n.input(1))
    if n.version >= 6:
        return n.add("tile", x, repeats)
    axis, rank = n.constant_of(2), n.rank()
    if axis is None or rank is None:
        raise InvalidModel("Tile: of opset 1 the axis must be a constant, and the rank of the input known")
    one = n.add("reshape", repeats, n.constant([1], I64))
    return n.add("tile", x, joined(n, [one if i == int(axis.item()) % rank else 1 for i in range(rank)]))


@onnx_op("Trilu")
def trilu(n: OnnxNode) -> Imported:
    return n.add("trilu", n.input(0), n.optional(1), upper=bool(n.attr("upper", 1)))


@onnx_op("ReverseSequence")
def reverse_sequence(n: OnnxNode) -> Imported:
    axes = {"batch_axis": n.attr("batch_axis", 1), "time_axis": n.attr("time_axis", 0)}
    return n.add("reverse_sequence", n.input(0), n.input(1), **axes)


@onnx_op("DepthToSpace")
def depth_to_space(n: OnnxNode) -> Imported:
    """Blocks of channels become b x b blocks of pixels."""
    x, b = n.input(0), n.attr("blocksize")
    batch, depth, height, width = (sizes(n, x, i, i + 1) for i in range(4))
    inner = n.add("div", depth, n.constant([b * b], I64))
    columns_first = n.attr("mode", "DCR") == "CRD"
    blocks = [batch, inner, b, b] if columns_first else [batch, b, b, inner]
    split_up = n.add("reshape", x, joined(n, [*blocks, height, width]), allow_zero=True)
    moved = n.add("transpose", split_up, perm=(0, 1, 4, 2, 5, 3) if columns_first else (0, 3, 4, 1, 5, 2))
    rows, columns = (n.add("mul", d, n.constant([b], I64)) for d in (height, width))
    return n.add("reshape", moved, joined(n, [batch, inner, rows, columns]), allow_zero=True)


@onnx_op("SpaceToDepth")
def space_to_depth(n: OnnxNode) -> Imported:
    """The inverse of DepthToSpace."""
    x, b = n.input(0), n.attr("blocksize")
    batch, depth, height, width = (sizes(n, x, i, i + 1) for i in range(4))
    rows, columns = (n.add("div", d, n.constant([b], I64)) for d in (height, width))
    split_up = n.add("reshape", x, joined(n, [batch, depth, rows, b, columns, b]), allow_zero=True)
    columns_first = n.attr("mode", "DCR") == "CRD"
    moved = n.add("transpose", split_up, perm=(0, 1, 3, 5, 2, 4) if columns_first else (0, 3, 5, 1, 2, 4))
    channels = n.add("mul", depth, n.constant([b * b], I64))
    return n.add("reshape", moved, joined(n, [batch, channels, rows, columns]), allow_zero=True)


# fills


@onnx_op("ConstantOfShape")
def constant_of_shape(n: OnnxNode) -> Imported:
    value = n.attr("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise InvalidModel(f"ConstantOfShape: the value must be one element, it has shape {list(value.shape)}")
    number = value.reshape(-1)[0]
    plain = number.item() if value.dtype.kind in "fiubc" else float(number)
    return n.add("full", int64s(n, n.input(0)), value=plain, dtype=dtype_of(value))


@onnx_op("EyeLike")
def eye_like(n: OnnxNode) -> Imported:
    x = n.input(0)
    number = n.attr("dtype")
    found = ONNX_DTYPES.get(number) if number is not None else n.dtype()
    if found is None:
        raise InvalidModel(f"EyeLike: {number} is no element type")
    return n.add("eye", sizes(n, x, 0), dtype=found, k=n.attr("k", 0))


@onnx_op("Range")
def range_(n: OnnxNode) -> Imported:
    """Floats count in whole steps, so that how many there are is an integer that limits can be held against."""
    start, limit, step = (_scalar(n, i) for i in range(3))
    dtype = n.dtype()
    if dtype.is_integer:
        return n.add("arange", start, limit, step)
    wide = [v if dtype.bits >= 32 else n.add("cast", v, to=F32) for v in (start, limit, step)]
    steps = n.add("ceil", n.add("div", n.add("sub", wide[1], wide[0]), wide[2]))
    zero, one = n.constant(0, I64), n.constant(1, I64)
    count = n.add("arange", zero, n.add("maximum", n.add("cast", steps, to=I64), zero), one)
    line = n.add("add", wide[0], n.add("mul", n.add("cast", count, to=n.dtype() if dtype.bits >= 32 else F32), wide[2]))
    return line if dtype.bits >= 32 else n.add("cast", line, to=dtype)


def _scalar(n: OnnxNode, i: int) -> Value:
    """Input i, which may be a vector of one element, as a scalar."""
    return n.input(i) if n.rank(i) == 0 else n.add("reshape", n.input(i), n.constant([], I64))
