"""Lineups: what was made of targets, and the one build that several of them are together.

    generic units  - units that were found wrong  +/- what each edit replaces      answer every call
    units of a form, for each baked target        +/- what edits of them replace   answer calls of these sizes

All variants are units of the same main graph, so a lineup shares prepared weights with every other one.

State of a `Lineup`: what was made of targets, which of them serve, and the last candidates that answered for some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.target import Baked, Edit, Generic, Merged, Revised, Split, Target, base_of
from hotfuse.pace import Pace, Unhurried
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.codegen.tile import TileProgram
    from hotfuse.fusion.grouping import Grouping
    from hotfuse.hardware.achieved import Achieved
    from hotfuse.runtime.build import Build, Sizes, Unit

WRONG = "its kernels were found wrong"
CANDIDATES = 4  # that are kept: what serves, what would without one target, and those before


@dataclass(frozen=True, eq=False)
class Made:
    """What was built for a target: `build` has all units of its variant, `sizes` are those it is for, `without` names units
    that are left to tier 0. `achieved` is what units did while they were proved, by name."""

    target: Target
    build: Build
    objects: Mapping[TileProgram, bytes]
    kernels: Kernels
    sizes: Sizes = ()
    without: tuple[str, ...] = ()
    achieved: Mapping[str, Achieved] = field(default_factory=dict)

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.build.units if unit.name not in self.without)


def grouping_of(target: Target) -> Grouping:
    """The groups that a target is made with."""
    from hotfuse.fusion.engine import Revision  # not before something is built: a model that is loaded need not wait for it
    from hotfuse.fusion.grouping import AS_PLANNED, Grouping

    match target:
        case Merged(units):
            return Grouping(merged=(units,))
        case Split(units):
            return Grouping(apart=units)
        case Revised(strategy, units, _, choice):
            return Grouping(revised=(Revision(strategy, units, choice),))
    return AS_PLANNED


def changed_units(base: Made, edited: Made) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """The units that an edit takes out, and those that it puts in. A revised unit may be other code of the same nodes, and so
    may one that would fetch for a unit that goes."""
    before, after = {unit.nodes for unit in base.build.units}, {unit.nodes for unit in edited.build.units}
    named = set(edited.target.units) if isinstance(edited.target, Revised) else set()
    rows = {unit.row for unit in base.build.units if unit.row and (unit.nodes not in after or unit.name in named)}
    left_alone = {unit.nodes for unit in base.build.units if unit.fetches and unit.row in rows}
    gone = tuple(u for u in base.build.units if u.nodes not in after or u.name in named or u.nodes in left_alone)
    new = (u for u in edited.build.units if u.nodes not in before or u.name in named or u.nodes in left_alone)
    return gone, tuple(new)


def composed(made: Sequence[Made]) -> Build:
    """The build that targets are together, the generic one among them."""
    generic = next(m for m in made if isinstance(m.target, Generic))
    reasons = {**generic.build.reasons, **_reasons(generic)}
    bases: dict[Target, Made] = {m.target: m for m in made if isinstance(m.target, Generic | Baked)}
    units = {target: base.units for target, base in bases.items()}
    for other in made:
        base = bases.get(base_of(other.target))
        if isinstance(other.target, Edit) and base is not None:
            gone, new = changed_units(base, other)
            left = {unit.nodes for unit in gone}
            units[base.target] = (*(unit for unit in units[base.target] if unit.nodes not in left), *new)
    special: dict[Sizes, tuple[Unit, ...]] = {
        base.sizes: units[target] for target, base in bases.items() if isinstance(target, Baked)
    }
    return replace(generic.build, units=units[generic.target], reasons=reasons, special=special)


def kernels_of(made: Sequence[Made]) -> Kernels:
    return {program: kernel for m in made for program, kernel in m.kernels.items()}


def _reasons(made: Made) -> dict[str, str]:
    return {id: WRONG for unit in made.build.units if unit.name in made.without for id in unit.nodes}


class Lineup:
    """The targets of one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.made: dict[Target, Made] = {}
        self.serving: tuple[Target, ...] = ()
        self._candidates: dict[frozenset[Any], tuple[Any, list[Made]]] = {}
        self.pace: Callable[[], Pace] = Unhurried  # at which candidates are made

    @property
    def generic(self) -> Made | None:
        return self.made.get(Generic())

    def serve(self, targets: tuple[Target, ...]) -> None:
        """Have calls answered by these from now on; without the generic kernels, by the original."""
        self.serving = targets if Generic() in targets else ()
        self._subject.publish(self.candidate(targets) if self.serving else None)

    def candidate(self, targets: Collection[Target]) -> Any:
        """What answers for these targets together. One that was made of the same builds before is used again, if the same units
        were left to tier 0."""
        made = [self.made[target] for target in targets]
        key = frozenset((m.target, id(m.build), m.without) for m in made)
        candidate, _ = self._candidates.pop(key, (None, made))
        if candidate is None:
            candidate = self._subject.make(composed(made), kernels_of(made), self.pace())
        self._candidates[key] = candidate, made  # which holds the builds: no other has the identity of one of them
        for old in list(self._candidates)[:-CANDIDATES]:
            del self._candidates[old]
        return candidate

    def without(self, target: Target) -> tuple[Target, ...]:
        return tuple(other for other in self.serving if other != target)

    def new_units(self, made: Made) -> tuple[Unit, ...]:
        """The units that a target brings."""
        base = self.made.get(base_of(made.target))
        if isinstance(made.target, Edit) and base is not None:
            return changed_units(base, made)[1]
        return made.units

    def let_go(self) -> None:
        self.made.clear()
        self._candidates.clear()
