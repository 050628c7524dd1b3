"""Attempts: the ways in which a call may be traced, from the most general class of shapes to the call's own shapes alone.

widened        every size of 1 becomes another, every size may vary
batch widened  the same for leading sizes of 1 only
dynamic        the sizes of the call, every one may vary
batch          leading sizes of 1 widened, only leading sizes may vary
static         the sizes of the call, none may vary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotfuse.frontends.torch_request import TensorInput
from hotfuse.records import dataclass

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Attempt:
    """Example shapes of the tensors of a call, and for each the axes whose sizes may vary."""

    name: str
    shapes: Shapes
    axes: tuple[tuple[int, ...], ...]

    @property
    def is_static(self) -> bool:
        return not any(self.axes)

    @property
    def varies_within(self) -> bool:
        """Whether sizes other than leading ones may vary."""
        return any(axis > 0 for axes in self.axes for axis in axes)


def exact_shapes(leaves: Sequence[Any]) -> Shapes:
    return tuple(leaf.shape for leaf in leaves if isinstance(leaf, TensorInput))


def attempts(leaves: Sequence[Any]) -> tuple[Attempt, ...]:
    """All different ways to trace a call, the static one last."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorInput)]
    exact = exact_shapes(leaves)
    static = Attempt("static", exact, tuple(() for _ in exact))
    if any(t.order is None or 0 in t.shape for t in tensors):
        return (static,)
    taken = {size for shape in exact for size in shape}
    fresh = (n for n in range(3, 1 << 20) if n not in taken)
    rank = max((len(s) for s in exact), default=0)
    widths = [next(fresh) for _ in range(rank)]  # one per axis: sizes of 1 at the same axis most likely belong together
    everywhere = tuple(tuple(widths[i] if size == 1 else size for i, size in enumerate(s)) for s in exact)
    leading = tuple(tuple(widths[0] if size == 1 and i == 0 else size for i, size in enumerate(s)) for s in exact)
    every_axis = tuple(tuple(range(len(s))) for s in exact)
    ways = (
        Attempt("widened", everywhere, every_axis),
        Attempt("batch widened", leading, every_axis),
        Attempt("dynamic", exact, every_axis),
        Attempt("batch", leading, tuple(axes[:1] for axes in every_axis)),
    )
    named = {(a.shapes, a.axes): a for a in ways if not a.is_static}  # of equal ones the last: its name says enough
    return (*named.values(), static)
