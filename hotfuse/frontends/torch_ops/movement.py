"""ATen operators that move data. Strides are no part of a value here: views, copies and reshapes of one shape are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.errors import DimError
from hotfuse.frontends.torch_node import (
    Decline,
    Imported,
    TorchNode,
    aten,
    axis_of,
    known_shape,
    rank_of,
    shape_of_value,
)
from hotfuse.ir.dim import Dim, Expr, lower_bound
from hotfuse.ir.graph import Value
from hotfuse.ir.types import I64, TensorType

END = (1 << 62) - 1  # at or past this, the end of a slice means the end of the axis


@aten(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.view_copy.default",
    "aten._reshape_copy.default",
)
def reshape(n: TorchNode, x: Value, size: Sequence[Any]) -> Imported:
    return n.add("reshape", x, n.dims(n.shape), allow_zero=True)


@aten("aten.flatten.using_ints", "aten.unflatten.int")
def reshape_to_result(n: TorchNode, x: Value, *rest: Any) -> Imported:
    return n.add("reshape", x, n.dims(n.shape), allow_zero=True)


@aten("aten.expand.default", "aten.broadcast_to.default", "aten.expand_copy.default")
def expand(n: TorchNode, x: Value, size: Sequence[Any], *rest: Any) -> Imported:
    return n.add("expand", x, n.dims(n.shape))


def permuted(n: TorchNode, x: Value, perm: Sequence[int]) -> Value:
    order = tuple(axis_of(p, len(perm)) for p in perm)
    return x if order == tuple(range(len(order))) else n.add("transpose", x, perm=order)


@aten("aten.permute.default", "aten.permute_copy.default")
def permute(n: TorchNode, x: Value, dims: Sequence[int]) -> Imported:
    return permuted(n, x, dims)


@aten("aten.transpose.int", "aten.swapaxes.default", "aten.transpose_copy.int")
def transpose(n: TorchNode, x: Value, a: int, b: int) -> Imported:
    order = list(range(rank_of(x)))
    if order:
        a, b = axis_of(a, len(order)), axis_of(b, len(order))
        order[a], order[b] = order[b], order[a]
    return permuted(n, x, order)


@aten("aten.t.default", "aten.mT.default", "aten.t_copy.default")
def matrix_transpose(n: TorchNode, x: Value) -> Imported:
    rank = rank_of(x)
    return x if rank < 2 else permuted(n, x, (*range(rank - 2), rank - 1, rank - 2))


@aten("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(n: TorchNode, x: Value, dim: int) -> Imported:
    return n.add("unsqueeze", x, axes=(axis_of(dim, rank_of(x) + 1),))


@aten(
    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.default", "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
)  # fmt: skip
def squeeze(n: TorchNode, x: Value, dims: int | Sequence[int] | None = None) -> Imported:
    shape = shape_of_value(x)
    named = range(len(shape)) if dims is None else (dims,) if isinstance(dims, int) else dims
    axes = tuple(sorted(a for a in {axis_of(d, len(shape)) for d in named} if len(shape) and shape[a] == 1))
    return n.add("squeeze", x, axes=axes) if axes else x


def place(index: Dim, size: Dim) -> Dim:
    """An index counted from the front."""
    low = lower_bound(index)
    if low is not None and low >= 0:
        return index
    if isinstance(index, int):
        return size + index
    raise DimError("the sign of an index is not known")


@aten("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(n: TorchNode, x: Value, dim: int, start: Dim | None, end: Dim | None, step: Dim) -> Imported:
    shape = shape_of_value(x)
    axis = axis_of(dim, len(shape))
    if not isinstance(step, int):
        return Decline("the step depends on sizes")
    if (start is not None and not isinstance(start, (int, Expr))) or (end is not None and not isinstance(end, (int, Expr))):
        return Decline("its ends depend on data")
    first: Dim = 0 if start is None else start
    last: Dim = shape[axis] if end is None or (isinstance(end, int) and end >= END) else end
    if first == 0 and last == shape[axis] and step == 1:
        return x
    return n.add("slice", x, n.dims((first,)), n.dims((last,)), axes=(axis,), steps=(step,))


def picked(n: TorchNode, x: Value, axis: int, index: Dim) -> Value:
    """One index of an axis, which disappears."""
    part = n.add("slice", x, n.dims((index,)), n.dims((index + 1,)), axes=(axis,), steps=(1,))
    return n.add("squeeze", part, axes=(axis,))


@aten("aten.select.int", "aten.select_copy.int")
def select(n: TorchNode, x: Value, dim: int, index: Any) -> Imported:
    if not isinstance(index, (int, Expr)):
        return Decline("the index depends on data")
    shape = shape_of_value(x)
    axis = axis_of(dim, len(shape))
    low = lower_bound(index)
    if low is None or (low < 0 and not isinstance(index, int)):
        return Decline("the sign of the index is not known")
    return picked(n, x, axis, place(index, shape[axis]))


@aten("aten.unbind.int", "aten.unbind_copy.int")
def unbind(n: TorchNode, x: Value, dim: int) -> Imported:
    axis = axis_of(dim, rank_of(x))
    return [picked(n, x, axis, i) for i in range(len(n.expected))]


@aten(
    "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.split.sizes",
    "aten.tensor_split.sections", "aten.split_copy.Tensor", "aten.split_with_sizes_copy.default",
    "aten.unsafe_split.Tensor", "aten.unsafe_chunk.default", "aten.unsafe_split_with_sizes.default",
)  # fmt: skip
def split(n: TorchNode, x: Value, parts: Any, dim: int) -> Imported:
    axis = axis_of(dim, rank_of(x))
    shapes = [known_shape(t) for t in n.expected if isinstance(t, TensorType)]
    sizes = tuple(shape[axis] for shape in shapes)
    n.dims(sizes)  # refuses sizes that depend on data
    return n.add_many("split", (x,), len(sizes), axis=axis, sizes=sizes)


@aten("aten.cat.default", "aten.concat.default")
def cat(n: TorchNode, tensors: Sequence[Value], dim: int) -> Imported:
    rank = len(n.shape)
    parts = [t for t in tensors if rank == 1 or shape_of_value(t) != (0,)]  # torch skips empty vectors
    if not parts:
        return Decline("all parts are empty vectors")
    return n.add("concat", *(n.cast(t, n.dtype) for t in parts), axis=axis_of(dim, rank))


@aten("aten.stack.default")
def stack(n: TorchNode, tensors: Sequence[Value], dim: int) -> Imported:
    axis = axis_of(dim, len(n.shape))
    return n.add("concat", *(n.add("unsqueeze", n.cast(t, n.dtype), axes=(axis,)) for t in tensors), axis=axis)


@aten("aten.flip.default")
def flip(n: TorchNode, x: Value, dims: Sequence[int]) -> Imported:
    axes = tuple(axis_of(d, rank_of(x)) for d in dims)
    return n.add("flip", x, axes=axes) if axes else x


@aten("aten.repeat.default")
def repeat(n: TorchNode, x: Value, repeats: Sequence[Dim]) -> Imported:
    """Copies along each axis: a new axis before it, broadcast, then merged with it."""
    shape = (1,) * (len(repeats) - rank_of(x)) + shape_of_value(x)
    if all(r == 1 for r in repeats):
        return n.add("reshape", x, n.dims(shape), allow_zero=True)
    lifted = n.add("reshape", x, n.dims([d for size in shape for d in (1, size)]), allow_zero=True)
    wide = n.add("expand", lifted, n.dims([d for r, size in zip(repeats, shape, strict=True) for d in (r, size)]))
    return n.add("reshape", wide, n.dims(n.shape), allow_zero=True)


@aten("aten.constant_pad_nd.default")
def constant_pad(n: TorchNode, x: Value, pad: Sequence[Dim], value: Any) -> Imported:
    rank = rank_of(x)
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i in range(len(pad) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return n.add("pad", x, n.dims((*before, *after)), n.number(value, n.dtype), mode="constant")


@aten("aten.slice_scatter.default")
def slice_scatter(n: TorchNode, x: Value, source: Value, dim: int, start: Any, end: Any, step: Dim) -> Imported:
    """What lies before the slice, the source, what lies after it."""
    shape = shape_of_value(x)
    axis = axis_of(dim, len(shape))
    first = 0 if start is None else start
    if step != 1 or not isinstance(first, (int, Expr)) or lower_bound(first) is None:
        return Decline("a slice with a step, or whose start depends on data")
    first = place(first, shape[axis])
    last = first + shape_of_value(source)[axis]
    parts = [n.cast(source, n.dtype)]
    if first != 0:
        parts.insert(0, n.add("slice", x, n.dims((0,)), n.dims((first,)), axes=(axis,), steps=(1,)))
    if last != shape[axis]:
        parts.append(n.add("slice", x, n.dims((last,)), n.dims((shape[axis],)), axes=(axis,), steps=(1,)))
    return n.add("concat", *parts, axis=axis)


@aten("aten.tril.default", "aten.triu.default")
def triangle(n: TorchNode, x: Value, diagonal: Any) -> Imported:
    if rank_of(x) < 2:
        return Decline("of a vector")
    return n.add("trilu", x, n.number(diagonal, I64), upper="triu" in n.name)
