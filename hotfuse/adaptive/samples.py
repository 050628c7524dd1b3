"""Samples: the inputs of one real call, copied when somebody wants to prove something on them.

State: the form that is wanted, and the sample, until it is let go. Callers take it from any thread: two may copy at once, and
one copy is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Sample(Generic[T]):
    """Of calls of any form, to begin with."""

    def __init__(self) -> None:
        self._wanted: tuple[Hashable | None] | None = (None,)
        self._taken: tuple[Hashable, T] | None = None

    def offer(self, form: Hashable, copy: Callable[[], T | None]) -> None:
        """A call of a form is here. It is copied if it is wanted; None: it is too large."""
        wanted = self._wanted
        if wanted is not None and wanted[0] in (None, form):
            taken = copy()
            if taken is not None:
                self._wanted, self._taken = None, (form, taken)

    @property
    def taken(self) -> T | None:
        """The sample, if there is one; none is wanted for it."""
        return None if self._taken is None else self._taken[1]

    def get(self, form: Hashable | None) -> T | None:
        """The sample, if it is of this form (None: of any); otherwise the next one will be."""
        taken = self._taken
        if taken is not None and form in (None, taken[0]):
            return taken[1]
        self._wanted = (form,)
        return None

    def forget(self) -> None:
        self._wanted = self._taken = None
