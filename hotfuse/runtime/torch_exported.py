"""An exported program, callable as it was exported: the same arguments, the same output structure.

Weights are the program's own. Arguments that the export excluded are refused before anything runs. Where gradients are wanted,
where tier=0 allows nothing else, and after `close`, torch's own module of the program answers.

By default that module is compiled as any other: it answers until kernels are proved against it. With `wait` a plan of our own
answers, un-fused or, with tier=1, of native code that the first call makes; what that cannot answer the un-fused one does.

State: torch's module once it is asked, with what serves in its place; the native code that was waited for, with the weights
prepared for it (`Runner`'s).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hotfuse.config import Config
from hotfuse.errors import BadIndex, CaptureError, DimError, HotfuseError, InputError, UnsupportedModel
from hotfuse.events import EventLog
from hotfuse.frontends.torch_arguments import Argument, Arguments, read_arguments
from hotfuse.frontends.torch_export import call_again, import_exported
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_record import make_builder
from hotfuse.frontends.torch_shapes import declared_ranges
from hotfuse.frontends.torch_tensor import to_numpy, to_torch
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.locks import make_lock
from hotfuse.passes import optimize
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.feeds import Signature, as_array, check_names, written
from hotfuse.runtime.profiler import StepTime, profile
from hotfuse.runtime.report import GraphReport, explain_text, make_report
from hotfuse.runtime.story import Story
from hotfuse.runtime.torch_call import as_input, has_form, lies_as_captured, run_program
from hotfuse.runtime.torch_engine import TORCH
from hotfuse.runtime.torch_module import Controls
from hotfuse.runtime.torch_runner import Runner, form_of

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Adapt


class ExportedModel:
    """Runs one exported program. Any number of threads may call it at once, unless the program changes its own buffers."""

    def __init__(
        self, exported: Any, program: CapturedProgram, arguments: Arguments, config: Config, adapt: Adapt | None = None
    ) -> None:
        self.config = config
        self.events = EventLog(config.max_events)
        self._adapt = adapt if config.adapts else None
        self._served: Controls | None = None  # what adapts torch's module
        self.program = program
        self.arguments = arguments
        self._executor = Executor(trivial_plan(program.graph), TORCH, config)
        self._runner: Runner | None = None
        self._compile = config.native
        self._exported = exported
        self._eager: Any = None
        self._calls = 0
        self._closed = False
        self._lock = make_lock()
        self._weights = {name: _find_weight(exported, name) for name in _weight_names(program)}
        self._input_tree = exported.call_spec.in_spec
        self._build = make_builder(program.output_form)
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
        return self._answer(leaves)

    def _answer(self, leaves: Sequence[Any]) -> Any:
        """The answer to checked leaves of a call, in the program's own structure."""
        self._check(leaves)
        self._calls += 1
        served = self._adapting()
        why = self._why_torch(leaves) if served is None else ""
        if served is None and not why:
            return self._build(self._compute(leaves))
        args, kwargs = pytree.tree_unflatten(leaves, self._input_tree)
        if served is None:
            return self._module(why)(*args, **kwargs)
        return served.root.call(served.module, args, kwargs)

    def _adapting(self) -> Controls | None:
        """What serves in place of torch's module, where that is adapted."""
        if self._adapt is None or self._closed:
            return None
        if self._served is None:
            module = self._module("until kernels are proved")
            with self._lock:
                if self._served is None:
                    self._served = Controls(module, self.config, self._adapt, events=self.events)
        return self._served

    def _compute(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """By native code where there is some. What it was not made for is tier 0's, and so are errors."""
        if self._compile:
            self._make_native()
        runner = self._runner
        if runner is not None:
            weights = [self._weights[name] for name in runner.names]
            try:
                return runner.run(leaves, weights, form_of(self._inputs(leaves), weights))
            except (BadIndex, DimError) as error:
                self.events.emit("native.missed", "exported program", str(error))
        return run_program(self.program, self._executor, leaves, self._weights)

    def _inputs(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaves[place] for place in self.program.input_leaves]

    def _make_native(self) -> None:
        with self._lock:
            if not self._compile:
                return
            try:
                self._runner = Runner(self.program, self.config)
                self.events.emit("native.made", "exported program")
            except HotfuseError as error:
                self.events.emit("native.failed", "exported program", str(error))
                if self.config.strict:
                    raise
            finally:
                self._compile = False

    def _why_torch(self, leaves: Sequence[Any]) -> str:
        """Why torch's own module must answer; "" where ours does."""
        if self._closed:
            return "it was closed"
        if self.config.tier == 0:
            return "tier=0 allows nothing but the original"
        if not lies_as_captured(self.program, leaves):
            return "an argument that is returned lies in memory another way than when the program was exported"
        if not all(has_form(self._weights[form.name], form) for form in self.program.returned_weights):
            return "a weight that is returned has other strides or wants gradients now"
        tensors = (*(t for t in leaves if isinstance(t, torch.Tensor)), *self._weights.values())
        return "gradients are wanted" if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else ""

    def _in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments in the order of the export."""
        order = self._input_tree.child(1).context or []
        return {k: kwargs[k] for k in order} if set(order) == set(kwargs) else kwargs

    def _module(self, why: str) -> Any:
        with self._lock:
            if self._eager is None:
                self.events.emit("serve.eager", "exported program", why)
                module = self._exported.module(check_guards=False)  # `_check` did; torch would run them as code
                self._eager = torch.fx.GraphModule(module, module.graph)  # without hooks that check the same again
        return self._eager

    def _check(self, leaves: Sequence[Any]) -> None:
        """Refuse arguments that the program was not exported for."""
        why = self.arguments.refusal(leaves)
        if why:
            raise InputError(why)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        """A session's convention: arrays by input name; the leaves of the answer, as arrays where they are tensors. They are
        the caller's own, or `out` with the answer in it."""
        if output_names is not None:
            raise InputError("an exported program returns all its outputs; pass None")
        leaves = self._leaves(feeds)
        with torch.no_grad():
            foreign = (*leaves, *self._weights.values())
            results = [_owned(leaf, foreign) for leaf in pytree.tree_leaves(self._answer(leaves))]
        return results if out is None else written([f"output {i}" for i in range(len(results))], results, out)

    def profile(self, feeds: Mapping[str, Any], calls: int = 10) -> list[StepTime]:
        """The time of each step over some calls."""
        leaves = self._leaves(feeds)
        inputs = list(map(as_input, self._inputs(leaves)))
        with torch.no_grad():
            weights = [self._weights[name] for name in self.graph.weights]
            return profile(self._executor, [*inputs, *weights], calls)

    def _leaves(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call; those that the export fixed by value have that value."""
        given = check_names([a.name for a in self.arguments.leaves], feeds)
        leaves: list[Any] = []
        for argument in self.arguments.leaves:
            if argument.kind == "constant":
                leaves.append(given.get(argument.name, argument.constant))
            elif argument.name not in given:
                raise InputError(f"input {argument.name!r} is missing; the program was exported for {self.arguments}")
            else:
                leaves.append(_leaf(argument, given[argument.name]))
        return leaves

    def report(self) -> GraphReport:
        """What the program is made of, what happened so far, and why it is not faster yet."""
        runner = self._fastest
        program = self.program if runner is None else runner.captured
        executor = self._executor if runner is None else runner.executor
        known = (program.graph, program.opaque, executor, self._calls, self.events, self._closed, program.share)
        found = make_report("exported program", *known)
        if self._served is None or self._closed:
            return found
        from hotfuse.runtime.torch_report import why_not_faster

        return replace(found, why=why_not_faster(self._served.family))

    @property
    def _fastest(self) -> Runner | None:
        """What has native code, if anything does."""
        if self._runner is not None or self._served is None:
            return self._runner
        return next((served.runner for served in self._served.root.classes if served.tier), None)

    def story(self, id: str) -> Story:
        """What became of one subgraph, known by its id, the beginning of that, or one of its nodes."""
        return self.report().story(id)

    def explain(self) -> str:
        """One line per node: operator, result, cost, origin, and why it is opaque if it is."""
        return explain_text(self.graph)

    def settle(self, timeout_s: float = 60.0) -> bool:
        """Wait until no capture and no compilation is pending for the calls seen so far; False if that takes longer than
        `timeout_s`. What is waited for is made by the call that needs it."""
        return self._served is None or self._served.settle(timeout_s)

    def refresh(self) -> None:
        """Forget what was derived from the program's weights: prepared ones and bound plans."""
        self._executor.clear()
        if self._runner is not None:
            self._runner.clear()
        if self._served is not None:
            self._served.refresh()

    def close(self) -> None:
        """Free bound plans. From now on torch's own module answers."""
        self._closed = True
        self._compile, self._runner = False, None
        self._executor.clear()
        if self._served is not None:
            self._served.close()


def compile_exported(exported: Any, config: Config, adapt: Adapt | None = None) -> ExportedModel:
    """An exported program that hotfuse runs. `adapt` is told of what is captured while it serves."""
    with declared_ranges(exported):
        arguments = read_arguments(exported)
    call = call_again(exported)
    with declared_ranges(exported):
        try:
            program = import_exported(exported, config, call)
        except CaptureError:  # perhaps because of what its outputs are to each other; else it fails again
            program = import_exported(exported, config)
    return ExportedModel(exported, replace(program, graph=optimize(program.graph)), arguments, config, adapt)


def _weight_names(program: CapturedProgram) -> list[str]:
    return list(dict.fromkeys((*program.graph.weights, *(form.name for form in program.returned_weights))))


def _find_weight(exported: Any, name: str) -> torch.Tensor:
    found = exported.state_dict.get(name)
    return found if found is not None else exported.constants[name]


def _leaf(argument: Argument, fed: Any) -> Any:
    """What is fed for one argument, as a tensor or a number."""
    name = f"input {argument.name!r}"
    if argument.kind == "tensor" and isinstance(fed, torch.Tensor):
        return fed
    array = as_array(name, fed)
    if argument.kind == "tensor":
        try:
            return to_torch(array)
        except (UnsupportedModel, TypeError) as error:
            raise InputError(f"{name} must be {argument.type}, not {array.dtype}: {error}") from error
    if array.size != 1:
        raise InputError(f"{name} must be one number, not an array of shape {array.shape}")
    number = array.item()
    return float(number) if argument.type is float and type(number) is int else number


def _owned(leaf: Any, foreign: Sequence[Any]) -> Any:
    """A leaf of the answer as an array that shares no memory with what was fed, nor with weights."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    array = to_numpy(leaf)
    theirs = (to_numpy(t) for t in foreign if isinstance(t, torch.Tensor))
    return array.copy() if any(np.may_share_memory(array, other) for other in theirs) else array
