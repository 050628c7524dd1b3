"""Engines: who computes a node at tier 0. One computes in numpy (ONNX models), one in torch (PyTorch models).

An engine turns a node into a plain function of its input values. Values flow between nodes as the engine's own arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.types import Type
from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class RunGraph:
    """Runs nested graphs for control flow, and says how far a loop may go."""

    run: Callable[[Graph, Sequence[Any]], Sequence[Any]]
    max_rounds: int
    max_bytes: int  # of what one loop collects

    def __call__(self, graph: Graph, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.run(graph, inputs)


@dataclass(frozen=True, slots=True)
class Compute:
    """A bound node: `function(*inputs)` returns one value, or a tuple where `many`. With `into` it also takes `out`."""

    function: Callable[..., Any]
    many: bool = False
    into: bool = False
    aliases: str = "none"  # which inputs a result may share memory with: "none", "first", "any"


class Engine(Protocol):
    name: str
    plans_memory: bool

    def constant(self, constant: Constant, anywhere: bool = False) -> Any:
        """The constant as this engine's array, without a copy; `anywhere` says that it need not be aligned."""
        ...

    def reads_anywhere(self, graph: Graph, name: str) -> bool:
        """Whether what reads a constant of a graph takes it where it lies, aligned or not."""
        ...

    def type_of(self, value: Any) -> Type:
        """The exact type of a run-time value."""
        ...

    def own(self, value: Any, shared: bool) -> Any:
        """A result that the caller may keep and change; `shared` says that its memory may belong to somebody else."""
        ...

    def bind(self, node: Node, values: Sequence[Value], run_graph: RunGraph) -> Compute:
        """The function of a node whose input values have the given types."""
        ...
