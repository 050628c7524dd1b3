"""What a run of kernels achieved, and what bound it: counted work joined with the time that was measured.

    arithmetic   operations / what this machine computes a second      explains most of the time
    memory       bytes / what it moves a second, from as far as they lie apart     does
    overhead     neither explains `EXPLAINED` of it: handing out tasks, meeting, or code that is far from what it could be

Operations are vector operations, of which a function like exp takes many (`fusion/analyzer`); the rate that is shown is that of
plain flops, as everybody counts them.
"""

from __future__ import annotations

from hotfuse.hardware.prior import COMPUTE, MEMORY, OVERHEAD
from hotfuse.hardware.rates import Rates
from hotfuse.records import dataclass

EXPLAINED = 0.25  # of the time: generated kernels commonly reach a half of either rate


@dataclass(frozen=True)
class Achieved:
    """Rates are of all threads together. `share` is the part of the time that what binds explains."""

    seconds: float
    flops: float
    bytes_moved: float
    gflops_per_s: float
    gbytes_per_s: float
    by: str
    share: float


def judge_run(seconds: float, flops: float, steps: float, bytes_moved: float, rates: Rates, threads: int) -> Achieved:
    """Of a run that took so long on a machine of these rates, with a team of so many threads. `steps` are vector operations."""
    seconds = max(seconds, 1e-9)
    # a multiply-add is two flops, and one operation
    arithmetic_s = max(flops, 2 * steps) / (rates.fma.of(threads, rates.threads) * 1e9)
    memory_s = bytes_moved / (rates.read.at(max(bytes_moved / threads, 1.0), threads, rates.threads) * 1e9)
    by, floor_s = (COMPUTE, arithmetic_s) if arithmetic_s > memory_s else (MEMORY, memory_s)
    if floor_s < EXPLAINED * seconds:
        by = OVERHEAD
    share = min(1.0, floor_s / seconds)
    rate = 1e-9 / seconds
    return Achieved(seconds, flops, bytes_moved, flops * rate, bytes_moved * rate, by, 1 - share if by == OVERHEAD else share)
