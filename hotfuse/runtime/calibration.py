"""What is known of a machine: samples of what kernels took on it, and the forest that was trained of them, in the cache.

`runtime/calibrating` finds it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotfuse.errors import ParseError
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import read_forest
from hotfuse.hardware.model import Model
from hotfuse.hardware.rates import Rates, rates_key
from hotfuse.hardware.samples import NO_SAMPLES, Samples, read_samples
from hotfuse.hardware.spec import Spec
from hotfuse.runtime.cache import DiskCache
from hotfuse.runtime.objects import generator_version

SAMPLES, FOREST = "samples", "forest"  # kinds in the cache


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where a machine's samples and forest are kept."""

    spec: Spec
    rates: Rates
    cache: DiskCache | None

    @property
    def key(self) -> str:
        """Kernels of another generator take other times."""
        return "\n".join((rates_key(self.spec, self.rates.threads), generator_version(), *FEATURES))

    def samples(self) -> Samples:
        data = None if self.cache is None else self.cache.get(SAMPLES, self.key)
        try:
            return NO_SAMPLES if data is None else read_samples(data)
        except ParseError:
            return NO_SAMPLES

    def forest(self) -> bytes:
        """That of this machine; b"" where there is none."""
        data = None if self.cache is None else self.cache.get(FOREST, self.key)
        try:
            return b"" if data is None or read_forest(data).names != FEATURES else data
        except ParseError:
            return b""

    def model(self) -> Model:
        """What is known of this machine."""
        data = self.forest()
        return Model(self.rates, self.rates.threads, read_forest(data) if data else None)

    def keep(self, kind: str, data: bytes) -> bool:
        return self.cache is not None and self.cache.put(kind, self.key, data)
