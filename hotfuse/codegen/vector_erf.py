"""erf, erfc and the erf form of gelu.

In f32, erf and gelu take logarithms: erfc falls like a Gaussian, so its log2 is almost a parabola that a short polynomial fits.

    erf(a) = 1 - 2^(a T(a)),  gelu(x) = x Phi(x),  Phi(-a) = 2^(a G(a)) / 2,  a = |x|

No division, no cancellation, and gelu's left tail keeps its digits, where 0.5 x (1 + erf(x/sqrt 2)) has lost them all at -6.
The product a T(a) is never rounded: its nearest integer comes from one fused operation and the rest from another.

Elsewhere the Gaussian is split off: erfc(a) = e^(-a^2) R((a - K)/(a + K)) / (1 + 2a), with the rounding error of a^2 put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_exp import exp_factors
from hotfuse.codegen.vector_steps import (
    Table,
    at_least,
    at_most,
    format_of,
    is_negative,
    magnitude,
    polynomial,
    power_of_two,
    two_product,
    with_sign,
)

# log2(erfc(a))/a on a <= 3.93; makes for a relative error of erf of 3.7e-8.
_LOG_ERFC = (
    -1.6279070377349854, -0.9184446930885315, -0.14832159876823425, 0.027852367609739304, -0.0002654211421031505,
    -0.001827890519052744, 0.0005572401569224894, -5.9736514231190085e-05,
)  # fmt: skip
_ERF_ONE = 3.93  # from here on erf rounds to 1
# log2(2 Phi(-a))/a; makes for a relative error of Phi(-a) of 8e-8/(2 Phi(-a))^0.4, when that of eager's 1 + erf is
# 6e-8/(2 Phi(-a)). Past a = 8, where Phi is 1e-15, it only has to fall.
_LOG_PHI = (
    -1.1511077880859375, -0.45918503403663635, -0.052559830248355865, 0.007133028469979763, -0.00016017648158594966,
    -0.0001987317082239315, 5.1879906095564365e-05, -6.567504897248e-06, 4.3216016365477117e-07, -1.1592860893472334e-08,
)  # fmt: skip
_PHI_ZERO = 12.622  # here the polynomial's logarithm is -126, and the power of two therefore 0
# (2^r - 1)/r on |r| <= 1/2; relative error 2.1e-8.
_EXP2M1 = (
    0.6931471824645996, 0.24022649228572845, 0.05550357326865196, 0.009618237614631653, 0.0013390776002779603,
    0.00015403599536512047,
)  # fmt: skip
# (1 + 2a) e^(a^2) erfc(a) in (a - K)/(a + K), for a up to where erfc is 0; relative error 3.0e-8 and 4.6e-17.
_ERFCX: Table = {
    "f32": (
        1.2769783735275269, -0.09276389330625534, -0.1660313606262207, 0.16405317187309265, -0.05420510098338127,
        -0.008044642396271229, 0.008638301864266396, 0.0012734392657876015, -0.0012532114051282406, -0.0003646254481282085,
        2.6434747269377112e-05,
    ),
    "f64": (
        1.2329951186255526, -0.1396211168405632, 0.015379652102605031, 0.0680970542547646, -0.10103906603550929,
        0.09373283499619241, -0.06633036582915994, 0.0371675155656976, -0.016197733871114377, 0.005031969789749257,
        -0.0007577744932352259, -0.00019925603920226568, 0.00015062651267272014, -2.4400162569574264e-05,
        -1.1234385150352539e-05, 5.708828239836269e-06, 3.1368104891480906e-07, -8.197631756989824e-07, 5.551416964522246e-08,
        1.0139966625333735e-07, -8.217940778871993e-09, -8.424860325537717e-09,
    ),
}  # fmt: skip
_ERFCX_K = {"f32": 2.0, "f64": 4.0}
_ERFC_ZERO = {"f32": 10.1, "f64": 27.3}
# erf(x)/x in x^2 on |x| <= 0.8; relative error 1.4e-17.
_ERF_SMALL = (
    1.1283791670955126, -0.3761263890318375, 0.11283791670954983, -0.026866170645089865, 0.005223977624821917,
    -0.0008548326968496136, 0.00012055329888815208, -1.4925535469512547e-05, 1.64592572100561e-06, -1.631863968575806e-07,
    1.4307121303660886e-08, -9.165665162828656e-10,
)  # fmt: skip


def _split_product(w: Writer, a: Operand, b: Operand, bias: int) -> tuple[Operand, Operand]:
    """(2^(n - shift), r) with a*b = n + r, |r| <= 1/2; the shift is how far `bias` is below the format's own."""
    magic = w.const(a, format_of(a).round_magic + bias)
    t = w.fma(a, b, magic)
    return power_of_two(w, t), w.fma(a, b, w.neg(w.sub(t, magic)))


def _log_parts(w: Writer, x: Operand) -> tuple[Operand, Operand]:
    """(s, d) with erfc|x| = s + s*d, for f32 up to `_ERF_ONE`."""
    a = at_most(w, magnitude(w, x), _ERF_ONE)
    s, r = _split_product(w, a, polynomial(w, a, _LOG_ERFC), format_of(x).bias)
    return s, w.mul(r, polynomial(w, r, _EXP2M1))


def erf(w: Writer, x: Operand) -> Operand:
    if x.type.element == "f64":
        return _erf_f64(w, x)
    s, d = _log_parts(w, x)
    return with_sign(w, w.fma(w.neg(s), d, w.sub(w.const(x, 1.0), s)), x)


def gelu_erf(w: Writer, x: Operand) -> Operand:
    if x.type.element == "f64":
        return _gelu_f64(w, x)

    def tail(a: Operand, slope: Operand) -> Operand:
        s, r = _split_product(w, a, slope, format_of(x).bias - 1)
        return w.mul(s, polynomial(w, r, (1.0, *_EXP2M1)))

    return gelu_of_tail(w, x, _PHI_ZERO, tail)


def gelu_of_tail(w: Writer, x: Operand, limit: float, tail: Callable[[Operand, Operand], Operand]) -> Operand:
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|) in f32: `tail` makes Phi(-a) of a and G(a), and 0 of the limit. Only where x is -inf
    is |x| infinite in the product, which is NaN then, as in eager."""
    b = magnitude(w, at_most(w, x, limit))
    a = at_most(w, b, limit)
    return w.fma(w.neg(b), tail(a, polynomial(w, a, _LOG_PHI)), at_least(w, x, -0.0))


def _erfc_far(w: Writer, a: Operand, square: Operand, rest: Operand, scale: float) -> Operand:
    """scale * erfc(a), where a^2 = square + rest, and 0 <= a <= `_ERFC_ZERO`."""
    element, one = a.type.element, w.const(a, 1.0)
    k, divisor = w.const(a, _ERFCX_K[element]), w.fma(a, w.const(a, 2.0), one)
    body = polynomial(w, w.div(w.sub(a, k), w.add(a, k)), _ERFCX[element])
    quotient = w.div(body, divisor)
    # What rounding did to the divisor and the quotient is made up for in the exponent, which costs no more rounding. It counts
    # relative to the body, which is between 1 and 1.28; 0.89 stands for its inverse.
    missed = w.fma(a, w.const(a, 2.0), w.sub(one, divisor))
    excess = w.fma(quotient, missed, w.fma(quotient, divisor, w.neg(body)))
    p, s = exp_factors(w, square, negate=True, rest=w.fma(excess, w.const(a, 0.89), rest))
    return w.mul(w.mul(w.mul(p, quotient), w.mul(s, w.const(a, scale))), s)


def erfc(w: Writer, x: Operand) -> Operand:
    a = at_most(w, magnitude(w, x), _ERFC_ZERO[x.type.element])
    square, rest = two_product(w, a, a)
    if x.type.element == "f32":
        s, d = _log_parts(w, x)
        near = w.fma(s, d, s)
    else:
        near = w.sub(w.const(x, 1.0), _erf_near(w, a, square))
    tail = w.select(w.compare("lt", a, w.const(x, 0.5)), near, _erfc_far(w, a, square, rest, 1.0))
    return w.select(is_negative(w, x), w.sub(w.const(x, 2.0), tail), tail)


def _erf_near(w: Writer, a: Operand, square: Operand) -> Operand:
    """erf of |a| < 0.8 in f64."""
    return w.mul(a, polynomial(w, square, _ERF_SMALL))


def _erf_f64(w: Writer, x: Operand) -> Operand:
    a = at_most(w, magnitude(w, x), _ERFC_ZERO["f64"])
    square, rest = two_product(w, a, a)
    far = w.sub(w.const(x, 1.0), _erfc_far(w, a, square, rest, 1.0))
    return with_sign(w, w.select(w.compare("lt", a, w.const(x, 0.8)), _erf_near(w, a, square), far), x)


def _gelu_f64(w: Writer, x: Operand) -> Operand:
    """x Phi(x) with Phi(-b) = erfc(b/sqrt 2)/2; the exponent is b^2/2, without rounding."""
    b, half = at_most(w, magnitude(w, x), _ERFC_ZERO["f64"] * math.sqrt(2)), w.const(x, 0.5)
    a = w.mul(b, w.const(x, math.sqrt(0.5)))
    square, rest = two_product(w, b, w.mul(b, half))
    near = w.fma(_erf_near(w, a, square), w.const(x, -0.5), half)
    tail = w.select(w.compare("lt", a, half), near, _erfc_far(w, a, square, rest, 0.5))
    return w.mul(x, w.select(is_negative(w, x), tail, w.sub(w.const(x, 1.0), tail)))
