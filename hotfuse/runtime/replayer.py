"""Replaying from a process that must not die of it: requests to a child, whose death is a finding.

State: a `Replayer` has one child process at a time, started when it is needed.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from hotfuse.config import Config
from hotfuse.errors import ConfigError, WorkerError
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.child import DIED, TIMEOUT, ChildProcess
from hotfuse.runtime.child_start import spawned
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.replay import INTERPRETED, TODAY, TOGETHER, UNJUDGED, WRONG, Finding, ReplayRequest, ways_of
from hotfuse.runtime.reproduction import Reproduction

MODULE = "hotfuse.runtime.replay_worker"


class Replayer:
    """Judges reproductions, each way in a process that it can lose."""

    def __init__(self, config: Config, timeout_s: float | None = None) -> None:
        self._config = config
        self._timeout_s = config.compile_timeout_s if timeout_s is None else timeout_s
        self._child: ChildProcess | None = None

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.forget()
            self._child = None

    def replay(self, reproduction: Reproduction) -> tuple[Finding, ...]:
        """What every way says."""
        return tuple(finding for way in ways_of(reproduction) for finding in self.judge(reproduction, way))

    def judge(self, reproduction: Reproduction, way: str) -> tuple[Finding, ...]:
        """What one way says. Where the process dies of several units, each is judged by itself."""
        found = self._ask(ReplayRequest(reproduction, way, self._config))
        lost = found[0].reason if found and not found[0].unit else ""
        if lost and found[0].verdict == WRONG and way not in (TODAY, TOGETHER) and len(reproduction.units) > 1:
            places = range(len(reproduction.units))
            return tuple(f for place in places for f in self._ask(ReplayRequest(reproduction, way, self._config, (place,))))
        return found

    def _ask(self, request: ReplayRequest) -> tuple[Finding, ...]:
        if self._child is None or not self._child.alive:
            self.close()
            self._child = ChildProcess(spawned(MODULE), name="process that replayed it", behind=False)
        try:
            answer = self._child.ask(wrap(request), self._timeout_s, self._config.max_worker_bytes)
        except WorkerError as error:
            return (_of_death(request, error),)
        found: tuple[Finding, ...] = unwrap(answer)
        return found


def _of_death(request: ReplayRequest, error: WorkerError) -> Finding:
    """A process that dies of native code, or does not come back from it, says that the code is wrong."""
    told = request.way != INTERPRETED and error.cause in (DIED, TIMEOUT)
    units = request.reproduction.units
    chosen = units if request.units is None else [units[place] for place in request.units]
    name = chosen[0].name if len(chosen) == 1 else ""
    return Finding(request.way, name, WRONG if told else UNJUDGED, str(error))


def config_for(reproduction: Reproduction, config: Config) -> Config:
    """The options under which it is replayed: those of when it was written, as far as this machine has them; no cache."""
    then = reproduction.circumstances
    chosen = replace(config, cache="off", tiles="", strict=False, threads=max(1, min(then.threads, 256)))
    try:
        host_spec(then.isa)
        return replace(chosen, isa=then.isa)
    except ConfigError:  # this machine has no such instructions
        return replace(chosen, isa="native")
