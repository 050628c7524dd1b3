"""The elementwise operations that `Map.op` may name: one record each, with its meaning as a numpy function.

All arguments have one dtype, but for the condition of `where`, which is bool. The result has that dtype, or is bool. Half types
are computed in float32 and rounded once. Integers wrap around; they divide toward zero (`floor_div` and `mod` downward), and
what is divided by 0 is 0. A shift by a count that is negative or not below the width is 0 (all signs for a negative `shr`).
`max` and `min` are NaN where either side is, and either zero where both sides are zeros; the sign of NaN is NaN. `ulp` is how
far a code generator may be from the exact result, in units in the last place; 0 means correctly rounded, None that the
operation cancels, in eager too, and is judged by the float64 rule of `hotfuse.numerics`.

Not offered, because nobody needs them in a kernel: see `NOT_OFFERED`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotfuse.errors import TileError
from hotfuse.ir.ops.activation import gelu, sigmoid
from hotfuse.ir.ops.elementwise import divide, rsqrt, widened
from hotfuse.ir.types import BOOL, DTYPES, DType
from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]

BLOCK_DTYPES = tuple(
    DTYPES[n] for n in ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
)
FLOATS = ("float",)
WHOLE = ("int", "uint")
NUMBERS = (*FLOATS, *WHOLE)
BITS = (*WHOLE, "bool")
ANY_KIND = (*NUMBERS, "bool")

FOLDS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}  # what joins two results of each

# Functions of scalar bodies (`ir/ops/elementwise.SCALAR_FUNCTIONS`) that have no operation here; such operators run at tier 0.
NOT_OFFERED = ("lgamma", "digamma")


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation; see the module docstring. `kinds` are the dtype kinds of its arguments."""

    name: str
    arity: int
    kinds: tuple[str, ...]
    reference: Callable[..., Array]
    ulp: int | None = 0
    is_test: bool = False  # the result is bool, whatever the arguments are


def _quiet(function: Callable[..., Any]) -> Callable[..., Array]:
    """Half types through float32; NaN and infinity are results, not warnings."""
    wide = widened(function)

    @functools.wraps(function)
    def run(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(wide(*args))

    return run


def _rounding(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Whole numbers are their own roundings."""

    def run(x: Array) -> Array:
        return np.asarray(function(x) if x.dtype.kind not in "iub" else x.copy())

    return run


def _special(name: str) -> Callable[..., Any]:
    def run(x: Array) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x)

    return run


def _choose(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once. Float64 has no wider type to be exact in: it goes through long double, which is as good but for
    cancellation between the product and z."""
    dtype = z.dtype
    if dtype.kind in "iu":
        return np.asarray(x * y + z)
    with np.errstate(all="ignore"):
        if dtype.itemsize == 8:
            return np.asarray(x.astype(np.longdouble) * y + z).astype(dtype)
        product, addend = np.broadcast_arrays(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))
        total = product + addend  # the product is exact; the sum's own error follows (Knuth), and rounding it to odd keeps
        part = total - product  # the second rounding, to the narrow type, from being a double rounding
        error = (product - (total - part)) + (addend - part)
        even = (total.view(np.int64) & 1) == 0
        nudge = (error != 0) & even & np.isfinite(total)
        return np.asarray(np.where(nudge, np.nextafter(total, np.copysign(np.inf, error)), total)).astype(dtype)


def _op(
    name: str, arity: int, kinds: tuple[str, ...], function: Callable[..., Any], ulp: int | None = 0, test: bool = False
) -> ScalarOp:
    return ScalarOp(name, arity, kinds, _quiet(function), ulp, test)


_ARITHMETIC, _TRANSCENDENTAL = 2, 4  # units in the last place

SCALAR_OPS: dict[str, ScalarOp] = {
    op.name: op
    for op in (
        _op("add", 2, NUMBERS, np.add),
        _op("sub", 2, NUMBERS, np.subtract),
        _op("mul", 2, NUMBERS, np.multiply),
        _op("div", 2, NUMBERS, divide),
        _op("floor_div", 2, NUMBERS, np.floor_divide, _ARITHMETIC),
        _op("mod", 2, NUMBERS, np.remainder, _ARITHMETIC),
        _op("fmod", 2, NUMBERS, np.fmod, _ARITHMETIC),
        _op("neg", 1, NUMBERS, np.negative),
        _op("abs", 1, NUMBERS, np.abs),
        _op("sign", 1, NUMBERS, np.sign),
        ScalarOp("fma", 3, NUMBERS, fused_multiply_add),
        _op("max", 2, ANY_KIND, np.maximum),
        _op("min", 2, ANY_KIND, np.minimum),
        _op("sqrt", 1, FLOATS, np.sqrt),
        _op("rsqrt", 1, FLOATS, rsqrt, _ARITHMETIC),
        _op("reciprocal", 1, FLOATS, np.reciprocal, _ARITHMETIC),
        _op("floor", 1, NUMBERS, _rounding(np.floor)),
        _op("ceil", 1, NUMBERS, _rounding(np.ceil)),
        _op("trunc", 1, NUMBERS, _rounding(np.trunc)),
        _op("round", 1, NUMBERS, _rounding(np.rint)),
        *(
            _op(name, 1, FLOATS, function, _TRANSCENDENTAL)
            for name, function in (
                ("exp", np.exp), ("exp2", np.exp2), ("expm1", np.expm1), ("log", np.log), ("log1p", np.log1p),
                ("log2", np.log2), ("log10", np.log10), ("sin", np.sin), ("cos", np.cos), ("tan", np.tan),
                ("asin", np.arcsin), ("acos", np.arccos), ("atan", np.arctan), ("sinh", np.sinh), ("cosh", np.cosh),
                ("tanh", np.tanh), ("asinh", np.arcsinh), ("acosh", np.arccosh), ("atanh", np.arctanh),
                ("erf", _special("erf")), ("erfc", _special("erfc")), ("sigmoid", sigmoid),
            )
        ),
        _op("gelu_erf", 1, FLOATS, gelu, None),
        _op("gelu_tanh", 1, FLOATS, functools.partial(gelu, approximate="tanh"), None),
        _op("pow", 2, FLOATS, np.power, _TRANSCENDENTAL),
        _op("atan2", 2, FLOATS, np.arctan2, _TRANSCENDENTAL),
        *(
            _op(name, 2, ANY_KIND, function, test=True)
            for name, function in (
                ("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater),
                ("ge", np.greater_equal),
            )
        ),
        _op("isnan", 1, FLOATS, np.isnan, test=True),
        _op("isinf", 1, FLOATS, np.isinf, test=True),
        _op("and", 2, BITS, np.bitwise_and),
        _op("or", 2, BITS, np.bitwise_or),
        _op("xor", 2, BITS, np.bitwise_xor),
        _op("not", 1, BITS, np.bitwise_not),
        _op("shl", 2, WHOLE, np.left_shift),
        _op("shr", 2, WHOLE, np.right_shift),
        ScalarOp("where", 3, ANY_KIND, _choose),
    )
}  # fmt: skip


def result_dtype(name: str, dtypes: Sequence[DType]) -> DType:
    """The dtype of an operation's result, or TileError saying which rule its arguments break."""
    op = SCALAR_OPS.get(name)
    if op is None:
        raise TileError(f"there is no operation {name!r}; they are {', '.join(SCALAR_OPS)}")
    if len(dtypes) != op.arity:
        raise TileError(f"{name} takes {op.arity} arguments, not {len(dtypes)}")
    rest = dtypes
    if name == "where":
        if dtypes[0] != BOOL:
            raise TileError(f"the condition of where must be bool, not {dtypes[0]}")
        rest = dtypes[1:]
    if any(d != rest[0] for d in rest):
        raise TileError(f"{name} takes arguments of one type, not {', '.join(map(str, rest))}; cast some")
    if rest[0].kind not in op.kinds:
        raise TileError(f"{name} is not defined for {rest[0]}")
    return BOOL if op.is_test else rest[0]


def neutral(fold: str, dtype: DType) -> float:
    """The number that a fold begins with: joined with any other, it gives that other one."""
    if fold in ("max", "min") and not dtype.is_float and dtype.kind != "bool":
        signed = dtype.kind == "int"
        low, high = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if signed else (0, (1 << dtype.bits) - 1)
        return low if fold == "max" else high
    if fold in ("max", "min") and dtype == BOOL:
        return 0 if fold == "max" else 1
    return {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf"), "any": 0, "all": 1}[fold]
