"""Specimens: models that run, and answer as tier 0 does."""

from __future__ import annotations

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.verify import verify
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import native_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.specimens import specimen

CONFIG = Config(cache="off", tier=1, wait=True)


@pytest.mark.parametrize("seed", range(12))
def test_a_specimen_is_a_model(seed: int) -> None:
    found, again = specimen(seed), specimen(seed)
    verify(found.graph)
    assert [n.op for n in found.graph.nodes] == [n.op for n in again.graph.nodes]
    given = [found.inputs[name] for name in found.graph.inputs]
    wanted = Executor(trivial_plan(found.graph), NUMPY, CONFIG).run(given)
    found_ = native_executor(found.graph, NUMPY, CONFIG).run(given)
    for got, want in zip(found_, wanted, strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(want).max())))


def test_seeds_draw_different_sizes() -> None:
    assert len({tuple(a.shape for a in specimen(seed).inputs.values()) for seed in range(50)}) > 45
