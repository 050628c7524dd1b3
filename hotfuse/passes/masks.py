"""What can be told of an attention mask before a call: its range, whether it may hide a whole row, whether it is causal.

A mask is boolean (true where a key is seen) or is added to the scores (0 where a key is seen). Of a mask that the model's user
gives, nothing is assumed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotfuse.ir.graph import Node, Value
from hotfuse.ir.types import BOOL, TensorType, numel
from hotfuse.passes.rewrite import Draft, dtype_of, is_float, shape_of

# A score this low leaves no weight to its key: exp of the difference is 0. Beside all but float16's, scores vanish in a sum.
HIDING = {"f64": -1e300, "f32": -1e37, "bf16": -1e37, "f16": -6e4}
MOVEMENT = frozenset({"expand", "reshape", "unsqueeze", "squeeze", "slice", "transpose", "gather"})
LARGE = 1 << 24  # elements of a constant mask that is looked at
Interval = tuple[float, float]
EVERYTHING = (-math.inf, math.inf)


def bounds(draft: Draft, value: Value | None, depth: int = 10) -> Interval:
    """Two numbers that every element lies between."""
    if value is None or depth == 0:
        return EVERYTHING
    array = _small(draft, value)
    if array is not None:
        return _range(array)
    node = draft.producer.get(value.name)
    if dtype_of(value) is BOOL:
        return (0.0, 1.0)
    if node is None:
        return EVERYTHING
    inputs = draft.inputs(node)
    if node.op in MOVEMENT:
        return bounds(draft, inputs[0], depth - 1)
    if node.op == "full":
        return float(node.attrs["value"]), float(node.attrs["value"])
    if node.op == "cast":
        low, high = bounds(draft, inputs[0], depth - 1)
        return (low, high) if is_float(value.type) or 0 <= low <= high < 2 else EVERYTHING  # integer types wrap and truncate
    if node.op == "where":
        (a, b), (c, d) = (bounds(draft, i, depth - 1) for i in inputs[1:])
        return min(a, c), max(b, d)
    if node.op in ("add", "sub", "mul") and len(inputs) == 2:
        (a, b), (c, d) = (bounds(draft, i, depth - 1) for i in inputs)
        if node.op == "mul":
            corners = [0.0 if 0.0 in (x, y) else x * y for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        return (a + c, b + d) if node.op == "add" else (a - d, b - c)
    return EVERYTHING


def _small(draft: Draft, value: Value) -> np.ndarray[Any, Any] | None:
    """The array of a constant that is not too large to look at."""
    type = value.type
    if value.name not in draft.builder.constants or not isinstance(type, TensorType):
        return None
    size = numel(type.shape or ())
    return (
        draft.constant(value)
        if isinstance(size, int) and size <= LARGE and type.dtype.kind in ("float", "int", "uint", "bool")
        else None
    )


def _range(array: np.ndarray[Any, Any]) -> Interval:
    if not array.size:
        return (0.0, 0.0)
    low, high = float(np.min(array)), float(np.max(array))
    return EVERYTHING if math.isnan(low) or math.isnan(high) else (low, high)


def is_finite(draft: Draft, value: Value) -> bool:
    """Whether a float mask has no -inf, whatever the call."""
    dtype = dtype_of(value)
    if dtype is None or not dtype.is_float:
        return False
    return bounds(draft, value)[0] >= _lowest(dtype.name)


def _lowest(name: str) -> float:
    return {"f64": -1.7976931348623157e308, "f32": -3.4028234663852886e38, "bf16": -3.3895313892515355e38}.get(name, -65504.0)


def may_hide_row(draft: Draft, value: Value) -> bool:
    """Whether the mask could hide all keys of a query for certain (with false or -inf)."""
    array = _small(draft, value)
    if array is not None and array.ndim:
        seen = array if array.dtype == bool else array > -math.inf
        return not bool(np.any(seen, axis=-1).all())
    return causal_alignment(draft, value) is None and not is_finite(draft, value)


def causal_alignment(draft: Draft, mask: Value) -> str | None:
    """`start` or `end` if the mask hides exactly the later keys (see the attention operator); None if that is not certain."""
    shape = shape_of(mask)
    if shape is None or len(shape) < 2 or any(d != 1 for d in shape[:-2]):
        return None
    node = draft.producer.get(mask.name)
    if node is None:
        return _triangle(draft, mask)
    if dtype_of(mask) is BOOL and _is_causal(draft, node, visible=True):
        return "start"
    if node.op == "where":
        condition, seen, unseen = draft.inputs(node)
        chooser = None if condition is None else draft.producer.get(condition.name)
        for visible, zero, low in ((True, seen, unseen), (False, unseen, seen)):
            if draft.scalar(zero) == 0 and _hides(draft, low) and chooser is not None and _is_causal(draft, chooser, visible):
                return "start"
    if node.op == "slice":
        whole, starts = draft.inputs(node)[:2]
        from_zero = starts is not None and starts.contents is not None and all(s == 0 for s in starts.contents)
        if whole is not None and from_zero and all(step == 1 for step in node.attrs["steps"]):
            return "start" if _triangle(draft, whole) == "start" else None
    return None


def _hides(draft: Draft, value: Value | None) -> bool:
    number, dtype = draft.scalar(value), None if value is None else dtype_of(value)
    return number is not None and dtype is not None and number <= HIDING.get(dtype.name, -math.inf)


def _is_causal(draft: Draft, node: Node, visible: bool) -> bool:
    """Whether a boolean node is true exactly for the keys that a query may see (or, not `visible`, for the others)."""
    inputs = draft.inputs(node)
    if node.op == "logical_not":
        inner = None if inputs[0] is None else draft.producer.get(inputs[0].name)
        return inner is not None and _is_causal(draft, inner, not visible)
    if node.op in ("less_equal", "greater_equal", "greater", "less"):
        keys, queries = inputs if node.op in ("less_equal", "greater") else inputs[::-1]
        return visible == node.op.endswith("_equal") and _counts(draft, keys, -1) and _counts(draft, queries, -2)
    if node.op == "cast":
        inner = None if inputs[0] is None else draft.producer.get(inputs[0].name)
        return visible and inner is not None and _is_lower_ones(draft, inner)
    if node.op == "equal":
        inner = None if inputs[0] is None else draft.producer.get(inputs[0].name)
        return not visible and draft.scalar(inputs[1]) == 0 and inner is not None and _is_lower_ones(draft, inner)
    return visible and _is_lower_ones(draft, node)


def _is_lower_ones(draft: Draft, node: Node) -> bool:
    """Ones on and below the main diagonal, zeros above."""
    if node.op != "trilu" or node.attrs.get("upper", True):
        return False
    x, *diagonal = draft.inputs(node)
    if any(d is not None and draft.scalar(d) != 0 for d in diagonal):
        return False
    wide = draft.maker(x, "expand")
    return draft.scalar(draft.inputs(wide)[0] if wide is not None else x) == 1


def _counts(draft: Draft, value: Value | None, axis: int) -> bool:
    """Whether the elements along `axis` are 0, 1, 2, ... and every other axis has size 1."""
    shape = shape_of(value)
    if shape is None or len(shape) < -axis or any(d != 1 for i, d in enumerate(shape) if i != len(shape) + axis):
        return False
    while value is not None:
        node = draft.producer.get(value.name)
        if node is None:
            return False
        inputs = draft.inputs(node)
        if node.op == "arange":
            ends = [v.contents if v is not None else None for v in inputs]
            return ends[0] == (0,) and ends[2] == (1,)
        if node.op not in ("unsqueeze", "squeeze", "reshape"):
            return False
        value = inputs[0]
    return False


def _triangle(draft: Draft, mask: Value) -> str | None:
    array = _small(draft, mask)
    if array is None or array.ndim < 2 or array.size == 0:
        return None
    queries, keys = array.shape[-2:]
    square = array.reshape(-1, queries, keys)[0]
    if array.dtype == bool:
        seen = square
    else:
        dtype = dtype_of(mask)
        seen = square == 0
        if not bool((seen | (square <= HIDING.get(dtype.name if dtype else "", -math.inf))).all()):
            return None
    if np.array_equal(seen, np.tri(queries, keys, 0, dtype=bool)):
        return "start"
    if keys > queries and np.array_equal(seen, np.tri(queries, keys, keys - queries, dtype=bool)):
        return "end"
    return None
