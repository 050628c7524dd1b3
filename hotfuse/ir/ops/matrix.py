"""Operators over whole matrices in the last two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.types import TensorType, Type, numel

Array = np.ndarray[Any, Any]


def det(x: Array) -> Any:
    return np.asarray(np.linalg.det(x), dtype=x.dtype)


def _det_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape is not None and (len(x.shape) < 2 or NO_FACTS.decide(x.shape[-1], x.shape[-2]) is False):
        raise call.fail(f"{x} holds no square matrices")
    return (TensorType(x.dtype, None if x.shape is None else x.shape[:-2]),)


define(
    OpDef(
        "det", _det_infer, widened(det), Pattern.OTHER, "the determinant of each matrix",
        flops=lambda call, types: numel(call.shape(0) or ()), onnx=("Det",), torch=("aten.linalg_det.default",),
        samples=lambda: [Sample((np.random.default_rng(0).standard_normal(s),)) for s in ((3, 3), (2, 2, 2))],
    )
)  # fmt: skip
