"""Steps that the vector functions share: polynomials, clamps, signs, and floats taken apart. Emits code through a `Writer`.

Everything here and in the files that build on it is straight-line code for f32 and f64 of any lane count, and a lane's result
does not depend on how many lanes there are. It relies on rounding to nearest, on denormals (no flush to zero), and on a target
that has fused multiply-add: without one LLVM would call `fma` of a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.records import dataclass

Table = Mapping[str, Sequence[float]]  # element type -> coefficients, constant term first


@dataclass(frozen=True, slots=True)
class Format:
    """How an IEEE type is laid out."""

    integer: str
    mantissa: int  # bits behind the point
    bias: int

    @property
    def round_magic(self) -> float:
        """Added to a small number, it leaves that number rounded to an integer in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def exponent_mask(self) -> int:
        """Sign and exponent."""
        return -(1 << self.mantissa)

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


FORMATS = {"f32": Format("i32", 23, 127), "f64": Format("i64", 52, 1023)}


def format_of(x: Operand) -> Format:
    return FORMATS[x.type.element]


def polynomial(w: Writer, x: Operand, coefficients: Sequence[float]) -> Operand:
    """sum c_k x^k by Horner's rule: the fewest instructions. The other vectors of a loop fill the time that each step waits."""
    *rest, top = coefficients
    value = w.const(x, top)
    for c in reversed(rest):
        value = w.fma(value, x, w.const(x, c))
    return value


def at_least(w: Writer, x: Operand, low: float) -> Operand:
    """NaN stays. Written so that x86 has one instruction for it."""
    bound = w.const(x, low)
    return w.select(w.compare("gt", bound, x), bound, x)


def at_most(w: Writer, x: Operand, high: float) -> Operand:
    bound = w.const(x, high)
    return w.select(w.compare("lt", bound, x), bound, x)


def magnitude(w: Writer, x: Operand) -> Operand:
    return w.unary("fabs", x)


def with_sign(w: Writer, x: Operand, sign: Operand) -> Operand:
    return w.binary("copysign", x, sign)


def is_negative(w: Writer, x: Operand) -> Operand:
    """The sign bit: true of -0."""
    bits = w.bitcast(x, format_of(x).integer)
    return w.compare("lt", bits, w.const(bits, 0))


def near_zero(w: Writer, x: Operand, limit: float, result: Operand) -> Operand:
    """x itself where |x| < limit: for odd functions that begin with x, where scaling lost the bits of a denormal or a sign."""
    return w.select(w.compare("lt", magnitude(w, x), w.const(x, limit)), x, result)


def nearest_integer(w: Writer, x: Operand, factor: float, bias: int = 0) -> tuple[Operand, Operand]:
    """(t, n): n = x*factor rounded to an integer, and t, whose low bits are n + bias."""
    magic = w.const(x, format_of(x).round_magic + bias)
    t = w.fma(x, w.const(x, factor), magic)
    return t, w.sub(t, magic)


def power_of_two(w: Writer, t: Operand) -> Operand:
    """2^n from the t of `nearest_integer` with the format's bias; n + bias is in [0, 2 bias + 1], whose ends make 0 and inf."""
    layout = format_of(t)
    bits = w.bitcast(t, layout.integer)
    return w.bitcast(w.shl(bits, w.const(bits, layout.mantissa)), t.type.element)


def choose(w: Writer, condition: Operand, value: float, otherwise: Operand) -> Operand:
    """The number where the condition holds."""
    return w.select(condition, w.const(otherwise, value), otherwise)


def two_sum(w: Writer, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """(x + y rounded, what rounding lost)"""
    total = w.add(x, y)
    part = w.sub(total, x)
    return total, w.add(w.sub(x, w.sub(total, part)), w.sub(y, part))


def two_product(w: Writer, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """(x * y rounded, what rounding lost)"""
    product = w.mul(x, y)
    return product, w.fma(x, y, w.neg(product))
