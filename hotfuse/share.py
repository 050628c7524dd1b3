"""Share: how long calls that follow each other without a pause wait for those who work behind them.

Such calls leave no core, and a process beside them holds up their whole team. So some of them begin with a pause, for those
who work: every call earns a share of its length, and whenever that is a pause worth having the next call is that much later.

State: what was earned and not spent.
"""

from __future__ import annotations

ALLOWED = 0.14  # of calls' time
PAUSE = 0.25  # of a call, that a pause takes: a call with one is still far from two, and work comes as far as in longer ones
LEAST_S = 0.001  # of a pause: below that nobody gets to work
MOST_S = 0.5
KEPT = 2.0  # pauses' worth of what was earned while nobody worked


class Share:
    def __init__(self) -> None:
        self._earned_s = 0.0

    def earn(self, seconds: float) -> None:
        """Calls took so long."""
        self._earned_s += ALLOWED * seconds

    def pause_s(self, call_s: float) -> float:
        """How long the next call is to wait, where they take so long; 0: not at all."""
        pause_s = min(max(LEAST_S, PAUSE * call_s), MOST_S)
        self._earned_s = min(self._earned_s, KEPT * pause_s)
        return pause_s if self._earned_s >= pause_s else 0.0

    def spend(self, seconds: float) -> None:
        """Calls waited for so long."""
        self._earned_s -= seconds
