"""Tier 1: a build bound to exact shapes. Its units run as native code, in segments of kernels that follow each other; tier 0's
functions compute what is left.

Nodes are put in an order with as few changes between the two as their data flow allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.errors import DimError
from hotfuse.fusion.rules import ALL
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import Dim, evaluate, substitute, symbols_of
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.metadata import cost_of
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.plan import Plan
from hotfuse.ir.types import TensorType, Type
from hotfuse.passes.dead_code import has_effect
from hotfuse.passes.rewrite import is_pure
from hotfuse.records import dataclass
from hotfuse.runtime.binding import BoundPlan, assemble, settled_values
from hotfuse.runtime.build import Unit
from hotfuse.runtime.concrete import check_size, concrete_values, learned_sizes
from hotfuse.runtime.driver import get_driver
from hotfuse.runtime.engine import Compute, Engine, RunGraph
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.memory import ArenaPool
from hotfuse.runtime.segment import Arrays, Segment
from hotfuse.runtime.tables import Part
from hotfuse.runtime.threads import team_size

ALONE = 2_000_000  # flops of a segment that one thread has done before a second one is awake
BESIDE = 200_000_000  # the same beside operators with threads of their own, which a team that still spins would hold up
_OWN_THREADS = (Pattern.CONTRACTION, Pattern.WINDOW, Pattern.OPAQUE)  # operators of tier 0 that wake another library's threads


@dataclass(frozen=True)
class Native:
    """A unit with its nodes, kernels, and work, which is there for all shapes; and the threads that it was measured to want."""

    nodes: tuple[Node, ...]
    parts: tuple[Part, ...]
    flops: tuple[Dim, ...]
    team: int = 0

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for p in self.parts for name in p.recipe.reads))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for p in self.parts for name in p.recipe.writes))

    @cached_property
    def sizes(self) -> tuple[Dim, ...]:
        return tuple(d for p in self.parts for d in p.recipe.sizes)


class NativeBinder:
    """Binds one graph, again and again for other shapes. `reasons` say why nodes are in no unit; calls borrow memory of
    `pool`."""

    def __init__(
        self,
        graph: Graph,
        units: Sequence[Unit],
        kernels: Mapping[TileProgram, Kernel],
        arrays: Arrays,
        config: Config,
        reasons: Mapping[str, str],
        pool: ArenaPool,
    ) -> None:
        self.graph = graph
        self.arrays = arrays
        self.config = config
        self.reasons = reasons
        self._pool = pool
        self.groups = [_native(graph, unit, kernels) for unit in units]
        self.items = _ordered(graph, self.groups)
        self._symbols = tuple(symbols_of(d for n in self.groups for d in n.sizes))
        left = [item for item in self.items if isinstance(item, Node)]
        self._has_rival = not arrays.shares_threads and any(OPS[node.op].pattern in _OWN_THREADS for node in left)

    @property
    def kernels(self) -> int:
        """How many kernels a call runs."""
        return sum(len(n.parts) for item in self.items if not isinstance(item, Node) for n in item)

    @property
    def choices(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Of every group: its operators, and why its kernels run as they do."""
        return tuple(
            (
                tuple(n.op for n in native.nodes),
                tuple(dict.fromkeys(x for p in native.parts for x in p.recipe.program.notes)),
            )
            for native in self.groups
        )

    @property
    def note(self) -> str:
        """How much runs as native code, and why the rest does not."""
        settled = settled_values(self.graph, self.graph.values, exact=False)
        left = [item for item in self.items if isinstance(item, Node) and not settled.issuperset(item.outputs)]
        text = f"{self.kernels} generated kernels answer"
        if left:
            why = next((self.reasons[node.id] for node in left if node.id in self.reasons), "they have no native code")
            text += f"; {len(left)} operators run one by one, {', '.join(sorted({n.op for n in left})[:4])} among them: {why}"
        return text

    def __call__(self, plan: Plan, given: Mapping[str, Type], engine: Engine, run_graph: RunGraph, limit: int) -> BoundPlan:
        graph = plan.graph
        values = concrete_values(graph, given, check_size(limit))
        sizes = learned_sizes(graph, given)
        for symbol in self._symbols:
            if sizes[symbol.name] < symbol.minimum:
                raise DimError(f"{symbol.name} is {sizes[symbol.name]}; native code was made for {symbol.minimum} and more")
        threads = team_size(host_spec(self.config.isa), self.config.threads)

        def segment(natives: Sequence[Native], settled: Callable[[str], Any]) -> tuple[Node, Compute]:
            parts = [p for n in natives for p in n.parts]
            read, outputs = _border(graph, items, natives)
            fixed = {name: value for name in read if (value := settled(name)) is not None}
            inputs = [name for name in read if name not in fixed]
            types = {n: _type(values[n]) for p in parts for n in p.recipe.arguments}
            pairs: dict[tuple[Type, TensorType], str] = {}  # those of layers are the same
            for name, type in types.items():
                pairs.setdefault((graph.values[name].type, type), name)
            for (declared, type), name in pairs.items():
                _same_sizes(name, declared, type, sizes)
            work = sum(int(evaluate(flops, sizes)) for n in natives for flops in n.flops)
            team = threads if work > (BESIDE if self._has_rival else ALONE) else 1
            measured = {n.team for n in natives if n.team}
            if len(measured) == 1 and not self._has_rival:
                team = threads if ALL in measured else 1
            made = Segment(parts, inputs, outputs, fixed, types, sizes, self.arrays, get_driver(), team, self._pool)
            return Node("native", tuple(inputs), tuple(outputs)), Compute(made, many=True)

        items = _without_settled(graph, self.items, settled_values(graph, values))
        return assemble(graph, values, sizes, engine, run_graph, items, segment, fold=True)


def _native(graph: Graph, unit: Unit, kernels: Mapping[TileProgram, Kernel]) -> Native:
    nodes = tuple(graph.by_id[id] for id in unit.nodes)
    parts = tuple(
        Part(recipe, kernels[recipe.program], nodes, unit.row, unit.fetches and not place)
        for place, recipe in enumerate(unit.recipes)
    )
    return Native(nodes, parts, tuple(cost_of(graph, node).flops for node in nodes), unit.team)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _same_sizes(name: str, declared: Type, actual: TensorType, sizes: Mapping[str, int]) -> None:
    """What the kernels were made for is what the values are now."""
    assert isinstance(declared, TensorType)
    said = tuple(substitute(d, sizes) for d in declared.shape or ())
    if said != actual.shape:
        raise DimError(f"{name} is {actual}, and its kernels were made for {TensorType(declared.dtype, said)}")


Item = Node | tuple[Native, ...]


def _ordered(graph: Graph, groups: Sequence[Native]) -> tuple[Item, ...]:
    """Nodes for tier 0 and runs of kernels, in turn: all nodes that can run, then all kernels that can, and so on."""
    waiting_nodes, waiting_groups = _needed(graph, groups)
    done = {*graph.inputs, *graph.weights, *graph.constants}
    items: list[Item] = []
    while waiting_nodes or waiting_groups:
        rest: list[Node] = []
        held_up = False  # what draws random numbers or acts otherwise keeps its order
        for node in waiting_nodes:
            acts = not is_pure(node)
            if all(name in done for name in node.uses) and not (acts and held_up):
                items.append(node)
                done.update(node.outputs)
            else:
                rest.append(node)
                held_up = held_up or acts
        run: list[Native] = []
        left: list[Native] = []
        for item in waiting_groups:
            if all(name in done for name in item.reads):
                run.append(item)
                done.update(item.writes)
            else:
                left.append(item)
        if run:
            items.append(tuple(run))
        assert len(rest) < len(waiting_nodes) or run, "the graph has a cycle"
        waiting_nodes, waiting_groups = rest, left
    return tuple(items)


def _without_settled(graph: Graph, items: Sequence[Item], settled: Collection[str]) -> tuple[Item, ...]:
    """The items of a plan whose sizes are known: nodes behind values that follow from these come first, to be computed when
    the plan is bound, whether kernels were made of them or not; runs of kernels that they held apart become one."""
    left: list[Item] = []
    for item in items:
        if isinstance(item, Node):
            if not all(name in settled for name in item.outputs):
                left.append(item)
            continue
        run = tuple(n for n in item if not all(name in settled for name in n.writes))
        last = left[-1] if left else None
        if run and last is not None and not isinstance(last, Node):
            left[-1] = (*last, *run)
        elif run:
            left.append(run)
    wanted = {*graph.outputs}
    for item in left:
        wanted.update(item.uses if isinstance(item, Node) else (name for n in item for name in n.reads))
    first: list[Item] = []
    for node in reversed(graph.nodes):
        if any(name in wanted and name in settled for name in node.outputs):
            first.append(node)
            wanted.update(node.uses)
    return (*reversed(first), *left)


def _needed(graph: Graph, groups: Sequence[Native]) -> tuple[list[Node], list[Native]]:
    """Nodes that tier 0 has to run, and groups: for results, for effects, and for each other. Views that only kernels look
    through need not run."""
    inside = {node.id for n in groups for node in n.nodes}
    makers: dict[str, Node | Native] = {name: node for node in graph.nodes for name in node.outputs}
    makers |= {name: n for n in groups for name in n.writes}
    wanted = [*graph.outputs, *(node.id for node in graph.nodes if node.id not in inside and has_effect(node))]
    found: set[int] = set()
    while wanted:
        maker = makers.get(wanted.pop())
        if maker is not None and id(maker) not in found:
            found.add(id(maker))
            wanted.extend(maker.uses if isinstance(maker, Node) else maker.reads)
    return [node for node in graph.nodes if id(node) in found], [n for n in groups if id(n) in found]


def _border(graph: Graph, items: Sequence[Item], natives: Sequence[Native]) -> tuple[list[str], list[str]]:
    """What a run of kernels takes in, and what of its results others read: the model's own first and in their order, so that a
    run that is the whole model can be called as it is (`runtime/quick`)."""
    written = {name for n in natives for name in n.writes}
    inputs = dict.fromkeys(name for n in natives for name in n.reads if name not in written)
    mine = {id(n) for n in natives}
    read = set(graph.outputs)
    for item in items:
        if isinstance(item, Node):
            read.update(item.uses)
        elif not mine & {id(n) for n in item}:
            read.update(name for n in item for name in n.reads)
    outputs = {name: None for n in natives for name in n.writes if name in read}
    return _as_declared(inputs, graph.inputs), _as_declared(outputs, graph.outputs)


def _as_declared(names: Mapping[str, None], declared: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*(name for name in declared if name in names), *names)))
