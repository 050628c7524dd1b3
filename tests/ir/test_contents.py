"""Contents of integer tensors are tracked exactly: with numbers they are what the reference computes, with symbols they are
what it computes for every size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hotfuse.ir import contents
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim, evaluate, maximum, minimum, symbol
from hotfuse.ir.graph import Attrs, Value
from hotfuse.ir.op import OPS
from hotfuse.ir.types import BOOL, I8, I32, I64, U8, DType, TensorType

N, M = symbol("n"), symbol("m", 2)
BINARY = (
    "add", "sub", "mul", "div", "floor_div", "mod", "fmod", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal",
)  # fmt: skip


def tracked(op: str, *inputs: tuple[DType, Sequence[Dim]], **attrs: Any) -> tuple[Dim, ...] | None:
    """The contents that the builder finds for `op` over vectors of these contents."""
    builder = GraphBuilder()
    values = [
        builder._define(Value(f"x{i}", TensorType(dtype, (len(dims),)), contents=tuple(dims)))
        for i, (dtype, dims) in enumerate(inputs)
    ]
    return builder.add(op, *values, **attrs).contents


def computed(op: str, *inputs: tuple[DType, Sequence[int]], **attrs: Any) -> tuple[int, ...]:
    reference = OPS[op].reference
    assert reference is not None
    with np.errstate(all="ignore"):
        result = reference(*(np.array(dims).astype(dtype.numpy) for dtype, dims in inputs), **attrs)
    return tuple(int(x) for x in np.asarray(result).reshape(-1))


@pytest.mark.parametrize("dtype", [I64, I32, I8, U8], ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_numbers_follow_the_reference(op: str, dtype: DType) -> None:
    low = 0 if dtype is U8 else -120
    rng = np.random.default_rng(0)
    a = [int(x) for x in rng.integers(low, 120, 50)]
    b = [int(x) or 7 for x in rng.integers(low, 120, 50)]
    found = tracked(op, (dtype, a), (dtype, b))
    assert found == computed(op, (dtype, a), (dtype, b))


@pytest.mark.parametrize("op", BINARY)
def test_symbols_follow_the_reference_for_every_size(op: str) -> None:
    """What is tracked for expressions agrees with the numbers for each of many sizes; at least something is tracked."""
    pairs: list[tuple[Dim, Dim]] = [
        (N, M), (N * M, M), (2 * N + 4, 2), (N + 3, N + 1), (N - 5, 3), (-N, 4), (maximum(N, 3), minimum(M, 9)),
        (M, 1), (N, -2),
    ]  # fmt: skip
    known = 0
    for a, b in pairs:
        found = tracked(op, (I64, [a]), (I64, [b]))
        if found is None:
            continue
        known += 1
        for n in range(0, 12):
            for m in range(2, 6):
                sizes = {"n": n, "m": m}
                numbers = (I64, [evaluate(a, sizes)]), (I64, [evaluate(b, sizes)])
                assert (evaluate(found[0], sizes),) == computed(op, *numbers), (a, b, sizes)
    assert known


def test_verdicts_that_depend_on_sizes_stay_open() -> None:
    assert tracked("less", (I64, [N]), (I64, [3])) is None
    assert tracked("equal", (I64, [N]), (I64, [M])) is None
    assert tracked("abs", (I64, [N - 3])) is None
    assert tracked("div", (I64, [N - 5]), (I64, [3])) is None
    assert tracked("div", (I64, [N]), (I64, [0])) is None
    assert tracked("less", (I64, [N]), (I64, [N + 1])) == (1,)
    assert tracked("equal", (I64, [N]), (I64, [-1])) == (0,)
    assert tracked("greater_equal", (I64, [M]), (I64, [2])) == (1,)


def test_logic() -> None:
    flags = (BOOL, [0, 0, 1, 1]), (BOOL, [0, 1, 0, 1])
    for op in ("logical_and", "logical_or", "logical_xor"):
        assert tracked(op, *flags) == computed(op, *flags)
    assert tracked("logical_not", (BOOL, [0, 1])) == (1, 0)


def test_choice_needs_only_what_decides() -> None:
    assert tracked("where", (BOOL, [1, 0]), (I64, [N, 5]), (I64, [7, M])) == (N, M)
    assert tracked("where", (BOOL, [N]), (I64, [M]), (I64, [M])) == (M,)
    assert tracked("where", (BOOL, [N]), (I64, [M]), (I64, [2])) is None


@pytest.mark.parametrize("op", ["div", "floor_div", "mod", "fmod"])
def test_a_divisor_that_may_be_zero_stays_open(op: str) -> None:
    assert tracked(op, (I64, [N]), (I64, [N])) is None
    assert tracked(op, (I64, [N]), (I64, [N - 3])) is None
    assert tracked(op, (I64, [M * N]), (I64, [M])) == ((N,) if "div" in op else (0,))
    assert tracked(op, (I64, [N + 1]), (I64, [N + 1])) == ((1,) if "div" in op else (0,))


def test_products_that_could_pass_64_bits_stay_open() -> None:
    assert tracked("mul", (I64, [N * N * N]), (I64, [M])) == (N * N * N * M,)
    assert tracked("mul", (I64, [N * N * N * N]), (I64, [M])) is None
    assert tracked("mul", (I8, [N]), (I8, [M])) is None


def test_sizes_wrap_around_as_the_arithmetic_they_stand_for() -> None:
    dims = OPS["dims"].reference
    assert dims is not None
    with np.errstate(all="ignore"):
        assert dims(dims=(10**24, -(10**24), 5)).tolist() == [*(np.array([1, -1]) * np.int64(10**6) ** 4).tolist(), 5]


def test_casts() -> None:
    assert tracked("cast", (I64, [300, -1]), to=U8) == (44, 255)
    assert tracked("cast", (I64, [N]), to=U8) is None  # 300 would be 44
    assert tracked("cast", (I64, [N]), to=I32) == (N,)
    assert tracked("cast", (I64, [300, 0]), to=BOOL) == (1, 0)
    assert tracked("cast", (I64, [M]), to=BOOL) == (1,)
    assert tracked("cast", (I64, [N]), to=BOOL) is None


def test_clip_and_sums() -> None:
    assert tracked("clip", (I64, [N, -4]), (I64, [0])) == (N, 0)
    assert tracked("reduce_sum", (I64, [N, M, 3]), axes=None, keepdims=False) == (N + M + 3,)
    assert tracked("reduce_prod", (I64, [N, M, 3]), axes=None, keepdims=False) == (3 * N * M,)
    assert tracked("reduce_prod", (I32, [1 << 20, 1 << 20]), axes=None, keepdims=False) == (0,)
    assert tracked("neg", (I64, [N])) == (-N,)


def test_long_results_are_data_not_sizes() -> None:
    assert tracked("add", (I64, [1] * 256), (I64, [1])) == (2,) * 256
    assert contents.elementwise(lambda a: a)(_call([0] * 257)) == (None,)


def _call(dims: Sequence[Dim]) -> Any:
    from hotfuse.ir.op import Call

    value = Value("x", TensorType(I64, (len(dims),)), contents=tuple(dims))
    return Call("abs", [value], Attrs(), (), lambda: N)
