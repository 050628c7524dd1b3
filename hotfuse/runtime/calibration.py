"""What is known of a machine: what kernels took on it and what edits of plans made of that, and the forests that were trained
of both, in the cache.

`runtime/calibrating` finds it out.
"""

from __future__ import annotations

from hotfuse.errors import ParseError
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import Forest, read_forest
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import PAIR_FEATURES
from hotfuse.hardware.rates import Rates, rates_key
from hotfuse.hardware.samples import Samples, no_samples, read_samples
from hotfuse.hardware.spec import Spec
from hotfuse.records import dataclass
from hotfuse.runtime.cache import DiskCache
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

    def forest(self, subject: Subject = TIMES) -> bytes:
        """That of this machine; b"" where there is none."""
        data = None if self.cache is None else self.cache.get(subject.forest, self.key(subject))
        return b"" if data is None or _read(data, subject) is None else data

    def model(self) -> Model:
        """What is known of this machine."""
        times, ratios = (_read(self.forest(subject), subject) for subject in SUBJECTS)
        return Model(self.rates, self.rates.threads, times, ratios)

    def keep(self, kind: str, subject: Subject, data: bytes) -> bool:
        return self.cache is not None and self.cache.put(kind, self.key(subject), data)


def _read(data: bytes, subject: Subject) -> Forest | None:
    try:
        forest = read_forest(data) if data else None
    except ParseError:
        return None
    return forest if forest is not None and forest.names == subject.columns else None
