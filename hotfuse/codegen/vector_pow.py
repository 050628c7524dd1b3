"""Powers and remainders: pow, rsqrt, fmod.

    |x|^y = 2^(y log2|x|)

An error of log2|x| counts y log2|x| times over, so f32 does this part in f64, and f64 in pairs of numbers (high + low).
"""

from __future__ import annotations

import math

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_exp import exp2_factors
from hotfuse.codegen.vector_log import exponent_number, log2_of_normal, split_exponent
from hotfuse.codegen.vector_steps import (
    FORMATS,
    at_least,
    at_most,
    choose,
    is_negative,
    magnitude,
    polynomial,
    two_product,
    with_sign,
)
from hotfuse.errors import TileError

# (atanh(s)/s - 1 - z/3)/z^2 in z = s^2, for s = (m - 1)/(m + 1), sqrt(1/2) <= m <= sqrt(2); error of atanh(s)/s 1.1e-20.
_ATANH = (
    0.20000000000001128, 0.14285714285049828, 0.11111111259950138, 0.09090892184879865, 0.07693378591120367,
    0.06628410900005066, 0.06598143062780501,
)  # fmt: skip
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_THIRD = (0.3333333333333333, 1.850371707708594e-17)
_TWO_OVER_LN2 = (2.8853900817779268, 4.0710547481862066e-17)

Pair = tuple[Operand, Operand]


def _times(w: Writer, x: Pair, y: Pair) -> Pair:
    high, low = two_product(w, x[0], y[0])
    return high, w.fma(x[0], y[1], w.fma(x[1], y[0], low))


def _plus(w: Writer, x: Operand, y: Pair) -> Pair:
    """x is larger than y, or zero."""
    high = w.add(x, y[0])
    return high, w.add(w.sub(y[0], w.sub(high, x)), y[1])


def _constant(w: Writer, like: Operand, pair: tuple[float, float]) -> Pair:
    return w.const(like, pair[0]), w.const(like, pair[1])


def _log2_pair(w: Writer, a: Operand) -> Pair:
    """log2 of a > 0 in f64, twice as many digits: e + 2/ln 2 * s (1 + z/3 + z^2 T(z))."""
    one = w.const(a, 1.0)
    is_denormal = w.compare("lt", a, w.const(a, FORMATS["f64"].least_normal))
    k, m = split_exponent(w, w.select(is_denormal, w.mul(a, w.const(a, 2.0**54)), a), _ROOT_HALF)
    e = exponent_number(w, k, "f64")
    e = w.select(is_denormal, w.sub(e, w.const(e, 54.0)), e)
    above, below = w.sub(m, one), w.add(m, one)
    missed = w.sub(m, w.sub(below, one))
    quotient = w.div(above, below)
    left = w.fma(w.neg(quotient), missed, w.fma(w.neg(quotient), below, above))
    s = quotient, w.div(left, below)
    z = _times(w, s, s)
    cubic, third = w.mul(w.mul(z[0], z[0]), polynomial(w, z[0], _ATANH)), _times(w, z, _constant(w, a, _THIRD))
    series = _plus(w, one, _plus(w, third[0], (cubic, third[1])))
    return _plus(w, e, _times(w, _times(w, s, series), _constant(w, a, _TWO_OVER_LN2)))


def _power_of_magnitude(w: Writer, a: Operand, y: Operand) -> Operand:
    """a^y for a >= 0, but for a = 1 and y = 0, where it may be NaN."""
    if a.type.element == "f32":
        wide = w.convert(a, "f64")
        logs = _ends(w, wide, log2_of_normal(w, wide))
        exponent = w.mul(logs, w.convert(y, "f64"))
        exponent = at_most(w, at_least(w, exponent, -160.0), 160.0)
        half = w.unary("roundeven", w.mul(exponent, w.const(exponent, 0.5)))
        rest = w.convert(w.fma(half, w.const(half, -2.0), exponent), "f32")
        p, s = exp2_factors(w, w.convert(half, "f32"), rest)
        return w.mul(w.mul(p, s), s)
    high, low = _log2_pair(w, a)
    exponent, lost = two_product(w, y, _ends(w, a, high))
    lost = w.fma(y, low, lost)
    is_plain = w.compare("lt", magnitude(w, exponent), w.const(a, 1100.0))
    exponent = at_most(w, at_least(w, exponent, -1100.0), 1100.0)
    half = w.unary("roundeven", w.mul(exponent, w.const(a, 0.5)))
    rest = w.add(w.fma(half, w.const(a, -2.0), exponent), w.select(is_plain, lost, w.const(a, 0.0)))
    p, s = exp2_factors(w, half, rest)
    return w.mul(w.mul(p, s), s)


def _ends(w: Writer, a: Operand, logs: Operand) -> Operand:
    """-inf at 0; inf and NaN where a is."""
    logs = w.select(w.compare("lt", a, w.const(a, math.inf)), logs, a)
    return choose(w, w.compare("eq", a, w.const(a, 0.0)), -math.inf, logs)


def pow(w: Writer, x: Operand, y: Operand) -> Operand:
    """As C has it: 1 for y = 0 and for x = 1 whatever the other is, NaN for negative finite x unless y is whole."""
    a, one = magnitude(w, x), w.const(x, 1.0)
    half = w.mul(y, w.const(y, 0.5))
    is_whole = w.compare("eq", y, w.unary("trunc", y))
    is_odd = w.and_(is_whole, w.compare("ne", half, w.unary("trunc", half)))
    result = _power_of_magnitude(w, a, y)
    # |x| = 1 makes 0 * y, which is NaN for an infinite y that counts as whole and even.
    result = w.select(w.and_(w.compare("eq", a, one), w.compare("eq", y, y)), one, result)
    result = w.select(w.and_(is_odd, is_negative(w, x)), w.neg(result), result)
    is_root = w.and_(w.compare("lt", x, w.const(x, 0.0)), w.not_(is_whole))
    is_root = w.and_(is_root, w.compare("gt", x, w.const(x, -math.inf)))
    result = choose(w, is_root, math.nan, result)
    return w.select(w.or_(w.compare("eq", x, one), w.compare("eq", y, w.const(y, 0.0))), one, result)


def rsqrt(w: Writer, x: Operand) -> Operand:
    return w.div(w.const(x, 1.0), w.unary("sqrt", x))


def fmod(w: Writer, x: Operand, y: Operand) -> Operand:
    """x - y trunc(x/y), exact, for f32.

    Each step takes the multiple of y away that the quotient in f64 names; that is exact and leaves 2^-52 of x or y itself. Six
    steps are enough for any two numbers of f32."""
    if x.type.element != "f32":
        raise TileError(f"there is no native code for fmod of {x.type.element}: an exact remainder takes 41 divisions in a row")
    rest, step = w.convert(magnitude(w, x), "f64"), w.convert(magnitude(w, y), "f64")
    step = at_most(w, step, 2.0**200)  # infinity times a quotient of 0 would be NaN
    for _ in range(6):
        rest = w.fma(w.neg(w.unary("trunc", w.div(rest, step))), step, rest)
    # A quotient that was rounded up leaves a negative rest.
    rest = w.select(w.compare("lt", rest, w.const(rest, 0.0)), w.add(rest, step), rest)
    return with_sign(w, w.convert(rest, "f32"), x)
