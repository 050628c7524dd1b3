"""Scaled dot-product attention, kept whole. Dropout and log-sum-exp for a backward pass stay with torch's own operator."""

from __future__ import annotations

from typing import Any

from hotfuse.frontends.torch_node import Decline, Imported, TorchNode, aten, dtype_of_value, rank_of, shape_of_value
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL


def _attend(
    n: TorchNode, q: Value, k: Value, v: Value, mask: Value | None, dropout: float, causal: bool, scale: float | None
) -> Imported:
    if dropout:
        return Decline("random")
    if not all(rank_of(t) == 4 for t in (q, k, v)) or not n.dtype.is_float:
        return Decline("of tensors that do not have four axes")
    if any(a != b for a, b in zip(shape_of_value(q)[:1], shape_of_value(k)[:1], strict=True)):
        return Decline("batches that broadcast")
    if mask is not None and dtype_of_value(mask) is not BOOL:
        mask = n.cast(mask, n.dtype)
    return n.add("attention", q, k, v, mask, scale=None if scale is None else float(scale), causal=bool(causal))


@aten("aten.scaled_dot_product_attention.default")
def attention(
    n: TorchNode, q: Value, k: Value, v: Value, mask: Value | None, dropout: float, causal: bool, scale: Any, grouped: bool
) -> Imported:
    if rank_of(q) == 4 and rank_of(k) == 4 and not grouped and shape_of_value(q)[1] != shape_of_value(k)[1]:
        return Decline("heads that broadcast")
    return _attend(n, q, k, v, mask, dropout, causal, scale)


@aten("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    n: TorchNode, q: Value, k: Value, v: Value, dropout: float, causal: bool, mask: Value | None, scale: Any
) -> Imported:
    if n.uses(1):
        return Decline("its log-sum-exp is kept for the backward pass")
    found = _attend(n, q, k, v, mask, dropout, causal, scale)
    return found if isinstance(found, Decline) else [found, None]
