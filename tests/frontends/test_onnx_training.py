"""ONNX optimizer steps against torch's optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.errors import InvalidModel
from tests.frontends.single_node import load, run

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(0)
X, G = (RNG.uniform(-1, 1, (3, 4)).astype(np.float32) for _ in range(2))
ZERO = np.zeros_like(X)
RATE = np.float32(0.1).reshape(())


def steps(optimizer: type[torch.optim.Optimizer], count: int, **options: Any) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.from_numpy(X.copy()))
    stepper = optimizer([parameter], lr=0.1, **options)
    for _ in range(count):
        parameter.grad = torch.from_numpy(G.copy())
        stepper.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(mode: str) -> None:
    attrs = {"mode": mode, "alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.01}
    x, v = X, ZERO
    for t in range(3):
        x, v = run("Momentum", [RATE, np.array(t), x, G, v], 21, outputs=2, domain=DOMAIN, **attrs)
    expected = steps(torch.optim.SGD, 3, momentum=0.9, nesterov=mode == "nesterov", weight_decay=0.01)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_the_first_momentum_takes_the_whole_gradient() -> None:
    attrs = {"mode": "standard", "alpha": 0.5, "beta": 0.25, "norm_coefficient": 0.0}
    for t, share in ((0, 1.0), (1, 0.25)):
        _, v = run("Momentum", [RATE, np.array(t), X, G, ZERO], 21, outputs=2, domain=DOMAIN, **attrs)
        np.testing.assert_allclose(v, share * G, rtol=1e-6)


def test_adam() -> None:
    """ONNX adds epsilon before the bias correction, torch after it; with none they agree."""
    attrs = {"alpha": 0.9, "beta": 0.99, "epsilon": 0.0}
    x, v, h = X, ZERO, ZERO
    for t in range(1, 4):
        x, v, h = run("Adam", [RATE, np.array(t), x, G, v, h], 21, outputs=3, domain=DOMAIN, **attrs)
    np.testing.assert_allclose(x, steps(torch.optim.Adam, 3, betas=(0.9, 0.99), eps=0.0), rtol=1e-4, atol=1e-5)


def test_adagrad() -> None:
    """torch counts its steps from 0, as T does."""
    attrs = {"decay_factor": 0.1, "epsilon": 1e-6, "norm_coefficient": 0.01}
    x, h = X, ZERO
    for t in range(3):
        x, h = run("Adagrad", [RATE, np.array(t), x, G, h], 21, outputs=2, domain=DOMAIN, **attrs)
    expected = steps(torch.optim.Adagrad, 3, lr_decay=0.1, eps=1e-6, weight_decay=0.01)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_several_parameters_are_ordered_by_role() -> None:
    attrs = {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0}
    both = [RATE, np.array(0), X, X[0], G, G[0], ZERO, ZERO[0]]
    results = run("Adagrad", both, 21, outputs=4, domain=DOMAIN, **attrs)
    assert [r.shape for r in results] == [X.shape, X[0].shape, X.shape, X[0].shape]
    np.testing.assert_array_equal(results[1], results[0][0])


def test_a_missing_attribute_is_refused() -> None:
    with pytest.raises(InvalidModel, match="'alpha' is missing"):
        load("Momentum", [RATE, np.array(0), X, G, ZERO], 21, outputs=2, domain=DOMAIN)


def test_a_missing_input_is_refused() -> None:
    with pytest.raises(InvalidModel, match="R, T and 3 for each parameter"):
        load("Adagrad", [RATE, np.array(0), X, G], 21, outputs=2, domain=DOMAIN)
