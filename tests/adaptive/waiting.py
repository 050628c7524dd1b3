"""Waiting for what works in the background, and what a test says that waited in vain: the whole story, since what hangs now and
then on one machine is not seen again on another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from hotfuse.adaptive.background import BACKGROUND
from hotfuse.events import Event


def in_vain(events: Iterable[Event]) -> str:
    kept = list(events)
    lines = [f"{e.time_s - kept[0].time_s:8.3f} {e.kind} {e.subject}: {e.reason} {dict(e.data)}"[:400] for e in kept]
    return "\n".join(["waited in vain:", *lines[:40], *(["..."] if len(lines) > 100 else []), *lines[40:][-60:]])


def in_background(work: Callable[[], None]) -> None:
    """Do something in the thread that may touch what is the background's, and wait for it."""
    done = threading.Event()

    def work_and_say() -> None:
        work()
        done.set()

    BACKGROUND.post(work_and_say)
    assert done.wait(60), list(BACKGROUND.failures)
