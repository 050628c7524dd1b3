"""torch.cond and while_loop as nested graphs. Other higher-order operators stay opaque.

cond(pred, then, else, operands)                        -> if(pred, *operands)
while_loop(cond, body, carried, additional)             -> while(*carried, *additional)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from hotfuse.errors import HotfuseError, LimitExceeded
from hotfuse.frontends.torch_node import Decline, Number
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Graph, Value

if TYPE_CHECKING:
    from hotfuse.frontends.torch_graph import TorchImport


def import_control(node: fx.Node, args: tuple[Any, ...], builder: GraphBuilder, context: TorchImport) -> Any:
    """The values of a higher-order call, or why it stays opaque."""
    name = str(node.target)
    if context.depth >= context.max_nesting:
        raise LimitExceeded(f"graphs are nested deeper than {context.max_nesting}")
    mark = builder.mark()
    try:
        if name == "cond":
            predicate, then, other, operands = args[:4]
            inputs = _tensors(operands)
            graphs = [_nested(g, context) for g in (then, other)]
            condition = predicate.value if isinstance(predicate, Number) else predicate
            if isinstance(condition, bool):
                condition = builder.constant(condition)
            return builder.add_node("if", [condition, *inputs], graphs=graphs, outputs=len(graphs[0].outputs))
        if name == "while_loop":
            condition, body, carried, additional = args[:4]
            inputs = _tensors((*carried, *additional))
            graphs = [_nested(g, context) for g in (condition, body)]
            return builder.add_node("while", inputs, graphs=graphs, outputs=len(graphs[1].outputs))
    except HotfuseError as error:
        builder.undo(mark)
        return Decline(str(error))
    return Decline(f"the higher-order operator {name} is run by torch")


def _tensors(operands: Sequence[Any]) -> list[Value]:
    values = []
    for operand in operands:
        if not isinstance(operand, Value):
            raise _Uncovered("an operand of the control flow is not a tensor")
        values.append(operand)
    return values


class _Uncovered(HotfuseError):
    pass


def _nested(module: fx.GraphModule, context: TorchImport) -> Graph:
    """A branch or body as a closed graph. Its symbols are its own inputs' symbols, learned when it is bound."""
    from hotfuse.frontends.torch_graph import import_fx

    before = len(context.opaque), context.operators
    context.depth += 1
    try:
        found = import_fx(module, context, name="nested")
        outputs = [r for r in found.results if isinstance(r, Value)]
        if len(outputs) != len(found.results):
            raise _Uncovered("a branch returns something that is not a tensor")
        return found.builder.build(outputs)
    except HotfuseError:
        del context.opaque[before[0] :]
        context.operators = before[1]
        raise
    finally:
        context.depth -= 1
