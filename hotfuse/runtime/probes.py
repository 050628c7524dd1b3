"""Measures a machine: the probes of `probe_ir`, run by the driver that runs everything else, become `Rates`.

A rate is the best of some rounds, at several times: what the machine can do when nobody disturbs it. How far rounds lie apart
is told, too.
Rounds take about two milliseconds each, so that a timer's tick or a lost core is seen as what it is.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hotfuse.codegen.link import Code
from hotfuse.errors import NoIdleCores
from hotfuse.hardware.machine import usable_memory_bytes
from hotfuse.hardware.rates import KIB, MIB, Curve, Pair, Rates
from hotfuse.hardware.spec import Spec
from hotfuse.runtime.cache import DiskCache
from hotfuse.runtime.driver import Driver, Job, Step, get_driver
from hotfuse.runtime.memory import aligned_block
from hotfuse.runtime.objects import object_of_ir
from hotfuse.runtime.probe_ir import FLOPS_PER_TILE, TILES, chains, probe_ir
from hotfuse.runtime.pulse import Pulse
from hotfuse.runtime.quiet import Quiet

ROUND_S = 0.002
ROUNDS = 5
PASSES = 3  # over all sizes: who disturbs one measurement is mostly gone when it comes again
SIZES = tuple(16 * KIB << double for double in range(14))  # of each thread's part, to 128 MiB
SHARE = 16  # of the memory, one part in so many is measured at most
STEPS = 256  # of a call, to tell what one of them costs
LEAST_S = 1e-9  # of anything: where the clock tells no difference, noise would be taken for one
FRESH_BYTES = 64 * MIB
SCRATCH = 4096
_ARCH_REQ_XCOMP_PERM, _XTILEDATA, _SYS_ARCH_PRCTL = 0x1023, 18, 158


Progress = Callable[[str, int, int], None]


def quietly(what: str, number: int, of: int) -> None:
    """The progress that nobody looks at."""


class Prober:
    """State: the code of the probes, memory for them, and how far repeated rounds lay apart."""

    def __init__(self, spec: Spec, threads: int, cache: DiskCache | None) -> None:
        self._spec, self._threads = spec, threads
        self._code = Code(object_of_ir(probe_ir(spec), spec, cache))
        self._driver: Driver = get_driver()
        usable = usable_memory_bytes() or 1 << 30
        self.sizes = [size for size in SIZES if size == SIZES[0] or size * threads * SHARE <= usable]
        self._memory = aligned_block(self.sizes[-1] * threads, SCRATCH)
        self._memory[:] = 1
        self.spreads: list[float] = []

    def bandwidth(self, probe: str, size: int) -> tuple[float, float]:
        """GB/s of one thread and of the team, with parts of that size for each thread."""
        one, team = (size * threads / self._seconds(probe, size, threads) / 1e9 for threads in (1, self._threads))
        return one, team

    def arithmetic(self, probe: str, flops: int) -> Pair:
        """GFLOP/s: `flops` is that of one turn of a chain."""
        turns = 4096
        one, team = (flops * turns * n / self._seconds(probe, turns, n) / 1e9 for n in (1, self._threads))
        return Pair(one, team)

    def fma(self) -> Pair:
        return self.arithmetic("fma", 2 * chains(self._spec) * self._spec.vector_bytes // 4)

    def amx(self) -> Pair:
        if not self._spec.amx or not _may_use_tiles():
            return Pair(0.0, 0.0)
        return self.arithmetic("amx", TILES * FLOPS_PER_TILE)

    def costs(self) -> tuple[float, float, float]:
        """Seconds of a step on one thread, of a team's start, and of a barrier."""
        few, many = (self._empty(steps, 1) for steps in (1, STEPS))
        start, met = (self._empty(steps, self._threads) for steps in (1, STEPS))
        call, barrier = (max(longer - shorter, 0.0) / (STEPS - 1) for longer, shorter in ((many, few), (met, start)))
        return max(call, LEAST_S), start, max(barrier, LEAST_S)

    def touch(self) -> float:
        """GB/s at which memory is written that the process did not have before."""
        with mmap.mmap(-1, FRESH_BYTES) as fresh:
            pages = np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE]
            begun = time.perf_counter()
            pages[:] = 1
            seconds = time.perf_counter() - begun
            del pages
        return FRESH_BYTES / seconds / 1e9

    def _seconds(self, probe: str, size: int, threads: int) -> float:
        """Of going once over a part of that size, in each of the threads."""
        times, taken = 1, self._run(probe, size, 1, threads)
        while taken < ROUND_S and times < 1 << 40:
            times = max(2 * times, int(times * ROUND_S / max(taken, 1e-7)))
            taken = self._run(probe, size, times, threads)
        rounds = [self._run(probe, size, times, threads) for _ in range(ROUNDS)]
        self._note(rounds)
        return min(rounds) / times

    def _run(self, probe: str, size: int, times: int, threads: int) -> float:
        table = np.array([self._memory.ctypes.data, size, times], np.int64)
        step = Step(self._code.address(probe), table.ctypes.data, threads)
        return self._timed(Job([step], threads, SCRATCH))

    def _empty(self, steps: int, threads: int) -> float:
        table = np.zeros(3, np.int64)
        step = Step(self._code.address("nothing"), table.ctypes.data, 2 * threads)
        job = Job([step] * steps, threads, SCRATCH)
        rounds = [self._timed(job) for _ in range(50 * ROUNDS)]
        return statistics.median(rounds)

    def _timed(self, job: Job) -> float:
        begun = time.perf_counter()
        self._driver.run(job)
        return time.perf_counter() - begun

    def _note(self, rounds: Sequence[float]) -> None:
        low, middle, high = statistics.quantiles(rounds, n=4)
        self.spreads.append((high - low) / 2 / middle)


def measure_rates(
    spec: Spec, threads: int, cache: DiskCache | None, progress: Progress = quietly, quiet: Quiet | None = None
) -> Rates:
    """Takes some seconds, in which nothing else should run: `quiet` waits for that, and where it has no more patience nothing
    is measured (NoIdleCores). `progress` is told what comes next, as which of how many."""
    _wait(quiet, progress, 1, 1)  # before memory is taken
    prober = Prober(spec, threads, cache)
    pulse = Pulse(spec, threads, cache) if threads > 1 else None
    handed: list[float] = []
    done = itertools.count(1)

    def told(what: str) -> None:
        number, of = next(done), 2 * PASSES * len(prober.sizes) + 4
        _wait(quiet, progress, number, of)
        progress(what, number, of)
        if pulse is not None:
            handed.append(pulse.feel().handed)

    def curve(probe: str) -> Curve:
        best = dict.fromkeys(prober.sizes, (0.0, 0.0))
        for _ in range(PASSES):
            for size, (one, team) in best.items():
                told(f"{probe} {size // KIB:,} KiB")
                now = prober.bandwidth(probe, size)
                best[size] = max(one, now[0]), max(team, now[1])
        return Curve(tuple(best), *zip(*best.values(), strict=True))

    read, write = curve("read"), curve("write")
    told("multiply-adds")
    fma = prober.fma()
    told("tiles")
    amx = prober.amx()
    told("threads")
    costs = prober.costs()
    told("fresh memory")
    touch = prober.touch()
    memory_bytes, spread = usable_memory_bytes() or 0, statistics.median(prober.spreads)
    found = Rates(threads, read, write, fma, amx, *costs, touch, memory_bytes, spread, spec.vector_bytes)
    return replace(found, handed=statistics.median(handed)) if handed else found


def _wait(quiet: Quiet | None, progress: Progress, number: int, of: int) -> None:
    if quiet is not None and not quiet.wait(lambda cores: progress(f"waiting: others have {cores:.1f} cores", number, of)):
        raise NoIdleCores(
            f"others used the cores for {quiet.waited_s:.0f} s, in which nothing could be measured; try again later, or "
            f"`hotfuse calibrate --now`"
        )


def _may_use_tiles() -> bool:
    """Linux gives a process room for tiles only if it asks."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0)
