"""Samples: the inputs of one real call, copied when somebody wants to prove something on them.

A proof takes some times what the call took, so of calls of any form a shorter one takes the place of a long one that was here
first: not a very short one, in which kernels would do little.

State: the form that is wanted, and the sample, until it is let go. Callers take it from any thread: two may copy at once, and
one copy is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

LONG_S = 0.1  # of a call: a shorter one is preferred,
SHORTER, SHORTEST = 0.5, 0.25  # of that time


class Sample(Generic[T]):
    """Of calls of any form, to begin with."""

    def __init__(self) -> None:
        self._wanted: tuple[Hashable | None] | None = (None,)
        self._taken: tuple[Hashable, T] | None = None
        self._long_s = 0.0  # what the call took, if a shorter one would do as well

    def offer(self, form: Hashable, seconds: float, copy: Callable[[], T | None]) -> None:
        """A call of a form is here, which took the original a time (infinity: another answered). It is copied if it is wanted;
        None: it is too large."""
        wanted, long_s = self._wanted, self._long_s
        if long_s and SHORTEST * long_s <= seconds <= SHORTER * long_s:
            wanted = (None,)
        if wanted is not None and wanted[0] in (None, form):
            taken = copy()
            if taken is not None:
                self._wanted, self._taken = None, (form, taken)
                self._long_s = seconds if wanted[0] is None and seconds > LONG_S else 0.0

    @property
    def taken(self) -> T | None:
        """The sample, if there is one; none is wanted for it."""
        return None if self._taken is None else self._taken[1]

    def get(self, form: Hashable | None) -> T | None:
        """The sample, if it is of this form (None: of any); otherwise the next one will be."""
        taken = self._taken
        if taken is not None and form in (None, taken[0]):
            self._long_s = 0.0 if form is not None else self._long_s
            return taken[1]
        self._wanted, self._long_s = (form,), 0.0
        return None

    def forget(self) -> None:
        self._wanted, self._taken, self._long_s = None, None, 0.0
