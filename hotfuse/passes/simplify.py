"""Algebraic simplification: rules that keep every bit, NaN, infinity and -0.0 included.

    x + -0.0, x - 0.0, x * 1, x / 1, x ** 1    -> x              (x + 0.0 is not x when x is -0.0; x * 0 is not 0)
    x / c, c a power of two                    -> x * (1 / c)
    x ** 2, x ** -1                            -> x * x, 1 / x
    x ** 0.5, x ** -0.5                        -> sqrt x, rsqrt x   where x is known not to be -0.0 or -inf
    1 / sqrt x                                 -> rsqrt x
    -(-x), not not x, a and True, a or False   -> x, a
    where(True, x, y), where(c, x, x)          -> x
    transpose of transpose, reshape of reshape, cast of exact cast -> one of them
    reshape, expand, slice, squeeze, unsqueeze that change nothing, concat or split of one -> x
    reshape(transpose(reshape x)) that only swaps the last two axes -> transpose x

The powers round once where `pow` may be a last bit off. Integers follow the same rules with 0 for both zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import BOOL, F32, F64, STRING, DType, numel
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, Rule, dtype_of, is_float, rewrite, same_shape, shape_of


def _is_zero(draft: Draft, value: Value | None, negative: bool) -> bool:
    """Whether `value` is a constant zero; for floats also of the given sign."""
    number = draft.scalar(value)
    if number != 0 or number is None or value is None:
        return False
    return not is_float(value.type) or bool(np.signbit(number)) == negative


def add(draft: Draft, node: Node) -> Value | None:
    x, y = draft.inputs(node)
    return x if _is_zero(draft, y, negative=True) else y if _is_zero(draft, x, negative=True) else None


def subtract(draft: Draft, node: Node) -> Value | None:
    x, y = draft.inputs(node)
    return x if _is_zero(draft, y, negative=False) else None


def multiply(draft: Draft, node: Node) -> Value | None:
    x, y = draft.inputs(node)
    return x if draft.scalar(y) == 1 else y if draft.scalar(x) == 1 else None


def divide(draft: Draft, node: Node) -> Value | None:
    x, y = draft.inputs(node)
    if draft.scalar(y) == 1:
        return x
    root = draft.maker(y, "sqrt")
    if draft.scalar(x) == 1 and root is not None:
        return draft.add("rsqrt", draft.inputs(root)[0])
    inverse = None if y is None else _exact_inverse(draft, y)
    return None if inverse is None else draft.add("mul", x, inverse)


def _exact_inverse(draft: Draft, value: Value) -> Value | None:
    """1 / value as a constant, if dividing by `value` is the same as multiplying by that: powers of two."""
    number = draft.scalar(value)
    if number is None or dtype_of(value) not in (F32, F64) or number == 0 or not np.isfinite(number):
        return None
    array = draft.constant(value)
    assert array is not None
    inverse = np.reciprocal(array)
    tiny = np.finfo(array.dtype).smallest_normal
    exact = np.frexp(abs(number))[0] == 0.5 and bool((np.isfinite(inverse) & (np.abs(inverse) >= tiny)).all())
    return draft.define(inverse, value.device) if exact else None


def reciprocal(draft: Draft, node: Node) -> Value | None:
    root = draft.maker(draft.inputs(node)[0], "sqrt")
    return None if root is None else draft.add("rsqrt", draft.inputs(root)[0])


def power(draft: Draft, node: Node) -> Value | None:
    x, y = draft.inputs(node)
    exponent = draft.scalar(y)
    if x is None or y is None or exponent is None or (is_float(y.type) and not is_float(x.type)):
        return None
    if exponent == 1:
        return x
    if exponent == 2:
        return draft.add("mul", x, x)
    if not is_float(x.type):
        return None
    if exponent == -1:
        return draft.add("reciprocal", x)
    if exponent in (0.5, -0.5) and is_nonnegative(draft, x):
        return draft.add("sqrt" if exponent > 0 else "rsqrt", x)
    return None


def is_nonnegative(draft: Draft, value: Value | None, depth: int = 8) -> bool:
    """Whether no element can be negative or -0.0 (NaN may be). Looks at how the value is made, a few steps back."""
    if value is None or depth == 0:
        return False
    number = draft.scalar(value)
    if number is not None:
        return number >= 0 and not np.signbit(number)
    node = draft.producer.get(value.name)
    if node is None:
        return False
    inputs = draft.inputs(node)
    if node.op in ("abs", "exp", "sigmoid", "softmax"):
        return True
    if node.op == "mul" and inputs[0] is inputs[1]:
        return True
    if node.op in ("reduce_sum", "reduce_mean", "sqrt"):
        return is_nonnegative(draft, inputs[0], depth - 1)
    return node.op in ("add", "mul") and all(is_nonnegative(draft, v, depth - 1) for v in inputs)


def undo(op: str) -> Rule:
    """Twice `op` is nothing."""

    def rule(draft: Draft, node: Node) -> Value | None:
        inner = draft.maker(draft.inputs(node)[0], op)
        return None if inner is None else draft.inputs(inner)[0]

    return rule


def neutral(number: int) -> Rule:
    """A boolean operator that `number` does not change."""

    def rule(draft: Draft, node: Node) -> Value | None:
        x, y = draft.inputs(node)
        if x is None or dtype_of(x) is not BOOL:
            return None
        return x if draft.scalar(y) == number else y if draft.scalar(x) == number else None

    return rule


def where(draft: Draft, node: Node) -> Value | None:
    condition, x, y = draft.inputs(node)
    if x is y:
        return x
    chosen = draft.scalar(condition)
    return None if chosen is None else x if chosen else y


def cast(draft: Draft, node: Node) -> Value | None:
    (x,) = draft.inputs(node)
    assert x is not None
    to: DType = node.attrs["to"]
    if dtype_of(x) == to:
        return x
    inner = draft.maker(x, "cast")
    if inner is None:
        return None
    first = draft.inputs(inner)[0]
    assert first is not None
    source, middle = dtype_of(first), dtype_of(x)
    if source is None or middle is None or not _holds(middle, source) or to is STRING:  # text shows the type it is made from
        return None
    # Numbers out of an integer type's range convert as the hardware likes, differently from each source type.
    if to != source and to.is_integer and source.is_float:
        return None
    return first if to == source else draft.add("cast", first, **node.attrs)


_FLOAT_BITS = {"f64": (53, 11), "f32": (24, 8), "f16": (11, 5), "bf16": (8, 8)}  # significand, exponent


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether `wide` has every number of `narrow`."""
    if narrow is BOOL:
        return wide.is_integer or wide.name in _FLOAT_BITS
    if narrow.name in _FLOAT_BITS and wide.name in _FLOAT_BITS:
        return all(w >= n for w, n in zip(_FLOAT_BITS[wide.name], _FLOAT_BITS[narrow.name], strict=True))
    if not narrow.is_integer:
        return False
    digits = narrow.bits - (narrow.kind == "int")
    if wide.name in _FLOAT_BITS:
        return _FLOAT_BITS[wide.name][0] >= digits + 1 and wide.name != "f16"
    return wide.is_integer and (wide.kind == "int" or narrow.kind == "uint") and wide.bits - (wide.kind == "int") >= digits


def axis_order(node: Node, x: Value | None) -> tuple[int, ...] | None:
    """The order a transpose puts the axes of x in; all of them backward where it names none."""
    shape, perm = shape_of(x), node.attrs.get("perm")
    if perm is None:
        return None if shape is None else tuple(reversed(range(len(shape))))
    return tuple(p % len(perm) for p in perm)


def transpose(draft: Draft, node: Node) -> Value | None:
    (x,) = draft.inputs(node)
    perm = axis_order(node, x)
    if perm is None:
        return None
    inner = draft.maker(x, "transpose")
    first = None if inner is None else axis_order(inner, x)
    if inner is not None and first is not None:
        (x,), perm = draft.inputs(inner), tuple(first[p] for p in perm)
    if perm == tuple(range(len(perm))):
        return x
    return None if first is None else draft.add("transpose", x, perm=perm)


def unchanged(draft: Draft, node: Node) -> Value | None:
    """A movement that cannot have done anything if the shape is still the same."""
    x = draft.inputs(node)[0]
    same = same_shape(shape_of(x), shape_of(draft.graph.values[node.id]), draft.graph.facts)
    if node.op == "slice" and any(step != 1 for step in node.attrs["steps"]):
        same = False
    return x if same else None


def reshape_twice(draft: Draft, node: Node) -> Value | None:
    middle, target = draft.inputs(node)
    inner = draft.maker(middle, "reshape")
    if inner is None or target is None or target.contents is None:
        return None
    x = draft.inputs(inner)[0]
    if not node.attrs.get("allow_zero", False) and not _copies_alike(x, middle, target.contents):
        return None
    return draft.add("reshape", x, target, **node.attrs)


def _copies_alike(x: Value | None, middle: Value | None, target: Sequence[Dim]) -> bool:
    """Whether a 0 in the target, now or once sizes are known, means the same size of either input."""
    before, after = shape_of(x), shape_of(middle)
    for i, dim in enumerate(target):
        if isinstance(dim, int) and dim != 0:
            continue
        if before is None or after is None or i >= min(len(before), len(after)) or before[i] != after[i]:
            return False
    return True


def swap_last_axes(draft: Draft, node: Node) -> Value | None:
    """reshape(transpose(reshape(x, [-1, m, n]), [0, 2, 1]), [..., n, m]) for x of shape [..., m, n]."""
    turned = draft.maker(draft.inputs(node)[0], "transpose")
    if turned is None or axis_order(turned, draft.inputs(turned)[0]) != (0, 2, 1):
        return None
    flat = draft.maker(draft.inputs(turned)[0], "reshape")
    x = None if flat is None else draft.inputs(flat)[0]
    before, middle = shape_of(x), shape_of(draft.inputs(turned)[0])
    after = shape_of(draft.graph.values[node.id])
    facts = draft.graph.facts
    if before is None or middle is None or len(before) < 3:
        return None
    if not same_shape((numel(before[:-2]), *before[-2:]), middle, facts):
        return None
    if not same_shape((*before[:-2], before[-1], before[-2]), after, facts):
        return None
    rank = len(before)
    return draft.add("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def single(draft: Draft, node: Node) -> Value | None:
    """concat of one input, split into one part."""
    return draft.inputs(node)[0] if len(node.inputs) == 1 and len(node.outputs) == 1 else None


def unclipped(draft: Draft, node: Node) -> Value | None:
    x, *bounds = draft.inputs(node)
    return x if all(b is None for b in bounds) else None


RULES: dict[str, tuple[Rule, ...]] = {
    "add": (add,),
    "sub": (subtract,),
    "mul": (multiply,),
    "div": (divide,),
    "reciprocal": (reciprocal,),
    "pow": (power,),
    "neg": (undo("neg"),),
    "logical_not": (undo("logical_not"),),
    "logical_and": (neutral(1),),
    "logical_or": (neutral(0),),
    "where": (where,),
    "cast": (cast,),
    "clip": (unclipped,),
    "transpose": (transpose,),
    "reshape": (unchanged, swap_last_axes, reshape_twice),
    "expand": (unchanged,),
    "slice": (unchanged,),
    "squeeze": (unchanged,),
    "unsqueeze": (unchanged,),
    "concat": (single,),
    "split": (single,),
}


@on_every_graph
def simplify(graph: Graph) -> Graph:
    return rewrite(graph, RULES)
