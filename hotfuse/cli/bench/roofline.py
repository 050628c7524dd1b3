"""How fast could it be? The time that no implementation beats on this machine:

    floor = max(flops / FMA rate, bytes / bandwidth)

flops    multiply-adds of products, convolutions and attention, times two. Pointwise work is left out: it can hide behind them,
         so the floor stays a floor.
bytes    what must be touched once: weights, inputs, outputs. A table that is only looked up counts by the rows it gives.
FMA rate and bandwidth are measured by generated loops in the same run, on as many threads; bandwidth on a buffer as large as
the bytes, so that weights which fit a cache are held to the cache's speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotfuse.ir.dim import substitute, symbols_of
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.metadata import bytes_of, cost_of
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import TensorType
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Work:
    """What one call must do at least."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Rates:
    """What the machine did, measured: operations a second, bytes a second read, and copied where that was asked for."""

    flops_s: float
    bytes_s: float
    copy_bytes_s: float | None = None


def floor_s(work: Work, rates: Rates) -> float:
    return max(work.flops / rates.flops_s, work.bytes / rates.bytes_s)


def work_of(graph: Graph, feeds: Mapping[str, Any]) -> Work | None:
    """The work of one call with these inputs; None where sizes stay unknown or an opaque node hides its part."""
    sizes = _sizes(graph, feeds)
    flops: Any = 0
    for node in graph.nodes:
        if OPS[node.op].pattern in (Pattern.OPAQUE, Pattern.CONTROL):
            return None
        if _multiplies(node):
            flops = flops + cost_of(graph, node).flops
    touched: Any = sum(int(value.nbytes) for value in feeds.values())
    for name in graph.outputs:
        touched = touched + bytes_of(graph.type(name))
    for name in graph.constants:
        touched = touched + _bytes_read(graph, name)
    total, moved = (substitute(amount, sizes) if not isinstance(amount, int) else amount for amount in (flops, touched))
    return Work(total, moved) if isinstance(total, int) and isinstance(moved, int) else None


def _multiplies(node: Node) -> bool:
    record = OPS[node.op]
    is_product = record.loops is not None and record.loops.map == "x * y"
    return is_product or record.pattern in (Pattern.CONTRACTION, Pattern.ATTENTION) or node.op in ("rnn", "gru", "lstm")


def _bytes_read(graph: Graph, constant: str) -> Any:
    readers = graph.consumers.get(constant, ())
    whole = bytes_of(graph.type(constant))
    if not readers or not all(node.op == "gather" and node.inputs[0] == constant for node in readers):
        return whole if readers else 0
    rows: Any = 0
    for node in readers:
        rows = rows + bytes_of(graph.type(node.id))
    return min(rows, whole) if isinstance(rows, int) and isinstance(whole, int) else rows


def _sizes(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in feeds.items():
        type = graph.type(name)
        for dim, size in zip(type.shape or () if isinstance(type, TensorType) else (), value.shape, strict=False):
            symbols = list(symbols_of([dim]))
            if len(symbols) == 1 and str(dim) == symbols[0].name:
                found[symbols[0].name] = int(size)
    return found
