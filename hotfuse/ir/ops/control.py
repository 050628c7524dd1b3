"""Operators that run nested graphs, move values between devices, or stand for a node only another library knows.

The executor runs them; they have no numpy reference. Nested graphs are closed, so an `if` passes both branches the same inputs:

    if(condition, *inputs)                     graphs: then(*inputs), else(*inputs)
    loop(trip?, condition?, *carried, *shared) graphs: body(i, condition, *carried, *shared) -> condition, *carried, *scanned
    scan(*carried, *scanned, *shared)          graphs: body(*carried, *slices, *shared) -> *carried, *slices
    while(*carried, *shared)                   graphs: cond(*carried, *shared) -> bool, body(*carried, *shared) -> *carried
"""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.ir.dim import Dim
from hotfuse.ir.op import Call, OpDef, Pattern, define
from hotfuse.ir.types import ANY, TensorType, Type


def join_types(a: Type, b: Type, fresh: Call) -> Type:
    """The least type that covers both."""
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        return TensorType(a.dtype, tuple(x if x == y else fresh.fresh() for x, y in zip(a.shape, b.shape, strict=True)))
    return ANY


def _renewed(type: Type, call: Call) -> Type:
    """A type of a nested graph as the outer graph may see it: sizes that only the nested graph knows get new names."""
    if isinstance(type, TensorType) and type.shape is not None:
        return TensorType(type.dtype, tuple(d if isinstance(d, int) else call.fresh() for d in type.shape))
    return type


def _outputs(call: Call, which: int) -> list[Type]:
    graph = call.graphs[which]
    return [_renewed(graph.type(name), call) for name in graph.outputs]


def _if_infer(call: Call) -> Sequence[Type]:
    then, other = _outputs(call, 0), _outputs(call, 1)
    if len(then) != len(other):
        raise call.fail(f"the branches have {len(then)} and {len(other)} results")
    return tuple(join_types(a, b, call) for a, b in zip(then, other, strict=True))


def _loop_infer(call: Call) -> Sequence[Type]:
    carried = int(call.attrs["carried"])
    outputs = _outputs(call, 0)[1:]
    return (*outputs[:carried], *(_stacked(t, call) for t in outputs[carried:]))


def _stacked(type: Type, call: Call, axis: int = 0, count: Dim | None = None) -> Type:
    if not isinstance(type, TensorType):
        return ANY
    if type.shape is None:
        return type
    axis = axis % (len(type.shape) + 1)
    return TensorType(type.dtype, (*type.shape[:axis], call.fresh() if count is None else count, *type.shape[axis:]))


def _scan_infer(call: Call) -> Sequence[Type]:
    carried = int(call.attrs["carried"])
    outputs = _outputs(call, 0)
    count: Dim | None = None
    shape = call.shape(carried)
    if shape is not None:
        count = shape[call.attrs["input_axes"][0]]
    axes = call.attrs["output_axes"]
    return (*outputs[:carried], *(_stacked(t, call, a, count) for t, a in zip(outputs[carried:], axes, strict=True)))


def _transfer_infer(call: Call) -> Sequence[Type]:
    value = call.inputs[0]
    assert value is not None
    return (value.type,)


def _opaque_infer(call: Call) -> Sequence[Type]:
    return (ANY,) * call.num_outputs


def _control(name: str, infer: object, doc: str) -> None:
    define(OpDef(name, infer, None, Pattern.CONTROL, doc))  # type: ignore[arg-type]


_control("if", _if_infer, "runs one of two graphs")
_control("loop", _loop_infer, "ONNX Loop: `carried` values go round, further results are stacked")
_control("scan", _scan_infer, "ONNX Scan: a loop over slices of the inputs")
_control("while", lambda call: _outputs(call, 1), "torch while_loop")

define(OpDef("transfer", _transfer_infer, None, Pattern.TRANSFER, "the same value on the device `to`"))
define(
    OpDef(
        "onnx_op", _opaque_infer, None, Pattern.OPAQUE,
        "a node run by onnx's reference evaluator; `proto` is the serialized NodeProto, `reason` says why",
        deterministic=False,
    )
)  # fmt: skip
define(
    OpDef(
        "torch_op", _opaque_infer, None, Pattern.OPAQUE,
        "a node run by torch eager; `target` names the operator, `reason` says why", deterministic=False,
    )
)  # fmt: skip
