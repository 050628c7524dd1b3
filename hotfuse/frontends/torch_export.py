"""Exported programs (`torch.export`) become captured programs.

Parameters and buffers are the graph's weights, by their names in the module; lifted tensors are constants; what the model
writes to buffers and inputs comes back as mutations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind, OutputKind

from hotfuse.config import Config
from hotfuse.errors import CaptureError, HotfuseError
from hotfuse.frontends.torch_decompositions import decompose, is_whole
from hotfuse.frontends.torch_graph import TorchImport, declare_input, import_fx, view_root
from hotfuse.frontends.torch_outputs import collect_outputs
from hotfuse.frontends.torch_place import TracedCall, find_leaves, find_sizes, find_viewed, find_weights, is_strided, memory_of
from hotfuse.frontends.torch_program import CapturedProgram, Mutation, OutputLeaf
from hotfuse.frontends.torch_record import Form, tree_text
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Constant
from hotfuse.ir.types import Type, type_of

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
_RETURNED = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


def import_exported(exported: Any, config: Config | None = None, call: TracedCall | None = None) -> CapturedProgram:
    """The program of an ExportedProgram, taken apart as far as the IR needs. `call` is the call that was traced, if it is
    known: then outputs are to their caller what its results were."""
    config = config or Config()
    if is_whole(exported.graph):
        with contextlib.suppress(HotfuseError):
            program = _import(exported, config, call)
            if not program.opaque:
                return program
    return _import(decompose(exported), config, call)


def _import(exported: Any, config: Config, call: TracedCall | None) -> CapturedProgram:
    """The program of an ExportedProgram with its operators as they are."""
    signature = exported.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    users = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    places = {name: i for i, name in enumerate(users)}

    def declare(node: fx.Node, builder: GraphBuilder, type: Type | None) -> Any:
        return _declare(node, builder, type, specs[node.name], exported.constants)

    context = TorchImport(config.max_nodes, config.max_nesting)
    found = import_fx(exported.graph_module, context, declare)
    owned = {node: places[node.name] for node in found.env if node.op == "placeholder" and node.name in places}
    written = [i for i, spec in enumerate(signature.output_specs) if spec.kind in _MUTATIONS]
    returns = [i for i, spec in enumerate(signature.output_specs) if spec.kind in _RETURNED]
    known = {} if call is None else dict(zip(returns, find_leaves(call), strict=True))
    graph, leaves = collect_outputs(found, owned, written, known)
    mutations = [_mutation(signature.output_specs[i], leaves[i], places) for i in written]
    returned = {found.result_nodes[i]: m.leaf for i, m in zip(written, mutations, strict=True) if not m.name}
    outputs = [
        OutputLeaf("input", returned[node]) if call is None and isinstance(node, fx.Node) and node in returned else leaf
        for node, leaf in ((found.result_nodes[i], leaves[i]) for i in returns)
    ]
    return CapturedProgram(
        graph,
        tuple(places[name] for name in graph.inputs),
        tuple(outputs),
        Form(tree_text(exported.call_spec.out_spec)) if call is None or call.form is None else call.form,
        tuple(mutations),
        context.operators,
        tuple(context.opaque),
        sizes=() if call is None else find_sizes(call, outputs),
        returned_weights=() if call is None else find_weights(call, outputs),
        viewed_inputs=() if call is None else find_viewed(call, outputs),
    )


def check_results(exported: Any, call: TracedCall) -> None:
    """Refuse a program that returns something else than the traced call did, or a tensor that it took for a constant."""
    nodes = _returned_nodes(exported)
    if len(nodes) != len(call.results):
        raise CaptureError(f"forward returns {len(call.results)} values, and what calls it makes {len(nodes)} of them")
    constants = _constants(exported)
    for place, (node, result) in enumerate(zip(nodes, call.results, strict=True)):
        val = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not (is_strided(val) and is_strided(result)):
            continue
        if view_root(node).name in constants:
            raise CaptureError(f"output {place} is a tensor held in a Python object, or a view of one; make it a buffer")
        if memory_of(val) != memory_of(result):
            raise CaptureError(f"output {place} is not what forward returns; the module's class has a `__call__` of its own")


def call_again(exported: Any) -> TracedCall | None:
    """A call of the program's graph on the fake tensors that it was traced with; None where its results tell nothing: where
    mutations are outputs of the graph, or outputs are constants, or torch cannot run it so."""
    nodes = _returned_nodes(exported)
    constants = _constants(exported)
    specs = exported.graph_signature.input_specs
    vals = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    mode = next((val.fake_mode for val in vals if isinstance(val, FakeTensor)), None)
    if mode is None or len(nodes) != len(exported.graph_signature.output_specs):
        return None
    if any(isinstance(node, fx.Node) and view_root(node).name in constants for node in nodes):
        return None
    try:
        with torch.no_grad(), mode, _nothing_learned(mode.shape_env):
            results = fx.Interpreter(exported.graph_module).run(*vals, enable_io_processing=False)
    except Exception:  # the graph is imported all the same: only what its outputs share is unknown then
        return None
    given = list(zip(specs, vals, strict=True))
    weights = {str(s.target): v for s, v in given if s.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
    return TracedCall([v for s, v in given if s.kind is InputKind.USER_INPUT], weights, results)


@contextlib.contextmanager
def _nothing_learned(env: Any) -> Iterator[None]:
    """Within, a shape environment may be asked; guards and symbols that come of it are forgotten."""
    if env is None:
        yield
        return
    count = len(env.guards)
    try:
        with env.ignore_fresh_unbacked_symbols():
            yield
    finally:
        del env.guards[count:]


def _returned_nodes(exported: Any) -> list[Any]:
    (returned,) = exported.graph.output_node().args
    specs = exported.graph_signature.output_specs
    return [node for node, spec in zip(returned, specs, strict=True) if spec.kind in _RETURNED]


def _constants(exported: Any) -> set[str]:
    return {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR}


def _declare(node: fx.Node, builder: GraphBuilder, type: Type | None, spec: Any, constants: Mapping[str, Any]) -> Any:
    """What a placeholder stands for."""
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        assert type is not None
        return builder.weight(str(spec.target), type)
    if spec.kind is InputKind.CONSTANT_TENSOR:
        tensor = constants[spec.target]
        if builtin_type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise CaptureError(f"constant {spec.target!r} is a {builtin_type(tensor).__name__}; its values are not known here")
        array = to_numpy(tensor)
        return builder.constant(Constant(array, type_of(array)), builder.unique(str(spec.target).replace(".", "_")))
    if spec.kind is InputKind.TOKEN:
        return None
    if spec.kind is not InputKind.USER_INPUT:
        raise CaptureError(f"input {node.name!r} is a {spec.kind.name.lower()}, which a captured program cannot hold")
    return declare_input(node, builder, type) if isinstance(node.meta.get("val"), _LIVE) else node.meta.get("val")


builtin_type = type
_LIVE = (
    torch.Tensor,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
)  # what varies from call to call; the rest is captured by value


def _mutation(spec: Any, leaf: OutputLeaf, places: Mapping[str, int]) -> Mutation:
    if leaf.kind != "value":
        raise CaptureError(f"the model writes something that is not a tensor to {spec.target!r}")
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return Mutation(leaf.index, leaf=places[spec.target])
    return Mutation(leaf.index, name=str(spec.target))
