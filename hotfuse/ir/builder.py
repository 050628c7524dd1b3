"""GraphBuilder: the one way to write a graph. It names values, infers types as nodes are added, and holds no node twice.

State: the graph under construction; it is changed by the builder's own methods and frozen by `build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import DimError, HotfuseError, InvalidModel
from hotfuse.ir.dim import MAX_DEGREE, Dim, degree, is_simple
from hotfuse.ir.facts import NO_FACTS, Facts
from hotfuse.ir.graph import CPU, NO_ATTRS, NO_ORIGIN, Attrs, Constant, Graph, Node, Origin, Value
from hotfuse.ir.op import CONTENTS_LIMIT, OPS, Call, FreshSymbols
from hotfuse.ir.types import BOOL, I32, I64, TensorType, Type


class GraphBuilder:
    """Writes a graph node by node; every `add` returns values that already have their types.

    `retype` gives the inference of one node; tests may pass their own.
    """

    def __init__(self, name: str = "main", fresh: Callable[[], Dim] | None = None, facts: Facts = NO_FACTS) -> None:
        self.name = name
        self.fresh = fresh if fresh is not None else FreshSymbols()
        self.facts = facts
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Constant] = {}
        self.origin = NO_ORIGIN
        self._numbers: dict[str, int] = {}
        self._shared: dict[tuple[object, ...], Value] = {}

    def input(self, name: str, type: Type, device: str = CPU) -> Value:
        self.inputs.append(name)
        return self._define(Value(name, type, device))

    def weight(self, name: str, type: Type, device: str = CPU) -> Value:
        self.weights.append(name)
        return self._define(Value(name, type, device))

    def constant(self, data: Any, name: str | None = None, device: str = CPU) -> Value:
        """A constant by reference. Small ones that have no name of their own are shared."""
        constant = data if isinstance(data, Constant) else Constant.of(data)
        key = None
        if name is None and _size(constant) <= 16:
            array = constant.numpy()
            key = (constant.type, device, array.tobytes() if array.dtype != object else tuple(array.reshape(-1).tolist()))
            if key in self._shared:
                return self._shared[key]
        value = Value(self.unique("const") if name is None else name, constant.type, device, contents_of(constant))
        self.constants[value.name] = constant
        self._define(value)
        if key is not None:
            self._shared[key] = value
        return value

    def dims(self, dims: Sequence[Dim], scalar: bool = False) -> Value:
        """An int64 tensor of sizes, a constant when they are plain numbers."""
        if all(isinstance(d, int) for d in dims):
            array = np.array(dims, dtype=np.int64)
            return self.constant(array.reshape(()) if scalar else array)
        return self.add("dims", dims=tuple(dims), scalar=scalar)

    def add(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Add a node with one output."""
        return self.add_node(op, inputs, attrs)[0]

    def add_node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        graphs: Sequence[Graph] = (),
        outputs: int = 1,
        names: Sequence[str] | None = None,
        types: Sequence[Type] | None = None,
        origin: Origin | None = None,
    ) -> tuple[Value, ...]:
        """Add a node. `types` overrides inference (opaque nodes, where the front end knows more)."""
        frozen = Attrs(attrs) if attrs else NO_ATTRS
        origin = origin or self.origin
        results = infer_node(op, inputs, frozen, graphs, self.fresh, outputs, types, origin)
        if names is None:
            table = self._small_table(op, inputs, frozen, results) if outputs == 1 and not graphs else None
            if table is not None:
                return (table,)
            names = [self.unique(op) for _ in range(outputs)]
        values = tuple(Value(n, v.type, v.device, v.contents) for v, n in zip(results, names, strict=True))
        ins = tuple(None if v is None else v.name for v in inputs)
        self.nodes.append(Node(op, ins, tuple(names), frozen, tuple(graphs), origin))
        for value in values:
            self._define(value)
        return values

    def _small_table(self, op: str, inputs: Sequence[Value | None], attrs: Attrs, results: Sequence[Value]) -> Value | None:
        """The result, as a constant, of a node over known whole numbers whose elements contents cannot tell: exporters compute
        pads through tables of two axes, and sizes would be lost on the way."""
        record, (result,) = OPS[op], results
        if result.contents is not None or record.reference is None or not record.deterministic or not _is_table(result.type):
            return None
        arrays = [None if v is None else self._known_numbers(v) for v in inputs]
        if not inputs or any(a is None and v is not None for a, v in zip(arrays, inputs, strict=True)):
            return None
        assert isinstance(result.type, TensorType)
        found = record.reference(*arrays, **attrs)
        array = np.array(found[0] if record.many else found, dtype=result.type.dtype.numpy)
        return self.constant(array, device=result.device)

    def _known_numbers(self, value: Value) -> np.ndarray[Any, Any] | None:
        if not _is_table(value.type) or not isinstance(value.type, TensorType):
            return None
        if value.name in self.constants:
            return self.constants[value.name].numpy()
        if value.contents is None or not all(isinstance(d, int) for d in value.contents):
            return None
        return np.array(value.contents, dtype=value.type.dtype.numpy).reshape(value.type.sizes)

    def append(self, node: Node, values: Iterable[Value]) -> None:
        """Add a node that exists already, with its values as they are (for passes that keep most of a graph)."""
        self.nodes.append(node)
        for value in values:
            self._define(value)

    def unique(self, stem: str) -> str:
        """A name that no value of this graph has."""
        number = self._numbers.get(stem, 0)
        name = f"{stem}_{number}"
        while name in self.values:
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number + 1
        return name

    def mark(self) -> tuple[int, int]:
        """A place that `undo` can return to."""
        return len(self.nodes), len(self.values)

    def undo(self, mark: tuple[int, int]) -> None:
        """Forget every node and constant added since `mark` (an importer that turned out not to fit)."""
        nodes, values = mark
        del self.nodes[nodes:]
        for name in list(self.values)[values:]:
            del self.values[name]
            self.constants.pop(name, None)
        self._shared = {key: value for key, value in self._shared.items() if value.name in self.values}

    def build(self, outputs: Iterable[Value]) -> Graph:
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(v.name for v in outputs),
            tuple(self.nodes),
            dict(self.values),
            dict(self.constants),
            tuple(self.weights),
            self.facts,
        )

    def _define(self, value: Value) -> Value:
        if value.name in self.values:
            raise InvalidModel(f"value {value.name!r} is defined twice; give each value a name of its own")
        self.values[value.name] = value
        return value


def infer_node(
    op: str,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, Any],
    graphs: Sequence[Graph],
    fresh: Callable[[], Dim],
    outputs: int,
    types: Sequence[Type] | None = None,
    origin: Origin = NO_ORIGIN,
) -> list[Value]:
    """The unnamed result values of one node: types, device and known contents."""
    record = OPS.get(op)
    if record is None:
        raise InvalidModel(f"operator {op!r} is not defined; known operators are listed by `hotfuse.ir.op.OPS`")
    call = Call(op, inputs, attrs, graphs, fresh, outputs)
    try:
        found = record.infer(call) if types is None else types
        device = attrs["to"] if op == "transfer" else next((v.device for v in inputs if v is not None), CPU)
        contents: Sequence[Any] = (None,) * outputs
        if record.contents is not None and any(_may_be_sizes(t) for t in found):
            contents = record.contents(call)
    except HotfuseError as error:
        if origin is NO_ORIGIN or getattr(error, "located", False):
            raise
        located = type(error)(f"{origin}: {error}")
        located.located = True  # type: ignore[attr-defined]
        raise located from None
    except (DimError, ValueError, TypeError, IndexError, KeyError) as error:
        raise InvalidModel(f"{origin or op}: inputs do not fit operator {op}: {error}") from error
    if len(found) < outputs:
        raise InvalidModel(f"{origin or op}: operator {op} has {len(found)} results, {outputs} are asked for")
    return [
        Value("", _bounded_type(t, fresh), device, None if c is None else _bounded_contents(c, t))
        for t, c in zip(found[:outputs], contents, strict=False)
    ]


def _may_be_sizes(type: Type) -> bool:
    return (
        isinstance(type, TensorType)
        and (type.dtype.is_integer or type.dtype is BOOL)
        and type.shape is not None
        and len(type.shape) <= 1
        and all(isinstance(d, int) and d <= CONTENTS_LIMIT for d in type.shape)
    )


def _is_table(type: Type) -> bool:
    """A few whole numbers, in any shape."""
    return (
        isinstance(type, TensorType)
        and type.dtype in (I32, I64, BOOL)
        and type.is_static
        and math.prod(type.sizes) <= CONTENTS_LIMIT
    )


def _bounded_type(type: Type, fresh: Callable[[], Dim]) -> Type:
    """The type, with a new symbol for every size whose expression has grown too large to be of use."""
    if isinstance(type, TensorType):
        shape = type.shape or ()
        for dim in shape:
            if not isinstance(dim, int) and not is_simple(dim):
                return TensorType(type.dtype, tuple(d if isinstance(d, int) or is_simple(d) else fresh() for d in shape))
    return type


def _bounded_contents(contents: tuple[Dim, ...] | None, type: Type) -> tuple[Dim, ...] | None:
    """The contents, unless they have grown too large, or past what the element type holds (arithmetic wraps there). Of sizes
    that are not known yet, only wide signed types are taken to hold them."""
    if contents is None or not isinstance(type, TensorType):
        return None
    wide = type.dtype in (I32, I64)
    low, high = (-1 << type.dtype.bits - 1, 1 << type.dtype.bits - 1) if type.dtype.kind == "int" else (0, 1 << type.dtype.bits)
    fits = all(low <= d < high if isinstance(d, int) else wide and degree(d) <= MAX_DEGREE and is_simple(d) for d in contents)
    return contents if fits else None


def contents_of(constant: Constant) -> tuple[Dim, ...] | None:
    """The elements of a small integer constant."""
    if not _may_be_sizes(constant.type) or _size(constant) > CONTENTS_LIMIT:
        return None
    return tuple(int(x) for x in constant.numpy().reshape(-1).tolist())


def _size(constant: Constant) -> int:
    return math.prod(constant.type.sizes)


def int64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=I64.numpy)
