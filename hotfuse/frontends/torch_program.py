"""CapturedProgram: a PyTorch model as a graph, with what is needed to call it in the model's own convention.

The graph's inputs are tensors (and symbolic integers) found among the flattened leaves of the call's `(args, kwargs)`; its
weights are named by the module's own parameter and buffer names. Results are leaves of the model's output structure.
The record travels over the pipe from the capture process; it holds no live tensor except small constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotfuse.ir.graph import Graph

if TYPE_CHECKING:
    from hotfuse.frontends.torch_code import CodeKey
    from hotfuse.frontends.torch_facts import Facts


@dataclass(frozen=True)
class OutputLeaf:
    """One leaf of the model's output: `kind` is "value" (graph output `index`), "number" (the same, read as a Python number),
    "input" (the call's own leaf `index`, unchanged) or "constant" (the Python value `constant`).

    `view` says that the original returns a view of an input here. `order` is the original's order of axes in memory, from the
    slowest to the fastest, where it is dense."""

    kind: str
    index: int = -1
    constant: Any = None
    view: bool = False
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Mutation:
    """Graph output `output` must be written back, in place, into weight `name` or, where that is empty, input leaf `leaf`."""

    output: int
    name: str = ""
    leaf: int = -1


@dataclass(frozen=True)
class CapturedProgram:
    graph: Graph  # weights are named by their fully qualified names in the module
    input_leaves: tuple[int, ...]  # for each graph input, its place among the leaves of (args, kwargs)
    outputs: tuple[OutputLeaf, ...]
    output_tree: str  # torch.utils._pytree.treespec_dumps of the output structure
    mutations: tuple[Mutation, ...] = ()
    operators: int = 0  # ATen operators captured, opaque ones included
    opaque: tuple[tuple[str, str, str], ...] = ()  # (origin, operator, reason)
    ran: frozenset[CodeKey] | None = None  # the Python code that the trace went through
    facts: Facts = field(default_factory=dict)  # what that code found in classes and globals

    @property
    def share(self) -> float:
        """The share of operators that our IR knows."""
        return 1.0 if not self.operators else 1.0 - len(self.opaque) / self.operators

    @cached_property
    def views(self) -> frozenset[int]:
        """The graph outputs that may share memory with the call's inputs, as the original's do."""
        return frozenset(leaf.index for leaf in self.outputs if leaf.kind == "value" and leaf.view)

    @cached_property
    def has_effects(self) -> bool:
        """Whether it does more than compute its outputs: draw random numbers, check values."""
        return any(node.attrs.get("effect") for graph in self.graph.walk() for node in graph.nodes)
