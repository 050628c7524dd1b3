"""Samples: what pieces of work took on this machine, or what edits made of it, as arrays that grow by the row and lose the
oldest ones.

Rows of one source (a specimen, a model) belong together: who is asked about something new has seen nothing of it, so sources
are held out as wholes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from hotfuse.errors import ParseError
from hotfuse.records import dataclass

WINDOW = 20_000  # rows that are kept
OWN = 5_000  # of these of models and of their traffic, whose sources lie below 0: they must not push out what chance made
HELD_OUT = 5  # of so many sources, one is held out

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Samples:
    """A row for each piece of work, or edit: its features, what the roofline says, what was measured (seconds, or a ratio), how
    far repeated measurements lay apart, and the number of its source."""

    rows: Array
    prior_s: Array
    seconds: Array
    spread: Array
    source: Array

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Samples) -> Samples:
        """Both, the oldest forgotten where there are too many: of models, and of the others."""
        both = Samples(*(np.concatenate([getattr(part, f.name) for part in (self, other)]) for f in fields(self)))
        is_own = both.source < 0
        most = min(OWN, int(is_own.sum()))
        newer = np.where(is_own, _from_the_end(is_own), _from_the_end(~is_own))
        return both.where(newer <= np.where(is_own, most, WINDOW - most))

    def where(self, chosen: Array) -> Samples:
        return Samples(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @property
    def is_held_out(self) -> Array:
        return np.asarray(self.source % HELD_OUT == HELD_OUT - 1)


def _from_the_end(chosen: Array) -> Array:
    """Which of those that are chosen each is, the last being the first."""
    return np.asarray(np.cumsum(chosen[::-1])[::-1])


def make_samples(
    rows: Array, prior_s: Sequence[float] | Array, seconds: Sequence[float], spread: Sequence[float], source: int
) -> Samples:
    """Those of one source. What the clock could not tell from nothing is left out."""
    made = Samples(
        np.asarray(rows, np.float32),
        np.asarray(prior_s, np.float64),
        np.asarray(seconds, np.float64),
        np.asarray(spread, np.float64),
        np.full(len(seconds), source, np.int64),
    )
    return made.where(made.seconds > 1e-8)


def no_samples(columns: Sequence[str]) -> Samples:
    return make_samples(np.zeros((0, len(columns))), [], [], [], 0)


def write_samples(samples: Samples) -> bytes:
    arrays = {f.name: np.ascontiguousarray(getattr(samples, f.name)) for f in fields(samples)}
    return bytes(safetensors.numpy.save(arrays))


def read_samples(data: bytes, columns: Sequence[str]) -> Samples:
    """Raises ParseError where the bytes are none of ours, or of other features."""
    try:
        found = Samples(**safetensors.numpy.load(data))
        lengths = {len(getattr(found, f.name)) for f in fields(found)}
        kinds = [getattr(found, f.name).dtype for f in fields(found)]
        if len(lengths) != 1 or kinds != [np.float32, np.float64, np.float64, np.float64, np.int64]:
            raise ValueError("columns differ")
        if found.rows.ndim != 2 or found.rows.shape[1] != len(columns):
            raise ValueError("they have other features")
        numbers = (found.rows, found.prior_s, found.seconds, found.spread)
        if not all(np.isfinite(a).all() for a in numbers) or not ((found.prior_s > 0) & (found.seconds > 0)).all():
            raise ValueError("a number is none that can be measured")
        return found
    except (ValueError, TypeError, KeyError, AttributeError, safetensors.SafetensorError) as error:
        raise ParseError(f"these are no samples: {error}") from None
