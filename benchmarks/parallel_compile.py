"""Compiling many distinct kernels with one worker and with two, in turns, on idle cores: the bound is 1.8 times as fast.

python -m benchmarks.parallel_compile [--kernels 120] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import track

from hotfuse.config import Config
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, TensorType
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_jobs import build_job
from hotfuse.runtime.build_pool import MODULE, wake_job
from hotfuse.runtime.build_request import BuildReply, BuildRequest
from hotfuse.runtime.workers import Job, Pool

BOUND = 1.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    graph = many_kernels(options.kernels)
    times: dict[int, list[float]] = {1: [], 2: []}
    compiled = 0
    for turn in track(range(2 * options.rounds), "builds"):
        workers = 1 + turn % 2
        seconds, compiled = build_s(graph, workers)
        times[workers].append(seconds)
    one, two = (statistics.median(times[workers]) for workers in (1, 2))
    print(f"{compiled} kernels: one worker {one:.2f} s, two {two:.2f} s, {one / two:.2f} times as fast (the bound is {BOUND})")
    if options.json:
        options.json.write_text(json.dumps({"kernels": compiled, "seconds": times, "ratio": one / two}, indent=2))


def many_kernels(count: int) -> Graph:
    """Products and rows, each of sizes of its own: no two of them have the same code."""
    builder, outputs = GraphBuilder("many"), []
    for number in range((count + 1) // 2):
        k, n = 32 + number, 33 + 2 * number
        x = builder.input(f"x{number}", TensorType(F32, (64, k)))
        weight = builder.constant(np.ones((k, n), np.float32), f"w{number}")
        y = builder.add("gelu", builder.add("matmul", x, weight))
        outputs += [y, builder.add("softmax", builder.add("transpose", y, perm=(1, 0)), axis=-1)]
    return builder.build(outputs)


def build_s(graph: Graph, workers: int) -> tuple[float, int]:
    """Seconds from the request to all of its code, by workers that are awake; and how many kernels were compiled."""
    config = Config(cache="off", workers=workers)
    pool = Pool(MODULE, workers, name="build worker")
    try:
        _wait_for(pool, [wake_job(config) for _ in range(workers)])
        request = BuildRequest(skeleton(graph), config, helpers=workers - 1)
        found: list[BuildReply | BaseException] = []
        begun = time.perf_counter()
        _wait_for(pool, [build_job("many", lambda: request, found.append, config, submit=pool.submit)])
        seconds = time.perf_counter() - begun
    finally:
        pool.close()
    (reply,) = found
    if not isinstance(reply, BuildReply):
        raise SystemExit(f"the build failed: {reply}")
    return seconds, reply.compiled


def _wait_for(pool: Pool, jobs: list[Job]) -> None:
    left = threading.Semaphore(0)

    def watched(job: Job) -> Job:
        def finish(result: object) -> None:
            job.finish(result)
            left.release()

        return replace(job, finish=finish)

    for job in jobs:
        pool.submit(watched(job))
    for _ in jobs:
        left.acquire()


if __name__ == "__main__":
    main()
