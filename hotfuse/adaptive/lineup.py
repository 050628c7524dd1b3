"""Lineups: what was made of targets, and the one build that several of them are together.

    generic units  - units that were found wrong  +/- what each edit replaces      answer every call
    units of a form, for each baked target                                         answer calls of these sizes

All variants are units of the same main graph, so a lineup shares prepared weights with every other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hotfuse.adaptive.target import Baked, Edit, Generic, Merged, Split, Target
from hotfuse.fusion.grouping import AS_RULED, Grouping

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.codegen.tile import TileProgram
    from hotfuse.runtime.build import Build, Sizes, Unit

WRONG = "its kernels were found wrong"


@dataclass(frozen=True, eq=False)
class Made:
    """What was built for a target: `build` has all units of its variant, `sizes` are those it is for, `without` names units
    that are left to tier 0."""

    target: Target
    build: Build
    objects: Mapping[TileProgram, bytes]
    kernels: Kernels
    sizes: Sizes = ()
    without: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.build.units if unit.name not in self.without)


def grouping_of(target: Target) -> Grouping:
    """The groups that a target is made with."""
    match target:
        case Merged(units):
            return Grouping(merged=(units,))
        case Split(units):
            return Grouping(apart=units)
    return AS_RULED


def changed_units(generic: Made, edited: Made) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """The units that an edit takes out, and those that it puts in."""
    before, after = {unit.nodes for unit in generic.build.units}, {unit.nodes for unit in edited.build.units}
    gone = tuple(unit for unit in generic.build.units if unit.nodes not in after)
    return gone, tuple(unit for unit in edited.build.units if unit.nodes not in before)


def composed(made: Sequence[Made]) -> Build:
    """The build that targets are together, the generic one among them."""
    generic = next(m for m in made if isinstance(m.target, Generic))
    units = list(generic.units)
    reasons = {**generic.build.reasons, **_reasons(generic)}
    special: dict[Sizes, tuple[Unit, ...]] = {}
    for other in made:
        if isinstance(other.target, Edit):
            gone, new = changed_units(generic, other)
            left = {unit.nodes for unit in gone}
            units = [*(unit for unit in units if unit.nodes not in left), *new]
        elif isinstance(other.target, Baked):
            special[other.sizes] = other.units
    return replace(generic.build, units=tuple(units), reasons=reasons, special=special)


def kernels_of(made: Sequence[Made]) -> Kernels:
    return {program: kernel for m in made for program, kernel in m.kernels.items()}


def _reasons(made: Made) -> dict[str, str]:
    return {id: WRONG for unit in made.build.units if unit.name in made.without for id in unit.nodes}
