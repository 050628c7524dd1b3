"""Names in the bodies of tile programs: what there is, blocks renamed, variables replaced by dims. Programs are not changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hotfuse.codegen.tile import (
    Access,
    Bound,
    Carry,
    Cast,
    Dot,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Prefetch,
    Reduce,
    Store,
    TileProgram,
    walk,
)
from hotfuse.ir.dim import Dim, substitute, symbol


def defined(body: Iterable[Instruction]) -> set[str]:
    """The blocks and indices that a body defines, and what its loops carry."""
    found: set[str] = set()
    for it in walk(tuple(body)):
        name = getattr(it, "name", None)
        if name is not None:
            found.add(name)
        if isinstance(it, For):
            found |= {c.name for c in it.carry}
    return found


def names_of(program: TileProgram) -> set[str]:
    """All names of sizes, variables, blocks and indices."""
    loops = {it.var for it in walk(program.body) if isinstance(it, For)}
    return {*program.sizes, *(a.var for a in program.grid)} | loops | defined(program.body)


def unused(names: Iterable[str], ending: str, taken: set[str]) -> dict[str, str]:
    """A new name for each: the old one with the ending, as often as it takes to find one that is free. They join `taken`."""
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        new = name + ending
        while new in taken:
            new += ending
        taken.add(new)
        found[name] = new
    return found


def renamed(body: Iterable[Instruction], names: Mapping[str, str]) -> tuple[Instruction, ...]:
    """The body with blocks and indices called otherwise, where they are defined and where they are used."""
    body = tuple(body)
    if not names:
        return body
    indices = {it.name: symbol(names[it.name]) for it in walk(body) if isinstance(it, Index) and it.name in names}
    return _renamed(substituted(body, indices) if indices else body, names)


def _renamed(body: tuple[Instruction, ...], names: Mapping[str, str]) -> tuple[Instruction, ...]:
    def new(name: str) -> str:
        return names.get(name, name)

    made: list[Instruction] = []
    for it in body:
        match it:
            case Map():
                made.append(Map(new(it.name), it.op, tuple(new(a) for a in it.args)))
            case Cast():
                made.append(Cast(new(it.name), it.dtype, new(it.arg)))
            case Reduce():
                made.append(Reduce(new(it.name), it.op, it.axis, new(it.arg)))
            case Dot():
                made.append(Dot(new(it.name), new(it.a), new(it.b), new(it.acc)))
            case Store():
                made.append(replace(it, value=new(it.value)))
            case For():
                carry = tuple(Carry(new(c.name), new(c.init), new(c.next)) for c in it.carry)
                made.append(replace(it, body=_renamed(it.body, names), carry=carry))
            case Prefetch():
                made.append(it)
            case _:
                made.append(replace(it, name=new(it.name)))
    return tuple(made)


def substituted(body: Iterable[Instruction], dims: Mapping[str, Dim]) -> tuple[Instruction, ...]:
    """The body with variables replaced by dims."""
    cache: dict[Dim, Dim] = {}

    def new(dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        if dim not in cache:
            cache[dim] = substitute(dim, dims)
        return cache[dim]

    def at(access: Access) -> Access:
        bounds = tuple(Bound(new(b.start), b.rows, b.cols, new(b.limit)) for b in access.bounds)
        return Access(access.buffer, new(access.offset), new(access.rows), new(access.cols), access.shape, bounds)

    made: list[Instruction] = []
    for it in body:
        match it:
            case Load() | Store() | Prefetch():
                made.append(replace(it, at=at(it.at)))
            case Index():
                made.append(replace(it, at=at(it.at), limit=new(it.limit)))
            case Iota():
                made.append(replace(it, start=new(it.start)))
            case For():
                inner = substituted(it.body, dims)
                made.append(replace(it, start=new(it.start), stop=new(it.stop), body=inner))
            case _:
                made.append(it)
    return tuple(made)


def with_loops(body: Iterable[Instruction], names: Mapping[str, str]) -> tuple[Instruction, ...]:
    """The body with loop variables called otherwise, where loops run over them and where dims name them."""
    made = substituted(body, {old: symbol(new) for old, new in names.items()})

    def visit(inner: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(
            replace(it, var=names.get(it.var, it.var), body=visit(it.body)) if isinstance(it, For) else it for it in inner
        )

    return visit(made)
