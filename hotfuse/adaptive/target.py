"""Targets: what can be built for a model, beyond the original operators that tier 0 runs.

`Generic` is what all others stand on: they are faster ways for some calls, or edits of its units, and go when it goes. An edit
of the kernels for one form stands on these as well.
"""

from __future__ import annotations

from hotfuse.records import dataclass


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


@dataclass(frozen=True)
class Revised:
    """Units, by name, edited in a way that the fusion engine was not sure of: by a strategy, and which of the edits that it has
    for these. They are units of the kernels for all sizes, or for one form where it is named."""

    strategy: str
    units: tuple[str, ...]
    form: str = ""
    choice: int = 0

    def __str__(self) -> str:
        which = f" {self.choice + 1}" if self.choice else ""
        return f"{' + '.join(self.units)} by {self.strategy}{which}{f', for {self.form}' if self.form else ''}"


Edit = Merged | Split | Revised
Target = Generic | Baked | Merged | Split | Revised


def form_of(target: Target) -> str:
    """The one form that a target is for; "" where it is for all."""
    return target.form if isinstance(target, Baked | Revised) else ""


def base_of(target: Target) -> Generic | Baked:
    """What the units of a target take the place of, or those that an edit edits: it stands on that."""
    return Baked(target.form) if isinstance(target, Revised) and target.form else Generic()


def stands_on(target: Target, other: Target) -> bool:
    """Whether a target goes when another goes."""
    return target != other and (isinstance(other, Generic) or base_of(target) == other)
