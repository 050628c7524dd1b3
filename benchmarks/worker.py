"""One engine and one model in a process; see `rounds`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.models import MODELS, onnx_file


def onnx_feeds(name: str) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    _, inputs = MODELS[name]()
    (key, value), *_ = inputs.items()
    return {key: value.numpy()}


def hotfuse_onnx(name: str) -> Callable[[], object]:
    import hotfuse

    feeds = onnx_feeds(name)
    session = hotfuse.load(onnx_file(name))
    return lambda: session.run(None, feeds)


def onnxruntime_plain(name: str) -> Callable[[], object]:
    """ONNX Runtime with its graph optimisations off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = onnx_feeds(name)
    session = onnxruntime.InferenceSession(str(onnx_file(name)), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def eager(name: str) -> Callable[[], object]:
    import torch

    module, inputs = MODELS[name]()

    def run() -> object:
        with torch.no_grad():
            return module(**inputs)

    return run


def hotfuse_torch(name: str) -> Callable[[], object]:
    """The captured plan, un-fused."""
    import torch

    import hotfuse

    module, inputs = MODELS[name]()
    fast = hotfuse.compile(module, wait=True)

    def run() -> object:
        with torch.no_grad():
            return fast(**inputs)

    return run


ENGINES = {
    "hotfuse": hotfuse_onnx,
    "onnxruntime-plain": onnxruntime_plain,
    "eager": eager,
    "hotfuse-torch": hotfuse_torch,
}


def main() -> None:
    run = ENGINES[sys.argv[1]](sys.argv[2])
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
