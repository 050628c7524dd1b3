"""Sizes that turn out to be 0 where a Reshape reads them, and products of sizes that 64 bits do not hold: the answer of ONNX
Runtime, or a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import hotfuse
from hotfuse.errors import DimError, HotfuseError

SIZES = """s = Shape <start = 0, end = 1> (y)  t = Shape <start = 1, end = 2> (y)
           a = Shape <start = 0, end = 1> (x)  b = Shape <start = 1, end = 2> (x)"""


def model(body: str, outputs: str = "r, n") -> onnx.ModelProto:
    constants = "int64[1] rest = {-1}, int64[1] six = {6}, "
    constants += ", ".join(f"int64 {name} = {{{number}}}" for name, number in (("far", 2**62), ("less", 2**60), ("k", 2**20)))
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[A, B] x, float[S, T] y) => ({outputs}) <{constants}> {{ {SIZES} {body} }}"""
    )


def feeds(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
    return {"x": np.arange(np.prod(x), dtype=np.float32).reshape(x), "y": np.zeros(y, np.float32)}


def by_onnxruntime(proto: onnx.ModelProto, given: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, given))


RESHAPES = "z = Concat <axis = 0> ({})  r = Reshape (x, z)  n = Shape (r)"


@pytest.mark.parametrize(
    ("target", "x", "y"),
    [
        ("s, t", (2, 3), (0, 3)),  # sizes of another tensor: 0 copies the first size of x
        ("s, t", (2, 3), (3, 2)),
        ("s, rest", (2, 3), (0, 3)),
        ("s, rest", (2, 3), (3, 1)),
        ("rest, t", (2, 3), (1, 0)),
        ("s, six", (0, 6), (0, 3)),
        ("six, t", (6, 4), (0, 0)),
        ("b, a", (0, 0), (1, 1)),
        ("a, b", (0, 3), (1, 1)),
        ("a, rest", (3, 0), (1, 1)),
    ],
)
def test_a_size_of_0_copies(target: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    proto = model(RESHAPES.format(target))
    session = hotfuse.load(proto)
    session.run(None, feeds((6, 6), (6, 6)))  # one session, sizes that are not 0 first
    for ours, theirs in zip(session.run(None, feeds(x, y)), by_onnxruntime(proto, feeds(x, y)), strict=True):
        assert ours.shape == theirs.shape
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("target", "x"), [("ab, rest", (3, 0)), ("ab, rest", (0, 3)), ("b, a", (0, 3)), ("b, rest", (3, 0))])
def test_what_is_prepared_for_sizes_above_0_says_so(target: str, x: tuple[int, ...]) -> None:
    """Of x's own sizes, prepared without a branch for 0: never a wrong answer."""
    proto = model("ab = Mul (a, b) " + RESHAPES.format(target))
    session = hotfuse.load(proto)
    with pytest.raises(HotfuseError, match="r Reshape"):
        session.run(None, feeds(x, (1, 1)))
    r, n = session.run(None, feeds((3, 4), (1, 1)))
    assert r.shape == tuple(n)


def test_a_reshape_that_copies_another_size_than_prepared_for_is_refused() -> None:
    session = hotfuse.load(model("ab = Mul (a, b) " + RESHAPES.format("ab, rest")))
    with pytest.raises(DimError, match=r"r Reshape: .*turns out to be 0 .*f32\[3, 0\].*allowzero"):
        session.run(None, feeds((3, 0), (1, 1)))


FAR = 2**40
SCALARS = "p = Squeeze (b)  q = Squeeze (t) "


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("w = Mul (p, far)  r = Div (w, less)", 8),  # 2 ** 65 is 0 in 64 bits
        ("w = Mul (p, far)  r = Max (w, k)", 2),
        ("w = Mul (p, far)  r = Mod (w, less)", 7),
        ("w = Mul (p, far)  r = Abs (w)", 3),
        ("w = Mul (p, far)  r = Less (w, k)", 2),
        ("v = Mul (p, q)  w = Mul (v, v)  r = Div (w, k)", 100_000),
        ("v = Mul (p, q)  w = Mul (v, v)  r = Min (w, k)", 100_000),
        ("v = Mul (p, q)  w = Mul (v, v)  r = Div (w, p)", 100_000),
        ("v = Mul (p, q)  w = Mul (v, v)  r = Greater (w, k)", 60_000),
        ("v = Mul (p, q)  r = Mul (v, v)", 100_000),
        ("v = Mul (p, q)  r = Div (v, k)", 100_000),
        ("c = Cast <to = 6> (p)  v = Mul (c, c)  r = Cast <to = 7> (v)", 100_000),
        ("c = Cast <to = 6> (p)  d = Cast <to = 6> (q)  v = Mul (c, c)  r = Div (v, d)", 100_000),
    ],
)
def test_products_of_sizes_wrap_as_64_bits_do(body: str, size: int) -> None:
    proto = model(SCALARS + body, "r")
    ours, theirs = (run(feeds((1, size), (1, size)))[0] for run in (
        lambda given: hotfuse.load(proto).run(None, given), lambda given: by_onnxruntime(proto, given)))  # fmt: skip
    assert ours.dtype == theirs.dtype
    assert ours == theirs


def test_sizes_whose_product_leaves_64_bits_are_refused_under_a_division() -> None:
    session = hotfuse.load(model(SCALARS + "v = Mul (p, q)  r = Div (v, k)", "r"))
    with pytest.raises(DimError, match="more than 64 bits hold"):
        session.run(None, feeds((0, FAR), (0, FAR)))
