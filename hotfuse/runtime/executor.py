"""The executor: runs a plan for any input shapes, from any number of threads.

State: bound plans by input types (bounded in number and in bytes, least recently used dropped), executors of nested graphs,
who watches the next call, and who else runs bound plans. A lock guards the tables, never a computation. Each call has slots and
an arena of its own; idle arenas lie in a pool that nested graphs share.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import ExecutionError, HotfuseError, LimitExceeded, OutOfMemory
from hotfuse.ir.builder import infer_node
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.op import CONTENTS_LIMIT, FreshSymbols
from hotfuse.ir.ops.sequence import GATHERING
from hotfuse.ir.plan import Plan, trivial_plan
from hotfuse.ir.types import Type
from hotfuse.locks import make_lock
from hotfuse.pace import Pace
from hotfuse.runtime.binding import BoundPlan, Step, bind
from hotfuse.runtime.concrete import check_size
from hotfuse.runtime.engine import Engine, RunGraph
from hotfuse.runtime.memory import Arena, ArenaPool

KEPT_BYTES = 1 << 25  # of what bound plans hold of results that follow from sizes alone,
KEPT_PLANS = 4  # but for so many
RECENT = 8  # shapes that are bound ahead: others are bound by the call that brings them

Binder = Callable[[Plan, Mapping[str, Type], Engine, RunGraph, int], BoundPlan]


class Watch(Protocol):
    """Watches one call, in the caller's thread."""

    def begin(self, bound: BoundPlan, types: tuple[Type, ...]) -> Sequence[Step]:
        """The steps to run in place of the plan's own: the same, with clocks."""
        ...

    def end(self) -> None:
        """The call is answered. One that fails does not end."""


class PlanUser(Protocol):
    """Runs bound plans by itself, without asking for them."""

    def used(self, bound: BoundPlan) -> bool:
        """Whether it ran one since it was last asked."""
        ...

    def drop(self, bound: BoundPlan) -> None:
        """It is to run one no more."""


class Executor:
    """Runs one plan on one engine."""

    def __init__(
        self, plan: Plan, engine: Engine, config: Config, pool: ArenaPool | None = None, binder: Binder = bind
    ) -> None:
        self.plan = plan
        self._binder = binder
        self.engine = engine
        self.config = config
        self._bound: OrderedDict[tuple[Type, ...], BoundPlan] = OrderedDict()
        self.user: PlanUser | None = None
        self._pool = ArenaPool(config.max_arena_bytes) if pool is None else pool
        self._nested: dict[int, Executor] = {}
        self._watches: list[Watch] = []  # at most one; a list's pop is one step, whoever else calls
        self._lock = make_lock()

    @property
    def native(self) -> str:
        """How much of the plan runs as native code; "" if nothing does."""
        return str(getattr(self._binder, "note", ""))

    @property
    def kernels(self) -> int:
        """How many generated kernels a call runs."""
        return int(getattr(self._binder, "kernels", 0))

    @property
    def choices(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Of every group that has native code: its operators, and why its kernels run as they do."""
        return tuple(getattr(self._binder, "choices", ()))

    @property
    def bound_shapes(self) -> int:
        return len(self._bound)

    def run(
        self, inputs: Sequence[Any], sharing: Collection[int] = (), inner: bool = False, pace: Pace | None = None
    ) -> list[Any]:
        """The outputs for `inputs` (graph inputs, then weights), owned by the caller; those in `sharing` may view inputs.

        The caller of an `inner` graph is another graph, which changes no sequence: those are handed on as they are. Work that
        nobody waits for has a `pace`."""
        types = tuple(self.engine.type_of(v) for v in inputs)
        bound = self.bound(types)
        watch = self._take_watch() if self._watches else None
        try:
            steps = None if watch is None else watch.begin(bound, types)
            slots = self.execute(bound, inputs, _paced(bound.steps, pace) if pace is not None else steps)
            results = [
                slots[s] if inner and isinstance(slots[s], list) else self.engine.own(slots[s], shared and i not in sharing)
                for i, (s, shared) in enumerate(bound.outputs)
            ]
        except MemoryError as error:  # of the arena, or of the results' own memory
            raise OutOfMemory(f"there is not enough memory to run the model on these inputs: {error}") from None
        if watch is not None:
            watch.end()
        return results

    def watch_next(self, watch: Watch | None) -> None:
        """Have one of the next calls watched, by this one and no other; None: none."""
        self._watches = [] if watch is None else [watch]

    def _take_watch(self) -> Watch | None:
        try:
            return self._watches.pop()
        except IndexError:  # another thread was here first
            return None

    def bound(self, types: tuple[Type, ...]) -> BoundPlan:
        """The bound plan for inputs of these types."""
        with self._lock:
            found = self._bound.get(types)
            if found is not None:
                self._bound.move_to_end(types)
                return found
        graph = self.plan.graph
        given = dict(zip((*graph.inputs, *graph.weights), types, strict=True))
        nested = RunGraph(self._run_nested, self.config.max_loop_rounds, self.config.max_value_bytes)
        made = self._binder(self.plan, given, self.engine, nested, self.config.max_value_bytes)
        with self._lock:
            made = self._bound.setdefault(types, made)
            self._bound.move_to_end(types)
            dropped = self._make_room(types)
        user = self.user
        if user is not None:
            for plan in dropped:
                user.drop(plan)
        return made

    def _make_room(self, newest: tuple[Type, ...]) -> list[BoundPlan]:
        """Drop plans but the newest until there are few enough, those first that nobody used of late. Holds the lock."""
        dropped: list[BoundPlan] = []
        kept = sum(bound.kept_bytes for bound in self._bound.values())
        chances = len(self._bound)  # each has a second one
        while len(self._bound) > self.config.max_bound_shapes or (kept > KEPT_BYTES and len(self._bound) > KEPT_PLANS):
            types, oldest = self._bound.popitem(last=False)
            if types == newest or (chances > 0 and self.user is not None and self.user.used(oldest)):
                self._bound[types] = oldest
            else:
                self._pool.drop(id(oldest))
                kept -= oldest.kept_bytes
                dropped.append(oldest)
            chances -= 1
        return dropped

    def bind_as(self, other: Executor, pace: Pace) -> None:
        """Bind for the shapes that another executor of the same inputs was called with of late."""
        with other._lock:
            known = list(other._bound)[-RECENT:]
        for types in known:
            pace()
            with contextlib.suppress(HotfuseError):
                self.bound(types)

    def execute(self, bound: BoundPlan, inputs: Sequence[Any], steps: Iterable[Step] | None = None) -> list[Any]:
        """The slots after running a bound plan of this executor, or others in place of its steps; those of outputs hold
        results."""
        slots = list(bound.template)
        for place, value in zip(bound.inputs, inputs, strict=True):
            slots[place] = value
        arena = self._take_arena(bound)
        views = arena.views if arena is not None else ()
        step: Step | None = None
        try:
            with np.errstate(all="ignore"):
                for step in bound.steps if steps is None else steps:
                    arguments = [slots[i] for i in step.inputs]
                    if step.check:
                        self._check(step, arguments)
                    if step.view >= 0:
                        result = step.function(*arguments, out=views[step.view])
                    else:
                        result = step.function(*arguments)
                    if step.many:
                        for place, value in zip(step.outputs, result, strict=False):
                            slots[place] = value
                    else:
                        slots[step.outputs[0]] = result
                    for place in step.dead:
                        slots[place] = None
        except (HotfuseError, KeyboardInterrupt):
            raise
        except Exception as error:
            assert step is not None
            raise ExecutionError(
                f"{step.node.origin or step.node.id}: operator {step.node.op} failed: {type(error).__name__}: {error}"
            ) from error
        if arena is not None:
            self._return_arena(bound, arena)
        return slots

    def _check(self, step: Step, arguments: Sequence[Any]) -> None:
        """Refuse a result that would be too large, now that the sizes that depend on data are here."""
        node = step.node
        if node.op in GATHERING:
            self._check_gathered(step, sum(map(_bytes_of, arguments)))
            return
        values = [None if n is None else self._measured(n, a) for n, a in zip(node.inputs, arguments, strict=True)]
        found = infer_node(node.op, values, node.attrs, node.graphs, FreshSymbols(), len(node.outputs), None, node.origin)
        check = check_size(self.config.max_value_bytes)
        for value in found:
            check(node, value)

    def _check_gathered(self, step: Step, size: int) -> None:
        if size > self.config.max_value_bytes:
            raise LimitExceeded(
                f"{step.node.origin or step.node.id}: {step.node.op} would hold {size:,} bytes; the limit is "
                f"{self.config.max_value_bytes:,} (raise max_value_bytes if the model is right)"
            )

    def _measured(self, name: str, value: Any) -> Value:
        contents = None
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim <= 1 and value.size <= CONTENTS_LIMIT:
            contents = tuple(int(x) for x in value.reshape(-1).tolist())
        return Value(name, self.engine.type_of(value), contents=contents)

    def _take_arena(self, bound: BoundPlan) -> Arena | None:
        if not bound.arena_bytes:
            return None
        return self._pool.take(bound.arena_bytes, id(bound), bound.placements)

    def _return_arena(self, bound: BoundPlan, arena: Arena) -> None:
        with self._lock:  # so that a plan is not dropped in between
            if any(b is bound for b in self._bound.values()):
                self._pool.give(arena)

    def _run_nested(self, graph: Graph, inputs: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            executor = self._nested.get(id(graph))
            if executor is None:
                executor = self._nested[id(graph)] = Executor(trivial_plan(graph), self.engine, self.config, self._pool)
        return executor.run(inputs, inner=True)

    def clear(self) -> None:
        """Forget every bound plan and free idle memory; calls under way finish with what they have."""
        with self._lock:
            nested = list(self._nested.values())
            self._bound.clear()
            self._pool.clear()
        for executor in nested:  # kept: one that is running must go on owning what it puts into the pool
            executor.clear()

    def arena_bytes(self) -> Mapping[str, int]:
        """Scratch memory of each bound shape, in bytes; those of nested graphs have the graph's name in front."""
        with self._lock:
            found = {", ".join(map(str, key)): bound.arena_bytes for key, bound in self._bound.items()}
            nested = list(self._nested.values())
        for place, executor in enumerate(nested):
            name = executor.plan.graph.name or "graph"
            found |= {f"{name}.{place}: {key}": size for key, size in executor.arena_bytes().items()}
        return found


def _paced(steps: Sequence[Step], pace: Pace) -> Iterator[Step]:
    for step in steps:
        pace()
        yield step


def _bytes_of(value: Any) -> int:
    return sum(map(_bytes_of, value)) if isinstance(value, list) else int(getattr(value, "nbytes", 0))
