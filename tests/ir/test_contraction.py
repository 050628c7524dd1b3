"""Matrix products and einsum: float64 rule against torch, integers exact, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.errors import InvalidModel
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.op import OPS
from hotfuse.ir.types import F32, I32, TensorType, tensor
from hotfuse.numerics import close_to_exact, same_bits

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", ((2, 3, 5, 16), (2, 3, 7, 16))),
        ("ij,jk,kl->il", ((4, 30), (30, 20), (20, 5))),
        ("...ij,jk", ((2, 3, 4, 8), (8, 5))),
        ("bii->bi", ((3, 6, 6),)),
        ("ijk->kij", ((3, 4, 5),)),
        ("ij,ij->", ((7, 9), (7, 9))),
        ("b...,b->b...", ((4, 2, 3), (4,))),
    ],
)
def test_einsum(equation: str, shapes: Any) -> None:
    arrays = [normal(*s) for s in shapes]
    original = torch.einsum(equation, *map(torch.from_numpy, arrays)).numpy()
    exact = torch.einsum(equation, *(torch.from_numpy(a).double() for a in arrays)).numpy()
    ours = np.asarray(OPS["einsum"].reference(*arrays, equation=equation))
    verdict = close_to_exact(ours, original, exact)
    assert verdict, verdict.reason


def test_einsum_tracks_symbols() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, symbol("n"), symbol("t"), 8))
    y = b.add("einsum", x, b.constant(normal(8, 4, 2)), equation="...i,ihd->...hd")
    assert y.type == TensorType(F32, (symbol("n"), symbol("t"), 4, 2))
    unknown = b.input("u", TensorType(F32, None))
    assert b.add("einsum", unknown, equation="...i->...").type == TensorType(F32, None)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.int64])
def test_integer_products_are_exact(dtype: Any) -> None:
    info = np.iinfo(np.int16 if dtype == np.int64 else dtype)
    a, b = (RNG.integers(info.min, info.max + 1, s).astype(dtype) for s in ((5, 64), (64, 3)))
    with np.errstate(over="ignore"):
        assert same_bits(OPS["matmul"].reference(a, b), np.einsum("ij,jk->ik", a, b))


def test_integer_products_beyond_float64_are_exact() -> None:
    a = np.array([[2**53 + 1, 1]])
    assert OPS["matmul"].reference(a, np.array([[1], [1]])).tolist() == [[2**53 + 2]]


def test_half_types_are_summed_in_float32() -> None:
    a, b = normal(3, 4096).astype(np.float16), normal(4096, 2).astype(np.float16)
    wide = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    assert same_bits(OPS["matmul"].reference(a, b), wide)
    out = np.empty((3, 2), np.float16)
    assert OPS["matmul"].reference(a, b, out=out) is out
    assert same_bits(out, wide)


def test_refusals() -> None:
    b = GraphBuilder()
    x, y, i = b.input("x", tensor(F32, 3, 4)), b.input("y", tensor(F32, 5, 4)), b.input("i", tensor(I32, 4, 5))
    scalar = b.input("s", tensor(F32))
    with pytest.raises(InvalidModel, match="inner sizes 4 and 5"):
        b.add("matmul", x, y)
    with pytest.raises(InvalidModel, match="different types"):
        b.add("matmul", x, i)
    with pytest.raises(InvalidModel, match="scalar cannot be multiplied"):
        b.add("matmul", x, scalar)
    with pytest.raises(InvalidModel, match="different types"):
        b.add("einsum", x, i, equation="ij,jk->ik")
    with pytest.raises(InvalidModel, match="do not broadcast"):
        b.add("einsum", x, y, equation="ij,jk->ik")
