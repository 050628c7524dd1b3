"""The error function and its relatives in numpy, against scipy in float64."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch

from hotfuse.ir import special
from hotfuse.ir.op import OPS
from hotfuse.ir.special import BLOCK, LONG_BLOCK, erf, erfc, gelu, ndtr

Array = np.ndarray[Any, Any]
FUNCTIONS = [(erf, scipy.special.erf, 2.0), (erfc, scipy.special.erfc, 0.65), (ndtr, scipy.special.ndtr, 0.65)]
SMALLEST = np.finfo(np.float32).smallest_normal


def exact_gelu(x: Array) -> Any:
    return x * scipy.special.ndtr(x)


def numbers() -> Array:
    """All magnitudes of both signs, the places where the formula changes, and what is no number."""
    small = np.logspace(-44, 1.2, 60_001)
    near_one = 1 + np.arange(-200, 200) * 6e-8
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan]
    return np.concatenate([np.linspace(-14, 14, 400_001), small, -small, near_one, -near_one, odd]).astype(np.float32)


@pytest.mark.parametrize(("ours", "exact", "ulp"), FUNCTIONS)
def test_results_are_right_to_the_last_places(ours: Any, exact: Any, ulp: float) -> None:
    x = numbers()
    got, want = ours(x).astype(np.float64), exact(x.astype(np.float64))
    rounded = want.astype(np.float32)
    assert got.shape == x.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    normal = np.abs(want) >= SMALLEST
    off = np.abs(got - want)[normal] / np.spacing(np.abs(rounded[normal])).astype(np.float64)
    assert off.max() < ulp  # half a unit in the last place is what rounding adds
    np.testing.assert_allclose(got[~normal & ~np.isnan(want)], want[~normal & ~np.isnan(want)], rtol=1e-6, atol=3e-45)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize(("ours", "exact"), [*((ours, exact) for ours, exact, _ in FUNCTIONS), (gelu, exact_gelu)])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, LONG_BLOCK // 3, LONG_BLOCK + 7])
def test_every_size_and_layout(ours: Any, exact: Any, size: int) -> None:
    x = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    for given in (x, x.T, x[:, ::2], x[0], x.reshape(3, 1, size)):
        np.testing.assert_allclose(ours(given), exact(given.astype(np.float64)), rtol=2e-6, atol=2e-7)
    assert ours(np.float32(0.5).reshape(())).shape == ()


def test_memory_that_is_given_is_written_to() -> None:
    x = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32)
    for out in (np.empty((7, 50), np.float32), np.empty((50, 7), np.float32).T):
        assert erf(x, out=out) is out
        np.testing.assert_allclose(out, scipy.special.erf(x), rtol=3e-7)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_as_close_as_pytorch(approximate: str) -> None:
    x = numbers()
    ours = OPS["gelu"].reference(x, approximate=approximate)  # type: ignore[misc]
    theirs = torch.nn.functional.gelu(torch.from_numpy(x), approximate=approximate).numpy()
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate=approximate).numpy()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(exact))
    np.testing.assert_array_equal(np.signbit(ours[exact == 0]), np.signbit(exact[exact == 0]))
    real = np.isfinite(exact)
    off, their_off = (np.abs(y[real] - exact[real]) for y in (ours, theirs))
    assert np.sqrt(np.mean(off**2)) <= 1.2 * np.sqrt(np.mean(their_off**2))
    assert off.max() <= 1.2 * their_off.max()
    if approximate == "none":
        body = real & (np.abs(x) < 3)  # further out what is left is a small share of what rounding the others adds
        np.testing.assert_allclose(ours[body], exact[body], rtol=2e-6, atol=3e-45)


@pytest.mark.parametrize(("ours", "exact"), [(ours, exact) for ours, exact, _ in FUNCTIONS])
def test_float64_keeps_all_digits(ours: Any, exact: Any) -> None:
    x = np.linspace(-6, 6, 1001)
    np.testing.assert_array_equal(ours(x), exact(x))


@pytest.mark.parametrize("name", ["erf", "gelu", "ndtr"])
def test_half_types_are_computed_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = special._in_blocks
    monkeypatch.setattr(special, "_in_blocks", lambda f, x, *rest: seen.append(x.dtype) or original(f, x, *rest))
    reference: Any = OPS[name].reference
    assert reference(np.ones(5, np.float16)).dtype == np.float16
    assert seen == [np.float32]


@pytest.mark.parametrize(("kind", "imported"), [("float", False), ("double", True)])
def test_a_model_loads_without_scipy_where_it_needs_none(kind: str, imported: bool) -> None:
    script = f"""
        import sys
        import numpy as np, onnx.parser, hotfuse
        text = 'g ({kind}[n] x) => ({kind}[n] y, {kind}[n] z) {{ y = Erf(x)  z = Gelu(x) }}'
        model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> ' + text)
        session = hotfuse.load(model, tier=0)
        ready = "scipy.special" in sys.modules
        session.run(None, {{"x": np.ones(3, dict(float="f4", double="f8")["{kind}"])}})
        print(ready, "scipy.special" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(imported)] * 2
