"""ONNX RNN, GRU and LSTM. `layout` 1 (batch first) becomes transposes around the layer."""

from __future__ import annotations

from typing import Any

from hotfuse.frontends.onnx_node import Imported, OnnxNode, onnx_op
from hotfuse.ir.graph import Value

DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
TAKE_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
TAKE_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _activations(n: OnnxNode) -> tuple[tuple[str, float | None, float | None], ...]:
    """The activations of all directions; those that have parameters take them from the lists in order."""
    directions = 2 if n.attr("direction", "forward") == "bidirectional" else 1
    names = [a.lower() for a in n.attr("activations") or DEFAULTS[n.op_type] * directions]
    alphas, betas = list(n.attr("activation_alpha") or ()), list(n.attr("activation_beta") or ())
    return tuple(
        (
            name,
            alphas.pop(0) if name in TAKE_ALPHA and alphas else None,
            betas.pop(0) if name in TAKE_BETA and betas else None,
        )
        for name in names
    )


@onnx_op("RNN", "GRU", "LSTM")
def recurrent(n: OnnxNode) -> Imported:
    batch_first = n.attr("layout", 0) == 1
    attrs: dict[str, Any] = {"direction": n.attr("direction", "forward"), "activations": _activations(n)}
    if n.attr("clip") is not None:
        attrs["clip"] = float(n.attr("clip"))
    if n.op_type == "GRU":
        attrs["linear_before_reset"] = bool(n.attr("linear_before_reset", 0))
    if n.op_type == "LSTM":
        attrs["input_forget"] = bool(n.attr("input_forget", 0))
    states = 2 if n.op_type == "LSTM" else 1

    def turned(value: Value | None) -> Value | None:
        return n.add("transpose", value, perm=(1, 0, 2)) if batch_first and value is not None else value

    inputs = [turned(n.input(0)), n.input(1), n.input(2), n.optional(3), n.optional(4)]
    inputs += [turned(n.optional(5 + i)) for i in range(states)]
    if n.op_type == "LSTM":
        inputs.append(n.optional(7))
    every, *last = n.add_many(n.op_type.lower(), inputs, 1 + states, **attrs)
    if batch_first:
        every = n.add("transpose", every, perm=(2, 0, 1, 3))
    return [every, *(turned(value) for value in last)]
