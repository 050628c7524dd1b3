"""Which rule a unit's results are held to: the strictest of `numerics` that applies to its nodes together.

  bits      nothing is rounded in more than one way: data is moved, compared or cast; and all results that are no floats
  0 ulp     elements are picked as well (relu, maximum): equal numbers, and for a zero either zero
  2, 4 ulp  one node rounds, elementwise and by one operation: arithmetic 2, transcendental 4, from the exact result rounded
  float64   all else: row by row about as close to float64 as tier 0 is

The units in the last place of elementwise nodes do not add up over a chain: a difference of near equals in between multiplies
them by any number. So chains are judged by the float64 rule, and so are operators whose body is a chain of operations.

A result that was rounded to a coarser type on its way (computed in float32, cast to float64) is judged in that type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.codegen.scalar_body import BODIES
from hotfuse.codegen.scalar_ops import SCALAR_OPS
from hotfuse.ir.graph import Node
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.types import BF16, F16, F32, F64, DType, dtype_of
from hotfuse.numerics import Verdict, close_to_exact, same_bits, within_ulp
from hotfuse.records import dataclass
from hotfuse.runtime.exact import MOVES, is_float, rounds

Array = np.ndarray[Any, Any]
ARITHMETIC, TRANSCENDENTAL = 2, 4  # units in the last place
_OPERATOR = re.compile(r"[xyz] [-+*/] [xyz]")
_FUNCTION = re.compile(r"(\w+)\([xyz](?:, [xyz])*\)")


@dataclass(frozen=True)
class Rule:
    """`ulp` is None for the float64 rule, and -1 for that of bits; `coarse` is the type to judge in, if not the own one."""

    ulp: int | None
    coarse: DType | None = None

    def __str__(self) -> str:
        name = "float64" if self.ulp is None else "bits" if self.ulp < 0 else f"{self.ulp} ulp"
        return name if self.coarse is None else f"{name} of {self.coarse}"


BITS, EQUAL = Rule(-1), Rule(0)
_COARSEST_FIRST = (BF16, F16, F32, F64)


def rule_of(nodes: Sequence[Node], original: Mapping[str, Array], name: str) -> Rule:
    """The rule for the result `name` of a unit's nodes; `original` are tier 0's results."""
    if not is_float(original[name]):
        return BITS
    rounding = [node for node in nodes if rounds(node, original)]
    if not rounding:
        return BITS if all(node.op in MOVES or not is_float(original[node.id]) for node in nodes) else EQUAL
    own = dtype_of(original[name])
    made = [own, *(dtype_of(original[node.id]) for node in rounding)]
    coarse = min((t for t in made if t.is_float), key=_COARSEST_FIRST.index)
    limit = _limit(rounding[0]) if len(rounding) == 1 else None
    return Rule(limit, None if coarse == own else coarse)


def _limit(node: Node) -> int | None:
    """The units in the last place that one operation may be off; None where the operator is more than one."""
    record = OPS[node.op]
    if record.pattern is not Pattern.ELEMENTWISE or record.scalar is None:
        return None
    body = BODIES[node.op](node.attrs) if node.op in BODIES else record.scalar
    if _OPERATOR.fullmatch(body):
        return ARITHMETIC
    called = _FUNCTION.fullmatch(body)
    ulp = SCALAR_OPS[called[1]].ulp if called and called[1] in SCALAR_OPS else None
    return None if ulp is None else max(ulp, ARITHMETIC)


def judge(rule: Rule, ours: Array, original: Array, exact: Array) -> Verdict:
    """One result by one rule. `exact` is float64's, or tier 0's own where nothing is rounded."""
    if ours.dtype == np.bool_ and original.dtype == np.bool_:  # as bytes: memory that nobody wrote may hold more than 0 and 1
        ours, original = ours.view(np.uint8), original.view(np.uint8)
    if rule == BITS:
        return same_bits(ours, original)
    if rule.coarse is not None:
        with np.errstate(all="ignore"):
            ours, original = ours.astype(rule.coarse.numpy), original.astype(rule.coarse.numpy)
    if rule.ulp is None:
        return close_to_exact(ours, original, exact)
    with np.errstate(all="ignore"):
        rounded = exact.astype(original.dtype)
        special = ~np.isfinite(original.astype(np.float64)) | np.isnan(rounded.astype(np.float64))
    return within_ulp(ours, np.where(special, original, rounded), rule.ulp)
