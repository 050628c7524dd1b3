"""The time that a child process has had for a request: not what passes while it is stopped, or waits for a core.

Behind a model that is asked without a pause children have a tenth of the time. A limit by the clock would end there what ends
well elsewhere; what hangs has to be ended all the same. So seconds count in which it sleeps, or has a core. Where nobody can
tell, all of them do.

State: of one request, what was seen at the last look.
"""

from __future__ import annotations

import os
import time

from hotfuse.records import dataclass

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_WAITS = "RTt"  # states in which a thread does not do what it could
_LITTLE = 0.2  # of a core: a thread that is stopped and goes on a hundred times a second has some, though it does nothing


@dataclass(frozen=True)
class _Look:
    at_s: float
    state: str  # of its main thread, as /proc names it; "" where nobody can tell
    worked_s: float  # its main thread
    used_s: float  # all its threads


class ChildTime:
    """`had_s` it has had; for `idle_s` now its main thread has done next to nothing, though it could."""

    def __init__(self, pid: int) -> None:
        self._pid, self._last = pid, _look(pid)
        self.had_s = self.idle_s = 0.0

    @property
    def seen_s(self) -> float:
        """When it was looked at last."""
        return self._last.at_s

    def resume(self) -> None:
        """It waited for us, and goes on."""
        self._last = _look(self._pid)

    def look(self, asks: bool = False) -> None:
        """See what it has had since the last look. One that `asks` has worked until now."""
        before, now = self._last, _look(self._pid)
        self._last = now
        passed_s = now.at_s - before.at_s
        waits = asks or now.state in _WAITS
        self.had_s += min(now.used_s - before.used_s, passed_s) if now.state and waits else passed_s
        if asks or not now.state or now.worked_s - before.worked_s > _LITTLE * passed_s:
            self.idle_s = 0.0
        elif now.state not in _WAITS:
            self.idle_s += passed_s


def _look(pid: int) -> _Look:
    state, worked_s = _of(f"/proc/{pid}/task/{pid}/stat")
    return _Look(time.monotonic(), state, worked_s, _of(f"/proc/{pid}/stat")[1])


def _of(path: str) -> tuple[str, float]:
    """The state and the seconds of a core of a thread or process."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
        return state, (int(fields[10]) + int(fields[11])) / _TICKS
    except (OSError, ValueError, IndexError):
        return "", 0.0
