"""Operators that run nested graphs, move values between devices, or stand for a node only another library knows.

The executor runs them; they have no numpy reference. Nested graphs are closed, so an `if` passes both branches the same inputs:

    if(condition, *inputs)                     graphs: then(*inputs), else(*inputs)
    loop(trip?, condition?, *carried, *shared) graphs: body(i, condition, *carried, *shared) -> condition, *carried, *scanned
    scan(*carried, *scanned, *shared)          graphs: body(*carried, *slices, *shared) -> *carried, *slices
    while(*carried, *shared)                   graphs: cond(*carried, *shared) -> bool, body(*carried, *shared) -> *carried
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotfuse.ir.dim import Dim, substitute, symbols_of
from hotfuse.ir.op import Call, OpDef, Pattern, define
from hotfuse.ir.types import ANY, OptionalType, SequenceType, TensorType, Type


def join_types(a: Type, b: Type, fresh: Call) -> Type:
    """The least type that covers both."""
    if a == b:
        return a
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner, other = (t.element if isinstance(t, OptionalType) else t for t in (a, b))
        return OptionalType(join_types(inner, other, fresh))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(join_types(a.element, b.element, fresh))
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        return TensorType(a.dtype, tuple(x if x == y else fresh.fresh() for x, y in zip(a.shape, b.shape, strict=True)))
    return ANY


def _outputs(call: Call, which: int, given: Sequence[Type]) -> list[Type]:
    """The results of a nested graph as the outer one may see them. Sizes that its inputs fix are the outer graph's own; those
    that only the nested graph knows get new names. `given` are the inputs' types, ANY where they change from round to round.
    """
    graph = call.graphs[which]
    sizes: dict[str, Dim] = {}
    for name, actual in zip(graph.inputs, given, strict=True):
        declared = graph.type(name)
        if isinstance(declared, TensorType) and isinstance(actual, TensorType):
            for dim, size in zip(declared.shape or (), actual.shape or (), strict=False):
                for symbol in symbols_of([dim]):
                    if str(dim) == symbol.name:
                        sizes.setdefault(symbol.name, size)
    return [_renewed(graph.type(name), sizes, call) for name in graph.outputs]


def _renewed(type: Type, sizes: Mapping[str, Dim], call: Call) -> Type:
    if isinstance(type, TensorType) and type.shape is not None:
        known = (substitute(d, sizes) if all(s.name in sizes for s in symbols_of([d])) else call.fresh() for d in type.shape)
        return TensorType(type.dtype, tuple(known))
    if isinstance(type, SequenceType | OptionalType):
        return replace(type, element=_renewed(type.element, sizes, call))
    return type


def _given(call: Call, start: int) -> list[Type]:
    """The types of the inputs from `start` on."""
    return [ANY if v is None else v.type for v in call.inputs[start:]]


def _after_rounds(
    call: Call, which: int, initial: Sequence[Type], inputs: Sequence[str], outputs: Sequence[Type]
) -> list[Type]:
    """The types of carried values after any number of rounds, none included."""
    graph = call.graphs[which]
    results = graph.outputs[len(graph.outputs) - len(outputs) :][: len(initial)]
    found = []
    for first, before, after, seen in zip(initial, inputs, results, outputs, strict=False):
        type = graph.type(before)
        kept = isinstance(type, TensorType) and type.shape is not None and type == graph.type(after)
        found.append(first if kept else join_types(first, seen, call))
    return found


def _if_infer(call: Call) -> Sequence[Type]:
    then, other = (_outputs(call, which, _given(call, 1)) for which in (0, 1))
    if len(then) != len(other):
        raise call.fail(f"the branches have {len(then)} and {len(other)} results")
    return tuple(join_types(a, b, call) for a, b in zip(then, other, strict=True))


def _loop_infer(call: Call) -> Sequence[Type]:
    carried = int(call.attrs["carried"])
    changing = [ANY] * (2 + carried)
    outputs = _outputs(call, 0, [*changing, *_given(call, 2 + carried)])[1:]
    initial = _given(call, 2)[:carried]
    final = _after_rounds(call, 0, initial, call.graphs[0].inputs[2 : 2 + carried], outputs)
    return (*final, *(_stacked(t, call) for t in outputs[carried:]))


def _stacked(type: Type, call: Call, axis: int = 0, count: Dim | None = None) -> Type:
    if not isinstance(type, TensorType):
        return ANY
    if type.shape is None:
        return type
    axis = axis % (len(type.shape) + 1)
    return TensorType(type.dtype, (*type.shape[:axis], call.fresh() if count is None else count, *type.shape[axis:]))


def _scan_infer(call: Call) -> Sequence[Type]:
    carried, scanned = int(call.attrs["carried"]), int(call.attrs["scanned"])
    given = _given(call, 0)
    sliced = [_sliced(t, axis) for t, axis in zip(given[carried:], call.attrs["input_axes"], strict=False)]
    outputs = _outputs(call, 0, [*[ANY] * carried, *sliced, *given[carried + scanned :]])
    final = _after_rounds(call, 0, given[:carried], call.graphs[0].inputs[:carried], outputs)
    count: Dim | None = None
    shape = call.shape(carried)
    if shape is not None:
        count = shape[call.attrs["input_axes"][0]]
    axes = call.attrs["output_axes"]
    return (*final, *(_stacked(t, call, a, count) for t, a in zip(outputs[carried:], axes, strict=True)))


def _sliced(type: Type, axis: int) -> Type:
    """The type of one slice along `axis`."""
    if not isinstance(type, TensorType) or not type.shape:
        return ANY
    axis %= len(type.shape)
    return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])


def _while_infer(call: Call) -> Sequence[Type]:
    body = call.graphs[1]
    carried = len(body.outputs)
    given = _given(call, 0)
    outputs = _outputs(call, 1, [*[ANY] * carried, *given[carried:]])
    return _after_rounds(call, 1, given[:carried], body.inputs[:carried], outputs)


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
_control("while", _while_infer, "torch while_loop")

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
