"""Layouts: views as affine maps, so that reshapes, transposes and slices are read through and never copied.

A `Layout` says where the elements of a value lie in the memory of another, its root:

    value[i0, i1, ...]  =  root[offset + strides[0]*i0 + strides[1]*i1 + ...]

The root's own memory is contiguous, rows last. Sizes and strides are dims, so one layout serves all shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotfuse.ir.dim import Dim, lower_bound, maximum, minimum
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.ops.movement import even_sizes
from hotfuse.ir.types import Shape, TensorType
from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    root: str
    offset: Dim
    shape: Shape
    strides: tuple[Dim, ...]


def contiguous_strides(shape: Shape) -> tuple[Dim, ...]:
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def plain(name: str, shape: Shape) -> Layout:
    """A value in memory of its own."""
    return Layout(name, 0, shape, contiguous_strides(shape))


def layouts(graph: Graph, values: Mapping[str, Value]) -> dict[str, Layout]:
    """The layout of every tensor of known rank; `values` are the graph's, or the same bound to exact shapes."""
    found: dict[str, Layout] = {}
    for name in (*graph.inputs, *graph.weights, *graph.constants):
        type = values[name].type
        if isinstance(type, TensorType) and type.shape is not None:
            found[name] = plain(name, type.shape)
    for node in graph.nodes:
        source = found.get(node.inputs[0] or "") if node.inputs else None
        views = view(node, source, values) if source is not None else None
        for place, name in enumerate(node.outputs):
            type = values[name].type
            if isinstance(type, TensorType) and type.shape is not None:
                found[name] = views[place] if views is not None else plain(name, type.shape)
    return found


def view(node: Node, source: Layout, values: Mapping[str, Value]) -> tuple[Layout, ...] | None:
    """The layouts of a node's results within its first input's root, or None where it makes new memory."""
    shapes = [t.shape if isinstance(t := values[n].type, TensorType) else None for n in node.outputs]
    if any(shape is None for shape in shapes):
        return None
    (shape, *_) = shapes
    assert shape is not None
    match node.op:
        case "transpose":
            perm = node.attrs.get("perm") or tuple(reversed(range(len(source.shape))))
            return (Layout(source.root, source.offset, shape, tuple(source.strides[p] for p in perm)),)
        case "reshape" | "squeeze" | "unsqueeze":
            strides = reshaped(source, shape)
            return None if strides is None else (Layout(source.root, source.offset, shape, strides),)
        case "expand":
            return (Layout(source.root, source.offset, shape, broadcast_strides(source, shape)),)
        case "slice":
            return _sliced(node, source, shape, values)
        case "flip":
            return (_flipped(source, [a % len(shape) for a in node.attrs["axes"]]),)
        case "split":
            return _split(node, source, values)
    return None


def broadcast_strides(source: Layout, shape: Shape) -> tuple[Dim, ...]:
    """The strides of `source` where it is broadcast to `shape`. A size that may or may not be 1 decides when it is known."""
    missing = len(shape) - len(source.shape)
    strides: list[Dim] = [0] * missing
    for stride, size, wanted in zip(source.strides, source.shape, shape[missing:], strict=True):
        if size == wanted:
            strides.append(stride)
        else:
            strides.append(0 if size == 1 else stride * minimum(size - 1, 1))
    return tuple(strides)


def point_strides(shape: Shape, domain: Shape, folded: Sequence[int] = ()) -> tuple[Dim, ...]:
    """Where a value that is computed at the points of a domain has its elements, in memory of its own. A row's value, the same
    all along the folded axes, has these left out, or of size 1."""
    rank = len(domain)
    dropped = bool(folded) and len(shape) == rank - len(folded)
    axes = [a for a in range(rank) if not (dropped and a in folded)]
    strides: list[Dim] = [0] * rank
    step: Dim = 1
    sizes = list(zip(reversed(axes), reversed(shape), strict=False))
    row = any(size == 1 != domain[place] for place, size in sizes if place in folded)
    for place, size in sizes:
        once = domain[place] != 1 or (row and place in folded)  # an axis of one element is walked as any other
        strides[place] = 0 if size == 1 and once else step
        step = step * size
    return tuple(strides)


def reshaped(source: Layout, shape: Shape) -> tuple[Dim, ...] | None:
    """The strides of the same elements in order in another shape; None where no strides do that.

    Runs of axes with equal numbers of elements correspond. Within a run the source must be evenly spaced."""
    strides: list[Dim] = []
    old, new = 0, 0
    while old < len(source.shape) or new < len(shape):
        old_end, new_end = old, new
        left: Dim = 1
        right: Dim = 1
        while True:
            if old_end > old and new_end > new and left == right:
                break
            if new_end < len(shape) and shape[new_end] == 1 and new_end == new:
                break
            if old_end < len(source.shape) and source.shape[old_end] == 1 and old_end == old and new_end == new:
                break
            take_old = old_end < len(source.shape) and (_smaller(left, right) or new_end == len(shape) or old_end == old)
            if take_old:
                left = left * source.shape[old_end]
                old_end += 1
            elif new_end < len(shape):
                right = right * shape[new_end]
                new_end += 1
            else:
                return None
        if new_end == new and old_end == old:  # a size of 1 on one side alone
            if new < len(shape) and shape[new] == 1:
                strides.append(0)
                new += 1
            else:
                old += 1
            continue
        step = _even(source, old, old_end)
        if step is None:
            return None
        run: list[Dim] = []
        for size in reversed(shape[new:new_end]):
            run.append(step)
            step = step * size
        strides += reversed(run)
        old, new = old_end, new_end
    return tuple(strides)


def _smaller(a: Dim, b: Dim) -> bool:
    """Whether a surely holds fewer elements than b."""
    least = lower_bound(b - a)
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return least is not None and least > 0


def _even(source: Layout, start: int, end: int) -> Dim | None:
    """The step between neighbours if axes start .. end - 1 are evenly spaced taken together."""
    step, expected = source.strides[end - 1], source.strides[end - 1]
    for axis in reversed(range(start, end)):
        if source.shape[axis] != 1 and source.strides[axis] != expected:
            return None
        expected = expected * source.shape[axis]
    return step


def _sliced(node: Node, source: Layout, shape: Shape, values: Mapping[str, Value]) -> tuple[Layout, ...] | None:
    starts = values[node.inputs[1]].contents if node.inputs[1] else None
    if starts is None:
        return None
    offset, strides = source.offset, list(source.strides)
    for axis, start, step in zip(node.attrs["axes"], starts, node.attrs["steps"], strict=True):
        first = _first(start, step, source.shape[axis])
        if first is None:
            return None
        offset = offset + first * strides[axis]
        strides[axis] = strides[axis] * step
    return (Layout(source.root, offset, shape, tuple(strides)),)


def _first(start: Dim, step: int, size: Dim) -> Dim | None:
    """The place of a slice's first element; None where that is not known before the sizes are."""
    if step < 0:
        if isinstance(start, int) and isinstance(size, int):
            return max(slice(start, None, step).indices(size)[0], 0)
        return size - 1 if isinstance(start, int) and (start == -1 or start > 1 << 30) else None
    if _is_least(start, 0):
        return minimum(start, size)
    return maximum(size + start, 0) if _is_least(-start, 1) else None


def _is_least(dim: Dim, least: int) -> bool:
    """Whether a dim is surely `least` or more."""
    found = lower_bound(dim)
    return found is not None and found >= least


def _flipped(source: Layout, axes: Sequence[int]) -> Layout:
    """The same elements, the last first along some axes."""
    offset, strides = source.offset, list(source.strides)
    for axis in axes:
        offset = offset + (source.shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return Layout(source.root, offset, source.shape, tuple(strides))


def _split(node: Node, source: Layout, values: Mapping[str, Value]) -> tuple[Layout, ...]:
    axis, sizes = node.attrs["axis"], node.attrs["sizes"]
    if isinstance(sizes, int):
        sizes = even_sizes(source.shape[axis], sizes)
    made, offset = [], source.offset
    for name, size in zip(node.outputs, sizes, strict=False):
        type = values[name].type
        assert isinstance(type, TensorType)
        assert type.shape is not None
        made.append(Layout(source.root, offset, type.shape, source.strides))
        offset = offset + size * source.strides[axis]
    return tuple(made)


def collapse(shape: Shape, many: Sequence[Sequence[Dim]], kinds: Sequence[object] | None = None) -> list[list[int]]:
    """Runs of axes of `shape` that every list of strides walks evenly, so that each run can be one axis. Axes of different
    `kinds` stay apart; those of size 1 join any run."""
    runs: list[list[int]] = []
    for axis in range(len(shape)):
        if runs:
            last = runs[-1][-1]
            same = kinds is None or kinds[last] == kinds[axis]
            if same and all(s[last] == s[axis] * shape[axis] for s in many):
                runs[-1].append(axis)
                continue
        runs.append([axis])
    return runs
