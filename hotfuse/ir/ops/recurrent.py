"""Recurrent layers over [time, batch, features], in one or both directions. Weights have a leading axis of directions.

With x the input, h the state, f, g, k the activations, W and R the weights of the gates in the order written:

    rnn   h' = f(W x + R h + b)
    gru   z = f(.), r = f(.);   n = g(W x + R (r * h) + b), or linear_before_reset: g(W x + bw + r * (R h + br))
          h' = (1 - z) * n + z * h                                                             gates z, r, n
    lstm  i = f(. + p_i c), f = f(. + p_f c), c' = f * c + i * g(.)
          o = f(. + p_o c'), h' = o * k(c')                                                    gates i, o, f, c

Results: every h [time, directions, batch, hidden], the last h, and for lstm the last c. A sequence that ends before the
batch does keeps its state past its end, and its h there is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.types import TensorType, Type, numel
from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]
Activation = Callable[[Array], Array]
ActivationSpec = tuple[str, float | None, float | None]  # name, alpha, beta (None: the default of that activation)

# name -> (alpha, beta) defaults and the function of x, alpha, beta
ACTIVATIONS: dict[str, tuple[float, float, Callable[[Array, float, float], Any]]] = {
    "relu": (0.0, 0.0, lambda x, a, b: np.maximum(x, 0)),
    "tanh": (0.0, 0.0, lambda x, a, b: np.tanh(x)),
    "sigmoid": (0.0, 0.0, lambda x, a, b: 1 / (1 + np.exp(-x))),
    "affine": (1.0, 0.0, lambda x, a, b: a * x + b),
    "leakyrelu": (0.01, 0.0, lambda x, a, b: np.where(x >= 0, x, a * x)),
    "thresholdedrelu": (1.0, 0.0, lambda x, a, b: np.where(x > a, x, 0)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: a * np.tanh(b * x)),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "elu": (1.0, 0.0, lambda x, a, b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0)))),
    "softsign": (0.0, 0.0, lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": (0.0, 0.0, lambda x, a, b: np.logaddexp(x, 0)),
}


def _activation(spec: ActivationSpec, clip: float | None) -> Activation:
    alpha, beta, function = ACTIVATIONS[spec[0]]
    a, b = alpha if spec[1] is None else spec[1], beta if spec[2] is None else spec[2]

    def run(x: Array) -> Array:
        x = x if clip is None else np.clip(x, -clip, clip)
        return np.asarray(function(x, a, b), dtype=x.dtype)

    return run


@dataclass(frozen=True)
class Cell:
    """One direction's weights: input part already multiplied in, so a step needs only the recurrent product."""

    recurrent: Array  # [hidden, gates * hidden], transposed once
    recurrent_bias: Array
    activations: Sequence[Activation]
    peepholes: Array | None = None
    linear_before_reset: bool = False
    input_forget: bool = False


State = tuple[Array, ...]


def _rnn_step(cell: Cell, x: Array, state: State) -> State:
    return (cell.activations[0](x + state[0] @ cell.recurrent + cell.recurrent_bias),)


def _gru_step(cell: Cell, x: Array, state: State) -> State:
    h, size = state[0], state[0].shape[-1]
    f, g = cell.activations
    gates = f(x[:, : 2 * size] + h @ cell.recurrent[:, : 2 * size] + cell.recurrent_bias[: 2 * size])
    z, r = gates[:, :size], gates[:, size:]
    weight, bias = cell.recurrent[:, 2 * size :], cell.recurrent_bias[2 * size :]
    inner = r * (h @ weight + bias) if cell.linear_before_reset else (r * h) @ weight + bias
    n = g(x[:, 2 * size :] + inner)
    return ((1 - z) * n + z * h,)


def _lstm_step(cell: Cell, x: Array, state: State) -> State:
    h, c = state
    f, g, k = cell.activations
    i, o, forget, fresh = np.split(x + h @ cell.recurrent + cell.recurrent_bias, 4, axis=-1)
    if cell.peepholes is not None:
        p_i, p_o, p_f = np.split(cell.peepholes, 3)
        i, forget = i + p_i * c, forget + p_f * c
    i = f(i)
    forget = 1 - i if cell.input_forget else f(forget)
    c = forget * c + i * g(fresh)
    o = f(o + p_o * c) if cell.peepholes is not None else f(o)
    return o * k(c), c


def _layer(
    step: Callable[[Cell, Array, State], State],
    gates: int,
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    initial: Sequence[Array | None],
    peepholes: Array | None,
    direction: str,
    activations: Sequence[ActivationSpec],
    clip: float | None,
    **flags: bool,
) -> tuple[Array, ...]:
    """Run every direction of a layer: all h, then the last of each state."""
    time, batch, _ = x.shape
    directions, hidden = w.shape[0], r.shape[-1]
    per = len(activations) // directions
    outputs = np.zeros((time, directions, batch, hidden), dtype=x.dtype)
    finals = [np.empty((directions, batch, hidden), dtype=x.dtype) for _ in initial]
    ends = None if lengths is None else lengths.reshape(-1, 1)
    for d in range(directions):
        # the gates are clipped; the state that k takes is not (as ONNX Runtime does it)
        chosen = [_activation(a, clip if i < 2 else None) for i, a in enumerate(activations[d * per : (d + 1) * per])]
        halves = np.split(bias[d], 2) if bias is not None else [np.zeros(gates * hidden, dtype=x.dtype)] * 2
        cell = Cell(np.ascontiguousarray(r[d].T), halves[1], chosen, None if peepholes is None else peepholes[d], **flags)
        inputs = x @ w[d].T + halves[0]
        state: State = tuple(np.zeros((batch, hidden), dtype=x.dtype) if s is None else s[d] for s in initial)
        backward = direction == "reverse" or d == 1
        for t in reversed(range(time)) if backward else range(time):
            after = step(cell, inputs[t], state)
            if ends is not None:
                after = tuple(np.where(t < ends, new, old) for new, old in zip(after, state, strict=True))
                outputs[t, d] = np.where(t < ends, after[0], 0)
            else:
                outputs[t, d] = after[0]
            state = after
        for final, value in zip(finals, state, strict=True):
            final[d] = value
    return outputs, *finals


def rnn(
    x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None,
    *, direction: str, activations: Sequence[ActivationSpec], clip: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    return _layer(_rnn_step, 1, x, w, r, bias, lengths, (h,), None, direction, activations, clip)


def gru(
    x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None,
    *, direction: str, activations: Sequence[ActivationSpec], clip: float | None = None, linear_before_reset: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    return _layer(
        _gru_step, 3, x, w, r, bias, lengths, (h,), None, direction, activations, clip, linear_before_reset=linear_before_reset
    )


def lstm(
    x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None,
    c: Array | None = None, peepholes: Array | None = None,
    *, direction: str, activations: Sequence[ActivationSpec], clip: float | None = None, input_forget: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    return _layer(
        _lstm_step, 4, x, w, r, bias, lengths, (h, c), peepholes, direction, activations, clip, input_forget=input_forget
    )


def _infer(states: int) -> Callable[[Call], Sequence[Type]]:
    def infer(call: Call) -> Sequence[Type]:
        x, w, r = (call.tensor(i) for i in range(3))
        for name, _, _ in call.attrs["activations"]:
            if name not in ACTIVATIONS:
                raise call.fail(f"the activation {name!r} is not known; known are {', '.join(sorted(ACTIVATIONS))}")
        if call.attrs["direction"] not in ("forward", "reverse", "bidirectional"):
            raise call.fail(f"the direction {call.attrs['direction']!r} is none of forward, reverse, bidirectional")
        directions = 2 if call.attrs["direction"] == "bidirectional" else 1
        if any(len(t.shape) != 3 for t in (x, w, r) if t.shape is not None):
            raise call.fail(f"input, weight and recurrent weight must have three axes, not {x}, {w}, {r}")
        if w.shape is not None and NO_FACTS.decide(w.shape[0], directions) is False:
            raise call.fail(f"{call.attrs['direction']} needs weights for {directions} directions, not {w.shape[0]}")
        time, batch = x.shape[:2] if x.shape is not None else (call.fresh(), call.fresh())
        hidden = r.shape[2] if r.shape is not None else call.fresh()
        last = TensorType(x.dtype, (directions, batch, hidden))
        return (TensorType(x.dtype, (time, directions, batch, hidden)), *(last,) * states)

    return infer


def _flops(call: Call, types: Sequence[Type]) -> Dim:
    x, w, r = (call.shape(i) for i in range(3))
    return 0 if x is None or w is None or r is None else 2 * x[0] * x[1] * (numel(w) + numel(r))


def _samples(gates: int, names: Sequence[str], states: int, **flags: Any) -> Callable[[], list[Sample]]:
    def make() -> list[Sample]:
        rng = np.random.default_rng(0)

        def case(direction: str, directions: int, lengths: Array | None) -> Sample:
            shapes = ((4, 2, 3), (directions, gates * 5, 3), (directions, gates * 5, 5), (directions, 2 * gates * 5))
            state = tuple(rng.standard_normal((directions, 2, 5)).astype(np.float32) for _ in range(states))
            specs = tuple((n, None, None) for n in names) * directions
            arrays = tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
            return Sample((*arrays, lengths, *state), {"direction": direction, "activations": specs, **flags})

        return [case("forward", 1, None), case("reverse", 1, None), case("bidirectional", 2, np.array([3, 4], np.int32))]

    return make


define(
    OpDef(
        "rnn", _infer(1), widened(rnn), Pattern.SCAN, "a plain recurrent layer", flops=_flops, samples=_samples(1, ("tanh",), 1)
    )
)
define(
    OpDef(
        "gru", _infer(1), widened(gru), Pattern.SCAN, "a gated recurrent layer", flops=_flops,
        samples=_samples(3, ("sigmoid", "tanh"), 1, linear_before_reset=True),
    )
)  # fmt: skip
define(
    OpDef(
        "lstm", _infer(2), widened(lstm), Pattern.SCAN, "a long short-term memory layer", flops=_flops,
        samples=_samples(4, ("sigmoid", "tanh", "tanh"), 2),
    )
)  # fmt: skip
