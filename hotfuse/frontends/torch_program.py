"""CapturedProgram: a PyTorch model as a graph, with what is needed to call it in the model's own convention.

The graph's inputs are tensors (and symbolic integers) found among the flattened leaves of the call's `(args, kwargs)`; its
weights are named by the module's own parameter and buffer names. Results are leaves of the model's output structure.
The record travels over the pipe from the capture process; it holds no live tensor except small constants.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple

from hotfuse.frontends.torch_code import CodeKey
from hotfuse.frontends.torch_facts import Facts
from hotfuse.frontends.torch_record import Form
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph
from hotfuse.ir.guard import ShapeClass
from hotfuse.records import dataclass


@dataclass(frozen=True, eq=False)  # compared by identity: calls look exact places up by it
class Place:
    """How a returned tensor lies in memory, in elements: `offset` after the start of what `owner` names. That is ("input", leaf
    of the call), ("weight", name), ("output", another output) or ("block", number): `room` elements made for one answer, in
    which all its outputs of that number lie."""

    owner: tuple[str, int | str]
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim
    room: Dim = 0


class WeightForm(NamedTuple):
    """What a weight was when the program was captured, as far as tensors that share its memory depend on it."""

    name: str
    stride: tuple[int, ...]
    requires_grad: bool


class SizeSource(NamedTuple):
    """Where a call shows what a symbol stands for: an axis of leaf `place` of the call, or else of that graph output."""

    symbol: str
    of_call: bool
    place: int
    axis: int


@dataclass(frozen=True)
class OutputLeaf:
    """One leaf of the model's output. `kind` says which:

    value     graph output `index`, laid out at `place` or else in the `order` of axes from the slowest to the fastest
    number    graph output `index`, read as a Python number
    input     the call's own leaf `index` itself
    weight    weight `name` itself
    output    the earlier output `index` itself
    view      a view, at `place`, of what its owner is
    constant  the Python value `constant`

    `detached` says that a view is cut off from the gradient of its owner; `shared`, that a value may share memory with the
    call's inputs; `alone`, that it fills memory of its own."""

    kind: str
    index: int = -1
    name: str = ""
    constant: Any = None
    place: Place | None = None
    order: tuple[int, ...] | None = None
    detached: bool = False
    shared: bool = False
    alone: bool = False


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
    output_form: Form  # what is made of the outputs
    mutations: tuple[Mutation, ...] = ()
    operators: int = 0  # ATen operators captured, opaque ones included
    opaque: tuple[tuple[str, str, str], ...] = ()  # (origin, operator, reason)
    ran: frozenset[CodeKey] | None = None  # the Python code that the trace went through
    facts: Facts = field(default_factory=dict)  # what that code found in classes and globals
    sizes: tuple[SizeSource, ...] = ()  # for the symbols of the outputs' places
    returned_weights: tuple[WeightForm, ...] = ()  # that outputs are, or are views of
    viewed_inputs: tuple[Place, ...] = ()  # how leaves of the call lay in memory that outputs are views of

    @property
    def share(self) -> float:
        """The share of operators that our IR knows."""
        return 1.0 if not self.operators else 1.0 - len(self.opaque) / self.operators

    @cached_property
    def views(self) -> frozenset[int]:
        """The graph outputs that may share memory with the call's inputs, as the original's do."""
        return frozenset(leaf.index for leaf in self.outputs if leaf.kind == "value" and leaf.shared)

    @cached_property
    def is_plain(self) -> bool:
        """Whether every output is a value of its own, an input or a constant."""
        return all(leaf.place is None and leaf.kind not in ("weight", "output", "view") for leaf in self.outputs)

    @cached_property
    def shared_blocks(self) -> frozenset[tuple[str, int | str]]:
        """The blocks in which several outputs lie."""
        count = Counter(leaf.place.owner for leaf in self.outputs if leaf.place is not None)
        return frozenset(owner for owner, members in count.items() if members > 1)

    @cached_property
    def has_effects(self) -> bool:
        """Whether it does more than compute its outputs: draw random numbers, check values."""
        return any(node.attrs.get("effect") for graph in self.graph.walk() for node in graph.nodes)


@dataclass(frozen=True)
class Trace:
    """What a capture gives: a program, and the class of shapes that it serves."""

    program: CapturedProgram
    shapes: ShapeClass
    note: str = ""  # attempts that failed before this one
    form: bytes | str = ""  # the rest of it as bytes for the disk, or why it has no such form
