"""Comparisons, logic, bits and choice. Their results are tracked where they decide something about sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir import contents
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, broadcast_shapes, define, flops_per_element, infer_broadcast, infer_same
from hotfuse.ir.ops.elementwise import binary, rng, unary
from hotfuse.ir.types import BOOL, TensorType, Type

Array = np.ndarray[Any, Any]


def infer_compare(call: Call) -> Sequence[Type]:
    (both,) = infer_broadcast(call)
    assert isinstance(both, TensorType)
    return (TensorType(BOOL, both.shape),)


def infer_predicate(call: Call) -> Sequence[Type]:
    return (TensorType(BOOL, call.shape(0)),)


def infer_where(call: Call) -> Sequence[Type]:
    if call.dtype(0) is not BOOL:
        raise call.fail(f"the condition must be bool, not {call.dtype(0)}")
    if call.dtype(1) != call.dtype(2):
        raise call.fail(f"the two choices have different types, {call.dtype(1)} and {call.dtype(2)}")
    return (TensorType(call.dtype(1), broadcast_shapes(*(call.shape(i) for i in range(3)))),)


_not = contents.negated
for _name, _function, _body, _onnx, _torch, _verdict in (
    ("equal", np.equal, "x == y", ("Equal",), "eq", contents.equal),
    ("not_equal", np.not_equal, "x != y", (), "ne", lambda a, b: _not(contents.equal(a, b))),
    ("less", np.less, "x < y", ("Less",), "lt", contents.less),
    ("less_equal", np.less_equal, "x <= y", ("LessOrEqual",), "le", lambda a, b: _not(contents.less(b, a))),
    ("greater", np.greater, "x > y", ("Greater",), "gt", lambda a, b: contents.less(b, a)),
    ("greater_equal", np.greater_equal, "x >= y", ("GreaterOrEqual",), "ge", lambda a, b: _not(contents.less(a, b))),
):
    binary(
        _name, _function, _body, infer=infer_compare, onnx=_onnx, torch=(f"aten.{_torch}.Tensor",),
        track=contents.flags(_verdict),
    )  # fmt: skip

for _name, _logic, _body, _onnx, _verdict in (
    ("logical_and", np.logical_and, "and_(x, y)", ("And",), contents.both),
    ("logical_or", np.logical_or, "or_(x, y)", ("Or",), contents.either),
    ("logical_xor", np.logical_xor, "xor(x, y)", ("Xor",), contents.differ),
):
    binary(
        _name, _logic, _body, infer=infer_compare, onnx=_onnx, dtype=np.bool_, torch=(f"aten.{_name}.default",),
        track=contents.flags(_verdict),
    )  # fmt: skip

binary("bitwise_and", np.bitwise_and, "and_(x, y)", onnx=("BitwiseAnd",), dtype=np.int32)
binary("bitwise_or", np.bitwise_or, "or_(x, y)", onnx=("BitwiseOr",), dtype=np.int32)
binary("bitwise_xor", np.bitwise_xor, "xor(x, y)", onnx=("BitwiseXor",), dtype=np.int32)
binary("shift_left", np.left_shift, "shl(x, y)", dtype=np.uint8, domain=(0, 7), torch=("aten.bitwise_left_shift.Tensor",))
binary("shift_right", np.right_shift, "shr(x, y)", dtype=np.uint8, domain=(0, 7), torch=("aten.bitwise_right_shift.Tensor",))

define(
    OpDef(
        "bitwise_not", infer_same, np.bitwise_not, Pattern.ELEMENTWISE, scalar="not_(x)", flops=flops_per_element(1),
        onnx=("BitwiseNot",), torch=("aten.bitwise_not.default",),
        samples=lambda: [Sample((np.arange(-4, 4, dtype=np.int32),))],
    )
)  # fmt: skip
define(
    OpDef(
        "logical_not", infer_predicate, np.logical_not, Pattern.ELEMENTWISE, scalar="not_(x)", flops=flops_per_element(1),
        contents=contents.flags(lambda a: _not(contents.holds(a))), onnx=("Not",), torch=("aten.logical_not.default",),
        samples=lambda: [Sample((np.array([[True], [False]]),))],
    )
)  # fmt: skip
unary("isnan", np.isnan, "isnan(x)", infer=infer_predicate, onnx=("IsNaN",))
unary("isinf", np.isinf, "isinf(x)", infer=infer_predicate)


def where(condition: Array, x: Array, y: Array) -> Any:
    return np.where(condition, x, y)


define(
    OpDef(
        "where", infer_where, where, Pattern.ELEMENTWISE, "the second input where the first holds, else the third",
        scalar="where(x, y, z)", contents=contents.elementwise(contents.choose, lambda call: call.dtype(1), ring=True),
        flops=flops_per_element(1), onnx=("Where",), torch=("aten.where.self",),
        samples=lambda: [
            Sample((rng().random((3, 4)) > 0.5, rng(1).random((3, 4), np.float32), np.float32(2.0).reshape(()))),
            Sample((np.array([True, False]), np.arange(6).reshape(3, 2), np.zeros((3, 1), np.int64))),
        ],
    )
)  # fmt: skip
