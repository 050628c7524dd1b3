"""Engines for single kernels: hotfuse, numpy and torch on inputs made from the kernel's seed. See `kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotfuse.cli.bench.engines import Opener, Runner, Settings, hotfuse_options, session_runner
from hotfuse.cli.bench.kernels import Kernel
from hotfuse.cli.bench.subject import Subject


def run_hotfuse(subject: Subject, settings: Settings) -> Opener:
    import hotfuse

    kernel = Kernel(subject.case.model)
    options, note = hotfuse_options(settings)
    feeds, rows = {"x": kernel.x}, kernel.rows

    return lambda: session_runner(hotfuse.load(subject.onnx_path, **options), feeds, note, lambda answer: [answer[0][rows]])


def run_numpy(subject: Subject, settings: Settings) -> Opener:
    """Writes into an array that it keeps: numpy has no work but the kernel's own."""
    kernel = Kernel(subject.case.model)
    x, rows = kernel.x, kernel.rows

    def open_it() -> Runner:
        if kernel.is_product:
            weight, product = kernel.weight, np.empty((kernel.sizes[0], kernel.sizes[1]), np.float32)
            return Runner(lambda: np.matmul(x, weight, out=product), lambda answer: [answer[rows]])
        function, out = kernel.chain.numpy, np.empty_like(x)
        return Runner(lambda: function(x, out), lambda answer: [answer[rows]])

    return open_it


def run_torch(subject: Subject, settings: Settings) -> Opener:
    import torch

    torch.set_num_threads(settings.threads)
    torch.set_grad_enabled(False)
    kernel = Kernel(subject.case.model)
    x, rows = torch.from_numpy(kernel.x), torch.from_numpy(kernel.rows)

    def arrays(answer: Any) -> Any:
        return [answer[rows].numpy()]

    def open_it() -> Runner:
        if kernel.is_product:
            weight = torch.from_numpy(kernel.weight)
            return Runner(lambda: torch.mm(x, weight), arrays)
        function = kernel.chain.torch
        return Runner(lambda: function(x), arrays)

    return open_it
