"""Which ATen operators are taken apart before import: the core decompositions, less what the IR knows whole, what is random,
and what eager computes more exactly than its parts would.

Random operators consume torch's generator exactly as eager does only if they are run as they are, even if nobody reads what
they draw (the coin that decides on dropping a layer, in evaluation).
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx.node import _side_effectful_functions

import hotfuse.frontends.torch_ops  # noqa: F401  (fills IMPORTERS)
from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_node import IMPORTERS

EXACT = {"aten.native_batch_norm_backward.default"}  # eager sums in float64


def is_kept(target: Any) -> bool:
    """Whether an operator stays whole."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return str(target) in IMPORTERS or str(target) in EXACT or torch.Tag.nondeterministic_seeded in target.tags


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition table for graphs traced by AOTAutograd."""
    from torch._decomp import core_aten_decompositions

    return {op: function for op, function in core_aten_decompositions().items() if not is_kept(op)}


def is_whole(graph: torch.fx.Graph) -> bool:
    """Whether an exported graph may be imported as it is, unless that meets operators that the IR does not know: it has no
    inner graphs, writes nothing in place and draws no random numbers. Torch takes a graph apart by tracing it once more, which
    takes as long as the export did."""
    return all(node.op in ("placeholder", "output") or _is_plain(node) for node in graph.nodes)


def _is_plain(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, types.BuiltinFunctionType)  # of sizes, and of several results
    if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_off(node):
        return False
    return not node.target._schema.is_mutable or node.target is torch.ops.aten.detach_.default  # a mark for autograd


def _is_off(node: torch.fx.Node) -> bool:
    """Whether an operator that may draw random numbers is told not to."""
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    return given.get("train", True) is False or (node.target in _ATTENTION and given.get("dropout_p", 0.0) == 0.0)


_ATTENTION = (torch.ops.aten.scaled_dot_product_attention.default,)


def decompose(exported: Any) -> Any:
    """An exported program, taken apart. It still draws the random numbers that nobody reads."""
    unread = _unread_random(exported.graph)
    with _effectful(unread), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*LeafSpec", FutureWarning)  # torch's, about itself: it copies such a structure
        apart = exported.run_decompositions(_export_decompositions())
    if _unread_random(apart.graph) != unread:
        names = ", ".join(dict.fromkeys(map(str, unread)))
        raise CaptureError(f"{names} draws random numbers that nobody reads; remove the call to capture this model")
    return apart


def _unread_random(graph: torch.fx.Graph) -> list[Any]:
    random = [n for n in graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    return [node.target for node in random if not node.users]


@contextlib.contextmanager
def _effectful(operators: Iterable[Any]) -> Iterator[None]:
    """Calls of these operators are no dead code for torch meanwhile."""
    added = set(operators) - _side_effectful_functions
    _side_effectful_functions.update(added)
    try:
        yield
    finally:
        _side_effectful_functions.difference_update(added)


def _export_decompositions() -> Any:
    """The decomposition table for exported programs: composite operators that are not in it stay whole."""
    table = torch.export.default_decompositions()
    for target in [op for op in table if is_kept(op)]:
        table.pop(target)
    return table
