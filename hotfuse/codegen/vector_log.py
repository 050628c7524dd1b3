"""Logarithms, and the inverse hyperbolic functions, which are log1p of something.

    log(x) = e log(2) + f Q(f)       x = 2^e (1 + f),  3/4 <= 1 + f < 3/2

log1p(x) finds e from 1 + x, but f = x 2^-e + (2^-e - 1) from x, with one rounding.
"""

from __future__ import annotations

import math

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_steps import Table, choose, format_of, magnitude, near_zero, polynomial, with_sign

# log(1 + f)/f on -1/4 <= f <= 1/2, to base e (relative error 4.1e-8 and 1.0e-17), 2 (3.6e-8, 2.3e-17) and 10 (6.5e-8, 3.2e-17).
_LN: Table = {
    "f32": (
        1.0, -0.5, 0.33333471417427063, -0.24996359646320343, 0.19982269406318665, -0.16788741946220398, 0.14905129373073578,
        -0.12116502970457077, 0.055618301033973694,
    ),
    "f64": (
        1.0, -0.5, 0.3333333333333375, -0.2500000000001064, 0.19999999999850993, -0.16666666663786714, 0.14285714299815372,
        -0.12500000291564708, 0.11111110781481645, -0.09999985519693826, 0.09090892685762204, -0.0833370429757851,
        0.07693393584682441, -0.07138596468013787, 0.06643314292260462, -0.06249622901533652, 0.060829109091006875,
        -0.05969053181670639, 0.05072046238902031, -0.02941370754969656, 0.008100316774112395,
    ),
}  # fmt: skip
_LOG2: Table = {
    "f32": (
        1.4426950216293335, -0.7213485836982727, 0.4809053838253021, -0.36057373881340027, 0.28804415464401245,
        -0.24246089160442352, 0.21778030693531036, -0.17931689321994781, 0.08241160959005356,
    ),
    "f64": (
        1.4426950408889634, -0.7213475204444811, 0.4808983469630003, -0.36067376022256725, 0.2885390081746283,
        -0.24044917341970293, 0.20609929181014966, -0.18033688547949522, 0.16029944384255093, -0.14426925926812142,
        0.1311538125708838, -0.12023052497509575, 0.11099377418326822, -0.10298409243488361, 0.09582272670471804,
        -0.0901585470509156, 0.08784986588737752, -0.08627062736625163, 0.0731908142433032, -0.04228395911380088,
        0.011587503042921825,
    ),
}  # fmt: skip
_LOG10: Table = {
    "f32": (
        0.4342944920063019, -0.21714752912521362, 0.1447659581899643, -0.10854411870241165, 0.08675407618284225,
        -0.07306763529777527, 0.06512302160263062, -0.05245015770196915, 0.023498835042119026,
    ),
    "f64": (
        0.4342944819032518, -0.21714724095162574, 0.14476482730108772, -0.10857362047591122, 0.08685889637969779,
        -0.07238241363194103, 0.06204206891995895, -0.05428681185394832, 0.0482549408848617, -0.04342937449192837,
        0.03948123162952775, -0.03619299441193126, 0.03341245536111814, -0.031001300899132053, 0.02884551500443213,
        -0.027140427027807966, 0.026445444747158584, -0.025970046581991667, 0.022032630494304817, -0.012728740028683438,
        0.003488185990767126,
    ),
}  # fmt: skip

_THREE_QUARTERS = {"f32": 0x3F400000, "f64": 0x3FE8000000000000}  # the bits of 3/4
_LARGE = 2.0**60  # from here on x^2 + 1 is x^2, and x + 1 is x


def split_exponent(w: Writer, x: Operand, least: int | None = None) -> tuple[Operand, Operand]:
    """(k, m) of a positive normal x = 2^e m: k is the integer e, moved to the bits of an exponent. `least` are the bits of the
    least m, 3/4 unless told, and m is less than twice that."""
    layout = format_of(x)
    least = _THREE_QUARTERS[x.type.element] if least is None else least
    bits = w.bitcast(x, layout.integer)
    k = w.and_(w.sub(bits, w.const(bits, least)), w.const(bits, layout.exponent_mask))
    return k, w.bitcast(w.sub(bits, k), x.type.element)


def exponent_number(w: Writer, k: Operand, element: str) -> Operand:
    """e as a float, from the k of `split_exponent`."""
    if element == "f32":
        return w.mul(w.convert(k, "f32"), w.const(k.type.of("f32"), 2.0**-23))
    # AVX2 does not convert 64-bit integers: put e + 2048 into the low bits of 2^52.
    low = w.add(w.shr(k, w.const(k, 52)), w.const(k, 2048))
    return w.sub(w.bitcast(w.or_(low, w.const(k, 0x4330000000000000)), "f64"), w.const(k.type.of("f64"), 2.0**52 + 2048))


def log_of_parts(w: Writer, e: Operand, f: Operand, base: float) -> Operand:
    q = polynomial(w, f, {math.e: _LN, 2: _LOG2, 10: _LOG10}[base][f.type.element])
    return w.fma(f, q, e if base == 2 else w.mul(e, w.const(e, math.log10(2) if base == 10 else math.log(2))))


def _logarithm(w: Writer, x: Operand, base: float) -> Operand:
    layout = format_of(x)
    lift = layout.mantissa + 1
    is_denormal = w.compare("lt", x, w.const(x, layout.least_normal))
    k, m = split_exponent(w, w.select(is_denormal, w.mul(x, w.const(x, 2.0**lift)), x))
    e = exponent_number(w, k, x.type.element)
    e = w.select(is_denormal, w.sub(e, w.const(e, lift)), e)
    result = log_of_parts(w, e, w.sub(m, w.const(m, 1.0)), base)
    return _at_the_ends(w, x, 0.0, result)


def _at_the_ends(w: Writer, x: Operand, start: float, result: Operand) -> Operand:
    """-inf at the start, NaN before it, and inf or NaN where x is."""
    result = w.select(w.compare("lt", x, w.const(x, math.inf)), result, x)
    result = choose(w, w.compare("eq", x, w.const(x, start)), -math.inf, result)
    return choose(w, w.compare("lt", x, w.const(x, start)), math.nan, result)


def log2_of_normal(w: Writer, x: Operand) -> Operand:
    """log2 where x is positive and neither denormal nor infinite; anything elsewhere."""
    k, m = split_exponent(w, x)
    return log_of_parts(w, exponent_number(w, k, x.type.element), w.sub(m, w.const(m, 1.0)), 2)


def log(w: Writer, x: Operand) -> Operand:
    return _logarithm(w, x, math.e)


def log2(w: Writer, x: Operand) -> Operand:
    return _logarithm(w, x, 2)


def log10(w: Writer, x: Operand) -> Operand:
    return _logarithm(w, x, 10)


def _log1p_finite(w: Writer, x: Operand, doublings: Operand | None = None) -> Operand:
    """log(1 + x) + doublings * log 2 of x > -1 that is not infinite."""
    layout = format_of(x)
    k, _ = split_exponent(w, w.add(x, w.const(x, 1.0)))
    # 4 * 2^-e, because 2^-e itself is denormal for the largest x.
    four = w.bitcast(w.sub(w.const(k, (layout.bias + 2) << layout.mantissa), k), x.type.element)
    quarter = w.const(x, 0.25)
    f = w.fma(w.mul(x, quarter), four, w.fma(four, quarter, w.const(x, -1.0)))
    e = exponent_number(w, k, x.type.element)
    return log_of_parts(w, e if doublings is None else w.add(e, doublings), f, math.e)


def log1p(w: Writer, x: Operand) -> Operand:
    return near_zero(w, x, 2.0**-60, _at_the_ends(w, x, -1.0, _log1p_finite(w, x)))


def _log_of_double(w: Writer, x: Operand, small: Operand) -> Operand:
    """log(1 + small), and log(2x) where x is so large that `small` overflows."""
    is_large = w.compare("ge", x, w.const(x, _LARGE))
    one, zero = w.const(x, 1.0), w.const(x, 0.0)
    result = _log1p_finite(w, w.select(is_large, x, small), w.select(is_large, one, zero))
    return w.select(w.compare("lt", x, w.const(x, math.inf)), result, x)


def asinh(w: Writer, x: Operand) -> Operand:
    """log(1 + a + a^2/(1 + sqrt(a^2 + 1))) with a = |x|"""
    a, one = magnitude(w, x), w.const(x, 1.0)
    square = w.mul(a, a)
    small = w.add(a, w.div(square, w.add(one, w.unary("sqrt", w.add(square, one)))))
    return near_zero(w, x, 2.0**-30, with_sign(w, _log_of_double(w, a, small), x))


def acosh(w: Writer, x: Operand) -> Operand:
    """log(1 + t + sqrt(2t + t^2)) with t = x - 1"""
    t = w.sub(x, w.const(x, 1.0))
    small = w.add(t, w.unary("sqrt", w.fma(t, t, w.add(t, t))))
    return choose(w, w.compare("lt", x, w.const(x, 1.0)), math.nan, _log_of_double(w, x, small))


def atanh(w: Writer, x: Operand) -> Operand:
    """log(1 + 2a/(1 - a))/2 with a = |x|"""
    a, one = magnitude(w, x), w.const(x, 1.0)
    inner = w.div(w.add(a, a), w.sub(one, a))
    half = w.mul(_at_the_ends(w, inner, -1.0, _log1p_finite(w, inner)), w.const(x, 0.5))
    return near_zero(w, x, 2.0**-30, with_sign(w, half, x))
