"""Calls of a session: what they are known by, and copies of what they took and gave, which their caller may write into.

State: none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.adaptive.subject import Array
from hotfuse.records import dataclass


@dataclass(frozen=True, eq=False)
class Call:
    """A call that was answered; all of it is nobody's but ours."""

    given: list[Any]
    results: list[Any]

    @property
    def form(self) -> Hashable:
        return form_of(self.given)


def form_of(given: Sequence[Any]) -> Hashable:
    """What calls of the same kernels have in common: the shapes of their inputs."""
    return tuple([getattr(value, "shape", None) for value in given])


def copied_call(given: Sequence[Any], results: Sequence[Any]) -> Call:
    return Call(list(map(_copy, given)), list(map(_copy, results)))


def plain_copies(given: Sequence[Any], results: Sequence[Any], most: int) -> tuple[list[Array], list[Array]] | None:
    """Copies of a call's inputs and outputs, which another process can be sent; None if they are no arrays, or more bytes."""
    size = plain_bytes((*given, *results))
    if size is None or size > most:
        return None
    return [np.array(value) for value in given], [np.array(value) for value in results]


def plain_bytes(values: Sequence[Any]) -> int | None:
    """Of arrays of numbers; None if there is something else."""
    if any(not isinstance(value, np.ndarray | np.generic) or value.dtype.hasobject for value in values):
        return None
    return bytes_of(values)


def bytes_of(values: Iterable[Any]) -> int:
    return sum(bytes_of(value) if isinstance(value, list) else int(getattr(value, "nbytes", 0)) for value in values)


def _copy(value: Any) -> Any:
    """Of what a session takes and gives: arrays, lists of them, or nothing."""
    return list(map(_copy, value)) if isinstance(value, list) else None if value is None else np.array(value)
