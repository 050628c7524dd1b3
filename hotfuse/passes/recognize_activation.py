"""Activations that exporters spell out: sigmoid, silu, ndtr, gelu.

sigmoid(x)    = 1 / (1 + exp(-x))
silu(x)       = x * sigmoid(x)
ndtr(x)       = 0.5 (1 + erf(x / sqrt 2))
gelu(x)       = x ndtr(x)
gelu(x, tanh) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
"""

from __future__ import annotations

import math

from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.passes.match import Either, Pattern, Product, Var, match
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, Rule, rewrite

x = Var("x")
ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715

DENOMINATOR: Pattern = ("add", 1.0, ("exp", ("neg", x)))
SIGMOID = Either(("reciprocal", DENOMINATOR), ("div", 1.0, DENOMINATOR))
SILU = Either(Product(1.0, x, ("sigmoid", x)), ("div", x, DENOMINATOR))
TWICE_NDTR: Pattern = ("add", 1.0, ("erf", Product(math.sqrt(0.5), x)))
NDTR = Product(0.5, TWICE_NDTR)
GELU = Either(Product(0.5, x, TWICE_NDTR), Product(1.0, x, ("ndtr", x)))
ANGLE = Either(
    Product(ROOT, ("add", x, Product(CUBIC, x, x, x))),
    Product(ROOT, x, ("add", 1.0, Product(CUBIC, x, x))),
    ("add", Product(ROOT, x), Product(ROOT * CUBIC, x, x, x)),
)
GELU_TANH = Product(0.5, x, ("add", 1.0, ("tanh", ANGLE)))


def _becomes(pattern: Pattern, op: str, **attrs: object) -> Rule:
    def rule(draft: Draft, node: Node) -> Value | None:
        found = match(draft, pattern, node)
        return None if found is None else draft.add(op, found["x"], **attrs)

    return rule


_SIGMOID = _becomes(SIGMOID, "sigmoid")
_SILU = _becomes(SILU, "silu")
_NDTR = _becomes(NDTR, "ndtr")
_GELU = _becomes(GELU, "gelu", approximate="none")
_GELU_TANH = _becomes(GELU_TANH, "gelu", approximate="tanh")


@on_every_graph
def recognize_activations(graph: Graph) -> Graph:
    present = {node.op for node in graph.nodes}
    silu = (_SILU,) if present & {"sigmoid", "exp"} else ()
    sigmoid = (_SIGMOID,) if "exp" in present else ()
    gelu = (*((_GELU, _NDTR) if "erf" in present else ()), *((_GELU_TANH,) if "tanh" in present else ()))
    return rewrite(graph, {"reciprocal": sigmoid, "div": (*silu, *sigmoid, *gelu), "mul": (*silu, *gelu)})
