"""The values of a graph by tier 0, node by node, each alive only while somebody needs it.

Weights and constants are fetched when they are needed first, and packed when somebody reads panels: a product with them is one
with what was packed. What an operator cannot compute is lost, and so is what follows from it; the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.ops.panels import pack
from hotfuse.ir.plan import trivial_plan
from hotfuse.runtime.engine import Compute, RunGraph
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.proof_tables import Tables

Array = np.ndarray[Any, Any]


class _Unpacked:
    """Columns that are to be packed, where somebody wants panels."""

    def __init__(self, columns: Array, attrs: Mapping[str, Any]) -> None:
        self._columns, self._attrs = columns, attrs

    def panels(self) -> Array:
        return pack(self._columns, **self._attrs)

    def product(self, x: Array) -> Array:
        return np.asarray(np.matmul(x, self._columns.astype(x.dtype, copy=False)))


class Tier0Values:
    """Computes nodes one after the other, in numpy. `uses` are the names that each turn needs, a node's own among them; some
    values have others that stand in for them, by name.

    State: the values that are alive, the rows of `tables` that were read, and why others could not be computed."""

    def __init__(
        self,
        graph: Graph,
        types: Mapping[str, Value],
        inputs: Mapping[str, Array],
        weight: Callable[[str], Array],
        config: Config,
        uses: Sequence[Sequence[str | None]],
        stand_ins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._graph, self._types, self._inputs, self._config = graph, types, inputs, config
        self.tables = Tables(graph, weight)
        self._weights, self._stand_ins = set(graph.weights), stand_ins
        self._alive: dict[str, Any] = {}
        self._nested: dict[int, Executor] = {}
        self._dead: dict[int, list[str]] = {}
        last = {stand_ins.get(name, name): turn for turn, names in enumerate(uses) for name in names if name is not None}
        for name, turn in last.items():
            self._dead.setdefault(turn, []).append(name)
        self._lost: dict[str, str] = {}

    def why_lost(self, name: str) -> str:
        """Why a value could not be computed; "" if it could."""
        return self._lost.get(self._stand_ins.get(name, name), "")

    def value(self, name: str) -> Any:
        name = self._stand_ins.get(name, name)
        if name not in self._alive:
            if name in self._graph.constants:
                found: Any = self._graph.constants[name].numpy()
            else:
                found = self.tables.value(name) if name in self._weights else self._inputs[name]
            self._alive[name] = np.asarray(found) if isinstance(found, int | np.generic | np.ndarray) else found
        found = self._alive[name]
        if isinstance(found, _Unpacked):
            found = self._alive[name] = found.panels()
        return found

    def compute(self, node: Node) -> None:
        """The results of a node, whose attributes are exact."""
        reason = next((why for n in node.uses if (why := self.why_lost(n))), "")
        try:
            if not reason:
                self.tables.read(node, self.value)
                with np.errstate(all="ignore"):
                    made = self._made(node)
                for name, value in zip(node.outputs, made, strict=False):
                    self._alive[name] = np.asarray(value) if isinstance(value, np.generic) else value
        except HotfuseError as error:
            reason = str(error)
        except Exception as error:  # whatever an operator raises: only what needs its results is not proved
            reason = f"{node.origin or node.id}: operator {node.op} failed: {type(error).__name__}: {error}"
        if reason:
            self._lost |= dict.fromkeys(node.outputs, reason)

    def _made(self, node: Node) -> Sequence[Any]:
        names = tuple(node.uses)
        if node.op == "pack":
            return (_Unpacked(self.value(names[0]), node.attrs),)
        if node.op == "panel_matmul" and isinstance(packed := self._alive.get(names[1]), _Unpacked):
            return (packed.product(self.value(names[0])),)
        compute = self._bind(node)
        made = compute.function(*(None if n is None else self.value(n) for n in node.inputs))
        return made if compute.many else (made,)

    def drop(self, turn: int) -> None:
        """Forget what nobody needs after this turn."""
        for name in self._dead.get(turn, ()):
            self._alive.pop(name, None)

    def _bind(self, node: Node) -> Compute:
        if node.op == "torch_op":
            return _through_torch(node)
        run_graph = RunGraph(self._run_nested, self._config.max_loop_rounds, self._config.max_value_bytes)
        return NUMPY.bind(node, [self._types[n] if n else Value("") for n in node.inputs], run_graph)

    def _run_nested(self, graph: Graph, inputs: Sequence[Any]) -> Sequence[Any]:
        executor = self._nested.get(id(graph))
        if executor is None:
            executor = self._nested[id(graph)] = Executor(trivial_plan(graph), NUMPY, self._config)
        return executor.run(inputs, inner=True)


def _through_torch(node: Node) -> Compute:
    """An operator that only torch knows. It gets copies: nobody says what it does to its operands."""
    from hotfuse.frontends.torch_tensor import to_numpy, to_torch
    from hotfuse.runtime.torch_engine import bind_torch_op

    compute = bind_torch_op(node)

    def run(*inputs: Any) -> Any:
        made = compute.function(*(None if x is None else to_torch(np.array(x)) for x in inputs))
        return [to_numpy(x) for x in made] if compute.many else to_numpy(made)

    return Compute(run, compute.many)
