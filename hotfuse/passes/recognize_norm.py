"""Softmax, layer norm and RMS norm that exporters spell out.

    softmax(x)    = e / sum(e),  e = exp(x - max x)
    layer_norm(x) = d / sqrt(mean(d^2) + epsilon) * scale + bias,  d = x - mean x
    rms_norm(x)   = x / sqrt(mean(x^2) + epsilon) * scale

A division by a square root is also spelled as a product with its reciprocal or with rsqrt. The norm is found first, then the
scale and the bias that follow it. Softmax without the subtracted maximum is left alone: it overflows where softmax does not.
"""

from __future__ import annotations

from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import BF16, F16, F32
from hotfuse.passes.match import Either, Match, Number, Pattern, Product, Var, inner_nodes, match
from hotfuse.passes.nested import on_every_graph
from hotfuse.passes.rewrite import Draft, Rule, dtype_of, first_origin, rewrite, same_shape, shape_of

x, scale, bias = Var("x"), Var("scale"), Var("bias")
epsilon = Number("epsilon")


def _over_deviation(top: Pattern, mean_square: Pattern) -> Pattern:
    """top / sqrt(mean_square + epsilon)"""
    variance: Pattern = ("add", mean_square, epsilon)
    return Either(
        ("div", top, ("sqrt", variance)),
        Product(1.0, top, ("rsqrt", variance)),
        Product(1.0, top, ("reciprocal", ("sqrt", variance))),
    )


EXPONENTIAL: Pattern = ("exp", ("sub", x, ("reduce_max:max", x)))
SOFTMAX: Pattern = Either(
    ("div", EXPONENTIAL, ("reduce_sum:sum", EXPONENTIAL)),
    Product(1.0, EXPONENTIAL, ("reciprocal", ("reduce_sum:sum", EXPONENTIAL))),
)
CENTERED: Pattern = ("sub", x, ("reduce_mean:mean", x))
LAYER_NORM = _over_deviation(CENTERED, ("reduce_mean:square", Product(1.0, CENTERED, CENTERED)))
RMS_NORM = _over_deviation(x, ("reduce_mean:square", Product(1.0, x, x)))
SCALED_LAYER_NORM: Pattern = ("mul", ("layer_norm:norm", x, None, None), scale)
BIASED_LAYER_NORM: Pattern = ("add", ("layer_norm:norm", x, Either(scale), None), bias)
PLAIN_BIASED_LAYER_NORM: Pattern = ("add", ("layer_norm:norm", x, None, None), bias)
SCALED_RMS_NORM: Pattern = ("mul", ("rms_norm:norm", x, None), scale)
WIDENED = {
    op: ("cast:narrow", (f"{op}:norm", ("cast:wide", x), *absent))
    for op, absent in (("layer_norm", (None, None)), ("rms_norm", (None,)), ("softmax", ()))
}


def _axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """The axes a reduction folds, counted from the front; None unless it keeps them as size 1."""
    axes = node.attrs.get("axes")
    if not node.attrs.get("keepdims", True):
        return None
    return tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in axes))


def _common_axes(found: Match, *labels: str) -> tuple[int, ...] | None:
    """The axes that all the captured reductions fold."""
    shape = shape_of(found["x"])
    if not shape:
        return None
    axes = {_axes(found.nodes[label], len(shape)) for label in labels}
    return axes.pop() if len(axes) == 1 else None


def _trailing(found: Match, *labels: str) -> int | None:
    """The first normalized axis, counted from the back, if the reductions fold it and everything after it."""
    axes = _common_axes(found, *labels)
    rank = len(shape_of(found["x"]) or ())
    if not axes or axes != tuple(range(axes[0], rank)):
        return None
    return axes[0] - rank


def softmax(draft: Draft, node: Node) -> Value | None:
    found = match(draft, SOFTMAX, node)
    axes = None if found is None else _common_axes(found, "max", "sum")
    if found is None or axes is None or len(axes) != 1:
        return None
    draft.builder.origin = first_origin(inner_nodes(draft, found, node))
    return draft.add("softmax", found["x"], axis=axes[0] - len(shape_of(found["x"]) or ()))


def layer_norm(draft: Draft, node: Node) -> Value | None:
    found = match(draft, LAYER_NORM, node)
    axis = None if found is None else _trailing(found, "mean", "square")
    if found is None or axis is None:
        return None
    draft.builder.origin = first_origin(inner_nodes(draft, found, node))
    return draft.add("layer_norm", found["x"], None, None, axis=axis, epsilon=found.numbers["epsilon"])


def rms_norm(draft: Draft, node: Node) -> Value | None:
    found = match(draft, RMS_NORM, node)
    axis = None if found is None else _trailing(found, "square")
    if found is None or axis is None:
        return None
    draft.builder.origin = first_origin(inner_nodes(draft, found, node))
    return draft.add("rms_norm", found["x"], None, axis=axis, epsilon=found.numbers["epsilon"])


def _fits(draft: Draft, found: Match, parameter: str) -> bool:
    """Whether a parameter has the shape of the normalized axes and the type of x."""
    shape, axis = shape_of(found["x"]), found.nodes["norm"].attrs["axis"]
    if shape is None or dtype_of(found[parameter]) != dtype_of(found["x"]):
        return False
    return same_shape(shape_of(found[parameter]), shape[axis % len(shape) :], draft.graph.facts)


def _extended(draft: Draft, found: Match, *parameters: Value | None) -> Value:
    norm = found.nodes["norm"]
    draft.builder.origin = norm.origin
    return draft.add(norm.op, found["x"], *parameters, **norm.attrs)


def layer_norm_scale(draft: Draft, node: Node) -> Value | None:
    found = match(draft, SCALED_LAYER_NORM, node)
    return None if found is None or not _fits(draft, found, "scale") else _extended(draft, found, found["scale"], None)


def layer_norm_bias(draft: Draft, node: Node) -> Value | None:
    found = match(draft, BIASED_LAYER_NORM, node)
    if found is not None:
        return _extended(draft, found, found["scale"], found["bias"]) if _fits(draft, found, "bias") else None
    found = match(draft, PLAIN_BIASED_LAYER_NORM, node)
    return None if found is None or not _fits(draft, found, "bias") else _extended(draft, found, None, found["bias"])


def rms_norm_scale(draft: Draft, node: Node) -> Value | None:
    found = match(draft, SCALED_RMS_NORM, node)
    return None if found is None or not _fits(draft, found, "scale") else _extended(draft, found, found["scale"])


def narrow(draft: Draft, node: Node) -> Value | None:
    """A half-precision norm that is computed in float32 between two casts: what the operator itself does."""
    for pattern in WIDENED.values():
        found = match(draft, pattern, node)
        if found is None or dtype_of(found["x"]) not in (F16, BF16) or node.attrs["to"] != dtype_of(found["x"]):
            continue
        if found.nodes["wide"].attrs["to"] is F32:
            norm = found.nodes["norm"]
            draft.builder.origin = first_origin([found.nodes["wide"], norm])
            return draft.add(norm.op, found["x"], *(None for _ in norm.inputs[1:]), **norm.attrs)
    return None


AFFINE: dict[str, tuple[Rule, ...]] = {
    "cast": (narrow,),
    "mul": (layer_norm_scale, rms_norm_scale),
    "add": (layer_norm_bias,),
}


@on_every_graph
def recognize_norms(graph: Graph) -> Graph:
    present = {node.op for node in graph.nodes}
    cores = (*((softmax,) if "reduce_max" in present else ()), *((layer_norm, rms_norm) if "reduce_mean" in present else ()))
    graph = rewrite(graph, {"div": cores, "mul": cores}) if cores else graph
    return rewrite(graph, AFFINE) if any(node.op in WIDENED for node in graph.nodes) else graph
