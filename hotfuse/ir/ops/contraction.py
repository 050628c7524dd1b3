"""Contractions: sums of products over shared axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import NO_FACTS, Dim
from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, broadcast_shapes, define, size_of
from hotfuse.ir.types import Shape, TensorType, Type

Array = np.ndarray[Any, Any]


def matmul(x: Array, y: Array, out: Array | None = None) -> Any:
    """numpy's matmul; half types are summed in float32 and integers exactly."""
    if x.dtype.kind == "f" and x.dtype.itemsize >= 4 or x.dtype.kind in "iubc":
        return np.matmul(x, y, out=out) if out is not None and out.ndim else np.matmul(x, y)
    return np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)


def matmul_shape(call: Call, a: Shape, b: Shape) -> Shape | None:
    if not a or not b:
        raise call.fail("a scalar cannot be multiplied as a matrix")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    if NO_FACTS.decide(left[-1], right[-2]) is False:
        raise call.fail(f"inner sizes {left[-1]} and {right[-2]} differ")
    batch = broadcast_shapes(left[:-2], right[:-2])
    assert batch is not None
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*batch, *rows, *columns)


def _matmul_infer(call: Call) -> Sequence[Type]:
    x, y = call.tensor(0), call.tensor(1)
    if x.dtype != y.dtype:
        raise call.fail(f"inputs have different types, {x.dtype} and {y.dtype}")
    return (TensorType(x.dtype, None if x.shape is None or y.shape is None else matmul_shape(call, x.shape, y.shape)),)


def matmul_flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(0)
    return 0 if not shape else 2 * shape[-1] * size_of(types)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    shapes = (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((4,), (2, 4, 3)), ((0, 4), (4, 3)))
    return [Sample(tuple(rng.standard_normal(s).astype(np.float32) for s in pair)) for pair in shapes]


define(
    OpDef(
        "matmul", _matmul_infer, matmul, Pattern.CONTRACTION, "matrix product over the last two axes, numpy's broadcasting",
        loops=Loops("a + b", 0.0, map="x * y"), flops=matmul_flops, onnx=("MatMul",),
        torch=("aten.mm.default", "aten.bmm.default", "aten.matmul.default"), samples=_samples,
    )
)  # fmt: skip
