"""What a proof says of a unit of a build."""

from __future__ import annotations

from hotfuse.records import dataclass


@dataclass(frozen=True)
class UnitVerdict:
    """Of the unit at place `unit` of a build: whether its kernels are right, or the reason why not; which values were seen,
    and by which rules; the seconds that the proof took, and a run of the kernels. `tried` is False where nothing can be said:
    tier 0 itself could not compute what the kernels read, or they were not made for these sizes. The rest is what that run had
    to do, counted: flops, vector operations (`steps`) and bytes, and with how many threads."""

    unit: int
    ok: bool
    reason: str
    what: str
    seconds: float
    native_s: float
    tried: bool = True
    flops: float = 0.0
    steps: float = 0.0
    bytes_moved: float = 0.0
    threads: int = 1
