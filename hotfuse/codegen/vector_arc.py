"""asin, acos, atan, atan2: an odd polynomial on the part of the range where it is short, the rest by reflection."""

from __future__ import annotations

import math

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.codegen.vector_steps import Table, is_negative, magnitude, polynomial, with_sign

# (atan(u)/u - 1)/u^2 in u^2 on |u| <= 1; error of atan relative to it 1.9e-8 and 6.4e-18.
_ATAN: Table = {
    "f32": (
        -0.33333152532577515, 0.19993767142295837, -0.14210999011993408, 0.10665742307901382, -0.07551569491624832,
        0.043203264474868774, -0.01636204868555069, 0.002919078106060624,
    ),
    "f64": (
        -0.3333333333333307, 0.19999999999951756, -0.14285714282588888, 0.11111111007376166, -0.09090907008537129,
        0.076922798985623, -0.06666404507523817, 0.058805303292816746, -0.05253529163579485, 0.04722356625728114,
        -0.04219265748050345, 0.036643625787599284, -0.02990651829348469, 0.021988081034845234, -0.013903593796436884,
        0.007198669262460361, -0.0028860544740288707, 0.0008317345117654151, -0.00015225358338883744, 1.32347752445255e-05,
    ),
}  # fmt: skip
# (asin(v)/v - 1)/v^2 in v^2 on |v| <= 1/2; error of asin relative to it 4.9e-9 and 1.5e-17.
_ASIN: Table = {
    "f32": (0.16666752099990845, 0.074953094124794, 0.04546914994716644, 0.02418479137122631, 0.04215826839208603),
    "f64": (
        0.16666666666665408, 0.0750000000033715, 0.04464285682822496, 0.03038195914079477, 0.022371757968467472,
        0.017359705864689635, 0.013885225801695354, 0.012169267815274585, 0.006527760942562364, 0.01952878071113108,
        -0.01622496054377141, 0.031912691786371045,
    ),
}  # fmt: skip


def _odd(w: Writer, u: Operand, z: Operand, table: Table) -> Operand:
    """u + u z P(z)"""
    return w.fma(w.mul(u, z), polynomial(w, z, table[u.type.element]), u)


def _asin_parts(w: Writer, x: Operand) -> tuple[Operand, Operand]:
    """(is_big, v): v is asin|x|, or asin sqrt((1 - |x|)/2) where |x| is past 1/2."""
    a = magnitude(w, x)
    half = w.const(x, 0.5)
    is_big = w.compare("gt", a, half)
    z = w.select(is_big, w.fma(a, w.const(x, -0.5), half), w.mul(a, a))
    v = w.select(is_big, w.unary("sqrt", z), a)
    return is_big, _odd(w, v, z, _ASIN)


def asin(w: Writer, x: Operand) -> Operand:
    is_big, v = _asin_parts(w, x)
    return with_sign(w, w.select(is_big, w.fma(v, w.const(x, -2.0), w.const(x, math.pi / 2)), v), x)


def acos(w: Writer, x: Operand) -> Operand:
    is_big, v = _asin_parts(w, x)
    v = with_sign(w, v, x)
    twice = w.add(v, v)  # of the reflected angle, negative where x is
    far = w.select(is_negative(w, x), w.add(twice, w.const(x, math.pi)), twice)
    return w.select(is_big, far, w.sub(w.const(x, math.pi / 2), v))


def atan(w: Writer, x: Operand) -> Operand:
    a, one = magnitude(w, x), w.const(x, 1.0)
    is_big = w.compare("gt", a, one)
    u = w.div(w.select(is_big, w.const(x, -1.0), a), w.select(is_big, a, one))
    start = w.select(is_big, w.const(x, math.pi / 2), w.const(x, 0.0))
    return with_sign(w, w.add(start, _odd(w, u, w.mul(u, u), _ATAN)), x)


def atan2(w: Writer, y: Operand, x: Operand) -> Operand:
    """The angle of the point (x, y)."""
    up, across, zero = magnitude(w, y), magnitude(w, x), w.const(x, 0.0)
    is_steep, is_left = w.compare("gt", up, across), is_negative(w, x)
    u = w.div(w.select(is_steep, w.neg(across), up), w.select(is_steep, up, across))
    # 0/0 stands for 0 and inf/inf for 1.
    diagonal = w.select(w.compare("eq", up, zero), zero, w.const(x, 1.0))
    u = w.select(w.compare("eq", up, across), diagonal, u)
    u = w.select(is_left, w.neg(u), u)
    flat = w.select(is_left, w.const(x, math.pi), zero)
    start = w.select(is_steep, w.const(x, math.pi / 2), flat)
    return with_sign(w, w.add(start, _odd(w, u, w.mul(u, u), _ATAN)), y)
