"""Rewrites that leave out work: what is computed alike is computed once, what nobody reads not at all; `schedule` says what
rewrites are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotfuse.codegen.tile import (
    Carry,
    For,
    Index,
    Instruction,
    Load,
    Prefetch,
    Store,
    TileProgram,
    uses,
    walk,
)
from hotfuse.codegen.tile_names import renamed, substituted
from hotfuse.codegen.tile_text import show
from hotfuse.ir.dim import Dim, symbol


def share(program: TileProgram) -> TileProgram:
    """What two instructions of one body compute alike is computed once.

    before    a = load x[0]     b = load x[0]     c = map add a b     after    a = load x[0]     c = map add a a
    requires  nothing: a load is shared only if no store to its buffer can lie in between
    """
    stored = {it.at.buffer for it in walk(program.body) if isinstance(it, Store)}

    def shared(body: tuple[Instruction, ...], known: Mapping[str, str]) -> tuple[tuple[Instruction, ...], dict[str, str]]:
        """The body, and what its instructions are called that are gone."""
        seen, same, kept = dict(known), dict[str, str](), list[Instruction]()
        places: dict[str, Dim] = {}
        for it in body:
            (now,) = renamed(substituted((it,), places) if places else (it,), same) if same else (it,)
            if isinstance(now, For):
                inner, gone = shared(now.body, seen)
                carry = tuple(Carry(c.name, c.init, gone.get(c.next, c.next)) for c in now.carry)
                kept.append(replace(now, body=inner, carry=carry))
            elif isinstance(now, Store | Prefetch) or (isinstance(now, Load | Index) and now.at.buffer in stored):
                kept.append(now)
            else:
                key = show(replace(now, name="_"))  # as text: 0.0 and -0.0 are equal, and not the same
                if key in seen:
                    same[now.name] = seen[key]
                    if isinstance(now, Index):
                        places[now.name] = symbol(seen[key])
                    continue
                seen[key] = now.name
                kept.append(now)
        return tuple(kept), same

    return replace(program, body=shared(program.body, {})[0])


def prune(program: TileProgram) -> TileProgram:
    """What nobody reads is not computed.

    before    a = fill f32 1x1 0     b = load x[0]     store b to y[0]     after    b = load x[0]     store b to y[0]
    requires  nothing; an index stays, for it may report a failure
    """

    def pruned(body: tuple[Instruction, ...], wanted: set[str]) -> tuple[Instruction, ...]:
        kept: list[Instruction] = []
        for it in reversed(body):
            if isinstance(it, For):
                inner = wanted | {c.next for c in it.carry}
                it = replace(it, body=pruned(it.body, inner))
                wanted |= {c.init for c in it.carry} | {n for x in walk(it.body) for n in uses(x)}
            elif not isinstance(it, Store | Prefetch | Index) and it.name not in wanted:
                continue
            kept.append(it)
            wanted |= set(uses(it))
        return tuple(reversed(kept))

    return replace(program, body=pruned(program.body, set()))
