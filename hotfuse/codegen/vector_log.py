"""Logarithms, and the inverse hyperbolic functions, which are log1p of something.

    log(x) = e log(2) + f Q(f)       x = 2^e (1 + f),  sqrt(1/2) <= 1 + f < sqrt(2)

log1p(x) finds e from 1 + x, but f = x 2^-e + (2^-e - 1) from x, with one rounding.
"""

from __future__ import annotations

import math

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_steps import Table, choose, format_of, magnitude, near_zero, polynomial, with_sign

# log(1 + f)/f on sqrt(1/2) - 1 <= f <= sqrt(2) - 1, to base e (relative error 3.3e-8 and 1.1e-17), 2 (4.4e-8, 2.8e-17) and 10
# (4.7e-8, 4.1e-17).
_LN: Table = {
    "f32": (
        1.0, -0.5, 0.3333390951156616, -0.2500133812427521, 0.1996311992406845, -0.16577565670013428, 0.14913995563983917,
        -0.14266951382160187, 0.087018683552742,
    ),
    "f64": (
        1.0, -0.5, 0.3333333333333314, -0.2499999999998796, 0.20000000000067025, -0.16666666669829364, 0.14285714280040368,
        -0.12499999691136492, 0.11111111150554848, -0.10000015221015403, 0.09090923834512121, -0.08332913110185039,
        0.07691531560216949, -0.07149447383678977, 0.06684572215833456, -0.06196589896892899, 0.056684432947935105,
        -0.056783408241561036, 0.0650364446047069, -0.0598021990611918, 0.026136196133285265,
    ),
}  # fmt: skip
_LOG2: Table = {
    "f32": (
        1.4426950216293335, -0.7213473320007324, 0.48091065883636475, -0.360703706741333, 0.2879151701927185,
        -0.23894354701042175, 0.21572479605674744, -0.20728211104869843, 0.12582822144031525,
    ),
    "f64": (
        1.4426950408889634, -0.7213475204444824, 0.4808983469629819, -0.3606737602218486, 0.28853900817922024,
        -0.2404491735526657, 0.20609929145686112, -0.18033687420395125, 0.16029944905416663, -0.1442697693327362,
        0.13115435947542672, -0.1202176961631704, 0.11096381664276153, -0.10315309854725935, 0.09645975280598143,
        -0.089358518435435, 0.08162443220447135, -0.08193111957395095, 0.0942570897749568, -0.08667309886103222,
        0.037742524862655794,
    ),
}  # fmt: skip
_LOG10: Table = {
    "f32": (
        0.4342944622039795, -0.21714718639850616, 0.14476853609085083, -0.10858263820409775, 0.08667110651731491,
        -0.07192917168140411, 0.06493963301181793, -0.06239813193678856, 0.037878066301345825,
    ),
    "f64": (
        0.4342944819032518, -0.2171472409516261, 0.14476482730108214, -0.10857362047569488, 0.0868588963810801,
        -0.07238241367196682, 0.0620420688136085, -0.05428680845967137, 0.04825494245371436, -0.04342952803667714,
        0.039481396264199935, -0.036189132554732995, 0.033403437242829306, -0.031052176808407706, 0.029037278968933287,
        -0.026899594417158786, 0.024571402472586937, -0.02466372457009158, 0.02837421132625473, -0.026091202574320346,
        0.011361632095752975,
    ),
}  # fmt: skip

_ROOT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}  # the bits of sqrt(1/2)
_LARGE = 2.0**60  # from here on x^2 + 1 is x^2, and x + 1 is x


def split_exponent(w: Writer, x: Operand) -> tuple[Operand, Operand]:
    """(k, m) of a positive normal x = 2^e m, sqrt(1/2) <= m < sqrt(2): k is the integer e, moved to the bits of an exponent."""
    layout = format_of(x)
    bits = w.bitcast(x, layout.integer)
    k = w.and_(w.sub(bits, w.const(bits, _ROOT_HALF[x.type.element])), w.const(bits, layout.exponent_mask))
    return k, w.bitcast(w.sub(bits, k), x.type.element)


def exponent_number(w: Writer, k: Operand, element: str) -> Operand:
    """e as a float, from the k of `split_exponent`."""
    if element == "f32":
        return w.mul(w.convert(k, "f32"), w.const(k.type.of("f32"), 2.0**-23))
    # AVX2 does not convert 64-bit integers: put e + 2048 into the low bits of 2^52.
    low = w.add(w.shr(k, w.const(k, 52)), w.const(k, 2048))
    return w.sub(w.bitcast(w.or_(low, w.const(k, 0x4330000000000000)), "f64"), w.const(k.type.of("f64"), 2.0**52 + 2048))


def _log_of_parts(w: Writer, e: Operand, f: Operand, base: float) -> Operand:
    q = polynomial(w, f, {math.e: _LN, 2: _LOG2, 10: _LOG10}[base][f.type.element])
    return w.fma(f, q, e) if base == 2 else w.fma(e, w.const(e, math.log(2) / math.log(base)), w.mul(f, q))


def _logarithm(w: Writer, x: Operand, base: float) -> Operand:
    layout = format_of(x)
    lift = layout.mantissa + 1
    is_denormal = w.compare("lt", x, w.const(x, layout.least_normal))
    k, m = split_exponent(w, w.select(is_denormal, w.mul(x, w.const(x, 2.0**lift)), x))
    e = exponent_number(w, k, x.type.element)
    e = w.select(is_denormal, w.sub(e, w.const(e, lift)), e)
    result = _log_of_parts(w, e, w.sub(m, w.const(m, 1.0)), base)
    return _at_the_ends(w, x, 0.0, result)


def _at_the_ends(w: Writer, x: Operand, start: float, result: Operand) -> Operand:
    """-inf at the start, NaN before it, and inf or NaN where x is."""
    result = w.select(w.compare("lt", x, w.const(x, math.inf)), result, x)
    result = choose(w, w.compare("eq", x, w.const(x, start)), -math.inf, result)
    return choose(w, w.compare("lt", x, w.const(x, start)), math.nan, result)


def log2_of_normal(w: Writer, x: Operand) -> Operand:
    """log2 where x is positive and neither denormal nor infinite; anything elsewhere."""
    k, m = split_exponent(w, x)
    return _log_of_parts(w, exponent_number(w, k, x.type.element), w.sub(m, w.const(m, 1.0)), 2)


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
    return _log_of_parts(w, e if doublings is None else w.add(e, doublings), f, math.e)


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
