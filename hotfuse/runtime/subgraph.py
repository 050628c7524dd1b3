"""Subgraphs: parts of a model that run as one. An original one is a node that tier 0 runs; a fused one is nodes that became
kernels together, a baked one the same for some sizes only.

A `Fusion` is what is noted when kernels are built: little, for that happens while the model serves. The rest follows from the
graph, when somebody asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.metadata import Cost, bytes_of, cost_of
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.codegen.tile import TileProgram
    from hotfuse.fusion.engine import Step
    from hotfuse.runtime.build import Sizes, Unit
    from hotfuse.runtime.executor import Executor

ORIGINAL, FUSED, BAKED = "original", "fused", "baked"


@dataclass(frozen=True)
class Fusion:
    """Nodes that became kernels together: what is noted of them when they are built. `form` is the sizes that the kernels are
    for, "" for all; instructions are those of tile programs, a loop and what is in it counted once."""

    nodes: tuple[str, ...]
    form: str
    kernels: int
    instructions: int
    code_bytes: int
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", subgraph_id(self.kind, self.form, self.nodes))

    @property
    def kind(self) -> str:
        return BAKED if self.form else FUSED

    @property
    def name(self) -> str:
        """What events call it: the last node."""
        return self.nodes[-1]


@dataclass(frozen=True)
class Subgraph:
    """Nodes that run as one. `inputs` and `outputs` are the values that cross its border; `origins` the user's layers. Flops
    and bytes are text where they depend on sizes."""

    id: str
    kind: str
    form: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    origins: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int | str
    bytes_moved: int | str
    kernels: int
    instructions: int
    code_bytes: int


def subgraph_id(kind: str, form: str, nodes: Iterable[str]) -> str:
    """The same for the same nodes in every process."""
    return hashlib.sha256("\0".join((kind, form, *nodes)).encode()).hexdigest()[:10]


def fusions_of(units: Iterable[Unit], objects: Mapping[TileProgram, bytes], sizes: Sizes = ()) -> tuple[Fusion, ...]:
    """Units of a build, with the code of their programs; `sizes` are those that they were made for."""
    form = ", ".join(f"{name}={size}" for name, size in sizes)
    known = {id(program): len(data) for program, data in objects.items()}  # to look one up by what it says takes long

    def code_bytes(program: TileProgram) -> int:
        found = known.get(id(program))
        return len(objects.get(program, b"")) if found is None else found

    lengths = _Lengths()
    return tuple(
        lengths.fusion(unit.nodes, form, [(recipe.program, code_bytes(recipe.program)) for recipe in unit.recipes])
        for unit in units
    )


def step_data(step: Step, units: Iterable[Sequence[str]]) -> dict[str, Any]:
    """An edit of a plan as an event's data: what it is about and made, its figures, its scores, and what became of it by the
    names of units, which are the nodes of each."""
    owners = {id: nodes[-1] for nodes in units for id in nodes}
    names = step.made or step.groups
    return {
        "strategy": step.strategy,
        "groups": step.groups,
        "made": step.made,
        "before_s": step.before_s,
        "after_s": step.after_s,
        "spread_s": step.spread_s,
        "is_measured": step.is_measured,
        "scores": {score.name: score.value for score in step.scores},
        "units": tuple(dict.fromkeys(owners.get(name, name) for name in names)),
    }


@dataclass(frozen=True)
class Served:
    """What an executor runs for all sizes: fusions, and the nodes between them that tier 0 runs."""

    fusions: tuple[Fusion, ...] = ()
    left: frozenset[str] = frozenset()


def served_by(executor: Executor) -> Served:
    binder: Any = executor._binder
    generic = getattr(binder, "generic", binder)
    natives = getattr(generic, "groups", None)
    if natives is None:
        return Served(left=frozenset(node.id for node in executor.plan.graph.nodes))
    lengths, fusions = _Lengths(), []
    for native in natives:
        made = [(part.kernel.program, part.kernel.code.size_bytes) for part in native.parts]
        fusions.append(lengths.fusion([node.id for node in native.nodes], "", made))
    return Served(tuple(fusions), frozenset(item.id for item in generic.items if isinstance(item, Node)))


def code_of(executor: Executor) -> int:
    """Bytes of the object code that an executor holds."""
    binder: Any = executor._binder
    binders = [getattr(binder, "generic", binder), *getattr(binder, "special", {}).values()]
    kernels = {id(part.kernel): part.kernel for b in binders for native in getattr(b, "groups", ()) for part in native.parts}
    return sum(kernel.code.size_bytes for kernel in kernels.values())


class _Lengths:
    """State: how many instructions each program has that was looked at; most are shared by many units."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def fusion(self, nodes: Sequence[str], form: str, made: Sequence[tuple[TileProgram, int]]) -> Fusion:
        instructions = sum(self._length(program) for program, _ in made)
        return Fusion(tuple(nodes), form, len(made), instructions, sum(size for _, size in made))

    def _length(self, program: TileProgram) -> int:
        from hotfuse.codegen.tile import walk  # who stays at tier 0 need not wait for it

        if id(program) not in self._known:
            self._known[id(program)] = sum(1 for _ in walk(program.body))
        return self._known[id(program)]


def describe_subgraph(graph: Graph, nodes: Sequence[Node], fusion: Fusion | None = None) -> Subgraph:
    """Nodes of a graph as a subgraph; those of a fusion, or what tier 0 runs."""
    ids = tuple(node.id for node in nodes) if fusion is None else fusion.nodes
    made = {name for node in nodes for name in node.outputs}
    inputs = tuple(dict.fromkeys(name for node in nodes for name in node.uses if name not in made))
    outputs = tuple(name for node in nodes for name in node.outputs if _is_read_outside(graph, name, set(ids)))
    cost = sum((cost_of(graph, node) for node in nodes), Cost())
    moved = cost.bytes_moved
    if fusion is not None:  # what is made and read inside moves nowhere
        moved = sum((bytes_of(graph.type(name)) for name in (*inputs, *outputs)), 0)
    return Subgraph(
        subgraph_id(ORIGINAL, "", ids) if fusion is None else fusion.id,
        ORIGINAL if fusion is None else fusion.kind,
        "" if fusion is None else fusion.form,
        ids,
        tuple(str(node.attrs.get("op_type") or node.attrs.get("target") or node.op) for node in nodes),
        tuple(dict.fromkeys(str(node.origin) for node in nodes if node.origin)),
        inputs,
        outputs,
        _number(cost.flops),
        _number(moved),
        *((0, 0, 0) if fusion is None else (fusion.kernels, fusion.instructions, fusion.code_bytes)),
    )


def _is_read_outside(graph: Graph, name: str, inside: Collection[str]) -> bool:
    return name in graph.outputs or any(node.id not in inside for node in graph.consumers.get(name, ()))


def _number(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)
