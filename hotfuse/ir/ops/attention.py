"""Attention, kept whole so that it can become one kernel.

    scores = softcap(scale * q @ k^T) + mask;   result = softmax(scores) @ v

q is [batch, heads, queries, size], k and v are [batch, kv heads, keys, size]; each kv head serves heads / kv heads query heads
in a row. A boolean mask says which keys may be seen, any other mask is added; a query that may see no key gives zeros, or
NaN, as softmax itself does, where `unseen` is "nan".
`causal` hides later keys: query i sees key j <= i, or, with `align` "end", the last query sees the last key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.types import BOOL, TensorType, Type, numel

Array = np.ndarray[Any, Any]
CACHED = 1 << 23  # scores: what a large cache holds


def attention(q: Array, k: Array, v: Array, mask: Array | None = None, *, out: Array | None = None, **how: Any) -> Array:
    """Where the scores do not fit into a cache, one kv head at a time."""
    (batch, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    result = np.empty((batch, heads, queries, v.shape[-1]), q.dtype) if out is None else out
    if batch * heads * queries * keys <= CACHED or batch * kv_heads == 1 or not batch == len(k) == len(v):
        _attention(q, k, v, mask, result, **how)
        return result
    masks = None if mask is None else np.broadcast_to(mask, (batch, heads, queries, keys))
    share = heads // kv_heads
    for place, head in np.ndindex(batch, kv_heads):
        one, own, served = slice(place, place + 1), slice(head, head + 1), slice(head * share, (head + 1) * share)
        part = None if masks is None else masks[one, served]
        _attention(q[one, served], k[one, own], v[one, own], part, result[one, served], **how)
    return result


def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    align: str = "start",
    softcap: float = 0.0,
    unseen: str = "zero",
) -> None:
    (batch, heads, queries, size), (_, kv_heads, keys, _) = q.shape, k.shape
    rows = queries * (heads // kv_heads) if kv_heads else 0
    grouped = (q * q.dtype.type(size**-0.5 if scale is None else scale)).reshape(batch, kv_heads, rows, size)
    scores = np.matmul(grouped, k.swapaxes(-1, -2)).reshape(batch, heads, queries, keys)
    if softcap:
        scores = np.tanh(scores / q.dtype.type(softcap)) * q.dtype.type(softcap)
    if causal:
        scores[..., ~np.tri(queries, keys, keys - queries if align == "end" else 0, dtype=bool)] = -np.inf
    hidden = None
    if mask is not None and mask.dtype == bool:
        np.copyto(scores, q.dtype.type(-np.inf), where=~mask)
    elif mask is not None:
        scores += mask
        hidden = np.isneginf(np.max(mask, axis=-1, keepdims=True, initial=-np.inf))
    weights = _softmax(scores, zero=unseen == "zero")
    if unseen == "zero" and hidden is not None and hidden.any():  # a mask of -inf hides NaN scores too
        np.copyto(weights, q.dtype.type(0), where=hidden)
    np.matmul(weights.reshape(batch, kv_heads, rows, keys), v, out=out.reshape(batch, kv_heads, rows, v.shape[-1]))


def _softmax(scores: Array, zero: bool) -> Array:
    """Softmax over the last axis, in place; a row of -inf becomes zeros, or NaN."""
    most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    scores -= np.where(np.isneginf(most), 0, most) if zero else most
    np.exp(scores, out=scores)
    total = np.sum(scores, axis=-1, keepdims=True)
    scores /= np.where(total == 0, 1, total) if zero else total
    return scores


def _attention_infer(call: Call) -> Sequence[Type]:
    q, k, v = (call.tensor(i) for i in range(3))
    if not q.dtype == k.dtype == v.dtype:
        raise call.fail(f"query, key and value have different types, {q.dtype}, {k.dtype} and {v.dtype}")
    if call.attrs.get("unseen", "zero") not in ("zero", "nan"):
        raise call.fail(f"unseen must be 'zero' or 'nan', not {call.attrs['unseen']!r}")
    if call.has(3) and call.dtype(3) not in (BOOL, q.dtype):
        raise call.fail(f"the mask must be bool or {q.dtype}, not {call.dtype(3)}")
    if q.shape is None or k.shape is None or v.shape is None:
        return (TensorType(q.dtype, call.unknown(4)),)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise call.fail(f"query, key and value must have four axes, not {q}, {k}, {v}")
    if isinstance(q.shape[1], int) and isinstance(k.shape[1], int) and q.shape[1] % (k.shape[1] or q.shape[1] + 1):
        raise call.fail(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads")
    for name, a, b in (
        ("size", q.shape[3], k.shape[3]),
        ("keys", k.shape[2], v.shape[2]),
        ("kv heads", k.shape[1], v.shape[1]),
    ):
        if NO_FACTS.decide(a, b) is False:
            raise call.fail(f"the sizes of axis {name} differ, {a} and {b}, in {q}, {k}, {v}")
    return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])),)


def _attention_flops(call: Call, types: Sequence[Type]) -> Dim:
    q, k, v = (call.shape(i) for i in range(3))
    if q is None or k is None or v is None:
        return 0
    return numel(q[:3]) * k[2] * (2 * q[3] + 2 * v[3] + 20)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)

    def normal(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
        return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)

    same = ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8))
    return [
        Sample(normal(*same), {"scale": None, "causal": False}),
        Sample(normal(*same), {"scale": 0.5, "causal": True}),
        Sample(normal((1, 4, 3, 8), (1, 2, 6, 8), (1, 2, 6, 4), (3, 6)), {"causal": False, "softcap": 2.0}),
        Sample((*normal((1, 4, 3, 8), (1, 2, 6, 8), (1, 2, 6, 4)), rng.random((1, 1, 3, 6)) > 0.5), {"causal": False}),
        Sample((*normal(*same), np.arange(5).reshape(5, 1) > np.ones((5, 5))), {"causal": False, "unseen": "nan"}),
    ]


define(
    OpDef(
        "attention", _attention_infer, widened(attention), Pattern.ATTENTION, "softmax of scaled scores, times the values",
        flops=_attention_flops, torch=("aten.scaled_dot_product_attention.default",), samples=_samples,
    )
)  # fmt: skip
