"""sin, cos, tan of any finite number.

    |x| = n pi/2 + r,  |r| <= pi/4,  and then sin or cos of r by n mod 4

n and r are the whole quarters and the rest of |x|/(2 pi) mod 1: 1/(2 pi) is cut into parts, what is whole in the product of x
and a part is dropped, and the fractions are summed with their rounding errors. Parts for f32 are so short that their products
are exact in f64, and six of them reach its largest number. For f64 `_reduce_far` picks, of 23 parts, the five that matter for
the exponent of x; numbers below 2^52 go a shorter way and subtract n pi/2, with pi/2 in four parts.
"""

from __future__ import annotations

import itertools
import math

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_steps import Table, format_of, magnitude, polynomial, two_product, two_sum

# (sin(r)/r - 1)/r^2 in r^2 on |r| <= pi/4; error of sin relative to it 5.5e-9 and 3.5e-18.
_SIN: Table = {
    "f32": (-0.16666655242443085, 0.008332177065312862, -0.00019517139298841357),
    "f64": (
        -0.16666666666666632, 0.008333333333322488, -0.0001984126982985515, 2.7557313705707166e-06, -2.5050759987345685e-08,
        1.5896891869444894e-10,
    ),
}  # fmt: skip
# (cos(r) - 1 + r^2/2)/r^4 in r^2 on |r| <= pi/4; error of cos relative to it 1.0e-9 and 6.9e-20.
_COS: Table = {
    "f32": (0.041666653007268906, -0.0013887654058635235, 2.446377038722858e-05),
    "f64": (
        0.041666666666666595, -0.001388888888887305, 2.480158728869358e-05, -2.75573141010582e-07, 2.0875686789632515e-09,
        -1.1357667148829652e-11,
    ),
}  # fmt: skip
# 1/(2 pi): the bits behind the point.
_TURN = (
    "28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF1586DC91B8E909374B801924BBA82746487"
    "3F877AC72C4A69CFBA208D7D4BAED1213A671C09AD17DF904E64758E60D4CE7D272117E2EF7E4A0EC7FE25FFF7816603"
    "FBCBC462D6829B47DB4D9FB3C9F2C26DD3D18FD9A797FA8B5D49EEB1FAF97C5ECF41CE7DE294A4BA9AFED7EC47E35742"
    "1580CC11BF1EDAEAFC33EF0826BD0D876A78E"
)
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33, 5.562271104316826e-50)
_STEP = 52  # bits in a part for f64, and by how much the exponents lie apart that use one part and the next


def _turn_bits(start: int, count: int) -> int:
    """`count` bits of 1/(2 pi) as an integer, from bit `start` behind the point."""
    return (int(_TURN, 16) >> (4 * len(_TURN) - start - count)) & ((1 << count) - 1)


def _fraction(w: Writer, x: Operand) -> Operand:
    return w.sub(x, w.unary("roundeven", x))


def _quarters(w: Writer, turns: Operand) -> tuple[Operand, Operand]:
    """(t, rest): the low bits of t are how many quarters are nearest to a few turns, and the rest is exact."""
    magic = w.const(turns, format_of(turns).round_magic)
    t = w.fma(turns, w.const(turns, 4.0), magic)
    return w.bitcast(t, "i64"), w.fma(w.sub(t, magic), w.const(turns, -0.25), turns)


def _reduce_f32(w: Writer, a: Operand) -> tuple[Operand, Operand]:
    """(n, r) of a >= 0 in f32."""
    wide = w.convert(a, "f64")
    ends = (0, 31, 60, 89, 118, 147)  # a part has at most 29 bits, and 24 + 29 are exact
    parts = [math.ldexp(_turn_bits(low, high - low), -high) for low, high in itertools.pairwise(ends)]
    parts.append(math.ldexp(_turn_bits(147, 60), -207))
    products = [w.mul(wide, w.const(wide, part)) for part in parts]
    turns, lost = _fraction(w, products[0]), products[-1]
    for product in products[1:-1]:
        # What was summed up is coarser than the next fraction: the short form of two_sum is exact.
        addend = _fraction(w, product)
        total = w.add(turns, addend)
        lost = w.add(lost, w.sub(addend, w.sub(total, turns)))
        turns = total
    n, rest = _quarters(w, turns)
    return w.convert(n, "i32"), w.convert(w.mul(w.add(rest, lost), w.const(rest, 2 * math.pi)), "f32")


def _reduce_near(w: Writer, a: Operand) -> tuple[Operand, Operand]:
    """(n, r) of 0 <= a < 2^52 in f64."""
    magic, per_quarter = w.const(a, 2.0**52), w.const(a, 2 / math.pi)  # n + magic is below 2^53
    n = w.unary("roundeven", w.mul(a, per_quarter))
    # Where a is large the product's rounding makes n one off: look at what it leaves.
    rest = w.fma(n, w.const(a, -_HALF_PI[1]), w.fma(n, w.const(a, -_HALF_PI[0]), a))
    t = w.add(w.add(n, w.unary("roundeven", w.mul(rest, per_quarter))), magic)
    n = w.sub(t, magic)
    r = a
    for part in _HALF_PI:
        r = w.fma(n, w.const(a, -part), r)
    return w.bitcast(t, "i64"), r


def _reduce_far(w: Writer, a: Operand) -> tuple[Operand, Operand]:
    """(n, r) of a >= 2^52 in f64.

    With a = y 2^(52 j), 2^52 <= y < 2^104, parts before the j-th make whole turns and parts past j + 4 nothing that counts. The
    binary digits of j are found from the top; each moves the window of parts."""
    window = [w.const(a, _turn_bits(_STEP * i, _STEP)) for i in range(23)]
    y = a
    for shift in (16, 8, 4, 2, 1):
        is_far = w.compare("ge", y, w.const(a, 2.0 ** (_STEP + _STEP * shift)))
        y = w.select(is_far, w.mul(y, w.const(a, 2.0 ** (-_STEP * shift))), y)
        # Parts that would come from past the end are not looked at: j is 18 at most.
        moved = [w.select(is_far, far, near) for near, far in zip(window, window[shift:])]
        window = (moved + window[len(moved) :])[: shift + 4]
    pairs = [two_product(w, w.mul(y, w.const(a, 2.0 ** (-_STEP * (k + 1)))), part) for k, part in enumerate(window)]
    (high0, low0), (high1, low1), (high2, low2), (high3, low3), (high4, _) = pairs
    # Products 0 and 1 hold whole turns; from 1 on each pair overlaps the next, and every sum keeps what it loses: next to a
    # multiple of pi/2 the first hundred bits cancel.
    turns, lost1 = two_sum(w, w.add(_fraction(w, high0), _fraction(w, low0)), _fraction(w, high1))
    n1, turns = _quarters(w, turns)
    middle, lost2 = two_sum(w, high2, low1)
    turns, lost3 = two_sum(w, turns, middle)
    n2, turns = _quarters(w, turns)
    rest, left = w.add(low3, high4), []
    tail, error = two_sum(w, low2, high3)
    left.append(error)
    for lost in (lost1, lost2, lost3):
        tail, error = two_sum(w, tail, lost)
        left.append(error)
    turns, error = two_sum(w, turns, tail)
    for part in (*left, error):
        rest = w.add(rest, part)
    total = w.add(turns, rest)
    rest = w.sub(rest, w.sub(total, turns))
    # 2 pi and the number of turns both in two parts, for a single rounding
    low = w.fma(total, w.const(a, 4 * _HALF_PI[1]), w.mul(rest, w.const(a, 4 * _HALF_PI[0])))
    return w.add(n1, n2), w.fma(total, w.const(a, 4 * _HALF_PI[0]), low)


def _reduce(w: Writer, x: Operand) -> tuple[Operand, Operand]:
    """(n, r) of |x|: the low bits of n count."""
    a = magnitude(w, x)
    if x.type.element == "f32":
        return _reduce_f32(w, a)
    is_large = w.compare("ge", a, w.const(a, 2.0**52))
    (n, r), (large_n, large_r) = _reduce_near(w, a), _reduce_far(w, a)
    return w.select(is_large, large_n, n), w.select(is_large, large_r, r)


def _sin_cos(w: Writer, r: Operand) -> tuple[Operand, Operand]:
    z = w.mul(r, r)
    sine = w.fma(w.mul(r, z), polynomial(w, z, _SIN[r.type.element]), r)
    cosine = w.fma(w.mul(z, z), polynomial(w, z, _COS[r.type.element]), w.fma(z, w.const(z, -0.5), w.const(z, 1.0)))
    return sine, cosine


def _has_bit(w: Writer, n: Operand, bit: int) -> Operand:
    return w.compare("ne", w.and_(n, w.const(n, bit)), w.const(n, 0))


def _wave(w: Writer, n: Operand, r: Operand) -> Operand:
    """sin(n pi/2 + r)"""
    sine, cosine = _sin_cos(w, r)
    value = w.bitcast(w.select(_has_bit(w, n, 1), cosine, sine), n.type.element)
    sign = w.shl(w.and_(n, w.const(n, 2)), w.const(n, n.type.bits - 2))
    return w.bitcast(w.xor(value, sign), r.type.element)


def _with_sign_of(w: Writer, value: Operand, x: Operand) -> Operand:
    """The sign of x multiplied in."""
    integer = format_of(x).integer
    bits = w.bitcast(x, integer)
    sign = w.and_(bits, w.const(bits, -(1 << (x.type.bits - 1))))
    return w.bitcast(w.xor(w.bitcast(value, integer), sign), x.type.element)


def sin(w: Writer, x: Operand) -> Operand:
    return _with_sign_of(w, _wave(w, *_reduce(w, x)), x)


def cos(w: Writer, x: Operand) -> Operand:
    n, r = _reduce(w, x)
    return _wave(w, w.add(n, w.const(n, 1)), r)


def tan(w: Writer, x: Operand) -> Operand:
    n, r = _reduce(w, x)
    sine, cosine = _sin_cos(w, r)
    is_odd = _has_bit(w, n, 1)
    value = w.div(w.select(is_odd, w.neg(cosine), sine), w.select(is_odd, sine, cosine))
    return _with_sign_of(w, value, x)
