"""ONNX Attention, kept whole where our operator says the same; the rarer forms go to onnx's function body."""

from __future__ import annotations

from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.ir.builder import int64
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL, TensorType


@onnx_op("Attention")
def attention(n: OnnxNode) -> Imported:
    reason = _uncovered(n)
    if reason:
        return Decline(reason)
    flat = n.rank(0) == 3
    q, k, v = (n.input(i) for i in range(3))
    if flat:
        q = _heads(n, q, n.attr("q_num_heads"))
        k, v = (_heads(n, value, n.attr("kv_num_heads")) for value in (k, v))
    same_length = _decide(q, k)
    if n.has(4):
        k = n.add("concat", n.input(4), k, axis=2)
        v = n.add("concat", n.input(5), v, axis=2)
    causal = bool(n.attr("is_causal", 0))
    if causal and n.has(4) and same_length is not True:
        return Decline("causal attention over a cache with another number of new keys than queries")
    if n.has(3) and not _spans_keys(n.type(3), k):
        return Decline("the mask covers only some of the keys")
    attrs = {
        "scale": n.attr("scale"),
        "causal": causal,
        "align": "end" if n.has(4) else "start",
        "softcap": n.attr("softcap", 0.0),
    }
    result = n.add("attention", q, k, v, n.optional(3), **attrs)
    if flat:
        result = n.add("reshape", n.add("transpose", result, perm=(0, 2, 1, 3)), n.constant(int64(0, 0, -1)))
    return (result, k, v)


def _uncovered(n: OnnxNode) -> str:
    if n.wants(3):
        return "the scores themselves are asked for"
    if n.has(6) or n.attr("left_window_size", -1) >= 0 or n.attr("right_window_size", -1) >= 0:
        return "padded caches and windows are written out"
    if len({n.dtype(i) for i in range(3)}) > 1 or (n.has(3) and n.dtype(3) not in (BOOL, n.dtype(0))):
        return "query, key, value and mask have different types"
    if any(n.rank(i) not in (3, 4) for i in range(3)):
        return "the rank of an input is not known"
    if n.rank(0) == 3 and not (n.attr("q_num_heads") and n.attr("kv_num_heads")):
        return "the number of heads is not given"
    return ""


def _heads(n: OnnxNode, value: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, heads, length, size]"""
    return n.add("transpose", n.add("reshape", value, n.constant(int64(0, 0, heads, -1))), perm=(0, 2, 1, 3))


def _decide(q: Value, k: Value) -> bool | None:
    assert isinstance(q.type, TensorType)
    assert isinstance(k.type, TensorType)
    return NO_FACTS.decide(q.type.shape[2], k.type.shape[2]) if q.type.shape and k.type.shape else None


def _spans_keys(mask: TensorType, k: Value) -> bool:
    assert isinstance(k.type, TensorType)
    return bool(mask.shape and k.type.shape and NO_FACTS.decide(mask.shape[-1], k.type.shape[2]) is True)
