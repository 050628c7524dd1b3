"""Operators that move data without computing: each output element is one input element, or a fill value.

Those marked `view` return memory of their input where numpy can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim, ceildiv, lower_bound, maximum, minimum, symbols_of
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import (
    CONTENTS_LIMIT,
    Call,
    Contents,
    OpDef,
    Pattern,
    Sample,
    broadcast_shapes,
    contents_by_reference,
    define,
)
from hotfuse.ir.types import Shape, TensorType, Type, numel

Array = np.ndarray[Any, Any]


def no_flops(call: Call, types: Sequence[Type]) -> Dim:
    return 0


def normal_axis(call: Call, axis: int, rank: int) -> int:
    """`axis` counted from the front; refused when the tensor has no such axis."""
    if not -rank <= axis < rank:
        raise call.fail(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % rank if rank else 0


def normal_axes(call: Call, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    found = tuple(normal_axis(call, a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise call.fail(f"an axis is named twice in {tuple(axes)}")
    return found


# reshape


def reshape(x: Array, shape: Array, *, allow_zero: bool = False) -> Array:
    """-1 stands for what is left; 0 for the input's size at that place unless allow_zero."""
    target = [int(d) for d in shape]
    copied = [i for i, d in enumerate(target) if d == 0 and i < x.ndim and not allow_zero]
    for i in copied:
        target[i] = x.shape[i]
    if x.size == 0 and 0 in target and -1 in target:  # numpy does not say what -1 stands for then
        left = math.prod(s for i, s in enumerate(x.shape) if i not in copied)
        rest = math.prod(d for i, d in enumerate(target) if i not in copied and d != -1)
        target[target.index(-1)] = left // rest if rest else 0
    return x.reshape(target)


def _reshape_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    wanted = call.contents(1)
    if wanted is None:
        length = (call.shape(1) or (None,))[0]
        return (TensorType(x.dtype, call.unknown(length if isinstance(length, int) else None)),)
    shape, copied = list(wanted), set()
    if not call.attrs.get("allow_zero", False):
        for i, d in enumerate(shape):
            if d == 0 and isinstance(d, int):
                if x.shape is None:
                    shape[i] = call.fresh()
                elif i < len(x.shape):
                    shape[i] = x.shape[i]
                    copied.add(i)
            elif x.shape is not None and i < len(x.shape):
                shape[i] = _unless_zero(d, x.shape, i)
    holes = [i for i, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if len(holes) > 1:
        raise call.fail(f"the shape {tuple(wanted)} leaves more than one size open")
    if any(isinstance(d, int) and d < -1 for d in shape):
        raise call.fail(f"the shape {tuple(wanted)} has a negative size")
    if x.shape is None:
        return (TensorType(x.dtype, tuple(call.fresh() if i in holes else d for i, d in enumerate(shape))),)
    total = numel(x.shape)
    if holes:  # a copied size counts on neither side, so that the rest of an empty batch is what that of a full one is
        total = numel(tuple(s for i, s in enumerate(x.shape) if i not in copied))
        rest = numel(tuple(d for i, d in enumerate(shape) if i not in copied and i not in holes))
        if isinstance(rest, int) and rest == 0:
            shape[holes[0]] = 0 if total == 0 else call.fresh()
        elif isinstance(rest, int) and isinstance(total, int) and total % rest:
            raise call.fail(f"{total} elements do not fill the shape {tuple(wanted)}")
        else:
            shape[holes[0]] = total // rest
    elif NO_FACTS.decide(total, numel(tuple(shape))) is False:
        raise call.fail(f"{total} elements do not fit the shape {tuple(shape)}")
    return (TensorType(x.dtype, tuple(shape)),)


def _unless_zero(wanted: Dim, shape: Shape, axis: int) -> Dim:
    """The size that a target asks for, which is that of the input where it turns out to be 0. Of the input's own sizes that is
    not written out: nearly every model reshapes by them, and those that do so with nothing are told when they are bound."""
    if isinstance(wanted, int) or wanted == shape[axis] or {*symbols_of([wanted])} <= {*symbols_of(shape)}:
        return wanted
    return wanted + shape[axis] * (1 - minimum(wanted, 1))


def _same_contents(call: Call) -> Sequence[Contents | None]:
    return (call.contents(0),) * call.num_outputs


define(
    OpDef(
        "reshape", _reshape_infer, reshape, Pattern.MOVEMENT, "the same elements in order, in another shape",
        contents=_same_contents, flops=no_flops, view=True, torch=("aten.view.default", "aten.reshape.default"),
        samples=lambda: [
            Sample((np.arange(12.0), np.array([3, -1]))),
            Sample((np.arange(24.0).reshape(2, 3, 4), np.array([0, 12]))),
            Sample((np.zeros((0, 3)), np.array([3, 0])), {"allow_zero": True}),
        ],
    )
)  # fmt: skip


def unsqueeze(x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.expand_dims(x, axes)


def _unsqueeze_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is None:
        return (x,)
    axes = normal_axes(call, call.attrs["axes"], len(x.shape) + len(call.attrs["axes"]))
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if i in axes else next(rest) for i in range(len(x.shape) + len(axes)))),)


define(
    OpDef(
        "unsqueeze", _unsqueeze_infer, unsqueeze, Pattern.MOVEMENT, "new axes of size 1 (places in the result)",
        contents=_same_contents, flops=no_flops, view=True, torch=("aten.unsqueeze.default",),
        samples=lambda: [Sample((np.arange(6.0).reshape(2, 3),), {"axes": (0, -1)})],
    )
)  # fmt: skip


def squeeze(x: Array, *, axes: tuple[int, ...] | None = None) -> Array:
    return np.squeeze(x, axis=axes)


def _squeeze_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is None:
        return (x,)
    axes = call.attrs.get("axes")
    if axes is None:
        if any(not isinstance(d, int) for d in x.shape):
            return (TensorType(x.dtype, None),)
        return (TensorType(x.dtype, tuple(d for d in x.shape if d != 1)),)
    places = normal_axes(call, axes, len(x.shape))
    for i in places:
        if isinstance(x.shape[i], int) and x.shape[i] != 1:
            raise call.fail(f"axis {i} has size {x.shape[i]}, only axes of size 1 can be dropped")
    return (TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in places)),)


define(
    OpDef(
        "squeeze", _squeeze_infer, squeeze, Pattern.MOVEMENT, "without the named axes of size 1 (all of them if none is named)",
        contents=_same_contents, flops=no_flops, view=True, torch=("aten.squeeze.dims",),
        samples=lambda: [Sample((np.zeros((1, 3, 1)),), {"axes": (0,)}), Sample((np.zeros((1, 3, 1)),))],
    )
)  # fmt: skip


def transpose(x: Array, *, perm: tuple[int, ...] | None) -> Array:
    return np.transpose(x, perm)


def _transpose_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    perm = call.attrs["perm"]
    if x.shape is None:
        return (TensorType(x.dtype, None if perm is None else call.unknown(len(perm))),)
    if perm is None:
        return (TensorType(x.dtype, x.shape[::-1]),)
    if sorted(perm) != list(range(len(x.shape))):
        raise call.fail(f"{tuple(perm)} is not an order of the axes of {x}")
    return (TensorType(x.dtype, tuple(x.shape[p] for p in perm)),)


define(
    OpDef(
        "transpose", _transpose_infer, transpose, Pattern.MOVEMENT, "axes in another order, backwards for None",
        contents=_same_contents, flops=no_flops, view=True, torch=("aten.permute.default",),
        samples=lambda: [Sample((np.arange(24.0).reshape(2, 3, 4),), {"perm": perm}) for perm in ((2, 0, 1), None)],
    )
)  # fmt: skip


def expand(x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape)))


def _expand_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    wanted = call.contents(1)
    if wanted is None:
        length = (call.shape(1) or (None,))[0]
        if x.shape is None or not isinstance(length, int):
            return (TensorType(x.dtype, None),)
        return (TensorType(x.dtype, call.unknown(max(len(x.shape), length))),)
    if any(isinstance(d, int) and d < 0 for d in wanted):
        raise call.fail(f"the shape {tuple(wanted)} has a negative size")
    return (TensorType(x.dtype, broadcast_shapes(x.shape, tuple(wanted))),)


def _expand_contents(call: Call) -> Sequence[Contents | None]:
    return contents_by_reference(call) if few_elements(call.ints(1)) else (None,)


def few_elements(shape: Sequence[int] | None) -> bool:
    """Whether a tensor of this shape is small enough to be tracked element by element."""
    return shape is not None and len(shape) <= 1 and math.prod(shape) <= CONTENTS_LIMIT


define(
    OpDef(
        "expand", _expand_infer, expand, Pattern.MOVEMENT, "broadcast together with a shape", contents=_expand_contents,
        flops=no_flops, view=True, onnx=("Expand",),
        samples=lambda: [
            Sample((np.arange(3.0).reshape(3, 1), np.array([2, 1, 4]))),
            Sample((np.arange(3.0).reshape(3, 1), np.array([1]))),
        ],
    )
)  # fmt: skip


# slice


def slice_(x: Array, starts: Array, ends: Array, *, axes: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    where: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = clamp_slice(int(start), int(end), step, x.shape[axis])
    return x[tuple(where)]


def clamp_slice(start: int, end: int, step: int, size: int) -> slice:
    """Python's slice, but one that runs backward starts at 0 where Python's would be empty before the first element."""
    if step < 0 and start < -size:
        start = 0
    return slice(start, end, step)


def _slice_size(size: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """How many elements a slice takes; None when that depends on sizes in a way the algebra does not tell."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(size)[clamp_slice(start, end, step, size)])
    if step < 0:
        if isinstance(end, int) and end < -(1 << 30) and isinstance(start, int) and (start == -1 or start > 1 << 30):
            return ceildiv(size, -step)
        return None
    first, last = (_clamped(i, size) for i in (start, end))
    if first is None or last is None:
        return None
    return maximum(ceildiv(last - first, step), 0)


def _clamped(place: Dim, size: Dim) -> Dim | None:
    if isinstance(place, int):
        return minimum(place, size) if place >= 0 else maximum(size + place, 0)
    low = lower_bound(place)
    if low is not None and low >= 0:
        return minimum(place, size)
    from_end = lower_bound(-place)  # -k for some k above 0, counted from the end
    return maximum(size + place, 0) if from_end is not None and from_end > 0 else None


def _slice_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is None:
        return (x,)
    starts, ends = call.contents(1), call.contents(2)
    axes, steps = normal_axes(call, call.attrs["axes"], len(x.shape)), call.attrs["steps"]
    if any(found is not None and len(found) != len(axes) for found in (starts, ends, steps)):
        raise call.fail(f"starts, ends and steps must name one place for each of the {len(axes)} axes")
    shape = list(x.shape)
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        if step == 0:
            raise call.fail("a slice step of 0 never ends")
        size = None
        if starts is not None and ends is not None:
            size = _slice_size(shape[axis], starts[k], ends[k], step)
        shape[axis] = call.fresh() if size is None else size
    return (TensorType(x.dtype, tuple(shape)),)


def _slice_contents(call: Call) -> Sequence[Contents | None]:
    return contents_by_reference(call) if call.ints(1) is not None and call.ints(2) is not None else (None,)


define(
    OpDef(
        "slice", _slice_infer, slice_, Pattern.MOVEMENT, "every step-th element from start to end along some axes",
        contents=_slice_contents, flops=no_flops, view=True,
        samples=lambda: [
            Sample((np.arange(20.0).reshape(4, 5), np.array([1, -2]), np.array([9, -9])), {"axes": (0, 1), "steps": (2, -1)}),
        ],
    )
)  # fmt: skip


# concat, split, pad


def concat(*inputs: Array, axis: int, out: Array | None = None) -> Array:
    return np.concatenate(inputs, axis=axis, out=out)


def _concat_infer(call: Call) -> Sequence[Type]:
    types = [call.tensor(i) for i in range(len(call.inputs))]
    if not types:
        raise call.fail("there is nothing to join")
    if any(t.dtype != types[0].dtype for t in types):
        raise call.fail("inputs have different types: " + ", ".join(str(t) for t in types))
    known = [t.shape for t in types if t.shape is not None]
    if not known:
        return (TensorType(types[0].dtype, None),)
    rank = len(known[0])
    axis = normal_axis(call, call.attrs["axis"], rank)
    shape: list[Dim] = list(known[0])
    for other in known[1:]:
        if len(other) != rank:
            raise call.fail("inputs have different ranks: " + ", ".join(str(t) for t in types))
        for i in range(rank):
            if i != axis:
                if NO_FACTS.decide(shape[i], other[i]) is False:
                    raise call.fail(f"sizes {shape[i]} and {other[i]} differ along axis {i}, which is not the joined one")
                if isinstance(other[i], int):
                    shape[i] = other[i]
    total: Dim = 0
    for t in types:
        total = total + (call.fresh() if t.shape is None else t.shape[axis])
    shape[axis] = total
    return (TensorType(types[0].dtype, tuple(shape)),)


define(
    OpDef(
        "concat", _concat_infer, concat, Pattern.MOVEMENT, "inputs one after the other along an axis",
        contents=contents_by_reference, flops=no_flops, torch=("aten.cat.default",),
        samples=lambda: [Sample((np.zeros((2, 3)), np.ones((2, 1)), np.ones((2, 0))), {"axis": -1})],
    )
)  # fmt: skip


def split(x: Array, *, axis: int, sizes: tuple[int, ...] | int) -> tuple[Array, ...]:
    if isinstance(sizes, int):
        sizes = tuple(int(d) for d in even_sizes(x.shape[axis], sizes))  # type: ignore[arg-type]
    if sum(sizes) != x.shape[axis]:
        raise ValueError(f"parts of sizes {sizes} do not make up {x.shape[axis]} elements")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def even_sizes(size: Dim, parts: int) -> tuple[Dim, ...]:
    """`parts` sizes that make up `size`: all but the last few are equal, those get what is left."""
    each = ceildiv(size, parts)
    return tuple(minimum(maximum(size - i * each, 0), each) for i in range(parts)) if size % parts != 0 else (each,) * parts


def _split_infer(call: Call) -> Sequence[Type]:
    x, sizes = call.tensor(0), call.attrs["sizes"]
    if isinstance(sizes, int) and sizes <= 0:
        raise call.fail(f"{sizes} is not a number of parts")
    if x.shape is None:
        return tuple(TensorType(x.dtype, None) for _ in range(sizes if isinstance(sizes, int) else len(sizes)))
    axis = normal_axis(call, call.attrs["axis"], len(x.shape))
    if isinstance(sizes, int):
        sizes = even_sizes(x.shape[axis], sizes)
    elif any(isinstance(s, int) and s < 0 for s in sizes):
        raise call.fail(f"a part has a negative size in {tuple(sizes)}")
    elif NO_FACTS.decide(x.shape[axis], sum(sizes)) is False:
        raise call.fail(f"parts of sizes {tuple(sizes)} do not make up axis {axis} of {x}")
    return tuple(TensorType(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes)


define(
    OpDef(
        "split", _split_infer, split, Pattern.MOVEMENT, "parts of given sizes along an axis, or a number of even parts",
        contents=contents_by_reference,
        flops=no_flops, view=True, many=True, torch=("aten.split_with_sizes.default",),
        samples=lambda: [Sample((np.arange(12.0).reshape(2, 6),), {"axis": 1, "sizes": sizes}) for sizes in ((1, 2, 3), 4)],
    )
)  # fmt: skip
