"""Spare memory: what calls freed and the C library keeps goes back to the system, behind calls.

Calls of the original allocate for every operator, and leave several times what a fused model needs; calls of ever new shapes
leave more and more in between what is used. So it is given back soon after native code was published, and later on wherever
this process has grown since.

State: when to look next, and what the process held after it last gave something back. Only the background's thread touches it.
"""

from __future__ import annotations

import math
import os

from hotfuse.pace import Unhurried
from hotfuse.runtime.memory import give_back

SOON_S = 3.0  # after native code was published: calls that began before have ended
EVERY_S = 20.0
GROWN = 0.01  # of what was held: giving back less is not worth a look at the whole heap


class Spare:
    """Of one process."""

    def __init__(self) -> None:
        self._due_s = math.inf
        self._held_bytes = 0

    def published(self, now_s: float) -> None:
        """What answered until now does not any more."""
        self._due_s, self._held_bytes = now_s + SOON_S, 0

    def tick(self, now_s: float) -> int:
        """How many bytes were given back. Called while native code serves."""
        if now_s < self._due_s:
            return 0
        from hotfuse.runtime.child import resident_bytes  # there already, unless all was found in the cache

        self._due_s = now_s + EVERY_S
        held = resident_bytes(os.getpid())
        if held <= (1 + GROWN) * self._held_bytes:
            return 0
        Unhurried().rest()  # between two calls, if they leave room
        give_back()
        self._held_bytes = resident_bytes(os.getpid())
        return max(0, held - self._held_bytes)


SPARE = Spare()
