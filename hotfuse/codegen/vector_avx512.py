"""Instructions that only AVX-512 has, and functions that are shorter with them: `FUNCTIONS` by name, and `extreme`.

    e^x = scalef(T[j] p(r), n)       x = n ln 2 + r,  n = k + j/16,  |r| <= ln(2)/32        (f64: eighths, |r| <= ln(2)/16)

The fraction of n picks one of as many powers of two as a register has lanes (`vpermps`), so p needs three coefficients;
`vscalefps` multiplies by 2^floor(n) = 2^k with the right overflow and the right denormals. Infinite and huge x leave nothing
sensible for r: `vrangeps` makes it 1 there, and n alone decides. The logarithm takes x apart with `vgetexpps` and `vgetmantps`,
which know of denormals, zeros, infinities and negative numbers.

All of it works on whole registers; `_by_register` makes functions of any number of lanes of that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from hotfuse.codegen import vector_erf, vector_exp, vector_log
from hotfuse.codegen.llvm_text import LType, Operand, Writer, literal, rounded_f32
from hotfuse.codegen.vector_steps import Table, at_most, format_of, magnitude, polynomial, with_sign

Emit = Callable[..., Operand]

# (e^r - 1)/r on |r| <= ln(2)/32 and ln(2)/16; error of e^r 1.6e-9 and 3.0e-18.
_EXP_NEAR: Table = {
    "f32": (1.0, 0.5000163912773132, 0.16667650640010834),
    "f64": (
        1.0, 0.5000000000000311, 0.16666666666669078, 0.041666666567245214, 0.008333333278224466, 0.0013889792809309183,
        0.00019844277619734762,
    ),
}  # fmt: skip
# The same; error of e^r - 1 relative to it 3.2e-10 and 3.2e-19.
_EXPM1_NEAR: Table = {
    "f32": (1.0, 0.5, 0.16666990518569946, 0.04166698083281517),
    "f64": (
        1.0, 0.5, 0.16666666666667002, 0.0416666666666654, 0.008333333322494935, 0.001388888890159493, 0.000198422650893779,
        2.480176692328335e-05,
    ),
}  # fmt: skip
# (2^r - 1)/r on |r| <= 1/32 and 1/16; error of 2^r 1.6e-9 and 3.2e-18.
_EXP2_NEAR: Table = {
    "f32": (0.6931471824645996, 0.24023428559303284, 0.05550207197666168),
    "f64": (
        0.6931471805599453, 0.2402265069591166, 0.055504108664900034, 0.009618129083738911, 0.0013333557606054738,
        0.00015404552636268454, 1.5262783676560844e-05,
    ),
}  # fmt: skip
# Sigmoid's numerator and denominator are multiplied by it, so that e^-x does not overflow before the quotient is 0.
_SIGMOID_SCALE = {"f32": 2.0**-64, "f64": 2.0**-512}
_PHI_ZERO = 13.5  # from here on 2^(a G(a)) of `vector_erf` is below the least denormal


def _by_register(function: Emit) -> Emit:
    """The function for any number of lanes: operands are cut into registers, the last one filled up with anything."""

    @functools.wraps(function)
    def emit(w: Writer, *args: Operand) -> Operand:
        lanes, wanted = _register(args[0].type).lanes, args[0].type.lanes
        if wanted == lanes:
            return function(w, *args)
        if not wanted:
            return w.lane(function(w, *(_alone(w, x) for x in args)), 0)
        starts = range(0, wanted, lanes)
        parts = [function(w, *(_lanes(w, x, range(at, at + lanes)) for x in args)) for at in starts]
        return _joined(w, parts, wanted)

    return emit


def _register(type: LType) -> LType:
    return LType(type.element, 512 // type.bits)


def _alone(w: Writer, x: Operand) -> Operand:
    type = _register(x.type)
    return w.make(type, f"insertelement {type} poison, {x}, i64 0")


def _lanes(w: Writer, x: Operand, places: range, y: Operand | None = None) -> Operand:
    """These lanes of x, or of x and y as one; there is nothing in particular in those past the end."""
    end = x.type.lanes * (1 if y is None else 2)
    picks = ", ".join(f"i32 {i}" if i < end else "i32 poison" for i in places)
    other = f"{x.type} poison" if y is None else str(y)
    return w.make(LType(x.type.element, len(places)), f"shufflevector {x}, {other}, <{len(places)} x i32> <{picks}>")


def _joined(w: Writer, parts: Sequence[Operand], lanes: int) -> Operand:
    """The first lanes of the parts one after the other."""
    while len(parts) > 1:
        width = 2 * parts[0].type.lanes
        parts = [_lanes(w, x, range(width), y) for x, y in zip(parts[::2], [*parts[1::2], parts[-1]], strict=False)]
    return parts[0] if parts[0].type.lanes == lanes else _lanes(w, parts[0], range(lanes))


# instructions, of whole registers


def _masked(w: Writer, name: str, *args: Operand | int) -> Operand:
    """An intrinsic whose last arguments are what lanes that are masked out get, a mask of all lanes, and the current rounding;
    an int among the arguments is part of the instruction."""
    x = args[0]
    assert isinstance(x, Operand)
    end = (w.const(x, 0.0), Operand(LType(f"i{x.type.lanes}"), "-1"), 4)
    every = [*args, *end]
    full = f"llvm.x86.avx512.mask.{name}.{'ps' if x.type.element == 'f32' else 'pd'}.512"
    formal = ", ".join("i32 immarg" if isinstance(a, int) else str(a.type) for a in every)
    w.declared.setdefault(f"declare {x.type} @{full}({formal})")
    return w.make(x.type, f"call {x.type} @{full}({', '.join(f'i32 {a}' if isinstance(a, int) else str(a) for a in every)})")


def _scaled(w: Writer, x: Operand, n: Operand) -> Operand:
    """x 2^floor(n)"""
    return _masked(w, "scalef", x, n)


def _bounded(w: Writer, x: Operand, bound: float) -> Operand:
    """x, or the bound where |x| is larger or x is NaN."""
    return _masked(w, "range", x, w.const(x, bound), 0b0110)  # of the two the one with the lesser magnitude, with its sign


def _picked(w: Writer, z: Operand, table: Sequence[float]) -> Operand:
    """The number of the table that the low bits of z name; the table has as many as z has lanes."""
    element = z.type.element
    numbers = ", ".join(str(literal(LType(element), value)) for value in table)
    name = f"llvm.x86.avx512.permvar.{'sf' if element == 'f32' else 'df'}.512"
    return w.call(name, z.type, Operand(z.type, f"<{numbers}>"), w.bitcast(z, format_of(z).integer))


# functions


def _step(x: Operand) -> Operand:
    """Added to x, it leaves x in the low bits, rounded to the fraction that the table has powers for."""
    return literal(x.type, format_of(x).round_magic / x.type.lanes)


@functools.cache
def _fractional_powers(element: str, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """2^(j/count) for j = 0, 1, ..., rounded, and how much is missing from each, relative to it. Square roots of whole numbers
    find them, so the count is a power of two."""
    high, missing = [], []
    for j in range(count):
        root = 1 << (j + 160 * count)
        for _ in range(count.bit_length() - 1):
            root = math.isqrt(root)
        exact = Fraction(root, 1 << 160)
        high.append(rounded_f32(float(exact)) if element == "f32" else float(exact))
        missing.append(float(exact / Fraction(high[-1]) - 1))
    return tuple(high), tuple(missing)


def _power(w: Writer, z: Operand, n: Operand, r: Operand, near: Sequence[float], scale: float) -> Operand:
    """scale * 2^n * (1 + r near(r)), where z is n + `_step`."""
    table = [scale * value for value in _fractional_powers(z.type.element, z.type.lanes)[0]]
    first = _picked(w, z, table)
    return _scaled(w, w.fma(first, w.mul(r, polynomial(w, r, near)), first), n)


def _power_less_1(w: Writer, z: Operand, n: Operand, r: Operand, near: Sequence[float]) -> Operand:
    """2^n * (1 + r near(r)) - 1. The power of two cancels with 1, so what it misses of the exact one counts."""
    table, missing = _fractional_powers(z.type.element, z.type.lanes)
    power = _scaled(w, _picked(w, z, table), n)
    more = w.fma(r, polynomial(w, r, near), _picked(w, z, missing))
    return w.fma(power, more, w.sub(power, w.const(power, 1.0)))


def _exp(w: Writer, x: Operand, sign: float = 1.0, scale: float = 1.0) -> Operand:
    """scale * e^x, or e^-x for a sign of -1."""
    high, low = vector_exp.LN2[x.type.element]
    z = w.fma(x, w.const(x, sign / math.log(2)), _step(x))
    n = w.sub(z, _step(x))
    # r, or -r for a sign of -1, which then goes into the coefficients
    r = w.fma(n, w.const(x, -sign * low), w.fma(n, w.const(x, -sign * high), x))
    near = [c * sign ** (k + 1) for k, c in enumerate(_EXP_NEAR[x.type.element])]
    return _power(w, z, n, _bounded(w, r, 1.0), near, scale)


@_by_register
def exp(w: Writer, x: Operand) -> Operand:
    return _exp(w, x)


@_by_register
def exp2(w: Writer, x: Operand) -> Operand:
    z = w.add(x, _step(x))
    n = w.sub(z, _step(x))
    return _power(w, z, n, _bounded(w, w.sub(x, n), 1.0), _EXP2_NEAR[x.type.element], 1.0)


@_by_register
def sigmoid(w: Writer, x: Operand) -> Operand:
    scale = _SIGMOID_SCALE[x.type.element]
    top = w.const(x, scale)
    return w.div(top, w.add(top, _exp(w, x, -1.0, scale)))


@_by_register
def tanh(w: Writer, x: Operand) -> Operand:
    """As `vector_exp.tanh`. What rounding ln 2 does to r is nothing here: where n is large, tanh hardly moves."""
    a = at_most(w, magnitude(w, x), vector_exp.TANH_ONE[x.type.element])
    z = w.fma(a, w.const(x, 2 / math.log(2)), _step(x))
    n = w.sub(z, _step(x))
    half = w.fma(n, w.const(x, -math.log(2) / 2), a)  # of r
    e = _power_less_1(w, z, n, half, [c * 2.0 ** (k + 1) for k, c in enumerate(_EXPM1_NEAR[x.type.element])])
    return with_sign(w, w.div(e, w.add(e, w.const(e, 2.0))), x)


def gelu_tanh(w: Writer, x: Operand) -> Operand:
    return vector_exp.gelu_tanh(w, x, sigmoid)


@_by_register
def _gelu_erf(w: Writer, x: Operand) -> Operand:
    def tail(a: Operand, slope: Operand) -> Operand:
        z = w.fma(a, slope, _step(a))
        n = w.sub(z, _step(a))
        return _power(w, z, n, w.fma(a, slope, w.neg(n)), _EXP2_NEAR[a.type.element], 0.5)

    return vector_erf.gelu_of_tail(w, x, _PHI_ZERO, tail)


def gelu_erf(w: Writer, x: Operand) -> Operand:
    return _gelu_erf(w, x) if x.type.element == "f32" else vector_erf.gelu_erf(w, x)


def _log(base: float) -> Emit:
    def emit(w: Writer, x: Operand) -> Operand:
        m = _masked(w, "getmant", x, 0b1111)  # 3/4 <= m < 3/2, NaN of negative numbers
        e = w.sub(_masked(w, "getexp", x), _masked(w, "getexp", m))
        return vector_log.log_of_parts(w, e, w.sub(m, w.const(m, 1.0)), base)

    return _by_register(emit)


def extreme(w: Writer, name: str, x: Operand, y: Operand) -> Operand:
    """max or min, NaN where either is: `vmaxps` gives y where there is a NaN, and `vfixupimmps` puts that of x back."""

    def emit(w: Writer, x: Operand, y: Operand) -> Operand:
        best = w.select(w.compare("gt" if name == "max" else "lt", x, y), x, y)
        bits = x.type.of(format_of(x).integer)
        kinds = literal(bits, 0x22)  # two responses, for both kinds of NaN: 2 is the NaN itself; the others keep `best`
        full = f"llvm.x86.avx512.mask.fixupimm.{'ps' if x.type.element == 'f32' else 'pd'}.512"
        mask = f"i{x.type.lanes}"
        w.declared.setdefault(f"declare {x.type} @{full}({x.type}, {x.type}, {bits}, i32 immarg, {mask}, i32 immarg)")
        return w.make(x.type, f"call {x.type} @{full}({best}, {x}, {kinds}, i32 0, {mask} -1, i32 4)")

    return _by_register(emit)(w, x, y)


FUNCTIONS: Mapping[str, Emit] = {
    "exp": exp, "exp2": exp2, "sigmoid": sigmoid, "tanh": tanh, "gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf,
    "log": _log(math.e), "log2": _log(2), "log10": _log(10),
}  # fmt: skip
