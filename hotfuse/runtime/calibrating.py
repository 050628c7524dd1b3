"""Calibrating: specimens are timed until the time is up, a forest is trained of what they took, and both are kept.

Who is interrupted goes on where it was: samples are put into the cache every few seconds, and seeds of specimens are numbers in
order.

State: what is in the cache (`runtime/calibration`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.fusion.exploring import random_plan
from hotfuse.hardware.features import rows_of
from hotfuse.hardware.retrain import TrainReply, TrainRequest
from hotfuse.hardware.samples import NO_SAMPLES, Samples, make_samples, write_samples
from hotfuse.runtime.build_jobs import build_pool, worker_job
from hotfuse.runtime.calibration import FOREST, SAMPLES, Calibration
from hotfuse.runtime.measuring import measure
from hotfuse.runtime.specimens import Specimen, specimen

KEEP_S = 10.0  # between two savings
ALONE = 4  # of so many specimens, one is timed on one thread

Progress = Callable[[float, int, str], None]  # seconds passed, samples so far, what is timed


def gather(calibration: Calibration, config: Config, seconds: float, progress: Progress) -> Samples:
    """Time specimens for so many seconds, after those that were timed before."""
    samples = calibration.samples()
    seed = int(samples.source.max()) + 1 if len(samples) else 0
    begun = kept = time.monotonic()
    try:
        while (passed := time.monotonic() - begun) < seconds:
            progress(passed, len(samples), f"specimen {seed}")
            samples = samples + timed(calibration, specimen(seed), config, seed)
            seed += 1
            if time.monotonic() - kept > KEEP_S:
                calibration.keep(SAMPLES, write_samples(samples))
                kept = time.monotonic()
    finally:
        calibration.keep(SAMPLES, write_samples(samples))
    return samples


def timed(calibration: Calibration, subject: Specimen, config: Config, source: int) -> Samples:
    """What the units of a specimen took, planned by chance: some specimens' on one thread, the others' on all."""
    threads = 1 if source % ALONE == 0 else calibration.rates.threads
    rng = np.random.default_rng(source)
    try:
        found = measure(subject.graph, subject.inputs, replace(config, threads=threads), lambda graph: random_plan(graph, rng))
    except HotfuseError:  # a model that cannot run teaches nothing
        return NO_SAMPLES
    rows, prior_s = rows_of([unit.work for unit in found], calibration.rates, threads)
    return make_samples(rows, prior_s, [u.seconds for u in found], [u.spread for u in found], source)


def retrain(calibration: Calibration, samples: Samples, config: Config) -> TrainReply:
    """Have a worker train a forest, and keep it if it is better than the one that is there."""
    asked = TrainRequest(samples, calibration.forest())
    done = threading.Event()
    found: list[TrainReply | BaseException] = []

    def finish(result: TrainReply | BaseException) -> None:
        found.append(result)
        done.set()

    build_pool(config).submit(worker_job("training", lambda: asked, TrainReply, finish, config))
    done.wait()
    (reply,) = found
    if not isinstance(reply, TrainReply):
        raise WorkerError(f"no forest was trained: {reply}", getattr(reply, "cause", ""))
    if reply.forest:
        calibration.keep(FOREST, reply.forest)
    return reply
