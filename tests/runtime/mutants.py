"""Planted miscompiles: tile programs with one thing changed, and what a proof says of them, each in a process of its own.

constant   a number, or the start of a row of numbers, is another
start      a fold begins with another number
stride     an access begins elsewhere, or walks memory in other steps
mask       a bound lies elsewhere, is missing, or fills with another number
limit      a loop, or the grid, ends or begins elsewhere
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hotfuse.codegen.tile import Access, Carry, Fill, For, Index, Instruction, Iota, Load, Store, TileProgram, walk
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_text import show
from hotfuse.errors import CodegenError, TileError
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.build import Unit
from hotfuse.runtime.kernels import kernel_of
from hotfuse.runtime.proof import prove
from tests.runtime.proof_models import CONFIG, Array, Built

LIMIT_S = 20  # of CPU time for one mutant: a loop that does not end is killed
REFUSED, KILLED, CAUGHT, PASSED = "refused", "killed", "caught", "passed"


def mutants(program: TileProgram) -> Iterator[tuple[str, TileProgram]]:
    """Every program with one change, and the kind of change."""
    starts = {c.init for it in walk(program.body) if isinstance(it, For) for c in it.carry}
    for place, axis in enumerate(program.grid):
        grid = (*program.grid[:place], replace(axis, count=axis.count - 1), *program.grid[place + 1 :])
        yield "limit", replace(program, grid=grid)
    for kind, body in _changed_bodies(program.body, starts):
        yield kind, replace(program, body=body)


def _changed_bodies(body: tuple[Instruction, ...], starts: set[str]) -> Iterator[tuple[str, tuple[Instruction, ...]]]:
    for place, instruction in enumerate(body):
        for kind, changed in _changed(instruction, starts):
            yield kind, (*body[:place], changed, *body[place + 1 :])
        if isinstance(instruction, For):
            for kind, inner in _changed_bodies(instruction.body, starts):
                yield kind, (*body[:place], replace(instruction, body=inner), *body[place + 1 :])


def _changed(it: Instruction, starts: set[str]) -> Iterator[tuple[str, Instruction]]:
    match it:
        case Fill():
            kind = "start" if it.name in starts else "constant"
            for value in _other_numbers(it.value, it.dtype.is_float):
                yield kind, replace(it, value=value)
        case Iota():
            yield "constant", replace(it, start=it.start + 1)
            yield "constant", replace(it, rows=it.rows + 1)
            yield "constant", replace(it, cols=it.cols + 1)
        case Load():
            if it.at.bounds:
                yield "mask", replace(it, fill=1.0 if it.fill == 0 else 0.0)
            for kind, at in _other_accesses(it.at):
                yield kind, replace(it, at=at)
        case Store():
            for kind, at in _other_accesses(it.at):
                yield kind, replace(it, at=at)
        case Index():
            yield "limit", replace(it, limit=it.limit - 4)
            for kind, at in _other_accesses(it.at):
                yield kind, replace(it, at=at)
        case For():
            yield "limit", replace(it, stop=it.stop - 1)
            yield "limit", replace(it, stop=it.stop + 1)
            yield "limit", replace(it, start=it.start + it.step)
            for place, carry in enumerate(it.carry):
                for other in it.carry:
                    if other.init != carry.init:
                        moved = (*it.carry[:place], Carry(carry.name, other.init, carry.next), *it.carry[place + 1 :])
                        yield "start", replace(it, carry=moved)
        case _:
            pass


def _other_numbers(value: float, is_float: bool) -> Sequence[float]:
    if not math.isfinite(value):
        return (0.0, -value)
    return (value * 1.01 + 0.01, -value - 1.0) if is_float else (value + 1,)


def _other_accesses(at: Access) -> Iterator[tuple[str, Access]]:
    yield "stride", replace(at, offset=at.offset + 1)
    yield "stride", replace(at, offset=at.offset - 1)
    if at.shape[0] > 1:
        yield "stride", replace(at, rows=at.rows + 1)
        yield "stride", replace(at, rows=0)
    if at.shape[1] > 1:
        yield "stride", replace(at, cols=at.cols + 1)
        yield "stride", replace(at, cols=0)
    for place, bound in enumerate(at.bounds):
        rest = at.bounds[:place], at.bounds[place + 1 :]
        yield "mask", replace(at, bounds=(*rest[0], *rest[1]))
        for other in (
            replace(bound, limit=bound.limit + 1),
            replace(bound, limit=bound.limit - 1),
            replace(bound, start=bound.start + 1),
        ):
            yield "mask", replace(at, bounds=(*rest[0], other, *rest[1]))


@dataclass(frozen=True)
class Fate:
    """What became of a mutant on the first inputs, and on each of those held out: refused, killed, caught or passed."""

    kind: str
    first: str
    later: tuple[str, ...] = ()
    what: str = ""  # the operators, and what was changed

    @property
    def is_caught(self) -> bool:
        return self.first != PASSED

    @property
    def breaks_the_rule(self) -> bool:
        """On inputs that were held out. One that is refused was never run, and does not count."""
        return any(fate != PASSED for fate in self.later)


def differs(a: TileProgram, b: TileProgram, instruction: type) -> bool:
    """Whether a mutant has another instruction of this type."""
    left, right = walk(a.body), walk(b.body)
    return any(x != y and isinstance(x, instruction) and not isinstance(x, For) for x, y in zip(left, right, strict=False))


def planted(model: Built, unit: int, recipe: int, program: TileProgram) -> Built:
    """The model with one program of one unit in another's place, compiled."""
    old = model.build.units[unit]
    changed = tuple(replace(r, program=program) if i == recipe else r for i, r in enumerate(old.recipes))
    units = tuple(Unit(old.kind, old.nodes, changed) if i == unit else u for i, u in enumerate(model.build.units))
    kernels = {**model.kernels, program: kernel_of(program, host_spec(CONFIG.isa))}
    return replace(model, build=replace(model.build, units=units), kernels=kernels)


def fate_of(model: Built, unit: int, recipe: int, kind: str, program: TileProgram, feeds: Sequence[dict[str, Array]]) -> Fate:
    """What a proof says of a mutant on the first inputs, and then on those held out."""
    try:
        check(program)
        wrong = planted(model, unit, recipe, program)
    except (TileError, CodegenError):
        return Fate(kind, REFUSED)
    first, *later = _alone(wrong, unit, feeds)
    old = model.build.units[unit]
    ops = [model.build.main.by_id[id].op for id in old.nodes]
    return Fate(kind, first, tuple(later), f"{ops}: {_difference(old.recipes[recipe].program, program)}")


def _difference(before: TileProgram, after: TileProgram) -> str:
    for a, b in zip(walk(before.body), walk(after.body), strict=True):
        if show(a) != show(b):
            return f"{show(a)} -> {show(b)}"
    return f"{before.grid} -> {after.grid}"


def _alone(model: Built, unit: int, feeds: Sequence[dict[str, Array]]) -> list[str]:
    """The verdicts of a child on each of some inputs, or that it died. What it breaks in its memory is gone with it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            for each in feeds:
                (verdict,) = prove(model.build, model.kernels, each, model.weight, CONFIG, [unit])
                os.write(writes, b"1" if verdict.ok else b"0")
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return [KILLED if i >= len(said) else PASSED if said[i] == ord("1") else CAUGHT for i in range(len(feeds))]
