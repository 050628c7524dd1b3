"""Which ATen operators are taken apart before import: the core decompositions, less what the IR knows whole, what is random,
and what eager computes more exactly than its parts would.

Random operators consume torch's generator exactly as eager does only if they are run as they are, even if nobody reads what
they draw (the coin that decides on dropping a layer, in evaluation).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx.node import _side_effectful_functions

import hotfuse.frontends.torch_ops  # noqa: F401  (fills IMPORTERS)
from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_node import IMPORTERS

EXACT = {"aten.native_batch_norm_backward.default"}  # eager sums in float64


def is_kept(operator: Any) -> bool:
    """Whether an operator stays whole."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    return str(operator) in IMPORTERS or str(operator) in EXACT or torch.Tag.nondeterministic_seeded in operator.tags


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition table for graphs traced by AOTAutograd."""
    from torch._decomp import core_aten_decompositions

    return {op: function for op, function in core_aten_decompositions().items() if not is_kept(op)}


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
    for operator in [op for op in table if is_kept(op)]:
        table.pop(operator)
    return table
