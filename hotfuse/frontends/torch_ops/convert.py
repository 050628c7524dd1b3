"""Element type conversions and copies."""

from __future__ import annotations

from typing import Any

import torch

from hotfuse.frontends.torch_node import Decline, Imported, TorchNode, aten
from hotfuse.ir.graph import Value


@aten("aten._to_copy.default")
def to_copy(n: TorchNode, x: Value, dtype: Any, layout: Any, device: Any, *rest: Any) -> Imported:
    if device is not None and torch.device(device).type != "cpu":
        return Decline(f"a copy to {device}")
    return n.cast(x, n.dtype)


@aten("prims.convert_element_type.default")
def convert_element_type(n: TorchNode, x: Value, dtype: Any) -> Imported:
    return n.cast(x, n.dtype)


@aten("aten.copy.default")
def copy(n: TorchNode, target: Value, source: Value, non_blocking: bool) -> Imported:
    """`source` in the shape and element type of `target`."""
    return n.add("expand", n.cast(source, n.dtype), n.dims(n.shape))


@aten("aten.dropout.default")
def dropout(n: TorchNode, x: Value, p: float, train: bool) -> Imported:
    return Decline("random") if train and p else x
