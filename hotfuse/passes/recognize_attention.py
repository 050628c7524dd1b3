"""Attention that exporters spell out:

    softmax(mask(scale * q @ k^T)) @ v

The scale may stand on the scores, on q, on k, or on several of them; k^T may be any transpose; masks are added or chosen by
`where`; a guard may turn the NaN of an all-hidden row into zeros; grouped-query models repeat k and v heads before.

The operator gives zeros to a query that may see no key, as the guard does. Without a guard such a row is NaN, and the operator
is told so unless the mask cannot hide a whole row: it is finite (-1e38 rather than -inf), or every row of it has a visible key.

A `where` that hides with a finite number gives such a row equal weights. It becomes a mask to be added, which does the same if
scores vanish beside the number. They do not in float16, nor where a mask inside the `where` has -inf: those stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import BOOL, F16
from hotfuse.passes.masks import HIDING, causal_alignment, is_finite, may_hide_row
from hotfuse.passes.match import Either, Match, Number, Pattern, Product, Var, inner_nodes, match
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, dtype_of, first_origin, rewrite, same_shape, shape_of
from hotfuse.passes.simplify import axis_order
from hotfuse.records import dataclass

q, k, v = Var("q"), Var("k"), Var("v")
QUERY = Product(Number("q scale"), q)
KEY = Product(
    Number("k^T scale"),
    Either(("transpose:turn", Product(Number("k scale"), k)), Var("k^T")),
)
SCORES = Product(Number("scale"), ("matmul", QUERY, KEY))
CAPPED = Product(Number("cap"), ("tanh", SCORES))


def _masked(scores: Pattern, i: int) -> Pattern:
    """The scores, perhaps with one more mask."""
    return Either(
        ("add", scores, Var(f"added {i}")),
        ("where", Var(f"visible {i}"), scores, Number(f"hidden {i}")),
        ("where", Var(f"invisible {i}"), Number(f"hidden {i}"), scores),
        scores,
    )


def _maybe_cast(pattern: Pattern) -> Pattern:
    return Either(("cast", pattern), pattern)


WEIGHTS = _maybe_cast(("softmax:softmax", _maybe_cast(_masked(_masked(Either(SCORES, CAPPED), 0), 1))))
ATTENTION: Pattern = ("matmul", Either(("where:guard", ("isnan", WEIGHTS), 0.0, WEIGHTS), WEIGHTS), v)


def attention(draft: Draft, node: Node) -> Value | None:
    found = match(draft, ATTENTION, node) if _is_weighted_sum(draft, node) else None
    if found is None:
        return None
    rank = len(shape_of(found["q"]) or ())
    if rank not in (3, 4) or found.nodes["softmax"].attrs["axis"] not in (-1, rank - 1):
        return None
    draft.builder.origin = first_origin(inner_nodes(draft, found, node))
    key = _key(draft, found, rank)
    heads = _heads(draft, found["q"], key, found["v"])
    if key is None or heads is None:
        return None
    mask = _mask(draft, found)
    if mask is None:
        return None
    attrs: dict[str, object] = {"scale": _scale(found), **mask.attrs}
    if mask.may_hide_row and "guard" not in found.nodes:
        attrs["unseen"] = "nan"
    if "cap" in found.numbers:
        attrs["softcap"] = found.numbers["cap"]
    if rank == 4:
        return draft.add("attention", *heads, mask.value, **attrs)
    whole = draft.add("attention", *(draft.add("unsqueeze", h, axes=(0,)) for h in heads), mask.value, **attrs)
    return draft.add("squeeze", whole, axes=(0,))


def _is_weighted_sum(draft: Draft, node: Node) -> bool:
    """A quick look before the long one: is the left factor a softmax, give or take a guard and a cast?"""
    value = draft.inputs(node)[0]
    for _ in range(3):
        maker = None if value is None else draft.producer.get(value.name)
        if maker is None or maker.op not in ("where", "cast", "softmax"):
            return False
        if maker.op == "softmax":
            return True
        value = draft.inputs(maker)[-1]
    return False


def _scale(found: Match) -> float:
    total = math.prod(found.numbers.get(name, 1.0) for name in ("scale", "q scale", "k scale", "k^T scale"))
    return total * found.numbers.get("cap", 1.0)


def _key(draft: Draft, found: Match, rank: int) -> Value | None:
    """k as [..., keys, size], from whatever was transposed into k^T."""
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if "turn" not in found.nodes:
        return draft.add("transpose", found["k^T"], perm=swap) if len(shape_of(found["k^T"]) or ()) == rank else None
    first = axis_order(found.nodes["turn"], found["k"])
    if first is None or len(first) != rank:
        return None
    perm = tuple(first[p] for p in swap)
    return found["k"] if perm == tuple(range(rank)) else draft.add("transpose", found["k"], perm=perm)


def _heads(draft: Draft, query: Value, key: Value | None, value: Value) -> tuple[Value, Value, Value] | None:
    """q, k and v with one batch and head count, or with fewer k and v heads where the model repeats them."""
    shapes = [shape_of(query), shape_of(key), shape_of(value)]
    facts = draft.graph.facts
    if key is None or any(s is None for s in shapes) or not dtype_of(query) == dtype_of(key) == dtype_of(value):
        return None
    (a, b, c) = (s[:-2] for s in shapes if s is not None)
    if len(a) == 2 and same_shape((a[0], 1), b, facts) and same_shape((a[0], 1), c, facts):
        return query, key, value  # one head of keys and values for all
    if not same_shape(a, b, facts) or not same_shape(a, c, facts):
        return None
    few_keys, few_values = _unrepeated(draft, key), _unrepeated(draft, value)
    if few_keys is not None and few_values is not None:
        b, c = (shape_of(few_keys) or ())[:2], (shape_of(few_values) or ())[:2]
        if same_shape(b, c, facts):
            return query, few_keys, few_values
    return query, key, value


def _unrepeated(draft: Draft, value: Value) -> Value | None:
    """x of shape [batch, heads, keys, size] where `value` is reshape(expand(unsqueeze(x, 2))), each head repeated in a row."""
    merged = draft.maker(value, "reshape")
    wide = draft.maker(draft.inputs(merged)[0], "expand") if merged is not None else None
    single = draft.maker(draft.inputs(wide)[0], "unsqueeze") if wide is not None else None
    if single is None or wide is None or tuple(single.attrs["axes"]) not in ((2,), (-3,)):
        return None
    x = draft.inputs(single)[0]
    few, many, merged_shape = shape_of(x), shape_of(draft.value(wide.id)), shape_of(value)
    if x is None or few is None or many is None or len(few) != 4 or len(many) != 5:
        return None
    facts = draft.graph.facts
    if not same_shape((*few[:2], many[2], *few[2:]), many, facts):
        return None
    return x if same_shape((few[0], few[1] * many[2], *few[2:]), merged_shape, facts) else None


@dataclass(frozen=True)
class Mask:
    """What the operator gets: attributes, the mask itself, and whether it may hide all keys of a query."""

    attrs: Mapping[str, object]
    value: Value | None = None
    may_hide_row: bool = False


def _mask(draft: Draft, found: Match) -> Mask | None:
    parts = [_mask_part(draft, found, i) for i in (0, 1)]
    if "unclear" in parts:
        return None
    masks = [p for p in parts if isinstance(p, Value)]
    if len(masks) == 1 and _covers(draft, masks[0], found):
        align = causal_alignment(draft, masks[0])
        if align is not None:
            return Mask({"causal": True, "align": align})
    numbers = [found.numbers.get(f"hidden {i}", -math.inf) for i in (0, 1) if isinstance(parts[i], Value)]
    if not masks:
        return Mask({"causal": False})
    finite = [dtype_of(m) is BOOL and h > -math.inf for m, h in zip(masks, numbers, strict=True)]
    if dtype_of(found["q"]) is F16 and any(finite):
        if len(masks) > 1 or may_hide_row(draft, masks[0]):
            return None
        return Mask({"causal": False}, masks[0])
    added = [_added(draft, m, h, found["q"]) for m, h in zip(masks, numbers, strict=True)]
    # Two masks that each leave every query a key may together leave it none.
    hides = [m for m in added if dtype_of(m) is BOOL or not is_finite(draft, m)]
    both = _both(draft, added[0], added[1], found["q"]) if len(added) == 2 else added[0]
    overflows = len(added) == 2 and not hides and not is_finite(draft, both)
    if len(added) == 2 and finite[1] and (hides or overflows):
        return None
    hidden = len(hides) > 1 or any(may_hide_row(draft, m) for m in hides)
    return Mask({"causal": False}, both, hidden or overflows)


def _covers(draft: Draft, mask: Value, found: Match) -> bool:
    """Whether the mask has a row for each query and a column for each key, rather than one that is broadcast."""
    query, value = shape_of(found["q"]), shape_of(found["v"])
    sizes = () if query is None or value is None else (query[-2], value[-2])
    return same_shape((shape_of(mask) or ())[-2:], sizes, draft.graph.facts)


def _mask_part(draft: Draft, found: Match, i: int) -> Value | str | None:
    """One mask, boolean or to be added; "unclear" for a `where` that lowers scores without hiding them for certain."""
    dtype = dtype_of(found["q"])
    added, hidden = found.values.get(f"added {i}"), found.numbers.get(f"hidden {i}")
    if added is not None:
        return added if dtype_of(added) == dtype else draft.add("cast", added, to=dtype)
    if hidden is None:
        return None
    if hidden > HIDING.get(dtype.name if dtype else "", -math.inf):
        return "unclear"
    seen = found.values.get(f"visible {i}")
    return seen if seen is not None else _negated(draft, found[f"invisible {i}"])


def _negated(draft: Draft, mask: Value) -> Value:
    array = draft.constant(mask)
    return draft.add("logical_not", mask) if array is None else draft.define(~array, mask.device)


def _added(draft: Draft, mask: Value, hidden: float, like: Value) -> Value:
    """A boolean mask that hides with a finite number as one to be added, so that an all-hidden row stays finite."""
    if dtype_of(mask) is not BOOL or hidden == -math.inf:
        return mask
    return draft.add("where", mask, draft.number(0.0, like), draft.number(hidden, like))


def _both(draft: Draft, a: Value, b: Value, like: Value) -> Value:
    if dtype_of(a) is BOOL and dtype_of(b) is BOOL:
        return draft.add("logical_and", a, b)
    zero, hidden = draft.number(0.0, like), draft.number(-math.inf, like)
    a, b = (draft.add("where", m, zero, hidden) if dtype_of(m) is BOOL else m for m in (a, b))
    return draft.add("add", a, b)


@on_every_graph
def recognize_attention(graph: Graph) -> Graph:
    if not any(node.op == "softmax" for node in graph.nodes):
        return graph
    return rewrite(graph, {"matmul": (attention,)})
