"""Arithmetic: what single nodes compute, counted: multiply-adds of products, and operations on elements by what they are worth.

State: none; what an operator is worth is found once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from hotfuse.hardware.work import Use
from hotfuse.ir.graph import Node
from hotfuse.ir.op import OPS, Pattern

# vector operations that a function is worth; others count as one
_STEPS = {
    "exp": 12, "expm1": 16, "log": 14, "log1p": 16, "erf": 24, "tanh": 18, "sinh": 20, "cosh": 20, "sin": 20, "cos": 20,
    "tan": 28,
    "asin": 24, "acos": 24, "atan": 20, "atan2": 26, "asinh": 30, "acosh": 30, "atanh": 24, "pow": 34, "sqrt": 6, "rsqrt": 8,
    "fmod": 10, "round": 2, "floor": 2, "ceil": 2, "trunc": 2,
}  # fmt: skip
_DIVISION = 6
# of rows as wholes, for each of their elements
_ROW_STEPS = {"layer_norm": 8, "rms_norm": 5, "softmax": 18, "log_softmax": 18, "logsumexp": 14}
_SCORE_STEPS = 18  # of an attention's softmax, for each score


def arithmetic_of(node: Node, times: float, shape: Callable[[str | None], Sequence[int]]) -> tuple[float, Use]:
    """Multiply-adds of products, and other operations on elements, of a node that is computed so many times for each of its
    result's; `shape` says what values have."""
    record, out = OPS[node.op], product_of(shape(node.outputs[0]))
    if node.op == "panel_matmul":
        return out * shape(node.inputs[0])[-1], Use(node.op, 0.0, 0.0)
    if node.op == "attention":
        query, key = shape(node.inputs[0]), shape(node.inputs[1])
        scores = product_of(query[:-1]) * key[-2]
        return 2.0 * scores * query[-1], Use(node.op, scores, _SCORE_STEPS)
    if record.pattern in (Pattern.REDUCTION, Pattern.NORMALIZATION, Pattern.SCAN, Pattern.WINDOW):
        taken = max(out, product_of(shape(node.inputs[0])))
        if record.pattern is Pattern.WINDOW:
            taken = max(taken, out * product_of(node.attrs.get("kernel", ())))
        return 0.0, Use(node.op, taken, _ROW_STEPS.get(node.op, 2))
    return 0.0, Use(node.op, times * out, steps_of(node.op))


def product_of(sizes: Sequence[int]) -> float:
    result = 1.0
    for size in sizes:
        result *= size
    return result


@functools.cache
def steps_of(op: str) -> float:
    """Vector operations that an element of an operator's result is worth, by its scalar body."""
    body = OPS[op].scalar
    if not isinstance(body, str):
        return 1.0
    names = re.findall(r"[a-z_]\w*(?=\()", body)
    signs = len(re.findall(r"[-+*<>=]+", body)) + _DIVISION * body.count("/")
    return max(1.0, signs + sum(_STEPS.get(name, 1) for name in names))
