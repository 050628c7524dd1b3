"""Elementwise operations as LLVM instructions: `emit_map` for `Map`, `emit_cast` for `Cast`. Operands have equal lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotfuse.codegen import vector_avx512, vector_math
from hotfuse.codegen.llvm_text import Operand, Writer
from hotfuse.errors import TileError

Emit = Callable[..., Operand]


def _extreme(name: str) -> Emit:
    def emit(w: Writer, x: Operand, y: Operand) -> Operand:
        if w.isa == "avx512" and x.type.element in ("f32", "f64"):
            return vector_avx512.extreme(w, name, x, y)
        if x.type.is_float:  # which of 0 and -0 is larger nobody asks; telling costs two instructions
            return w.call(f"llvm.{name}imum.{x.type.suffix}", x.type, x, y, flags="nsz")
        if x.type.element == "bool":
            return w.or_(x, y) if name == "max" else w.and_(x, y)
        return w.binary(f"{'s' if x.type.is_signed else 'u'}{name}", x, y)

    return emit


def _abs(w: Writer, x: Operand) -> Operand:
    if x.type.is_float:
        return w.unary("fabs", x)
    if not x.type.is_signed:
        return x
    return w.select(w.compare("lt", x, w.const(x, 0)), w.neg(x), x)


def _sign(w: Writer, x: Operand) -> Operand:
    """NaN stays NaN and zeros keep theirs, as numpy has it."""
    zero, one = w.const(x, 0), w.const(x, 1)
    below = w.neg(one) if x.type.is_float else w.const(x, -1)
    down = w.select(w.compare("lt", x, zero), below, x) if x.type.is_float or x.type.is_signed else x
    return w.select(w.compare("gt", x, zero), one, down)


def _rounding(name: str) -> Emit:
    return lambda w, x: w.unary(name, x) if x.type.is_float else x


def _isinf(w: Writer, x: Operand) -> Operand:
    return w.compare("eq", w.unary("fabs", x), w.const(x, float("inf")))


def _isnan(w: Writer, x: Operand) -> Operand:
    return w.compare("ne", x, x)


def _fma(w: Writer, x: Operand, y: Operand, z: Operand) -> Operand:
    return w.fma(x, y, z) if x.type.is_float else w.add(w.mul(x, y), z)


def _comparison(how: str) -> Emit:
    return lambda w, x, y: w.compare(how, x, y)


def _float_div(w: Writer, x: Operand, y: Operand) -> Operand:
    if not x.type.is_float:
        raise TileError("integer division has no native code: a divisor of zero would stop the process")
    return w.div(x, y)


_BASIC: Mapping[str, Emit] = {
    "add": Writer.add, "sub": Writer.sub, "mul": Writer.mul, "div": _float_div, "neg": Writer.neg, "abs": _abs, "sign": _sign,
    "sqrt": lambda w, x: w.unary("sqrt", x), "reciprocal": lambda w, x: w.div(w.const(x, 1.0), x),
    "floor": _rounding("floor"), "ceil": _rounding("ceil"), "trunc": _rounding("trunc"), "round": _rounding("roundeven"),
    "max": _extreme("max"), "min": _extreme("min"), "fma": _fma, "isnan": _isnan, "isinf": _isinf,
    "and": Writer.and_, "or": Writer.or_, "xor": Writer.xor, "not": Writer.not_, "where": Writer.select,
    **{how: _comparison(how) for how in ("eq", "ne", "lt", "le", "gt", "ge")},
}  # fmt: skip


def emit_map(w: Writer, op: str, args: Sequence[Operand]) -> Operand:
    """One elementwise operation."""
    if op != "where" and any(x.type.element == "bf16" for x in args):
        wide = emit_map(w, op, [w.convert(x, "f32") if x.type.element == "bf16" else x for x in args])
        return w.convert(wide, "bf16") if wide.type.element == "f32" else wide
    basic = _BASIC.get(op)
    if basic is not None:
        return basic(w, *args)
    function = vector_math.FUNCTIONS.get(op)
    if function is None or not args[0].type.is_float or args[0].type.bits < 32:
        raise TileError(f"there is no native code for {op} of {args[0].type.element}")
    return function(w, *args)


def emit_cast(w: Writer, x: Operand, element: str) -> Operand:
    """To another element type. A float that an integer type cannot hold becomes the least integer, as x86 and numpy have it."""
    if x.type.is_float and element[0] in "iu" and element != x.type.element:
        if x.type.bits < 32:
            x = w.convert(x, "f32")
        bits = int(element[1:])
        if element[0] == "u" or bits < 32:  # numpy and C go through a wider signed integer
            return w.convert(emit_cast(w, x, "i64"), element)
        limit = w.const(x, 2.0 ** (bits - 1))
        fits = w.compare("lt", w.unary("fabs", x), limit)
        safe = w.convert(w.select(fits, x, w.const(x, 0.0)), element)
        return w.select(fits, safe, w.const(safe, -(2 ** (bits - 1))))
    return w.convert(x, element)
