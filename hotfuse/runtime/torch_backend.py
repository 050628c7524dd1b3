"""The Dynamo backend: `torch.compile(model, backend="hotfuse")`.

By default the graph that Dynamo traced answers as it is, at once, and is adapted while it serves (`torch_dynamo`); where
gradients are wanted it stays as it is. With `options={"wait": True}` (or HOTFUSE_WAIT=1) AOTAutograd hands over a functional
forward graph and, for training, a backward graph; each becomes a plan, un-fused or, with `tier=1`, of generated kernels.
Parameters and buffers come as arguments of every call; where nothing is trained, what a plan prepares from them is prepared
once and watched. Whatever fails on the way leaves Dynamo's own graph in place and an event in `EVENTS`; with `strict` it
raises.

State: `EVENTS`, the log of all backend calls of this process; `SERVED`, what answers and adapts, as long as Dynamo holds it;
`COMPILED`, the programs made, newest last (bounded).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import fx
from torch._guards import CompileContext, TracingContext

from hotfuse.config import Config
from hotfuse.errors import ConfigError, HotfuseError
from hotfuse.events import EventLog
from hotfuse.frontends.torch_decompositions import decompositions
from hotfuse.frontends.torch_graph import TorchImport, import_fx
from hotfuse.frontends.torch_outputs import collect_outputs
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_record import Form
from hotfuse.ir.types import TensorType, Type
from hotfuse.passes import optimize
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import make_executor
from hotfuse.runtime.torch_call import run_program
from hotfuse.runtime.torch_dynamo import GraphServing
from hotfuse.runtime.torch_engine import TORCH
from hotfuse.runtime.torch_runner import Runner, form_of

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Adapt

EVENTS = EventLog()
SERVED: weakref.WeakSet[GraphServing] = weakref.WeakSet()
COMPILED: deque[CapturedProgram] = deque(maxlen=64)
Compiled = Callable[..., Any]


def hotfuse(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    adapt: Adapt | None = None,
    **others: Any,
) -> Compiled:
    """A function that answers as `gm` does. `adapt` is told of what is captured while it does."""
    if others:
        raise ConfigError(f"{', '.join(others)} is Inductor's; pass options={{...}} (fields of hotfuse.Config)")
    config = Config.from_environment(**dict(options or {}))
    if config.adapts and adapt is not None:
        name = f"dynamo graph {CompileContext.current_compile_id() or ''}".rstrip()
        serving = GraphServing(gm, name, config, EVENTS, adapt)
        SERVED.add(serving)
        EVENTS.emit("backend.adapts", name, "the traced graph answers until kernels are proved")
        return serving
    if not config.wait or config.tier == 0:
        EVENTS.emit("backend.eager", "dynamo graph", "tier 0 answers with the traced graph itself")
        return cast(Compiled, gm.forward)
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    def compile_part(part: str) -> Callable[..., Any]:
        return lambda module, inputs: _compile_or_keep(module, part, config)

    compiler = aot_autograd(
        fw_compiler=compile_part("forward"),
        bw_compiler=compile_part("backward"),
        inference_compiler=compile_part("inference"),
        partition_fn=default_partition,
        decompositions=decompositions(),
    )
    try:
        return cast(Compiled, compiler(gm, example_inputs))
    except Exception as error:
        if config.strict:
            raise
        EVENTS.emit("backend.failed", "dynamo graph", f"{type(error).__name__}: {error}")
        return cast(Compiled, gm.forward)


def _compile_or_keep(module: fx.GraphModule, part: str, config: Config) -> Compiled:
    """The plan of one functional graph in AOTAutograd's calling convention (one list of arguments, emptied so that they can be
    freed early). The graph itself answers where making or running the plan fails."""

    def failed(error: Exception) -> None:
        if config.strict:
            raise error
        EVENTS.emit("backend.failed", part, f"{type(error).__name__}: {error}")

    plan: Callable[[list[Any]], list[Any]] | None = None
    try:
        plan = compile_graph(module, config, part)
    except Exception as error:
        failed(error)

    def run(arguments: list[Any]) -> Any:
        leaves = list(arguments)
        arguments.clear()
        if plan is not None:
            try:
                return plan(leaves)
            except HotfuseError as error:
                failed(error)
        return module.forward(*leaves)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compile_graph(module: fx.GraphModule, config: Config, part: str = "inference") -> Compiled:
    """A functional graph of ATen operators as a function of the list of its placeholders' values."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        program = import_program(module, config, part)
    fixed = _fixed_places() if part == "inference" and config.native else frozenset()
    run, executor = _watched(program, fixed, config) if fixed else _plain(program, config)
    COMPILED.append(program)
    opaque = [name for _, name, _ in program.opaque]
    made = f"{program.operators} operators, {len(opaque)} opaque"
    EVENTS.emit("backend.compiled", part, made, opaque=opaque, kernels=executor.kernels)
    return run


def _plain(program: CapturedProgram, config: Config) -> tuple[Compiled, Executor]:
    """A plan that takes all its arguments for new ones."""
    executor = make_executor(program.graph, TORCH, config)
    return lambda leaves: run_program(program, executor, leaves, {}), executor


def _watched(program: CapturedProgram, fixed: Collection[int], config: Config) -> tuple[Compiled, Executor]:
    """A plan that takes arguments at the `fixed` places for weights."""
    graph = program.graph
    given = dict(zip(graph.inputs, program.input_leaves, strict=True))
    weights = tuple(name for name in graph.inputs if given[name] in fixed and _is_static(graph.type(name)))
    inputs = tuple(name for name in graph.inputs if name not in weights)
    leaves_of = tuple(given[name] for name in inputs)
    runner = Runner(replace(program, graph=replace(graph, inputs=inputs, weights=weights), input_leaves=leaves_of), config)
    places = [given[name] for name in runner.names]

    def run(leaves: list[Any]) -> Any:
        tensors = [leaves[i] for i in places]
        return runner.run(leaves, tensors, form_of([leaves[i] for i in leaves_of], tensors))

    return run, runner.executor


def _is_static(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _fixed_places() -> frozenset[int]:
    """Which arguments of the graph that is being compiled are the same tensors in every call, as far as Dynamo knows."""
    context = TracingContext.try_get()
    known = getattr(context.fw_metadata, "static_input_indices", None) if context is not None else None
    return frozenset(known or ())


def import_program(module: fx.GraphModule, config: Config, name: str = "main") -> CapturedProgram:
    """The program of a functional graph whose placeholders are all passed by the caller."""
    context = TorchImport(config.max_nodes, config.max_nesting)
    found = import_fx(module, context, name=name)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    graph, outputs = collect_outputs(found, {node: i for i, node in enumerate(placeholders)})
    places = {node.name: i for i, node in enumerate(placeholders)}
    failed = None if config.strict else lambda name, error: EVENTS.emit("pass.failed", name, f"{type(error).__name__}: {error}")
    graph = optimize(graph, failed=failed)  # type: ignore[arg-type]
    return CapturedProgram(
        graph, tuple(places[n] for n in graph.inputs), outputs, Form(""), (), context.operators, tuple(context.opaque)
    )
