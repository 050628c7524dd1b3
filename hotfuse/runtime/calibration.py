"""What is known of a machine: what kernels took on it and what edits of plans made of that, and the forests that were trained
of both, in the cache.

`runtime/calibrating` finds it out.

State: what the cache said of the machine, read once in a process for each folder and share of the machine; who replaces it
forgets that, and other processes see it when they start anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib

from hotfuse.config import Config
from hotfuse.errors import ParseError
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import Forest, read_forest
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import PAIR_FEATURES
from hotfuse.hardware.rates import Rates, print_rates, rates_key, read_rates, typical_rates
from hotfuse.hardware.samples import Samples, no_samples, read_samples
from hotfuse.hardware.spec import Spec
from hotfuse.records import dataclass
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.objects import generator_version


@dataclass(frozen=True)
class Subject:
    """What a forest is about: kinds of its entries in the cache, and the columns of its samples."""

    samples: str
    forest: str
    columns: tuple[str, ...]
    are_ratios: bool = False


TIMES = Subject("samples", "forest", FEATURES)
RATIOS = Subject("pairs", "pair forest", PAIR_FEATURES, are_ratios=True)
SUBJECTS = (TIMES, RATIOS)
RATES = "rates"  # the kind in the cache


@dataclass(frozen=True, eq=False)
class Known:
    """A model of the machine, and what tells it from what was known before or elsewhere."""

    model: Model
    digest: str = "typical"


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where a machine's samples and forests are kept."""

    spec: Spec
    rates: Rates
    cache: DiskCache | None

    def key(self, subject: Subject) -> str:
        """Kernels of another generator take other times."""
        return "\n".join((rates_key(self.spec, self.rates.threads), generator_version(), *subject.columns))

    def samples(self, subject: Subject = TIMES) -> Samples:
        data = None if self.cache is None else self.cache.get(subject.samples, self.key(subject))
        try:
            return no_samples(subject.columns) if data is None else read_samples(data, subject.columns)
        except ParseError:
            return no_samples(subject.columns)

    def elsewhere(self, subject: Subject = TIMES) -> Samples:
        """What another machine, or another share of this one, has taught of the same kernels: of those in the cache the one
        that was used last."""
        own, cache = self.key(subject), self.cache
        machine, _, kernels = own.partition("\n")
        if cache is None:
            return no_samples(subject.columns)
        for entry in cache.entries():
            other, _, its = entry.key.partition("\n")
            if entry.kind != subject.samples or its != kernels or other == machine:
                continue
            with contextlib.suppress(ParseError):
                return read_samples(cache.get(entry.kind, entry.key) or b"", subject.columns)
        return no_samples(subject.columns)

    def forest(self, subject: Subject = TIMES) -> bytes:
        """That of this machine; b"" where there is none."""
        data = None if self.cache is None else self.cache.get(subject.forest, self.key(subject))
        return b"" if data is None or _read(data, subject) is None else data

    def known(self, threads: int) -> Known:
        """What is known of this machine, with teams of so many threads."""
        forests = [self.forest(subject) for subject in SUBJECTS]
        times, ratios = map(_read, forests, SUBJECTS)
        found = hashlib.sha256(print_rates(self.rates).encode())
        for forest in forests:
            found.update(hashlib.sha256(forest).digest())
        return Known(Model(self.rates, threads, times, ratios), found.hexdigest()[:16])

    def keep(self, kind: str, subject: Subject, data: bytes) -> bool:
        return self.cache is not None and self.cache.put(kind, self.key(subject), data)


@functools.lru_cache(8)
def known_machine(folder: str, spec: Spec, threads: int) -> Known:
    """By the cache in this folder. Who calibrated with all threads knows a part of them, too."""
    cache = open_cache(Config(cache=folder))
    rates = kept_rates(spec, threads, cache)
    if rates is None and threads < spec.threads:
        rates = kept_rates(spec, spec.threads, cache)
    if rates is None:
        return Known(Model(typical_rates(spec, threads), threads))
    return Calibration(spec, rates, cache).known(threads)


def forget_machine() -> None:
    """What the cache says of the machine is something else now."""
    known_machine.cache_clear()


def kept_rates(spec: Spec, threads: int, cache: DiskCache | None) -> Rates | None:
    """What was measured of this machine before."""
    data = None if cache is None else cache.get(RATES, rates_key(spec, threads))
    try:
        return None if data is None else read_rates(data.decode())
    except (ParseError, UnicodeDecodeError):
        return None


def keep_rates(rates: Rates, spec: Spec, cache: DiskCache | None) -> bool:
    """Whether they are on the disk now."""
    return cache is not None and cache.put(RATES, rates_key(spec, rates.threads), print_rates(rates).encode())


def _read(data: bytes, subject: Subject) -> Forest | None:
    try:
        forest = read_forest(data) if data else None
    except ParseError:
        return None
    return forest if forest is not None and forest.names == subject.columns else None
