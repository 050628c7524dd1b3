"""Devices: placing a graph's nodes, with explicit transfers, and what a transfer costs.

A device is a name ("cpu", "cuda:0", "sim:0"). `place` gives each node a device and puts one transfer wherever a value is
read on a device other than its own; a value that several nodes read there moves once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import CPU, Attrs, Graph, Node, Value
from hotfuse.ir.metadata import bytes_of
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Link:
    """A connection between two devices."""

    bytes_per_s: float
    latency_s: float


DEFAULT_LINK = Link(bytes_per_s=12e9, latency_s=10e-6)  # PCIe 3.0 x16 as commonly measured


def transfer_cost_s(graph: Graph, node: Node, sizes: Mapping[str, Dim], links: Mapping[tuple[str, str], Link]) -> float:
    """Estimated seconds of a transfer node, for the given sizes."""
    from hotfuse.ir.dim import evaluate

    source = graph.values[next(node.uses)]
    link = links.get((source.device, node.attrs["to"]), DEFAULT_LINK)
    size = evaluate(bytes_of(source.type), {k: int(v) for k, v in sizes.items()})  # type: ignore[arg-type]
    return link.latency_s + size / link.bytes_per_s


def place(graph: Graph, choose: Callable[[Node], str]) -> Graph:
    """The graph with each node on the device `choose` names. Inputs stay where they are; outputs return to the host."""
    values: dict[str, Value] = {name: graph.values[name] for name in (*graph.inputs, *graph.weights, *graph.constants)}
    nodes: list[Node] = []
    moved: dict[tuple[str, str], str] = {}

    def on(name: str, device: str) -> str:
        value = values[name]
        if value.device == device:
            return name
        if (name, device) not in moved:
            copy = f"{name}@{device}"
            values[copy] = replace(value, name=copy, device=device)
            nodes.append(Node("transfer", (name,), (copy,), Attrs(to=device)))
            moved[name, device] = copy
        return moved[name, device]

    for node in graph.nodes:
        device = choose(node)
        inputs = tuple(None if n is None else on(n, device) for n in node.inputs)
        nodes.append(replace(node, inputs=inputs))
        for name in node.outputs:
            values[name] = replace(graph.values[name], device=device)
    outputs = tuple(on(name, CPU) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), values=values, outputs=outputs)
