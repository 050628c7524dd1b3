"""Which ATen operators are taken apart before import: the core decompositions, less what the IR knows whole, what is random,
and what eager computes more exactly than its parts would.

Random operators consume torch's generator exactly as eager does only if they are run as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import hotfuse.frontends.torch_ops  # noqa: F401  (fills IMPORTERS)
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


def export_decompositions() -> Any:
    """The decomposition table for exported programs: composite operators that are not in it stay whole."""
    table = torch.export.default_decompositions()
    for operator in [op for op in table if is_kept(op)]:
        table.pop(operator)
    return table
