"""Operator records: everything that is known of one operator, in one place.

An `OpDef` feeds the front ends (names), the checker and the planner (inference, costs), tier 0 (the numpy reference), code
generation (scalar body or loop structure) and the generated tests (samples). Records are made by `define` in `ir/ops/*`
and are never changed; `OPS` is the table of them.

Inference sees a `Call`: the input values with their types and, for small integer tensors, their contents as dims.
References are plain numpy functions: inputs by position, attributes by keyword. One that takes `out` can write into
memory planned for it. One marked `view` may return memory shared with its first input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotfuse.errors import InvalidModel
from hotfuse.ir.dim import Dim, Expr, Min, maximum, minimum, symbol
from hotfuse.ir.types import DType, Shape, TensorType, Type, numel
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.ir.graph import Graph, Value

Contents = tuple[Dim, ...]
CONTENTS_LIMIT = 256  # integer tensors with more elements than this are data, not shapes


class Pattern(Enum):
    """The loop structure of an operator: what a code generator may assume of it."""

    ELEMENTWISE = "each output element from the broadcast input elements at its place"
    REDUCTION = "folds some axes with an associative scalar body"
    SCAN = "a running fold along one axis"
    NORMALIZATION = "row statistics, then an elementwise map of the same row"
    CONTRACTION = "a sum of products over shared axes"
    WINDOW = "a fold over a sliding window"
    ATTENTION = "scores, softmax, weighted sum"
    MOVEMENT = "each output element is one input element at an affine place, or a fill value"
    GATHER = "each output element is one input element at a place read from data"
    SCATTER = "a copy of the first input with elements replaced at places read from data"
    SOURCE = "no tensor input: iota, fill, random"
    SHAPE = "reads sizes, not data"
    CONTROL = "runs nested graphs"
    TRANSFER = "moves a value between devices"
    OTHER = "sorts, selections and whatever has no regular loop nest"
    OPAQUE = "known only to the library that runs it"


@dataclass(frozen=True)
class Loops:
    """How a reduction, scan or contraction folds: `combine(a, b)` from `initial`, each element first through `map(x)`."""

    combine: str
    initial: float | str
    map: str = "x"
    finish: str = "a"


@dataclass(frozen=True)
class Sample:
    """One generated test case: input arrays (None for an absent input) and attributes."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


class FreshSymbols:
    """Hands out symbols for sizes that only running the model reveals: `?0`, `?1`, ..."""

    def __init__(self, prefix: str = "?") -> None:
        self.count = 0  # of those handed out
        self._prefix = prefix

    def __call__(self) -> Dim:
        self.count += 1
        return symbol(f"{self._prefix}{self.count - 1}")


@dataclass(slots=True)
class Call:
    """One application of an operator, as inference and cost functions see it."""

    op: str
    inputs: Sequence[Value | None]
    attrs: Mapping[str, Any]
    graphs: Sequence[Graph]
    fresh: Callable[[], Dim]
    num_outputs: int = 1

    def tensor(self, i: int) -> TensorType:
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise InvalidModel(f"{self.op}: input {i} is missing")
        if not isinstance(value.type, TensorType):
            raise InvalidModel(f"{self.op}: input {i} ({value.name}) must be a tensor, not {value.type}")
        return value.type

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def shape(self, i: int) -> Shape | None:
        return self.tensor(i).shape

    def dtype(self, i: int) -> DType:
        return self.tensor(i).dtype

    def contents(self, i: int) -> Contents | None:
        value = self.inputs[i] if i < len(self.inputs) else None
        return None if value is None else value.contents

    def ints(self, i: int) -> tuple[int, ...] | None:
        """The contents of input i if they are plain numbers."""
        found = self.contents(i)
        if found is None or not all(isinstance(d, int) for d in found):
            return None
        return found  # type: ignore[return-value]

    def unknown(self, rank: int | None) -> Shape | None:
        """A shape of which only the rank is known."""
        return None if rank is None else tuple(self.fresh() for _ in range(rank))

    def fail(self, what: str) -> InvalidModel:
        return InvalidModel(f"{self.op}: {what}")


@dataclass(frozen=True)
class OpDef:
    """Everything known of one operator; see the module docstring."""

    name: str
    infer: Callable[[Call], Sequence[Type]]
    reference: Callable[..., Any] | None
    pattern: Pattern
    doc: str = ""
    scalar: str | None = None  # elementwise body over x, y, z and the attributes' names
    loops: Loops | None = None
    contents: Callable[[Call], Sequence[Contents | None]] | None = None
    flops: Callable[[Call, Sequence[Type]], Dim] | None = None
    view: bool = False
    many: bool = False  # the reference returns a tuple even where there is just one result
    deterministic: bool = True
    torch: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    samples: Callable[[], Iterable[Sample]] | None = None

    @cached_property
    def writes_out(self) -> bool:
        """Whether the reference can write into given memory (it takes `out`)."""
        if self.reference is None or isinstance(self.reference, np.ufunc):
            return self.reference is not None
        return "out" in inspect.signature(self.reference).parameters


OPS: dict[str, OpDef] = {}


def define(op: OpDef) -> OpDef:
    """Enter an operator into the table. A name is defined once."""
    if op.name in OPS:
        raise ValueError(f"operator {op.name} is defined twice")
    OPS[op.name] = op
    return op


# Inference shared by many operators.


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """The size two sizes broadcast to, by numpy's rule (a size of 0 beats a size of 1)."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise InvalidModel(f"sizes {a} and {b} do not broadcast")
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    for whole, part in ((a, b), (b, a)):
        if _is_cut(whole, part):
            return whole
    return maximum(a, b) * minimum(minimum(a, b), 1)


def _is_cut(whole: Expr, part: Expr) -> bool:
    """Whether `part` is min(whole, k) for a number k above 0: where it broadcasts with the whole, the result is the whole."""
    if len(part.terms) != 1 or part.terms[0][1] != 1 or len(part.terms[0][0]) != 1:
        return False
    ((atom, power),) = part.terms[0][0]
    if power != 1 or not isinstance(atom, Min):
        return False
    limit = atom.b if atom.a == whole else atom.a if atom.b == whole else 0
    return isinstance(limit, int) and limit > 0


def broadcast_shapes(*shapes: Shape | None) -> Shape | None:
    """The shape that all broadcast to; None when a rank is unknown."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        if shape == result:
            continue
        rank = max(len(result), len(shape))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        result = tuple(broadcast_dim(x, y) for x, y in zip(a, b, strict=True))
    return result


def infer_same(call: Call) -> Sequence[Type]:
    """Shape and dtype of the first input."""
    return (call.tensor(0),)


def infer_broadcast(call: Call) -> Sequence[Type]:
    """All inputs have one dtype and broadcast together."""
    dtype = call.dtype(0)
    for i in range(1, len(call.inputs)):
        if call.dtype(i) != dtype:
            raise call.fail(f"inputs have different types, {dtype} and {call.dtype(i)}; cast one of them")
    return (TensorType(dtype, broadcast_shapes(*(call.shape(i) for i in range(len(call.inputs))))),)


def size_of(types: Sequence[Type]) -> Dim:
    """Elements of the first output; 0 where that is not known."""
    first = types[0] if types else None
    return numel(first.shape) if isinstance(first, TensorType) and first.shape is not None else 0


def flops_per_element(count: int) -> Callable[[Call, Sequence[Type]], Dim]:
    return lambda call, types: count * size_of(types)


def contents_by_reference(call: Call) -> Sequence[Contents | None]:
    """Contents from running the reference itself over arrays of dims (for operators whose reference only moves or adds)."""
    arrays: list[np.ndarray[Any, Any] | None] = []
    for i, value in enumerate(call.inputs):
        if value is None:
            arrays.append(None)
            continue
        if value.contents is None or not call.tensor(i).is_static:
            return (None,) * call.num_outputs
        array = np.empty(len(value.contents), dtype=object)
        array[:] = value.contents
        arrays.append(array.reshape(call.tensor(i).sizes))
    reference = OPS[call.op].reference
    assert reference is not None
    result = reference(*arrays, **call.attrs)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(_as_contents(np.asarray(r, dtype=object)) for r in results)


def _as_contents(array: np.ndarray[Any, Any]) -> Contents | None:
    if array.ndim > 1 or array.size > CONTENTS_LIMIT:
        return None
    return tuple(int(d) if isinstance(d, (bool, np.integer, np.bool_)) else d for d in array.reshape(-1).tolist())
