"""Calibrating: specimens are timed until the time is up, forests are trained of what they took, and all is kept.

A specimen, or a call of a user's model, is timed on its course (`runtime/course`), and again after some others were; the
shorter times count: neighbours, who take a core for moments, rarely come twice.

Who is interrupted goes on where it was: samples are put into the cache every few seconds, and seeds of specimens are numbers in
order.

State: what is in the cache (`runtime/calibration`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.hardware.retrain import TrainReply, TrainRequest
from hotfuse.hardware.samples import Samples, no_samples, write_samples
from hotfuse.ir.text import print_graph
from hotfuse.records import dataclass
from hotfuse.runtime.build_jobs import with_help, worker_job
from hotfuse.runtime.build_pool import build_pool
from hotfuse.runtime.calibration import RATIOS, SUBJECTS, TIMES, Calibration, Subject
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.course import Course, Found
from hotfuse.runtime.pulse import Pulse
from hotfuse.runtime.quiet import Quiet
from hotfuse.runtime.specimens import Specimen, specimen

KEEP_S = 10.0  # between two savings
LATER = 12  # specimens, which take some seconds: whoever has a core for longer than a moment is gone by then as well
ALONE = 4  # of so many specimens, one is timed on one thread
PLANS = 1000  # of a model that are timed: each is a source of its own, so that some are held out

Progress = Callable[[float, int, str], None]  # seconds passed, samples so far, what is timed


@dataclass(frozen=True)
class Series:
    """What is timed, by number: subjects, and from where on their samples' sources are counted."""

    what: str
    first: int
    subject: Callable[[int], Specimen]
    most: int = 1 << 40
    must_run: bool = False  # one that cannot is an error, and not just nothing to learn from

    def count(self, samples: Samples) -> int:
        """How many of it were timed before."""
        mine = samples.source[(samples.source >= self.first) & (samples.source < self.first + self.most)]
        return int(mine.max()) - self.first + 1 if len(mine) else 0


SPECIMENS = Series("specimen", 0, specimen)


def plans_of(model: str, calls: Sequence[Specimen]) -> Series:
    """Calls of one model, each time by another plan. Its sources lie below 0, where no specimen has any. Each call comes once
    in a round, in an order that chance makes: threads and what is held out go by number as well, and of five calls in turns
    one would never be learned from."""
    digest = hashlib.sha256(print_graph(calls[0].graph).encode()).digest()
    first = -PLANS * (2 + int.from_bytes(digest[:4]))

    def call(number: int) -> Specimen:
        turn, place = divmod(number, len(calls))
        return calls[int(np.random.default_rng((-first, turn)).permutation(len(calls))[place])]

    return Series(f"{model}, plan", first, call, PLANS, must_run=True)


def gather(
    calibration: Calibration,
    config: Config,
    seconds: float,
    progress: Progress,
    series: Series = SPECIMENS,
    quiet: Quiet | None = None,
) -> Found:
    """Time a series for so many seconds, from where it ended before. `quiet` says when; what is waited does not count, and
    where there is no more patience all ends with what was found so far. Raises HotfuseError where one cannot run that must."""
    times, ratios = (calibration.samples(subject) for subject in SUBJECTS)
    number = series.count(times)
    begun = kept = time.monotonic()
    waited = 0.0 if quiet is None else quiet.waited_s

    def passed() -> float:
        return time.monotonic() - begun - (0.0 if quiet is None else quiet.waited_s - waited)

    def pause(cores: float) -> None:
        progress(passed(), len(times), f"waiting: others have {cores:.1f} cores")

    waiting: deque[Course] = deque()  # for being timed again
    pulse = pulse_of(calibration)
    help = with_help("kernels to be timed", config, build_pool(config).submit)

    def take(course: Course) -> None:
        nonlocal times, ratios
        new_times, new_ratios = course.found()
        times, ratios = times + new_times, ratios + new_ratios

    def keep() -> None:
        for subject, samples in zip(SUBJECTS, (times, ratios), strict=True):
            calibration.keep(subject.samples, subject, write_samples(samples))

    try:
        while (is_on := passed() < seconds and number < series.most) or waiting:
            if quiet is not None and not quiet.wait(pause):
                break
            progress(passed(), len(times), f"{series.what} {number}")
            course = begin(calibration, series, config, number, pulse, help) if is_on else None
            if course is not None:
                waiting.append(course)
            if len(waiting) > LATER or (waiting and not is_on):
                waiting[0].run()
                take(waiting.popleft())
            number += is_on
            if time.monotonic() - kept > KEEP_S:
                keep()
                kept = time.monotonic()
    finally:
        for course in waiting:  # who is interrupted has timed them once
            take(course)
        keep()
    return times, ratios


def timed(calibration: Calibration, config: Config, number: int, series: Series = SPECIMENS) -> Found:
    """What the groups of one subject took, and what edits made of it."""
    course = begin(calibration, series, config, number, pulse_of(calibration))
    return (no_samples(TIMES.columns), no_samples(RATIOS.columns)) if course is None else course.found()


def pulse_of(calibration: Calibration) -> Pulse | None:
    """To feel how near cores are to each other, where there are several."""
    threads = calibration.rates.threads
    return Pulse(calibration.spec, threads, calibration.cache) if threads > 1 else None


def begin(
    calibration: Calibration,
    series: Series,
    config: Config,
    number: int,
    pulse: Pulse | None = None,
    help: AskBack | None = None,
) -> Course | None:
    """A subject on its course, timed once: some on one thread, the others on all. None where it cannot run and need not: that
    teaches nothing."""
    threads = 1 if number % ALONE == 0 else calibration.rates.threads
    try:
        on_threads = replace(config, threads=threads)
        course = Course(calibration, series.subject(number), on_threads, series.first + number, pulse, help)
        course.run()
        return course
    except HotfuseError:
        if series.must_run:
            raise
        return None


def retrain(calibration: Calibration, samples: Samples, config: Config, subject: Subject = TIMES) -> TrainReply:
    """Have a worker train a forest, and keep it if it is better than the one that is there."""
    known, elsewhere = calibration.forest(subject), calibration.elsewhere(subject)
    asked = TrainRequest(samples, subject.columns, known, subject.are_ratios, elsewhere)
    done = threading.Event()
    found: list[TrainReply | BaseException] = []

    def finish(result: TrainReply | BaseException) -> None:
        found.append(result)
        done.set()

    build_pool(config).submit(worker_job("training", lambda: asked, TrainReply, finish, config, kind="train"))
    done.wait()
    (reply,) = found
    if not isinstance(reply, TrainReply):
        raise WorkerError(f"no forest was trained: {reply}", getattr(reply, "cause", ""))
    if reply.forest:
        calibration.keep(subject.forest, subject, reply.forest)
    return reply
