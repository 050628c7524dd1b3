"""exp and what is made of it: exp2, expm1, sigmoid, tanh, sinh, cosh, the tanh form of gelu.

    e^x = p(r) * s * s       x = 2 m ln 2 + r,  s = 2^m,  |r| <= ln 2

With half of the exponent in each factor s, no step leaves the range of normal numbers before the last product, which rounds
once: right up to overflow and down to the last denormal. That costs one more coefficient than |r| <= ln(2)/2 would, and saves
the two shifts, the subtraction and the addition of splitting an exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_steps import (
    Table,
    at_least,
    at_most,
    format_of,
    magnitude,
    near_zero,
    nearest_integer,
    polynomial,
    power_of_two,
    with_sign,
)

# e^r on |r| <= ln 2; relative error 1.5e-8 and 2.3e-17.
_EXP: Table = {
    "f32": (
        1.0, 1.0, 0.5000003576278687, 0.16666613519191742, 0.04166115075349808, 0.008336090482771397, 0.001410677214153111,
        0.00019620268722064793,
    ),
    "f64": (
        1.0, 1.0, 0.4999999999999996, 0.16666666666667515, 0.04166666666669208, 0.008333333333138742, 0.001388888888453575,
        0.0001984126999526566, 2.480159043737252e-05, 2.755726459274411e-06, 2.7556229564253397e-07, 2.5060901354295396e-08,
        2.1057572459076355e-09, 1.5576134188041163e-10,
    ),
}  # fmt: skip
# 2^r on |r| <= 1; relative error 2.8e-8 and 3.2e-17.
_EXP2: Table = {
    "f32": (
        1.0, 0.6931473612785339, 0.2402266412973404, 0.055502790957689285, 0.009616994298994541, 0.001335695618763566,
        0.00015635818999726325, 1.4156681572785601e-05,
    ),
    "f64": (
        1.0, 0.693147180559945, 0.24022650695910047, 0.055504108664830944, 0.009618129107634505, 0.0013333558145697706,
        0.00015403530388756844, 1.525273405530906e-05, 1.3215488374109014e-06, 1.0178043768123922e-07, 7.054644135437743e-09,
        4.4489191704228034e-10, 2.589589551587173e-11, 1.2693984265480725e-12,
    ),
}  # fmt: skip
# (e^r - 1 - r) / r^2 on |r| <= ln(2)/2; error of e^r - 1 relative to it 1.5e-8 and 4.8e-19.
_EXPM1: Table = {
    "f32": (0.5, 0.16666531562805176, 0.041666172444820404, 0.008367984555661678, 0.0013971254229545593),
    "f64": (
        0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321835, 0.0013888888888896433, 0.00019841269884978655,
        2.4801587261459075e-05, 2.7557245697844366e-06, 2.755735365220649e-07, 2.510845842873295e-08, 2.088428278576635e-09,
    ),
}  # fmt: skip
# ln 2 as the rounded number and the rest of it.
LN2 = {"f32": (0.693147182464599609375, -1.9046542121259336e-09), "f64": (math.log(2), 2.3190468138462996e-17)}
# e^x is 0 left of the first and infinite right of the second; |sinh|, cosh right of the third.
_RANGE = {"f32": (-104.0, 89.0, 89.5), "f64": (-746.0, 710.0, 710.6)}

TANH_ONE = {"f32": 10.0, "f64": 20.0}  # from here on tanh rounds to 1


def exp_factors(w: Writer, x: Operand, negate: bool = False, rest: Operand | None = None) -> tuple[Operand, Operand]:
    """(p, s) with e^x = p*s*s, or e^-x; x is in `_RANGE` or NaN. `rest` is what rounding left out of x."""
    high, low = LN2[x.type.element]
    sign = -1.0 if negate else 1.0
    t, m = nearest_integer(w, x, sign * 0.5 / math.log(2), format_of(x).bias)
    # r, or -r when negated: its sign goes into the coefficients.
    r = w.fma(m, w.const(x, -sign * 2 * high), x)
    r = w.fma(m, w.const(x, -sign * 2 * low), r)
    r = r if rest is None else w.add(r, rest)
    p = polynomial(w, r, [c * sign**k for k, c in enumerate(_EXP[x.type.element])])
    return p, power_of_two(w, t)


def exp(w: Writer, x: Operand) -> Operand:
    low, high, _ = _RANGE[x.type.element]
    p, s = exp_factors(w, at_most(w, at_least(w, x, low), high))
    return w.mul(w.mul(p, s), s)


def exp2_factors(w: Writer, m: Operand, r: Operand) -> tuple[Operand, Operand]:
    """(p, s) with 2^(2m + r) = p*s*s, for a whole m and |r| <= 1."""
    layout = format_of(r)
    t = w.add(m, w.const(m, layout.round_magic + layout.bias))
    return polynomial(w, r, _EXP2[r.type.element]), power_of_two(w, t)


def exp2(w: Writer, x: Operand) -> Operand:
    layout = format_of(x)
    x = at_most(w, at_least(w, x, -(layout.bias + layout.mantissa + 1.0)), layout.bias + 2.0)
    t, m = nearest_integer(w, x, 0.5, layout.bias)
    p = polynomial(w, w.fma(m, w.const(x, -2.0), x), _EXP2[x.type.element])
    s = power_of_two(w, t)
    return w.mul(w.mul(p, s), s)


def expm1_scaled(w: Writer, x: Operand, halvings: int) -> Operand:
    """(e^x - 1) / 2^halvings; x is NaN or not so large that the result overflows, nor that e^x is below rounding."""
    high, low = LN2[x.type.element]
    t, n = nearest_integer(w, x, 1 / math.log(2), format_of(x).bias - halvings)
    r = w.fma(n, w.const(x, -low), w.fma(n, w.const(x, -high), x))
    p = w.fma(w.mul(r, r), polynomial(w, r, _EXPM1[x.type.element]), r)
    s = power_of_two(w, t)
    return w.fma(s, p, w.sub(s, w.const(x, 2.0**-halvings)))


def expm1(w: Writer, x: Operand) -> Operand:
    clamped = at_most(w, at_least(w, x, -18.0 if x.type.element == "f32" else -38.0), _RANGE[x.type.element][1])
    # Halved, because 2^n itself overflows just before e^x does.
    half = expm1_scaled(w, clamped, 1)
    return near_zero(w, x, 2.0**-60, w.add(half, half))


def sigmoid(w: Writer, x: Operand) -> Operand:
    """1/(1 + p s s) = (1/s) / (1/s + p s), in which nothing overflows."""
    layout = format_of(x)
    low, _, _ = _RANGE[x.type.element]
    p, s = exp_factors(w, at_most(w, at_least(w, x, low), -low), negate=True)
    bits = w.bitcast(s, layout.integer)
    inverse = w.bitcast(w.sub(w.const(bits, 2 * layout.bias << layout.mantissa), bits), x.type.element)
    return w.div(inverse, w.fma(p, s, inverse))


def gelu_tanh(w: Writer, x: Operand, sigmoid: Callable[[Writer, Operand], Operand] = sigmoid) -> Operand:
    """0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), without cancellation where x is negative."""
    k = 2 * math.sqrt(2 / math.pi)
    slope = w.fma(w.mul(x, x), w.const(x, k * 0.044715), w.const(x, k))
    return w.mul(x, sigmoid(w, w.mul(x, slope)))


def tanh(w: Writer, x: Operand) -> Operand:
    """e/(e + 2) with e = e^2|x| - 1: never past 1, and x itself where x is tiny."""
    a = at_most(w, magnitude(w, x), TANH_ONE[x.type.element])
    e = expm1_scaled(w, w.add(a, a), 0)
    return with_sign(w, w.div(e, w.add(e, w.const(e, 2.0))), x)


def sinh(w: Writer, x: Operand) -> Operand:
    """(e + e/(e + 1)) / 2 with e = e^|x| - 1, a quarter of which never overflows before sinh does."""
    quarter = expm1_scaled(w, at_most(w, magnitude(w, x), _RANGE[x.type.element][2]), 2)
    whole = w.fma(quarter, w.const(x, 4.0), w.const(x, 1.0))
    half = w.add(quarter, w.div(quarter, whole))
    return near_zero(w, x, 2.0**-28, with_sign(w, w.add(half, half), x))


def cosh(w: Writer, x: Operand) -> Operand:
    p, s = exp_factors(w, at_most(w, magnitude(w, x), _RANGE[x.type.element][2]))
    half = w.mul(w.mul(p, s), w.mul(s, w.const(x, 0.5)))
    return w.add(half, w.div(w.const(x, 0.25), half))
