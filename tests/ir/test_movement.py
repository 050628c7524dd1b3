"""Sizes that inference gives for symbolic shapes are, for every size, those of the arrays the references return."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.config import Config
from hotfuse.ir.builder import GraphBuilder, infer_node
from hotfuse.ir.dim import Dim, evaluate, substitute, symbol, symbols_of
from hotfuse.ir.graph import Value
from hotfuse.ir.op import OPS, FreshSymbols
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import F32, I64, TensorType, tensor
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY

N = symbol("n")
PLACES = st.one_of(
    st.integers(-9, 9),
    st.sampled_from((2**63 - 1, -(2**63))),
    st.builds(lambda sign, k: sign * N + k, st.sampled_from((-1, 1)), st.integers(-3, 3)),
)


def sizes(*dims: Dim) -> Value:
    return Value("sizes", tensor(I64, len(dims)), contents=dims)


def known_shape(op: str, inputs: list[Value], attrs: dict[str, Any], outputs: int = 1) -> list[tuple[Dim, ...]]:
    found = infer_node(op, inputs, attrs, (), FreshSymbols(), outputs)
    shapes = [v.type.shape for v in found if isinstance(v.type, TensorType)]
    assert all(s is not None for s in shapes)
    return [s for s in shapes if s is not None]


def check(op: str, parameters: list[tuple[Dim, ...]], attrs: dict[str, Any], outputs: int = 1) -> int:
    """Compare for n from 0 to 7; the result says how many sizes were exact rather than left open."""
    x = Value("x", tensor(F32, N))
    shapes = known_shape(op, [x, *(sizes(*p) for p in parameters)], attrs, outputs)
    reference = OPS[op].reference
    assert reference is not None
    exact = 0
    for n in range(8):
        arrays = [np.array([evaluate(substitute(d, {"n": n}), {}) for d in p], np.int64) for p in parameters]
        result = reference(np.zeros(n, np.float32), *arrays, **attrs)
        for array, shape in zip(result if isinstance(result, tuple) else (result,), shapes, strict=True):
            if all(s.name == "n" for s in symbols_of(shape)):
                exact += 1
                assert tuple(evaluate(d, {"n": n}) for d in shape) == array.shape
    return exact


@settings(max_examples=150, deadline=None)
@given(PLACES, PLACES, st.sampled_from((-3, -1, 1, 2)))
def test_slice(start: Dim, end: Dim, step: int) -> None:
    check("slice", [(start,), (end,)], {"axes": (0,), "steps": (step,)})


def test_slices_of_exported_models_are_exact() -> None:
    for start, end, step in ((0, N, 1), (1, 2**63 - 1, 2), (-2, 2**63 - 1, 1), (0, -1, 1), (-1, -(2**63), -1), (-N - 1, N, 1)):
        assert check("slice", [(start,), (end,)], {"axes": (0,), "steps": (step,)}) == 8


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5))
def test_even_parts(parts: int) -> None:
    assert check("split", [], {"axis": 0, "sizes": parts}, parts) == 8 * parts


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3))
def test_pad_and_tile(before: int, after: int) -> None:
    assert check("pad", [(before, after + N)], {}) == 8
    assert check("tile", [(before + N,)], {}) == 8


def test_a_split_into_one_part_is_that_part() -> None:
    """Its reference returns a tuple all the same."""
    table = np.arange(4).reshape(2, 2)
    builder = GraphBuilder()
    known = builder.add("split", builder.constant(table), axis=0, sizes=(2,))
    x, sizes = builder.input("x", tensor(I64, 2, 2)), builder.input("sizes", tensor(I64, 1))
    plain = builder.add("split", x, axis=0, sizes=(2,))
    late = builder.add("late", x, sizes, of="split", names=("sizes",), axis=0, rank=2)
    squeezed = builder.add("late", x, builder.input("axes", tensor(I64, 0)), of="squeeze", names=("axes",), rank=2)
    executor = Executor(trivial_plan(builder.build([known, plain, late, squeezed])), NUMPY, Config())
    for found in executor.run([table, np.array([2]), np.array([], np.int64)]):
        np.testing.assert_array_equal(found, table)
