"""Compile faults: models are loaded, called and compiled while every fourth job of the build workers fails on purpose.

python -m benchmarks.compile_faults [--compiles 1000] [--minutes 60] [--threads 4] [--json FILE]

Jobs raise, hang, crash and eat memory in turn. No call may fail, every answer is the original's, and what failed is tried again
only as often as its back-off allows: once, then after so many seconds, then after twice as many.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

import hotfuse
from hotfuse.adaptive.state import Rules
from hotfuse.numerics import alike
from hotfuse.runtime.session import Session

STRESS = "fail-compile-every-4,workers-2"
CALLS_AFTER = 20  # the model was published or given up
LIMIT_S = 60.0  # of one model, in which nothing becomes of it
PAUSE_S = 0.01  # between calls: workers need a core, too
CAUSES = {"raise": "on purpose", "hang": "took longer", "crash": "died", "memory": "used"}  # words of reasons

TEXT = """<ir_version: 10, opset_import: ["": 21]> faulty (float[n, %(width)d] x) => (float[n, %(width)d] y) {
    a = MatMul(x, w)  b = Tanh(a)  c = Mul(b, x)  y = Softmax(c) }"""


@dataclass(frozen=True)
class Life:
    """One model, from load to close. `compiles` are jobs that were asked for, `attempts` those that began from nothing."""

    seconds: float
    calls: int
    failed: int
    wrong: int
    compiles: int
    attempts: int
    published: bool
    faults: tuple[str, ...]

    @property
    def is_stormy(self) -> bool:
        """Whether there were more attempts than the back-off allows."""
        return self.attempts > 1 + most_retries(self.seconds)


def most_retries(seconds: float) -> int:
    """How often something that always fails is tried again within a time: after first, 3 * first, 7 * first seconds."""
    return int(math.log2(1 + seconds / Rules().back_off_s))


@dataclass(frozen=True)
class Figures:
    models: int
    compiles: int
    calls: int
    failed: int
    wrong: int
    storms: int
    published: int
    faults: dict[str, int]
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.failed or self.wrong or self.storms) and self.published > 0 and set(self.faults) == set(CAUSES)


def model(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(128, 384))
    made = onnx.parser.parse_model(TEXT % {"width": width})
    weight = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return made


def live(seed: int, stress: str) -> Life:
    """Load a model, and call it until it was compiled or given up, and some times more."""
    made = model(seed).SerializeToString()
    with hotfuse.load(made, tier=0, stress="") as original, hotfuse.load(made, stress=stress, cache="off") as session:
        width = original.inputs[0].shape[1]
        x = np.random.default_rng(seed).standard_normal((128, int(width))).astype(np.float32)
        (want,) = original.run(None, {"x": x})
        begun, counts, left = time.monotonic(), Counter[str](), CALLS_AFTER
        while left and time.monotonic() < begun + LIMIT_S:
            counts["calls"] += 1
            try:
                (y,) = session.run(None, {"x": x})
                counts["wrong"] += not alike(y, want)
            except Exception:
                counts["failed"] += 1
            left -= bool(session.events.of("tier.publish") or session.events.of("tier.retire"))
            time.sleep(PAUSE_S)
        return _life(session, time.monotonic() - begun, counts)


def _life(session: Session, seconds: float, counts: Counter[str]) -> Life:
    deaths = [event.reason for event in session.events.of("worker.died")]  # after one of them a job is begun again at once
    raised = [event.reason for event in session.events.of("tier.retire") if CAUSES["raise"] in event.reason]
    reasons = [*deaths, *raised]
    faults = tuple(fault for reason in reasons for fault, word in CAUSES.items() if word in reason)
    found = session.events.counted()
    attempts, proofs = found.get("tier.build", 0), found.get("tier.prove", 0)
    published = bool(found.get("tier.publish"))
    return Life(seconds, counts["calls"], counts["failed"], counts["wrong"], attempts + proofs, attempts, published, faults)


def campaign(compiles: int, threads: int, stress: str = STRESS, limit_s: float = 3600.0, quiet: bool = True) -> Figures:
    """Let models live, some at a time, until so many jobs were asked for or the time is over."""
    seeds, lives, begun = itertools.count(), list[Life](), time.perf_counter()

    def work() -> None:
        while sum(one.compiles for one in lives) < compiles and time.perf_counter() < begun + limit_s:
            lives.append(live(next(seeds), stress))
            if not quiet and len(lives) % 20 == 0:
                print(f"{len(lives)} models, {sum(one.compiles for one in lives)} compiles", file=sys.stderr, flush=True)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Figures(
        models=len(lives),
        compiles=sum(one.compiles for one in lives),
        calls=sum(one.calls for one in lives),
        failed=sum(one.failed for one in lives),
        wrong=sum(one.wrong for one in lives),
        storms=sum(one.is_stormy for one in lives),
        published=sum(one.published for one in lives),
        faults=dict(Counter(fault for one in lives for fault in one.faults)),
        seconds=time.perf_counter() - begun,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiles", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = campaign(options.compiles, options.threads, limit_s=60 * options.minutes, quiet=False)
    print(", ".join(f"{name} {value}" for name, value in asdict(found).items()))
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=2))
    sys.exit(not found.is_good)


if __name__ == "__main__":
    main()
