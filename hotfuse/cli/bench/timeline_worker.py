"""What the worker of a timeline does: open an engine, call it for a while, and write down every call.

All looks at processes and threads happen between calls. State: none after `record` returns but the runner, which may be asked
for more.
"""

from __future__ import annotations

import gc
import resource
import threading
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotfuse.cli.process_tree import children_cpu_s, thread_cpu_s

LOOK_S = 0.2  # between looks at CPU times; one takes about half a millisecond
PARTS = 4  # of the time; an answer of each is kept
MOST_ANSWERS = 12  # kept beside the first and the last
LEAST_CALLS = 6  # the first one included, however long they take
HALF = "half"


class CpuWatch:
    """CPU seconds of what is not the client. State: the most that was seen of each thread, and what there was at the start."""

    def __init__(self) -> None:
        self._threads: dict[threading.Thread, float] = {}
        self._children_before = self._children()

    def threads_s(self) -> float:
        """Of all Python threads but this one, those that ended included as far as they were seen."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.native_id is not None:
                self._threads[thread] = max(self._threads.get(thread, 0.0), thread_cpu_s(thread.native_id))
        return sum(self._threads.values())

    def children_s(self) -> float:
        """Of all processes that this one started, and theirs."""
        return self._children() - self._children_before

    def _children(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime + children_cpu_s()


def record(
    engine: str, settings: Mapping[str, Any], folder: str, seconds: float, load: str, place: str
) -> tuple[Any, dict[str, Any]]:
    """The open engine, and what is to be known of its calls; arrays and answers are left in `place`. A client at half load
    sleeps as long as its last call took, but not after the first, which may have taken a compiler's time."""
    from hotfuse.cli.bench.engines import Settings, find_engine
    from hotfuse.cli.bench.subject import read_subject, save_arrays

    opener = find_engine(engine)(read_subject(Path(folder)), Settings(**settings))
    columns = starts, took, process, client = array("d"), array("d"), array("d"), array("d")
    samples: list[tuple[float, float]] = []
    kept: list[tuple[float, Any]] = []
    clock, process_time, thread_time = time.perf_counter, time.process_time, time.thread_time
    gc.collect()
    watch = CpuWatch()
    offset_s, zero, process_zero = time.time() - clock(), clock(), process_time()
    runner = opener()
    construct_s = clock() - zero
    call, events, rests = runner.call, runner.events, load == HALF
    end = next_look = next_part = 0.0
    seen = 0
    while len(starts) < LEAST_CALLS or clock() < end:
        process_begun, client_begun = process_time(), thread_time()
        begun = clock()
        answer = call()
        done = clock()
        client.append(thread_time() - client_begun)
        process.append(process_time() - process_begun)
        starts.append(begun - zero)
        took.append(done - begun)
        if len(starts) == 1:
            opening_s = process_time() - process_zero - watch.threads_s()
            end = done + seconds
        if done >= next_part or (len(events) != seen and len(kept) <= MOST_ANSWERS):
            next_part = done + seconds / PARTS if done >= next_part else next_part
            seen = len(events)
            kept.append((begun - zero, answer))
        del answer  # where the caller holds one, the next answer needs memory of its own
        if rests and len(starts) > 1:
            time.sleep(took[-1])
        if done >= next_look:
            watch.threads_s()
            samples.append((clock() - zero, watch.children_s()))
            next_look = clock() + LOOK_S
    begun = clock()
    kept.append((begun - zero, call()))
    threads_s, children_s = watch.threads_s(), watch.children_s()
    target = Path(place)
    save_arrays(target / "calls.npz", [*columns])
    for number, (_, answer) in enumerate(kept):
        save_arrays(target / f"answer-{number}.npz", runner.arrays(answer))
    marks = [(e.time_s - offset_s - zero, e.kind, e.subject, e.reason) for e in events]
    return runner, {
        "construct_s": construct_s,
        "opening_s": opening_s,
        "threads_s": threads_s,
        "children_s": children_s,
        "samples": samples,
        "marks": marks,
        "answers_s": [at for at, _ in kept],
        "notes": runner.notes(),
    }
