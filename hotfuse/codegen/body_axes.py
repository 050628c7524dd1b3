"""Axes of a body: what differs along them, and bodies with axes in another order, walked from the other end, joined. What the
body computes stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.codegen.body import Body, Fold, Limit, Lookup, Place, Product, Read, Scan, Step, Write
from hotfuse.codegen.tile import Cast, Map, uses
from hotfuse.ir.dim import Dim
from hotfuse.ir.layout import collapse
from hotfuse.ir.types import Shape, numel

Strides = tuple[Any, ...]


def reads(body: Body) -> list[Read]:
    """All reads, a product's two among them."""
    found: list[Read] = []
    for s in body.steps:
        found += [s] if isinstance(s, Read) else [s.a, s.b] if isinstance(s, Product) else []
    return found


def accesses(body: Body) -> list[Read | Write]:
    return [*reads(body), *body.writes]


def args_of(step: Step) -> tuple[str, ...]:
    """The steps that a step takes."""
    return (step.arg,) if isinstance(step, Fold | Scan) else uses(step) if isinstance(step, Map | Cast) else ()


def moves(body: Body, strides: Sequence[Dim]) -> bool:
    """Whether an access differs between the points of a row."""
    return any(s != 0 for s in strides[len(body.domain) - body.folded :])


def varying(body: Body) -> frozenset[str]:
    """The steps that differ between the points of a row; each comes after those that it takes."""
    found: set[str] = set()
    for step in body.steps:
        if isinstance(step, Read):
            looks = [*(k.strides for k in step.lookups), *(x.strides for x in step.limits)]
            varies = any(moves(body, strides) for strides in (step.strides, *looks))
        elif isinstance(step, Place):
            varies = moves(body, step.strides)
        else:
            varies = isinstance(step, Scan) or (not isinstance(step, Fold) and not found.isdisjoint(args_of(step)))
        if varies:
            found.add(step.name)
    return frozenset(found)


def permuted(body: Body, order: Sequence[int]) -> Body:
    """The axes in another order."""
    return _changed(body, tuple(body.domain[a] for a in order), body.folded, lambda s: tuple(s[a] for a in order))


def flipped(body: Body, axis: int) -> Body:
    """An axis walked from its end: what was at place i is at size - 1 - i."""
    last = body.domain[axis] - 1

    def back(strides: Strides) -> Strides:
        return (*strides[:axis], -strides[axis], *strides[axis + 1 :])

    return _changed(body, body.domain, body.folded, back, lambda strides: last * strides[axis])


def joined(body: Body, apart: int = 0) -> Body:
    """The body over as few axes as its accesses allow. The last `apart` axes stay as they are."""
    rank = len(body.domain)
    many: list[Sequence[Dim]] = [a.strides for a in accesses(body)]
    many += [x.strides for r in reads(body) for x in r.lookups]
    many += [x.strides for x in (*body.limits, *(x for r in reads(body) for x in r.limits))]
    many += [s.strides for s in body.steps if isinstance(s, Place)]
    kinds = [(axis >= rank - body.folded, max(0, axis - rank + apart + 1)) for axis in range(rank)]
    runs = collapse(body.domain, many, kinds)
    shape = tuple(numel(tuple(body.domain[a] for a in run)) for run in runs)
    folded = sum(run[0] >= rank - body.folded for run in runs)
    return _changed(body, shape, folded, lambda s: tuple(s[run[-1]] for run in runs))


def _changed(
    body: Body,
    domain: Shape,
    folded: int,
    along: Callable[[Strides], Strides],
    shift: Callable[[Strides], Dim] = lambda strides: 0,
) -> Body:
    """The body with other strides everywhere, and offsets moved by what `shift` says of the old ones."""

    def limit(x: Limit) -> Limit:
        return replace(x, start=x.start + shift(x.strides), strides=along(x.strides))

    def lookup(x: Lookup) -> Lookup:
        return replace(x, offset=x.offset + shift(x.strides), strides=along(x.strides))

    def read(x: Read) -> Read:
        lookups, limits = tuple(map(lookup, x.lookups)), tuple(map(limit, x.limits))
        return replace(x, offset=x.offset + shift(x.strides), strides=along(x.strides), lookups=lookups, limits=limits)

    def step(x: Step) -> Step:
        match x:
            case Read():
                return read(x)
            case Product():
                return replace(x, a=read(x.a), b=read(x.b))
            case Place():
                return replace(x, start=x.start + shift(x.strides), strides=along(x.strides))
            case _:
                return x

    writes = tuple(replace(w, offset=w.offset + shift(w.strides), strides=along(w.strides)) for w in body.writes)
    return Body(domain, folded, tuple(map(step, body.steps)), writes, tuple(map(limit, body.limits)))
