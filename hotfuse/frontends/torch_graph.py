"""FX graphs of ATen operators become IR graphs, one call at a time, in one pass that infers types as it goes.

A call is imported by the first of these that knows it:
  1. the importer of its operator (`torch_ops/*`), if what it builds has the types that tracing found;
  2. torch's control-flow operators (cond, while_loop), as nested graphs;
  3. nobody: the call stays opaque, torch eager runs it, and the report names it and says why.

Graphs must be functional: what writes to its inputs is opaque only if it was functionalised before. Integers that tracing kept
symbolic become dims and leave no nodes; those that depend on data are 0-d tensors (`Number`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

import hotfuse.frontends.torch_ops  # noqa: F401  (fills IMPORTERS)
from hotfuse.errors import CaptureError, HotfuseError, LimitExceeded, UnsupportedModel
from hotfuse.frontends.torch_control import import_control
from hotfuse.frontends.torch_dim import dim_from_torch, is_unbacked
from hotfuse.frontends.torch_node import COMPOSITES, IMPORTERS, Decline, Number, TorchNode, tensor_type, type_from_meta
from hotfuse.frontends.torch_numbers import import_number
from hotfuse.frontends.torch_template import Live, Template, encode
from hotfuse.frontends.torch_tensor import axis_order, to_numpy
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Expr
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.graph import Constant, Origin, Value
from hotfuse.ir.op import FreshSymbols
from hotfuse.ir.types import ANY, TensorType, Type, type_of
from hotfuse.records import dataclass

IDENTITIES = {
    "aten.clone.default", "aten.contiguous.default", "aten.alias.default", "aten.detach.default",
    "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.view_of.default", "prims.view_of.default",
    "aten.alias_copy.default", "aten.detach_copy.default", "aten.lift.default", "aten.detach_.default",
}  # fmt: skip
CHECKS = {  # of values: these stay in their place, and raise as eager does
    "aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default", "aten._functional_assert_async.msg", "aten._functional_assert_scalar.default",
}  # fmt: skip
METADATA_CHECKS = {"aten._assert_tensor_metadata.default"}  # what guards and types already say

VIEWS = {
    "aten.view.default", "aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.expand.default",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.slice.Tensor",
    "aten.select.int", "aten.alias.default", "aten.detach.default", "aten.split.Tensor", "aten.split_with_sizes.default",
    "aten.unbind.int",
}  # fmt: skip
STRIDED = {  # their results depend on how operands lie in memory
    "aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default", "aten.view.dtype",
    "aten.view_as_complex.default", "aten.view_as_real.default", "aten.sym_storage_offset.default", "aten.set_.source_Tensor",
}  # fmt: skip


@dataclass
class TorchImport:
    """What an import finds. `opaque` lists (origin, operator, reason) of the calls nobody here knows."""

    max_nodes: int = 500_000
    max_nesting: int = 32
    fresh: FreshSymbols = field(default_factory=FreshSymbols)
    opaque: list[tuple[str, str, str]] = field(default_factory=list)
    operators: int = 0
    unbacked: set[str] = field(default_factory=set)
    depth: int = 0


@dataclass(frozen=True)
class FxGraph:
    """An imported graph: the values of its placeholders and, as nested tuples, of what it returns."""

    builder: GraphBuilder
    env: Mapping[fx.Node, Any]
    results: tuple[Any, ...]
    result_nodes: tuple[Any, ...]


Declare = Callable[[fx.Node, GraphBuilder, Type | None], Any]


def import_fx(module: fx.GraphModule, context: TorchImport, declare: Declare | None = None, name: str = "main") -> FxGraph:
    """Import a graph module. `declare` says what a placeholder becomes; by default each is an input of the graph."""
    builder = GraphBuilder(name, context.fresh)
    env: dict[fx.Node, Any] = {}
    declare = declare or declare_input
    for node in module.graph.nodes:
        if node.op == "placeholder":
            _note_unbacked(node.meta.get("val"), context)
            env[node] = declare(node, builder, _placeholder_type(node))
        elif node.op == "get_attr":
            env[node] = _attribute(module, str(node.target), builder)
        elif node.op == "call_function":
            _note_unbacked(node.meta.get("val"), context)
            env[node] = _import_call(node, env, builder, context)
        elif node.op == "output":
            returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
            results = tuple(_resolve(a, env) for a in returned)
            return FxGraph(builder, env, results, tuple(returned))
        else:
            raise UnsupportedModel(f"the graph holds a {node.op} node ({node.target}); only traced ATen graphs can be imported")
    raise UnsupportedModel("the graph has no output node")


def declare_input(node: fx.Node, builder: GraphBuilder, type: Type | None) -> Any:
    """A placeholder as an input of the graph. Symbolic integers are int64 scalars whose contents is their dim."""
    if type is None:
        return node.meta.get("val")
    value = builder.input(node.name, type)
    val = node.meta.get("val")
    if isinstance(val, (int, torch.SymInt)) and not isinstance(val, bool):
        dim = dim_from_torch(val)
        builder.values[value.name] = Value(value.name, type, value.device, (dim,))
        return Number(builder.values[value.name]) if is_unbacked(val) else dim
    return value if isinstance(val, torch.Tensor) else Number(value)


def _placeholder_type(node: fx.Node) -> Type | None:
    if "val" not in node.meta:
        raise UnsupportedModel(f"input {node.name!r} was traced without a value; export the model with torch.export")
    return type_from_meta(node.meta["val"])


def _note_unbacked(val: Any, context: TorchImport) -> None:
    for item in _leaves(val):
        sizes = item.shape if isinstance(item, torch.Tensor) else (item,) if isinstance(item, torch.SymInt) else ()
        for size in sizes:
            if isinstance(size, torch.SymInt) and is_unbacked(size):
                from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

                context.unbacked.update(str(s) for s in free_unbacked_symbols(size))


def _leaves(val: Any) -> list[Any]:
    return [leaf for v in val for leaf in _leaves(v)] if isinstance(val, (tuple, list)) else [val]


def _attribute(module: fx.GraphModule, path: str, builder: GraphBuilder) -> Any:
    found = operator.attrgetter(path)(module)
    if not isinstance(found, torch.Tensor):
        return found  # a nested graph module, for control flow
    if type(found) not in (torch.Tensor, torch.nn.Parameter):
        raise CaptureError(f"constant {path!r} is a {type(found).__name__}; its values are not known here")
    if found.device.type != "cpu" or found.layout is not torch.strided:
        raise UnsupportedModel(f"constant {path!r} is on {found.device} with layout {found.layout}")
    array = to_numpy(found)
    return builder.constant(Constant(array, type_of(array)), builder.unique(path.replace(".", "_")))


def _resolve(argument: Any, env: Mapping[fx.Node, Any]) -> Any:
    if isinstance(argument, fx.Node):
        return env[argument]
    if isinstance(argument, (tuple, list)):
        return tuple(_resolve(a, env) for a in argument)
    if isinstance(argument, slice):
        return slice(*(_resolve(a, env) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _import_call(node: fx.Node, env: Mapping[fx.Node, Any], builder: GraphBuilder, context: TorchImport) -> Any:
    if len(builder.nodes) > context.max_nodes:
        raise LimitExceeded(f"the model has more than {context.max_nodes:,} nodes (raise max_nodes if that is right)")
    args = tuple(_resolve(a, env) for a in node.args)
    kwargs = {k: _resolve(v, env) for k, v in node.kwargs.items()}
    if node.target is operator.getitem and isinstance(args[0], tuple):
        return args[0][args[1]]
    builder.origin = origin_of(node)
    val = node.meta.get("val")
    if isinstance(val, torch.SymInt) and not is_unbacked(val):
        return dim_from_torch(val)
    name = str(node.target)
    if name in METADATA_CHECKS:
        return None
    if name in CHECKS:
        counted = len(context.opaque)
        result = _opaque(node.target, args, kwargs, val, True, builder, context, "it is an assertion")
        del context.opaque[counted:]  # nothing that an operator here could do better
        return result
    if not isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)) or isinstance(
        val, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    ):
        number = import_number(node, args, builder)
        if number is not None:
            return number
    context.operators += 1
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        if name == "with_effects":  # (token, operator, arguments) -> (token, results): order alone keeps effects in order here
            return None, *_opaque(args[1], args[2:], kwargs, val[1:], True, builder, context, "it has effects")
        found = import_control(node, args, builder, context)
        if not isinstance(found, Decline):
            return found
        return _opaque(node.target, args, kwargs, val, True, builder, context, found.reason)
    if name in IDENTITIES:
        return args[0]
    return _import_operator(node, name, args, kwargs, env, builder, context)


def _import_operator(
    node: fx.Node,
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    env: Mapping[fx.Node, Any],
    builder: GraphBuilder,
    context: TorchImport,
) -> Any:
    importer = IMPORTERS.get(name) or COMPOSITES.get(name)
    val = node.meta.get("val")
    impure = node.is_impure() or torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
    if importer is None:
        orders = _memory_orders(node, env) if name in STRIDED else {}
        return _opaque(node.target, args, kwargs, val, impure, builder, context, "no operator here corresponds to it", orders)
    mark = builder.mark()
    try:
        expected = tuple(type_from_meta(v) for v in (val if isinstance(val, (tuple, list)) else (val,)))
        seen = TorchNode(name, builder, expected, frozenset(context.unbacked), _used_results(node))
        result = importer(seen, *_in_schema_order(node.target, args, kwargs))
        reason = result.reason if isinstance(result, Decline) else _disagreement(result, expected)
        if reason is None:
            return result if isinstance(result, Value) else tuple(result)  # type: ignore[arg-type]
    except HotfuseError as error:
        reason = str(error)
    builder.undo(mark)
    return _opaque(node.target, args, kwargs, val, impure, builder, context, reason)


def view_root(node: fx.Node) -> fx.Node:
    """The node whose memory a chain of views shows."""
    while node.op == "call_function" and (str(node.target) in VIEWS or str(node.target) == "<built-in function getitem>"):
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return node


def _memory_orders(node: fx.Node, env: Mapping[fx.Node, Any]) -> dict[str, tuple[int, ...] | None]:
    """For an operator that reaches around strides: how its operands lay in memory when traced. The caller's own tensors
    and views of them come as they are; of others only dense ones can be laid out again."""
    orders: dict[str, tuple[int, ...] | None] = {}
    for operand in node.all_input_nodes:
        value, val = env[operand], operand.meta.get("val")
        if not isinstance(value, Value) or not isinstance(val, torch.Tensor):
            continue
        orders[value.name] = None
        if view_root(operand).op != "placeholder":
            offset = val.storage_offset()
            orders[value.name] = axis_order(val) if isinstance(offset, int) and offset == 0 else None
            if orders[value.name] is None:
                raise UnsupportedModel(f"{node.target} reads memory around a value whose layout cannot be reproduced")
    return orders


def _used_results(node: fx.Node) -> frozenset[int] | None:
    """Which results of a call are read, where all its readers pick one."""
    if all(user.target is operator.getitem for user in node.users):
        return frozenset(int(user.args[1]) for user in node.users if user.users)  # type: ignore[arg-type]
    return None


def _in_schema_order(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Every argument of the schema, defaults filled in."""
    ordered = []
    for i, argument in enumerate(target._schema.arguments):
        ordered.append(args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value))
    return ordered


def _disagreement(result: Any, expected: Sequence[Type | None]) -> str | None:
    """How the values an importer built differ from what tracing found, or None. Nothing is guessed."""
    results = (result,) if isinstance(result, Value) else tuple(result)
    for value, type in zip(results, expected, strict=False):
        if value is None or type is None:
            continue
        found = tensor_type(value)
        assert isinstance(type, TensorType)
        assert type.shape is not None
        if found.dtype != type.dtype or found.shape is None or len(found.shape) != len(type.shape):
            return f"inference gives {found}, tracing gave {type}"
        if any(NO_FACTS.decide(a, b) is False for a, b in zip(found.shape, type.shape, strict=True)):
            return f"inference gives {found}, tracing gave {type}"
    return None


def _opaque(
    operator: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    val: Any,
    impure: bool,
    builder: GraphBuilder,
    context: TorchImport,
    reason: str,
    orders: Mapping[str, tuple[int, ...] | None] = MappingProxyType({}),
) -> Any:
    """Keep a call as it is, for torch eager. An impure one stays in its place even if nobody reads its results."""
    inputs: dict[str, Value] = {}
    dims: list[Expr] = []

    def leaf(argument: Any) -> Template | None:
        if isinstance(argument, (Value, Number)):
            value = argument if isinstance(argument, Value) else argument.value
            inputs.setdefault(value.name, value)
            return ("in" if isinstance(argument, Value) else "number", list(inputs).index(value.name))
        if isinstance(argument, Expr):
            dims.append(argument)
            return ("dim", len(dims) - 1)
        return None

    target = str(operator)
    attrs: dict[str, Any] = {
        "target": target,
        "args": tuple(encode(a, leaf) for a in args),
        "kwargs": tuple((k, encode(v, leaf)) for k, v in kwargs.items()),
        "reason": reason,
    }
    if dims:
        attrs["dims"] = tuple(dims)
    if impure:
        attrs["effect"] = True
    if orders:
        attrs["orders"] = tuple(orders.get(name) for name in inputs)
    if not isinstance(operator, torch._ops.OpOverload):
        attrs["callee"] = Live(operator)
    leaves = _leaves(val)
    types = [_opaque_type(v) for v in leaves]
    context.opaque.append((str(builder.origin), target, reason))
    values = builder.add_node("torch_op", list(inputs.values()), attrs, outputs=max(1, len(types)), types=types or [ANY])
    rest = iter(values)
    return _shaped(val, rest)


def _opaque_type(val: Any) -> Type:
    try:
        return type_from_meta(val) or ANY
    except HotfuseError:
        return ANY


def _shaped(val: Any, values: Any) -> Any:
    """The node's values in the structure of its traced result."""
    if isinstance(val, (tuple, list)):
        return tuple(_shaped(v, values) for v in val)
    value = next(values)
    if val is None:
        return None
    if isinstance(val, torch.SymInt) and not is_unbacked(val):
        return dim_from_torch(val)
    return value if isinstance(val, torch.Tensor) else Number(value)


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def origin_of(node: fx.Node) -> Origin:
    """Where in the user's model a call comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    layer = next((str(path) for path, _ in reversed(list(stack.values()))), "") if stack else ""
    layer = re.sub(r"^L\[(['\"])self\1\]\.?|^self\.?", "", layer)
    layer = re.sub(r"\._modules\[(['\"])(\w+)\1\]|\[(['\"]?)(\w+)\3\]", lambda m: f".{m.group(2) or m.group(4)}", layer)
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    source = f"{frames[-1][0].rsplit('/', 1)[-1]}:{frames[-1][1]}" if frames else ""
    return Origin(layer, str(node.target), source)
