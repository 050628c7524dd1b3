"""ONNX reductions: axes as attributes, constants and run-time data, empty sets, against ONNX Runtime, scipy and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

from hotfuse.errors import InvalidModel
from hotfuse.numerics import same_bits
from tests.frontends.single_node import load, ops_of, run, run_ort

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (2, 3, 4, 5)).astype(np.float32)
OPS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
SINCE = {"ReduceSum": 13}  # the opset whose axes are an input; 18 for the others


def by_numpy(op: str, x: np.ndarray, axes: tuple[int, ...] | None, keepdims: bool) -> np.ndarray:
    wide, rest = x.astype(np.float64), {"axis": axes, "keepdims": keepdims}
    results = {
        "ReduceSum": lambda: np.sum(wide, **rest), "ReduceMean": lambda: np.mean(wide, **rest),
        "ReduceMax": lambda: np.max(wide, **rest), "ReduceMin": lambda: np.min(wide, **rest),
        "ReduceProd": lambda: np.prod(wide, **rest), "ReduceL1": lambda: np.sum(np.abs(wide), **rest),
        "ReduceL2": lambda: np.sqrt(np.sum(wide**2, **rest)), "ReduceSumSquare": lambda: np.sum(wide**2, **rest),
        "ReduceLogSum": lambda: np.log(np.sum(wide, **rest)), "ReduceLogSumExp": lambda: scipy.special.logsumexp(wide, **rest),
    }  # fmt: skip
    return np.asarray(results[op]())


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (1,), (-1, 0), (0, 1, 2, 3)])
@pytest.mark.parametrize("op", OPS)
def test_axes_in_every_form(op: str, axes: tuple[int, ...] | None, keepdims: int) -> None:
    x = np.abs(X) if op == "ReduceLogSum" else X
    expected = by_numpy(op, x, axes, bool(keepdims))
    given = {} if axes is None else {"axes": list(axes)}
    forms = [run(op, [x], opset, keepdims=keepdims, **given)[0] for opset in (1, 11)]
    opset = SINCE.get(op, 18)
    if axes is None:
        forms.append(run(op, [x], opset, keepdims=keepdims)[0])
    else:
        named = np.array(axes)
        forms += [run(op, [x, named], opset, keepdims=keepdims, constants=c)[0] for c in ((1,),)]
        session = load(op, [x, named], opset, keepdims=keepdims)
        assert not session.opaque
        forms.append(session.run(None, {"x0": x, "x1": named})[0])
    for found in forms:
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_no_axes_mean_all_or_none(op: str) -> None:
    x, nothing = np.abs(X), np.zeros(0, np.int64)
    opset = SINCE.get(op, 18)
    for noop, axes in ((0, None), (1, ())):
        expected = by_numpy(op, x, axes, True)
        (found,) = run(op, [x, nothing], opset, constants=(1,), noop_with_empty_axes=noop)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        session = load(op, [x, nothing], opset, noop_with_empty_axes=noop)  # an input, but its size says that it is empty
        assert not session.opaque
        np.testing.assert_array_equal(session.run(None, {"x0": x, "x1": nothing})[0], found)


@pytest.mark.parametrize(
    ("op", "value"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceMean", np.nan),
     ("ReduceL1", 0), ("ReduceL2", 0), ("ReduceSumSquare", 0), ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf)],
)  # fmt: skip
def test_empty_sets(op: str, value: float) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    (found,) = run(op, [x, np.array([1])], 20, constants=(1,))
    np.testing.assert_array_equal(found, np.full((2, 1, 3), value, np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_extremes_of_no_integers(dtype: Any) -> None:
    x = np.zeros((0, 2), dtype)
    info = np.iinfo(dtype)
    assert same_bits(run("ReduceMax", [x, np.array([0])], 18, constants=(1,), keepdims=0)[0], np.full(2, info.min, dtype))
    assert same_bits(run("ReduceMin", [x, np.array([0])], 18, constants=(1,), keepdims=0)[0], np.full(2, info.max, dtype))


@pytest.mark.parametrize(
    "op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"]
)
def test_integers(op: str) -> None:
    x = RNG.integers(-5, 5, (3, 4)).astype(np.int32)
    axes = np.array([1])
    opset = SINCE.get(op, 18)
    assert same_bits(run(op, [x, axes], opset, constants=(1,))[0], run_ort(op, [x, axes], opset, constants=(1,))[0])


def test_flags() -> None:
    x = np.array([[True, False], [True, True]])
    for op in ("ReduceMax", "ReduceMin"):
        assert same_bits(
            run(op, [x, np.array([1])], 20, constants=(1,))[0], run_ort(op, [x, np.array([1])], 20, constants=(1,))[0]
        )


def test_half_types_are_summed_in_float32() -> None:
    x = np.full((1, 5000), 1.0, np.float16)
    for op, expected in (("ReduceSum", 5000), ("ReduceL1", 5000), ("ReduceSumSquare", 5000), ("ReduceMean", 1)):
        assert float(run(op, [x, np.array([1])], 18, constants=(1,))[0].item()) == expected
    assert float(run("ReduceL2", [np.full((1, 4), 300.0, np.float16), np.array([1])], 18, constants=(1,))[0].item()) == 600


def test_how_many_axes_may_be_open_only_if_none_means_nothing() -> None:
    inputs = [X, np.array([1, 2])]
    ((_, _, reason),) = load("ReduceSum", inputs, 13, free=True).opaque
    assert "how many axes" in reason
    ((_, _, reason),) = load("ReduceL2", inputs, 18, free=True).opaque
    assert "how many axes" in reason
    session = load("ReduceSum", inputs, 13, free=True, noop_with_empty_axes=1)
    assert not session.opaque
    for axes in ((1, 2), ()):
        (found,) = session.run(None, {"x0": X, "x1": np.array(axes, np.int64)})
        np.testing.assert_allclose(found, X.sum(axis=axes, keepdims=True), rtol=1e-5, atol=1e-5)


def test_axes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidModel, match="axis 4 is out of range"):
        load("ReduceSum", [X], 11, axes=[4])
    with pytest.raises(InvalidModel, match="named twice"):
        load("ReduceSum", [X], 11, axes=[1, -3])
    with pytest.raises(InvalidModel, match="axis 7 is out of range"):
        load("CumSum", [X, np.array(7)], 14, constants=(1,))


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [np.inf, 0.0]], np.float32)
    (found,) = run("ReduceLogSumExp", [x, np.array([1])], 18, constants=(1,), keepdims=0)
    np.testing.assert_allclose(found, scipy.special.logsumexp(x.astype(np.float64), axis=1), rtol=1e-6)


@pytest.mark.parametrize("op", OPS[:5])
def test_plain_reductions_stay_whole(op: str) -> None:
    assert len(ops_of(op, [X], 11, axes=[1])) == 1


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes(op: str, keepdims: int, last: int) -> None:
    x = RNG.integers(0, 3, (4, 6)).astype(np.float32)
    for axis in (0, 1, -1):
        attrs = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
        assert same_bits(run(op, [x], 13, **attrs)[0], run_ort(op, [x], 13, **attrs)[0])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(exclusive: int, reverse: int) -> None:
    attrs = {"exclusive": exclusive, "reverse": reverse}
    for axis in (0, 2, -1):
        inputs = [X, np.array(axis)]
        expected = run_ort("CumSum", inputs, 14, **attrs)[0]
        for constants in ((), (1,)):
            np.testing.assert_allclose(
                run("CumSum", inputs, 14, constants=constants, **attrs)[0], expected, rtol=1e-5, atol=1e-6
            )
    session = load("CumSum", [X, np.array([1])], 14, **attrs)  # an axis in a vector of one
    np.testing.assert_allclose(
        session.run(None, {"x0": X, "x1": np.array([1])})[0],
        run_ort("CumSum", [X, np.array(1)], 14, **attrs)[0],
        rtol=1e-5,
        atol=1e-6,
    )


def test_running_products() -> None:
    x = RNG.uniform(0.5, 2, (3, 4)).astype(np.float64)
    np.testing.assert_allclose(run("CumProd", [x, np.array(1)], 26, constants=(1,))[0], np.cumprod(x, axis=1), rtol=1e-14)
    reverse = np.flip(np.cumprod(np.flip(x, 0), axis=0), 0)
    np.testing.assert_allclose(run("CumProd", [x, np.array(0)], 26, constants=(1,), reverse=1)[0], reverse, rtol=1e-14)
