"""An exported program, callable as it was exported: the same arguments, the same output structure.

Weights are the program's own. Arguments that the export excluded are refused before anything runs. Where gradients are wanted,
torch's own module of the program answers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hotfuse.config import Config
from hotfuse.errors import InputError
from hotfuse.events import EventLog
from hotfuse.frontends.torch_arguments import Arguments, read_arguments
from hotfuse.frontends.torch_export import import_exported
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_shapes import declared_ranges
from hotfuse.frontends.torch_tensor import to_numpy, to_torch
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.passes import optimize
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.profiler import StepTime, profile
from hotfuse.runtime.session import Signature
from hotfuse.runtime.torch_call import as_input, run_program
from hotfuse.runtime.torch_engine import TORCH


class ExportedModel:
    """Runs one exported program. Any number of threads may call it at once, unless the program changes its own buffers."""

    def __init__(self, exported: Any, program: CapturedProgram, arguments: Arguments, config: Config) -> None:
        self.config = config
        self.events = EventLog(config.max_events)
        self.program = program
        self.arguments = arguments
        self._executor = Executor(trivial_plan(program.graph), TORCH, config)
        self._exported = exported
        self._eager: Any = None
        self._lock = threading.Lock()
        self._weights = {name: _find_weight(exported, name) for name in program.graph.weights}
        self._input_tree = exported.call_spec.in_spec
        self._output_tree = pytree.treespec_loads(program.output_tree)
        opaque = len(program.opaque)
        self.events.emit("capture.done", "exported program", f"{program.operators} operators, {opaque} opaque")

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def inputs(self) -> list[Signature]:
        return [Signature(name, self.graph.type(name)) for name in self.graph.inputs]

    @property
    def outputs(self) -> list[Signature]:
        return [Signature(name, self.graph.type(name)) for name in self.graph.outputs]

    @property
    def opaque(self) -> tuple[tuple[str, str, str], ...]:
        return self.program.opaque

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = pytree.tree_flatten((args, self._in_order(kwargs)))
        if tree != self._input_tree:
            raise InputError(f"the program was exported for arguments of structure {self._input_tree}, not {tree}")
        self._check(leaves)
        tensors = [*(t for t in leaves if isinstance(t, torch.Tensor)), *self._weights.values()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return self._module()(*args, **kwargs)
        return pytree.tree_unflatten(run_program(self.program, self._executor, leaves, self._weights), self._output_tree)

    def _in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments in the order of the export."""
        order = self._input_tree.child(1).context or []
        return {k: kwargs[k] for k in order} if set(order) == set(kwargs) else kwargs

    def _module(self) -> Any:
        with self._lock:
            if self._eager is None:
                self.events.emit("serve.eager", "exported program", "gradients are wanted")
                self._eager = self._exported.module(check_guards=False)  # `_check` did; torch would run them as code
        return self._eager

    def _check(self, leaves: Sequence[Any]) -> None:
        """Refuse arguments that the program was not exported for."""
        why = self.arguments.refusal(leaves)
        if why:
            raise InputError(why)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """A session's convention: arrays by input name; the leaves of the answer, as arrays where they are tensors."""
        if output_names is not None:
            raise InputError("an exported program returns all its outputs; pass None")
        leaves = self._leaves(feeds)
        self._check(leaves)
        results = run_program(self.program, self._executor, leaves, self._weights)
        return [to_numpy(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in results]

    def profile(self, feeds: Mapping[str, Any], calls: int = 10) -> list[StepTime]:
        """The time of each step over some calls."""
        leaves = self._leaves(feeds)
        inputs = [as_input(leaves[place]) for place in self.program.input_leaves]
        with torch.no_grad():
            return profile(self._executor, [*inputs, *self._weights.values()], calls)

    def _leaves(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call; those that the export fixed by value have that value."""
        leaves: list[Any] = []
        for argument in self.arguments.leaves:
            if argument.kind == "constant":
                leaves.append(argument.constant)
            elif argument.name not in feeds:
                raise InputError(f"input {argument.name!r} is missing; the program was exported for {self.arguments}")
            else:
                fed = feeds[argument.name]
                leaves.append(to_torch(fed) if argument.kind == "tensor" else argument.type(fed))
        return leaves

    def report(self) -> dict[str, Any]:
        """What runs, and why it is not faster yet."""
        return {
            "tier": 0,
            "operators": self.program.operators,
            "opaque": [list(entry) for entry in self.program.opaque],
            "captured_share": self.program.share,
            "bound_shapes": self._executor.bound_shapes,
            "why_not_faster": "everything runs un-fused: no fused kernels exist yet",
        }

    def close(self) -> None:
        """Nothing to stop: no process and no thread belongs to an exported program."""


def compile_exported(exported: Any, config: Config) -> ExportedModel:
    """An exported program that hotfuse runs."""
    with declared_ranges(exported):
        arguments = read_arguments(exported)
        program = import_exported(exported, config)
    return ExportedModel(exported, replace(program, graph=optimize(program.graph)), arguments, config)


def _find_weight(exported: Any, name: str) -> torch.Tensor:
    found = exported.state_dict.get(name)
    return found if found is not None else exported.constants[name]
