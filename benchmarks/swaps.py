"""Swaps: two native implementations of one model take turns on a live session, while eight threads call it.

python -m benchmarks.swaps [--swaps 1000000] [--threads 8] [--json FILE]

No answer of the two is equal in its bits, so that each tells who gave it. One that is neither's is mixed. One that is the
other's, although nothing was published while it was made, is stale. Every thousandth swap links the code anew and lets go of
what was there. Threads change places after a microsecond. Nothing may be mixed, stale or failed, and memory stays flat.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.parser

import hotfuse
from hotfuse.config import Config
from hotfuse.ir.graph import Graph
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.build_request import BuildReply, BuildRequest
from hotfuse.runtime.build_work import build_here
from hotfuse.runtime.child import resident_bytes
from hotfuse.runtime.kernels import link_kernels
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.serving import Serving
from hotfuse.runtime.session import Session

CONFIG = Config(tier=0, cache="off", threads=1)
ROWS = (1, 3, 8, 17)  # of calls: short ways and bound plans of several shapes
LINK_EVERY = 1000
YIELD_EVERY = 3  # swaps, to all callers: some calls see one swap, some see several; odd, so that both serve for a while
FLAT = 0.02  # of memory, from the second quarter to the last

# `k` is in the first and in the last of what runs, so that no part of one answer is part of the other's
TEXT = """<ir_version: 10, opset_import: ["": 21]> swapped (float[n, 24] x) => (float[n, 40] y, float[n, 24] z)
    <float k = {%s}> {
    a = Mul(x, k)  b = MatMul(a, w)  c = Tanh(b)  d = Softmax(c)  y = Mul(d, k)
    e = MatMul(c, v)  f = Sigmoid(e)  z = Add(f, k) }"""


@dataclass(frozen=True)
class Figures:
    """What came of a campaign. `rarer` is the share of calls that the rarer of the two answered, `memory` the growth from
    the second quarter to the last, as a share: the first fills the allocator's arenas, one for each thread."""

    swaps: int
    links: int
    calls: int
    mixed: int
    stale: int
    failed: int
    rarer: float
    seconds: float
    memory: float
    first_failure: str = ""

    @property
    def is_good(self) -> bool:
        return not (self.mixed or self.stale or self.failed) and self.rarer > 0.1 and self.memory <= FLAT


@dataclass(frozen=True, eq=False)
class Implementation:
    """One of the two: how it is linked anew, and its answers, as bytes by the number of rows."""

    graph: Graph
    reply: BuildReply
    answers: Mapping[int, bytes]

    def link(self, session: Session) -> Serving:
        """The same answers from code that nobody has called yet."""
        build = self.reply.build
        kernels = link_kernels(build.programs, self.reply.objects)
        executor = build_executor(attached(build.hoisted, self.graph.constants), build, kernels, NUMPY, CONFIG)
        return session.serving(executor, 1, "tier 1")


def model(k: float) -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT % k)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (24, 40)), ("v", (40, 24))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return made


def feed(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)}


def answer(session: Session, rows: int, long_way: bool = False) -> bytes:
    names = [output.name for output in session.outputs] if long_way else None
    return b"".join(result.tobytes() for result in session.run(names, feed(rows)))


def implement(k: float) -> Implementation:
    """A native implementation, with its answers when it is alone."""
    with hotfuse.load(model(k), config=CONFIG) as session:
        graph = session.graph
        made = Implementation(graph, build_here(BuildRequest(skeleton(graph), CONFIG)), {})
        session.publish(made.link(session))
        assert session.kernels, "the model has no native code"
        return Implementation(graph, made.reply, {rows: answer(session, rows) for rows in ROWS})


@dataclass
class _Stage:
    """State: a number that is odd while something is published, and half of which, when it is even, says by whom."""

    number: int = 0


def campaign(
    swaps: int,
    threads: int = 8,
    session: Session | None = None,
    progress: Callable[[int, Counter[str]], None] = lambda done, counts: None,
) -> Figures:
    """Publish two implementations in turn on a session that threads call."""
    session = session or hotfuse.load(model(1.0), config=CONFIG)
    both = implement(1.0), implement(1.5)
    assert all(both[0].answers[rows] != both[1].answers[rows] for rows in ROWS)
    stage, counts, stop, failures = _Stage(), Counter[str](), threading.Event(), list[str]()
    feeds = {rows: feed(rows) for rows in ROWS}
    names = [output.name for output in session.outputs]

    def call(number: int) -> None:
        seen: Counter[str] = Counter()
        turn = number
        while not stop.is_set():
            turn += 1
            rows = ROWS[turn % len(ROWS)]
            before = stage.number
            try:
                results = session.run(names if turn % 3 == 0 else None, feeds[rows])
            except Exception as error:
                seen["failed"] += 1
                failures.append(f"{type(error).__name__}: {error}")
                continue
            after = stage.number
            given = b"".join(result.tobytes() for result in results)
            seen["calls"] += 1
            if given not in (both[0].answers[rows], both[1].answers[rows]):
                seen["mixed"] += 1
            elif before == after and not before % 2 and given != both[before // 2 % 2].answers[rows]:
                seen["stale"] += 1
            seen["first"] += given == both[0].answers[rows]
        counts.update(seen)

    serving = [one.link(session) for one in both]
    session.publish(serving[0])
    callers = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(threads)]
    links, held = 0, list[int]()
    started = time.perf_counter()
    with _switching_often():
        for caller in callers:
            caller.start()
        for swap in range(1, swaps + 1):
            if swap % LINK_EVERY == 0:
                serving[swap % 2] = both[swap % 2].link(session)
                links += 1
                held.append(resident_bytes(os.getpid()))
                progress(swap, counts)
            stage.number += 1
            session.publish(serving[swap % 2])
            stage.number += 1
            if swap % YIELD_EVERY == 0:
                time.sleep(0)
        stop.set()
        for caller in callers:
            caller.join()
    seconds = time.perf_counter() - started
    found, failure = {name: counts[name] for name in ("calls", "mixed", "stale", "failed")}, next(iter(failures), "")
    share = counts["first"] / max(1, counts["calls"])
    return Figures(
        swaps, links, **found, rarer=min(share, 1 - share), seconds=seconds, memory=growth(held), first_failure=failure
    )


def growth(held: Sequence[int]) -> float:
    """From the second quarter to the last, by their medians."""
    quarter = len(held) // 4
    return median(held[-quarter:]) / median(held[quarter : 2 * quarter]) - 1 if quarter else 0.0


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swaps", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()

    def progress(done: int, counts: Counter[str]) -> None:
        if done % max(LINK_EVERY, options.swaps // 20) == 0:
            took, size = time.perf_counter() - started, resident_bytes(os.getpid()) >> 20
            print(f"{done} swaps in {took:.0f} s, {size} MiB", file=sys.stderr, flush=True)

    found = campaign(options.swaps, options.threads, progress=progress)
    print(", ".join(f"{name} {value}" for name, value in asdict(found).items()))
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=2))
    sys.exit(not found.is_good)


if __name__ == "__main__":
    main()
