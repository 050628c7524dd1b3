"""ClassTable: the captured classes of one module, which of them fit a call, and the frames that have none for good.

State, replaced under a lock and read without: the classes, why frames failed, which class answered calls of which shapes (a
memory of its own for each set of classes: who found one amid a change writes it where nobody looks any more), and how long the
module has been away from classes that would fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from hotfuse.locks import make_lock
from hotfuse.runtime.patience import Patience
from hotfuse.runtime.torch_guard import Call

if TYPE_CHECKING:
    from hotfuse.runtime.torch_class import ServedClass

MEMO_LIMIT = 4096
LOOK_EVERY = 16  # calls; a look takes 0.1 ms for BERT-base


class ClassTable:
    """The classes of one module, in the order of their captures."""

    def __init__(self) -> None:
        self.all: tuple[ServedClass, ...] = ()
        self.failed: dict[Hashable, str] = {}
        self.last_miss = ""  # why the last call that was not answered by a class was not
        self.lock = make_lock()
        self._memo: dict[Hashable, ServedClass] = {}
        self._moves: dict[Hashable, Patience] = {}  # of classes that fit the same calls: how long the module is away from them

    def fitting(self, call: Call) -> Iterator[ServedClass]:
        """The classes whose guards hold for a call, first the one that was found last time."""
        key = (call.frame, call.shapes)
        memo = self._memo  # before the classes: it is replaced after them
        known = memo.get(key)
        if known is not None:
            yield known
        for served in self.all:
            if served is not known and not served.guard.check(call):
                if len(memo) >= MEMO_LIMIT:
                    memo.clear()
                memo[key] = served
                yield served

    def is_homeless(self, call: Call) -> bool:
        """Whether no class fits a call, or the module has left all that do and stays where it is: a model that changes in every
        call would be captured for ever. One call in `LOOK_EVERY` looks, and the next ones until that is clear."""
        fitting = list(self.fitting(call))
        if not fitting:
            return True
        with self.lock:
            patience = self._moves.setdefault(tuple(map(id, fitting)), Patience())
            if not patience.is_due(LOOK_EVERY):
                return False
        reasons = [served.departure() for served in fitting]
        seen = [*reasons, *chain.from_iterable(served.state() for served in fitting)] if all(reasons) else []
        with self.lock:
            steady = bool(seen) and patience.is_steady(seen, _same_state)
            if steady or not seen:
                patience.forget()
            return steady

    def add(self, served: ServedClass) -> None:
        """Called under the lock, as are the next three."""
        self.all = (*self.all, served)
        self._moves.clear()

    def replace(self, served: ServedClass, other: ServedClass) -> None:
        """Another class for the same calls; nothing, if the class is not here any more."""
        self.all = tuple(other if c is served else c for c in self.all)
        self._memo = {}
        self._moves.clear()

    def forget(self, served: ServedClass) -> None:
        self.all = tuple(c for c in self.all if c is not served)
        self._memo = {}
        self._moves.clear()

    def fail(self, frame: Hashable, why: str) -> None:
        """Calls of this frame are not captured (again)."""
        self.failed = {**self.failed, frame: why}

    def drop(self, served: ServedClass, why: str) -> None:
        """A class that must never answer again, nor be captured again."""
        with self.lock:
            self.forget(served)
            self.fail(served.guard.frame, why)

    def clear(self) -> None:
        with self.lock:
            self.all = ()
            self._memo = {}


def _same_state(a: list[Any], b: list[Any]) -> bool:
    from hotfuse.frontends.torch_watch import same_state  # there already: a class was captured

    return same_state(a, b)
