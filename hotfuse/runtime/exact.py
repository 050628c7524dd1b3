"""Nodes in float64: the function that tier 0 and kernels approximate, each by roundings of its own.

Floats are computed in float64 by the operators' references, from float64 copies of what is given. A value behind which nothing
is rounded in more than one way (moved, compared, chosen, or cast from what is given) is tier 0's own: a kernel must have the
same.

A branch point is where rounding decides: floor(x) of an x that is nearly whole, or which of two near equals is greater. Either
side is right there. With `nudge`, decisions are made on operands that are off by a few units in the last place, or by as much
as tier 0 is: the values that differ then are the other sides of branch points, and nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.ir.graph import Attrs, Node
from hotfuse.ir.op import OPS
from hotfuse.ir.types import F64, dtype_of
from hotfuse.numerics import spacing

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]

# each element of the result is one of the inputs', or a constant, or one input's rounded correctly
MOVES = frozenset((
    "reshape", "transpose", "squeeze", "unsqueeze", "expand", "slice", "split", "flip", "concat", "pack", "pad", "trilu",
    "gather", "gather_elements", "gather_nd", "one_hot", "where", "cast", "abs", "neg",
))  # fmt: skip
# the same but for the sign of zeros: of two zeros either may be the greater one
PICKS = frozenset((
    "relu", "maximum", "minimum", "clip", "sign", "floor", "ceil", "trunc", "round", "reduce_max", "reduce_min", "max_pool",
))  # fmt: skip
_DECISIONS = frozenset(("sign", "floor", "ceil", "trunc", "round", "floor_div", "mod", "fmod", "argmax", "argmin"))
_LEFT_NARROW = {"panel_matmul": 1}  # an input that the reference widens by itself, after it has taken it apart
_NUDGE_ULP, _NUDGE_ERROR = (
    8,
    4,
)  # how far a decision's operands may be off: units in the last place, and typical errors of tier 0


def is_float(array: Array) -> bool:
    return dtype_of(array).is_float


def rounds(node: Node, original: Values) -> bool:
    """Whether a node's result may differ between two right ways of computing it from the same operands."""
    return node.op not in MOVES | PICKS and any(is_float(original[name]) for name in node.outputs)


def exact_values(
    nodes: Sequence[Node], given: Values, original: Values, nudge: np.random.Generator | None = None
) -> dict[str, Array]:
    """The results of nodes with exact attributes, by name. `original` are tier 0's."""
    known, settled, wide = dict(given), set(given), dict[str, Array]()

    def widened(name: str) -> Array:
        if name not in wide:
            wide[name] = known[name].astype(np.float64) if is_float(known[name]) else known[name]
        return wide[name]

    for node in nodes:
        if settled.issuperset(node.uses) and not rounds(node, original):
            settled.update(node.outputs)
            known |= {name: original[name] for name in node.outputs}
            continue
        kept = _LEFT_NARROW.get(node.op)
        operands = [None if n is None else known[n] if i == kept else widened(n) for i, n in enumerate(node.inputs)]
        results = run_node(in_float64(node), operands)
        loose = [n is not None and n not in settled for n in node.inputs]
        if nudge is not None and _decides(node, original, operands, loose):
            moved = [
                _nudged(a, original[n], nudge) if a is not None and n is not None and off else a
                for a, n, off in zip(operands, node.inputs, loose, strict=True)
            ]
            results = [_other_side(a, b) for a, b in zip(results, run_node(in_float64(node), moved), strict=True)]
        known |= zip(node.outputs, results, strict=False)
    return {name: known[name] for node in nodes for name in node.outputs}


def run_node(node: Node, operands: Sequence[Array | None]) -> list[Array]:
    """A node's results by its reference."""
    record = OPS[node.op]
    assert record.reference is not None
    with np.errstate(all="ignore"):
        found = record.reference(*operands, **node.attrs)
    many = record.many or len(node.outputs) > 1
    return [np.asarray(a) for a in (found if many else (found,))]


def run_nodes(nodes: Sequence[Node], given: Values) -> dict[str, Array]:
    """What is given, and the results of nodes as they are."""
    known = dict(given)
    for node in nodes:
        known |= zip(node.outputs, run_node(node, [None if n is None else known[n] for n in node.inputs]), strict=False)
    return known


def in_float64(node: Node) -> Node:
    """A node that makes no narrower floats."""
    to = node.attrs.get("to")
    return replace(node, attrs=Attrs({**node.attrs, "to": F64})) if to is not None and to.is_float else node


def has_branches(nodes: Sequence[Node], original: Values) -> bool:
    """Whether some node decides something by floats."""
    return any(node.op in _DECISIONS or not all(is_float(original[n]) for n in node.outputs) for node in nodes)


def _decides(node: Node, original: Values, operands: Sequence[Array | None], loose: Sequence[bool]) -> bool:
    floats = any(off and a is not None and is_float(a) for a, off in zip(operands, loose, strict=True))
    return floats and has_branches([node], original)


def _nudged(exact: Array, original: Array, rng: np.random.Generator) -> Array:
    if not is_float(exact):
        return exact
    with np.errstate(all="ignore"):
        off = original.astype(np.float64) - exact
        typical = float(np.sqrt(np.mean(off[np.isfinite(off)] ** 2))) if np.isfinite(off).any() else 0.0
        reach = _NUDGE_ULP * spacing(exact, original.dtype.name) + _NUDGE_ERROR * typical
        return np.asarray(exact + rng.uniform(-1, 1, exact.shape) * reach)


def _other_side(here: Array, there: Array) -> Array:
    """What a decision gives on moved operands; a remainder moves along with them, and only its jumps count."""
    if not is_float(here):
        return there
    return np.asarray(np.where(np.abs(there - here) > 0.5, there, here))
