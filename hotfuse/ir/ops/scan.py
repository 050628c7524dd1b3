"""Running folds along one axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, define, flops_per_element
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.movement import normal_axis
from hotfuse.ir.types import Type

Array = np.ndarray[Any, Any]


def _running(fold: Any, start: int, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    if x.ndim == 0:
        return np.full_like(x, start) if exclusive else np.copy(x)
    moved = np.moveaxis(x, axis, -1)[..., :: -1 if reverse else 1]
    result = np.empty_like(x)
    target = np.moveaxis(result, axis, -1)[..., :: -1 if reverse else 1]
    if exclusive:
        target[..., :1] = start
        fold(moved[..., :-1], axis=-1, dtype=x.dtype, out=target[..., 1:])
    else:
        fold(moved, axis=-1, dtype=x.dtype, out=target)
    return result


def cumsum(x: Array, *, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    return _running(np.cumsum, 0, x, axis, exclusive, reverse)


def cumprod(x: Array, *, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    return _running(np.cumprod, 1, x, axis, exclusive, reverse)


def _infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    if x.shape:
        normal_axis(call, call.attrs.get("axis", 0), len(x.shape))
    return (x,)


def _samples() -> Iterable[Sample]:
    x = np.random.default_rng(0).uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)
    for exclusive in (False, True):
        for reverse in (False, True):
            yield Sample((x,), {"axis": -2, "exclusive": exclusive, "reverse": reverse})
    yield Sample((np.arange(6).reshape(2, 3),), {"axis": 0})
    yield Sample((np.zeros((2, 0)),), {"axis": 1, "exclusive": True})


for _name, _function, _loops in (("cumsum", cumsum, Loops("a + b", 0.0)), ("cumprod", cumprod, Loops("a * b", 1.0))):
    define(
        OpDef(
            _name, _infer, widened(_function), Pattern.SCAN,
            "running fold; `exclusive` leaves out the element itself, `reverse` goes from the end", loops=_loops,
            flops=flops_per_element(1), torch=(f"aten.{_name}.default",), samples=_samples,
        )
    )  # fmt: skip
