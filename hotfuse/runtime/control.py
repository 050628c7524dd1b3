"""Control flow at tier 0: plain Python loops over nested graphs. Shared by all engines.

An engine supplies how to read a boolean or a counter and how to stack results. A model file may hold a loop without an end, or
one that collects more than the machine can hold: both are bounded. A `while` is torch's, and goes on as long as eager would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hotfuse.errors import LimitExceeded
from hotfuse.ir.graph import Node
from hotfuse.runtime.engine import Compute, RunGraph


class Stacking(Protocol):
    """What control flow needs of an engine's arrays."""

    def item(self, value: Any) -> Any: ...
    def scalar(self, value: int | bool) -> Any: ...
    def stack(self, values: list[Any], axis: int, like: Any) -> Any: ...  # takes the values out of the list
    def slice(self, value: Any, axis: int, index: int) -> Any: ...
    def length(self, value: Any, axis: int) -> int: ...


def bind_control(node: Node, arrays: Stacking, run_graph: RunGraph) -> Compute:
    make: dict[str, Callable[[Node, Stacking, RunGraph], Callable[..., Any]]] = {
        "if": _if,
        "loop": _loop,
        "scan": _scan,
        "while": _while,
    }
    return Compute(make[node.op](node, arrays, run_graph), many=True, aliases="any")


class Collected:
    """What the rounds of a loop leave to be stacked: a list for each result, bounded together."""

    def __init__(self, node: Node, count: int, max_bytes: int) -> None:
        self.lists: list[list[Any]] = [[] for _ in range(count)]
        self._node, self._left, self._limit = node, max_bytes, max_bytes

    def add(self, values: Sequence[Any]) -> None:
        for kept, value in zip(self.lists, values, strict=True):
            kept.append(value)
            self._left -= getattr(value, "nbytes", 0) + OBJECT_BYTES
        if self._left < 0:
            raise LimitExceeded(
                f"{self._node.origin or self._node.id}: what {self._node.op} collects is more than {self._limit:,} bytes after "
                f"{len(self.lists[0]):,} rounds; does the loop end? (raise max_value_bytes if the model is right)"
            )


OBJECT_BYTES = 128  # an array takes that much besides its elements


def _if(node: Node, arrays: Stacking, run_graph: RunGraph) -> Callable[..., Any]:
    then, other = node.graphs

    def run(condition: Any, *inputs: Any) -> Sequence[Any]:
        return run_graph(then if arrays.item(condition) else other, inputs)

    return run


def _loop(node: Node, arrays: Stacking, run_graph: RunGraph) -> Callable[..., Any]:
    (body,) = node.graphs
    carried_count = node.attrs["carried"]

    def run(trip: Any, condition: Any, *rest: Any) -> Sequence[Any]:
        carried, shared = list(rest[:carried_count]), rest[carried_count:]
        limit = None if trip is None else arrays.item(trip)
        going = True if condition is None else bool(arrays.item(condition))
        scanned = Collected(node, len(body.outputs) - 1 - carried_count, run_graph.max_bytes)
        i = 0
        while going and (limit is None or i < limit):
            if i >= run_graph.max_rounds:
                raise LimitExceeded(
                    f"{node.origin or node.id}: the loop did not end after {i:,} rounds: its condition stays true and it has "
                    f"{'no' if limit is None else 'a very high'} trip count (raise max_loop_rounds if the model is right)"
                )
            outputs = run_graph(body, [arrays.scalar(i), arrays.scalar(going), *carried, *shared])
            going = bool(arrays.item(outputs[0]))
            carried = list(outputs[1 : 1 + carried_count])
            scanned.add(outputs[1 + carried_count :])
            i += 1
        likes = [body.type(n) for n in body.outputs[1 + carried_count :]]
        return [*carried, *(arrays.stack(v, 0, t) for v, t in zip(scanned.lists, likes, strict=True))]

    return run


def _scan(node: Node, arrays: Stacking, run_graph: RunGraph) -> Callable[..., Any]:
    (body,) = node.graphs
    carried_count, scanned_count = node.attrs["carried"], node.attrs["scanned"]
    input_axes, output_axes = node.attrs["input_axes"], node.attrs["output_axes"]
    backward_in, backward_out = node.attrs["input_reversed"], node.attrs["output_reversed"]

    def run(*values: Any) -> Sequence[Any]:
        carried = list(values[:carried_count])
        sources = values[carried_count : carried_count + scanned_count]
        shared = values[carried_count + scanned_count :]
        results = Collected(node, len(output_axes), run_graph.max_bytes)
        length = arrays.length(sources[0], input_axes[0])
        for i in range(length):
            slices = [
                arrays.slice(s, axis, length - 1 - i if backward else i)
                for s, axis, backward in zip(sources, input_axes, backward_in, strict=True)
            ]
            outputs = run_graph(body, [*carried, *slices, *shared])
            carried = list(outputs[:carried_count])
            results.add(outputs[carried_count:])
        likes = [body.type(n) for n in body.outputs[carried_count:]]
        for kept, backward in zip(results.lists, backward_out, strict=True):
            if backward:
                kept.reverse()
        stacked = (arrays.stack(v, axis, t) for v, axis, t in zip(results.lists, output_axes, likes, strict=True))
        return [*carried, *stacked]

    return run


def _while(node: Node, arrays: Stacking, run_graph: RunGraph) -> Callable[..., Any]:
    condition, body = node.graphs
    count = len(body.outputs)

    def run(*values: Any) -> Sequence[Any]:
        carried, shared = list(values[:count]), values[count:]
        while bool(arrays.item(run_graph(condition, [*carried, *shared])[0])):
            carried = list(run_graph(body, [*carried, *shared]))
        return carried

    return run
