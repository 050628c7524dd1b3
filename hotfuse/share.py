"""Share: what calls that follow each other without a pause may lose to work beside them.

Nobody knows ahead how much that is: it depends on how their threads wait for each other. So it is measured: in one turn of
some nobody works beside the calls, and how many end in a second then is what they could do. Every turn earns a share of its
length, and costs what calls lost in it; while there is a debt, the next turns are the calls' own.

State: what calls did in the turn that goes on, in the last ones that were theirs alone, and what was earned and not spent.
"""

from __future__ import annotations

from collections import deque

ALLOWED = 0.12  # of calls' time
ALONE = 8  # turns, of which at least one is the calls' own
FAST = 4  # turns in a row that are the calls' own at most: who works is slow, and not starved
LEAST = 5  # calls, by which a turn is judged
LONGEST_S = 4.0  # that they are waited for
REMEMBERED = 4  # turns that were the calls' own
MOST_S = 1.0  # that may be earned, or owed twice


class Share:
    """`granted`: whether somebody may work in this turn."""

    def __init__(self) -> None:
        self.granted = True
        self._alone: deque[float] = deque(maxlen=REMEMBERED)
        self._turns = 0  # in a row that are alike
        self._earned_s = self._passed_s = 0.0
        self._calls, self._first_s, self._last_s = 0, 0.0, 0.0

    def ended(self, now_s: float) -> None:
        """A call did."""
        if self._calls == 0:
            self._first_s = now_s
        self._calls, self._last_s = self._calls + 1, now_s

    def restart(self) -> None:
        """There are pauses: whatever was measured is of no use later."""
        self.__init__()  # type: ignore[misc]

    def turn(self, passed_s: float, worked: bool) -> None:
        """A turn is over in which somebody worked beside the calls, or nobody; it goes on where too few calls ended in it."""
        self._passed_s += passed_s
        if self._calls >= LEAST:
            self._judge(worked)
        elif self._passed_s < LONGEST_S:
            return
        else:
            self._next(True)
        self._passed_s, self._calls = 0.0, 0

    def _judge(self, worked: bool) -> None:
        call_s = (self._last_s - self._first_s) / (self._calls - 1)
        if not worked:
            self._alone.append(call_s)
        usual_s = sorted(self._alone)[len(self._alone) // 2] if self._alone else call_s
        lost_s = self._passed_s * (1 - usual_s / call_s) if worked else 0.0
        self._earned_s += ALLOWED * self._passed_s - lost_s
        self._earned_s = max(-2 * MOST_S, min(self._earned_s, MOST_S))
        if self.granted:
            self._next(bool(self._alone) and self._turns < ALONE and self._earned_s > 0)
        else:
            self._next(self._turns >= FAST or self._earned_s > 0)

    def _next(self, granted: bool) -> None:
        self._turns = self._turns + 1 if granted == self.granted else 1
        self.granted = granted
