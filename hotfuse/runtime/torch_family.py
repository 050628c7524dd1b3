"""Family: what the members of one model, that of the whole and those of its submodules, have in common."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.locks import make_lock
from hotfuse.pace import Pace
from hotfuse.records import dataclass
from hotfuse.runtime.fuel import Fuel

if TYPE_CHECKING:
    from hotfuse.runtime.torch_class import ServedClass
    from hotfuse.runtime.torch_classes import ClassTable
    from hotfuse.runtime.torch_serving import Member


SUBMODULE_CAPTURES = 64  # under one model, over all its submodules


class Adapt(Protocol):
    """What becomes of a class once it is captured."""

    def __call__(self, family: Family, name: str, table: ClassTable, served: ServedClass) -> None: ...

    def import_ahead(self, pace: Pace) -> None:
        """Import what that needs, before there is a class: nobody waits for it then."""


class Adapting(Protocol):
    """Whoever adapts a class; its name begins with that of the class's module."""

    @property
    def name(self) -> str: ...
    def adapts(self, served: ServedClass) -> bool: ...
    def close(self) -> None: ...


@dataclass
class Family:
    """What the members of one model share. `budget` is how many captures its submodules may still ask for, `hopeless` why
    the capture of one failed, by what all like it have in common."""

    config: Config
    events: EventLog
    fuel: Fuel
    budget: int = SUBMODULE_CAPTURES
    hopeless: dict[Hashable, str] = field(default_factory=dict)
    counted: tuple[Hashable, float] | None = None  # the captured share of a call in parts, and what was captured before it
    members: dict[int, Member] = field(default_factory=dict)
    open: bool = True
    adapt: Adapt | None = None
    adapted: list[Adapting] = field(default_factory=list)  # held here, for the classes only refer to them
    lock: threading.Lock = field(default_factory=make_lock)

    def all(self) -> tuple[Member, ...]:
        """The members so far, that of the whole model first."""
        with self.lock:
            return tuple(self.members.values())

    def adopt(self, adapting: Adapting) -> None:
        """Somebody adapts a class from now on."""
        with self.lock:
            self.adapted = [*self.adapted, adapting]

    def let_go(self, served: ServedClass) -> None:
        """A class answers no more: nobody need adapt it."""
        with self.lock:
            gone = [adapting for adapting in self.adapted if adapting.adapts(served)]
            self.adapted = [adapting for adapting in self.adapted if adapting not in gone]
        for adapting in gone:
            adapting.close()

    def forget(self, member: Member) -> None:
        """A member whose calls others answer from now on."""
        with self.lock:
            self.members.pop(id(member.module), None)
            gone = [adapting for adapting in self.adapted if adapting.name.startswith(f"{member.name}: ")]
            self.adapted = [adapting for adapting in self.adapted if adapting not in gone]
        member.close()
        for adapting in gone:
            adapting.close()
