"""Pulse: how near to each other the cores of a team are just now, felt in a fraction of a millisecond.

Whoever runs a virtual machine moves its cores about: for seconds two of them share a cache, then they lie on different chips,
then they are the two halves of one. What threads hand to each other takes three to eight times as long on different chips, and
arithmetic twice as long on halves. Nothing tells a process, so it is felt:

    handed     threads take over what another one wrote, in turns: GB/s of each
    together   multiply-adds of the team, over those of one thread

State: the code of the probes, and some memory.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from hotfuse.codegen.link import Code
from hotfuse.hardware.rates import KIB, Closeness
from hotfuse.hardware.spec import Spec
from hotfuse.runtime.cache import DiskCache
from hotfuse.runtime.driver import Driver, Job, Step, get_driver
from hotfuse.runtime.memory import aligned_block
from hotfuse.runtime.objects import object_of_ir
from hotfuse.runtime.probe_ir import probe_ir

PART = 64 * KIB  # that is handed over: more than the nearest cache has room for
TURNS = 16  # of handing over, in one run
LINKS = 4096  # of a chain of multiply-adds, four times: about 40 us
ROUNDS = 5
SCRATCH = 4096


class Pulse:
    def __init__(self, spec: Spec, threads: int, cache: DiskCache | None) -> None:
        self._code = Code(object_of_ir(probe_ir(spec), spec, cache))
        self._driver: Driver = get_driver()
        self._memory = aligned_block(PART * (threads + 1), SCRATCH)
        self._memory[:] = 1
        start = self._memory.ctypes.data
        # thread t has part t in one step, and part t + 1, which another one just wrote, in the next
        self._tables = [np.array(words, np.int64) for words in ((start, PART, 1), (start + PART, PART, 1), (start, LINKS, 4))]
        here, there = (Step(self._code.address("write"), table.ctypes.data, threads) for table in self._tables[:2])
        self._hands = Job([here, there] * (TURNS // 2), threads, SCRATCH)
        fma, table = self._code.address("fma"), self._tables[2].ctypes.data
        self._chains = [Job([Step(fma, table, n)], n, SCRATCH) for n in (1, threads)]
        self._threads = threads

    def feel(self) -> Closeness:
        """Wakes the team. Best times: whoever has a core for a moment has it in some rounds only."""
        self._driver.run(self._hands)
        turn_s = statistics.median(self._seconds(self._hands) for _ in range(ROUNDS)) / TURNS
        one_s, team_s = (min(self._seconds(job) for _ in range(ROUNDS)) for job in self._chains)
        return Closeness(PART / turn_s / 1e9, self._threads * one_s / team_s)

    def _seconds(self, job: Job) -> float:
        begun = time.perf_counter()
        self._driver.run(job)
        return time.perf_counter() - begun
