"""Targets: what can be built for a model, beyond the original operators that tier 0 runs.

`Generic` is what all others stand on: they are faster ways for some calls, or edits of its units, and go when it goes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Generic:
    """Tier 1: fused kernels for every shape of the class."""

    def __str__(self) -> str:
        return "generic kernels"


@dataclass(frozen=True)
class Baked:
    """Tier 2: kernels for one form, a short text of the input shapes."""

    form: str

    def __str__(self) -> str:
        return f"kernels for {self.form}"


@dataclass(frozen=True)
class Merged:
    """Units, by name, that run one after the other, as one."""

    units: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' + '.join(self.units)} as one"


@dataclass(frozen=True)
class Split:
    """Units, by name, that were fused, taken apart."""

    units: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' + '.join(self.units)} taken apart"


Edit = Merged | Split
Target = Generic | Baked | Merged | Split
