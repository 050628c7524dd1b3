"""Data movement in the form that native code is made from: views, copies and parts side by side.

tile      copies side by side  ->  an axis that is read again and again, joined with the one after it
roll      elements round the end  ->  the last ones, then the first ones
concat    with inputs that are empty  ->  without them
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.ir.dim import Dim, lower_bound
from hotfuse.ir.graph import Node, Value
from hotfuse.ir.types import Shape, TensorType, numel
from hotfuse.passes.rewrite import Draft, Rule


def shaped(draft: Draft, value: Value, shape: Sequence[Dim]) -> Value:
    return draft.add("reshape", value, draft.sizes(tuple(shape), value.device), allow_zero=True)


def tile(draft: Draft, node: Node) -> Value | None:
    """before: tile(x, repeats)     after: x as [1, a, 1, b], expanded to [r, a, s, b], as [r * a, s * b]"""
    x, repeats = draft.inputs(node)
    shape, times = _shape(x), None if repeats is None else repeats.contents
    if x is None or shape is None or times is None:
        return None
    rank = max(len(shape), len(times))
    shape, times = (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(times)) + tuple(times)
    apart: list[Dim] = []
    wide: list[Dim] = []
    for size, many in zip(shape, times, strict=True):
        split = size != 1 and many != 1
        apart += [1, size] if split else [size]
        wide += [many, size] if split else [size * many]
    spread = draft.add("expand", shaped(draft, x, tuple(apart)), draft.sizes(wide, x.device))
    return shaped(draft, spread, tuple(size * many for size, many in zip(shape, times, strict=True)))


def roll(draft: Draft, node: Node) -> Value | None:
    """before: roll(x, shift)     after: concat(x[cut:], x[:cut]), for one axis after the other"""
    (x,) = draft.inputs(node)
    shape, shifts, axes = _shape(x), node.attrs["shifts"], node.attrs["axes"]
    if x is None or not shape:
        return None
    found = x if axes is not None else shaped(draft, x, (numel(shape),))
    sizes = shape if axes is not None else (numel(shape),)
    for axis, shift in zip(axes, shifts, strict=True) if axes is not None else ((0, sum(shifts)),):
        axis, cut = axis % len(sizes), _cut(sizes[axis], shift)
        if cut is None:
            return None
        if cut != 0:
            ends = [draft.sizes((d,), x.device) for d in (0, cut, sizes[axis])]
            first, last = (draft.add("slice", found, *ends[i : i + 2], axes=(axis,), steps=(1,)) for i in range(2))
            found = draft.add("concat", last, first, axis=axis)
    return found if axes is not None else shaped(draft, found, shape)


def _cut(size: Dim, shift: int) -> Dim | None:
    """Where the elements begin that come first; None where that depends on how often they go round."""
    if isinstance(size, int):
        return -shift % size if size else 0
    least = lower_bound(size)
    if least is None or least < abs(shift):
        return None
    return size - shift if shift > 0 else -shift


def concat(draft: Draft, node: Node) -> Value | None:
    """before: concat(x, nothing, y)     after: concat(x, y)"""
    given = [x for x in draft.inputs(node) if x is not None]
    full = [x for x in given if 0 not in (_shape(x) or ())]
    if not full or len(full) == len(given):
        return None
    return full[0] if len(full) == 1 else draft.add("concat", *full, axis=node.attrs["axis"])


def _shape(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


MOVES: dict[str, Rule] = {"tile": tile, "roll": roll, "concat": concat}
