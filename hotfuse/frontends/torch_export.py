"""Exported programs (`torch.export`) become captured programs.

Parameters and buffers are the graph's weights, by their names in the module; lifted tensors are constants; what the model
writes to buffers and inputs comes back as mutations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from hotfuse.config import Config
from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_decompositions import export_decompositions
from hotfuse.frontends.torch_graph import TorchImport, declare_input, import_fx
from hotfuse.frontends.torch_outputs import collect_outputs
from hotfuse.frontends.torch_program import CapturedProgram, Mutation, OutputLeaf
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Constant
from hotfuse.ir.types import Type, type_of

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def import_exported(exported: Any, config: Config | None = None) -> CapturedProgram:
    """The program of an ExportedProgram, taken apart as far as the IR needs."""
    config = config or Config()
    _refuse_unread_random(exported)
    exported = exported.run_decompositions(export_decompositions())
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
    graph, leaves = collect_outputs(found, owned, written)
    mutations = [_mutation(signature.output_specs[i], leaves[i], places) for i in written]
    returned = {found.result_nodes[i]: m.leaf for i, m in zip(written, mutations, strict=True) if not m.name}
    outputs = [
        OutputLeaf("input", returned[node]) if isinstance(node, fx.Node) and node in returned else leaf
        for spec, node, leaf in zip(signature.output_specs, found.result_nodes, leaves, strict=True)
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    return CapturedProgram(
        graph,
        tuple(places[name] for name in graph.inputs),
        tuple(outputs),
        _tree_text(exported.call_spec.out_spec),
        tuple(mutations),
        context.operators,
        tuple(context.opaque),
    )


def _refuse_unread_random(exported: Any) -> None:
    """torch drops random calls whose results nobody reads when it takes a program apart; eager's next random number would
    differ."""
    for node in exported.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and not node.users and torch.Tag.nondeterministic_seeded in tags:
            raise CaptureError(f"{node.target} draws random numbers that nobody reads; remove the call to capture this model")


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


def _tree_text(tree: Any) -> str:
    try:
        return str(pytree.treespec_dumps(tree))
    except Exception as error:
        raise CaptureError(
            f"the model's output structure cannot be written down: {error}; register it with torch's pytree"
        ) from error
