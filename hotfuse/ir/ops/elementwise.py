"""Elementwise arithmetic and functions: one row per operator, with its numpy reference and its scalar body.

The scalar body is an expression over x, y, z (the inputs' elements) and the attributes' names. It uses + - * / comparisons and
the functions of `SCALAR_FUNCTIONS`; code generators read it, and a test holds it against the reference. Activation functions
are in `activation`, comparisons and logic in `comparison`; both define their operators with `unary` and `binary`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir import contents, special
from hotfuse.ir.dim import Dim, maximum, minimum
from hotfuse.ir.op import (
    Call,
    OpDef,
    Pattern,
    Sample,
    broadcast_shapes,
    define,
    flops_per_element,
    infer_broadcast,
    infer_same,
)
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]

SCALAR_FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
    "fmod", "isinf", "isnan", "log", "log1p", "max", "min", "pow", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc", "where", "lgamma", "digamma", "and_", "or_", "xor", "not_", "shl", "shr",
)  # fmt: skip


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for every float type: half and 8-bit types are computed in float32 and rounded once."""

    @functools.wraps(function)
    def run(*inputs: Any, **attrs: Any) -> Any:
        small = inputs[0].dtype
        if (small.kind == "f" and small.itemsize >= 4) or small.kind in "iubcO":
            return function(*inputs, **attrs)
        out = attrs.pop("out", None)
        wide = [x.astype(np.float32) if getattr(x, "dtype", None) == small else x for x in inputs]
        result = function(*wide, **attrs)
        if isinstance(result, tuple):
            return tuple(r.astype(small) if r.dtype == np.float32 else r for r in result)
        if out is not None:
            out[...] = result
            return out
        return result.astype(small) if result.dtype == np.float32 else result

    return run


# computed by scipy, which takes long to import: always, or where the numbers are float64
SPECIAL, SPECIAL_F64 = frozenset(("lgamma", "digamma")), frozenset(("erf", "gelu", "ndtr"))


def _special(name: str) -> Callable[..., Any]:
    def run(x: Array, out: Array | None = None) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x, out=out)

    return run


def rsqrt(x: Array, out: Array | None = None) -> Any:
    return np.reciprocal(np.sqrt(x, out=out), out=out)


def divide(x: Array, y: Array, out: Array | None = None) -> Any:
    """True division of floats; integers divide toward zero."""
    with np.errstate(all="ignore"):
        if x.dtype.kind not in "iu":
            return np.divide(x, y, out=out)
        quotient = np.floor_divide(x, y, out=out)
        if x.dtype.kind == "i":
            quotient += ((x % y != 0) & ((x < 0) != (y < 0))).astype(quotient.dtype)
        return quotient


def power(x: Array, y: Array) -> Any:
    """x ** y in the type of x; the exponent may be of another type."""
    if x.dtype.kind in "iu":
        if y.dtype.kind in "iu" and bool(np.all(y >= 0)):
            return np.power(x, y.astype(x.dtype))
        with np.errstate(all="ignore"):
            return np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    wide = x.dtype if x.dtype.kind in "fc" and x.dtype.itemsize >= 4 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        return np.power(x.astype(wide), y.astype(wide)).astype(x.dtype)


def _quiet(function: Any) -> Callable[..., Any]:
    """A numpy function without its warnings about domains: NaN and infinity are results here."""
    if function.nin == 1:

        def unary(x: Array, out: Array | None = None) -> Any:
            with np.errstate(all="ignore"):
                return function(x, out=out)

        return unary

    def binary(x: Array, y: Array, out: Array | None = None) -> Any:
        with np.errstate(all="ignore"):
            return function(x, y, out=out)

    return binary


def infer_float(call: Call) -> Sequence[Type]:
    """Shape and dtype of the first input, which must be a float (or complex)."""
    x = call.tensor(0)
    if not (x.dtype.is_float or x.dtype.kind == "complex"):
        raise call.fail(f"is not defined for {x.dtype}; cast the input to a float type first")
    return (x,)


def infer_power(call: Call) -> Sequence[Type]:
    return (TensorType(call.dtype(0), broadcast_shapes(call.shape(0), call.shape(1))),)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def unary_samples(low: float = -3.0, high: float = 3.0, **attrs: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for shape in ((), (7,), (3, 5), (2, 0, 3)):
            yield Sample((np.asarray(rng(len(shape)).uniform(low, high, shape), dtype=np.float32),), attrs)

    return make


def binary_samples(low: float = -3.0, high: float = 3.0, dtype: Any = np.float32) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for a, b in (((), ()), ((4, 5), (4, 5)), ((4, 1), (3,)), ((2, 3, 4), (1,)), ((0, 3), (1, 3))):
            source = rng(len(a))
            yield Sample(tuple(np.asarray(source.uniform(low, high, s)).astype(dtype) for s in (a, b)))

    return make


def unary(
    name: str,
    reference: Any,
    scalar: str | None,
    flops: int = 1,
    *,
    infer: Callable[[Call], Sequence[Type]] = infer_float,
    onnx: tuple[str, ...] = (),
    torch: tuple[str, ...] = (),
    domain: tuple[float, float] = (-3.0, 3.0),
    attrs: dict[str, Any] | None = None,
    track: contents.Track | None = None,
    doc: str = "",
) -> None:
    """Define an elementwise operator of one input."""
    define(
        OpDef(
            name,
            infer,
            reference,
            Pattern.ELEMENTWISE,
            doc,
            scalar=scalar,
            contents=track,
            flops=flops_per_element(flops),
            onnx=onnx,
            torch=torch or (f"aten.{name}.default",),
            samples=unary_samples(*domain, **(attrs or {})),
        )
    )


def binary(
    name: str,
    reference: Any,
    scalar: str,
    flops: int = 1,
    *,
    infer: Callable[[Call], Sequence[Type]] = infer_broadcast,
    onnx: tuple[str, ...] = (),
    torch: tuple[str, ...] = (),
    domain: tuple[float, float] = (-3.0, 3.0),
    dtype: Any = np.float32,
    track: contents.Track | None = None,
    doc: str = "",
) -> None:
    """Define an elementwise operator of two inputs."""
    define(
        OpDef(
            name,
            infer,
            reference,
            Pattern.ELEMENTWISE,
            doc,
            scalar=scalar,
            contents=track,
            flops=flops_per_element(flops),
            onnx=onnx,
            torch=torch or (f"aten.{name}.Tensor",),
            samples=binary_samples(*domain, dtype=dtype),
        )
    )


def _negated(x: Dim) -> Dim:
    return -x


# name, reference, scalar body, flops of one element
unary("abs", np.abs, "abs(x)", infer=infer_same, onnx=("Abs",), track=contents.elementwise(contents.magnitude))
unary("neg", np.negative, "-x", infer=infer_same, onnx=("Neg",), track=contents.elementwise(_negated, ring=True))
unary("sign", np.sign, "sign(x)", infer=infer_same, onnx=("Sign",), torch=("aten.sign.default", "aten.sgn.default"))
unary("ceil", np.ceil, "ceil(x)", infer=infer_same, onnx=("Ceil",))
unary("floor", np.floor, "floor(x)", infer=infer_same, onnx=("Floor",))
unary("trunc", np.trunc, "trunc(x)", infer=infer_same)
unary("round", np.rint, "round(x)", onnx=("Round",), doc="to the nearest whole number, halves to even")
unary("sqrt", _quiet(np.sqrt), "sqrt(x)", 4, onnx=("Sqrt",), domain=(0.0, 9.0))
unary("rsqrt", widened(rsqrt), "rsqrt(x)", 5, domain=(0.1, 9.0))
unary("reciprocal", _quiet(np.reciprocal), "1 / x", 4, onnx=("Reciprocal",), domain=(0.1, 9.0))
unary("exp", _quiet(np.exp), "exp(x)", 12, onnx=("Exp",))
unary("expm1", _quiet(np.expm1), "expm1(x)", 14)
unary("log", _quiet(np.log), "log(x)", 14, onnx=("Log",), domain=(0.01, 9.0))
unary("log1p", _quiet(np.log1p), "log1p(x)", 16, domain=(-0.9, 9.0))
unary("log2", _quiet(np.log2), "log(x) * 1.4426950408889634", 15, domain=(0.01, 9.0))
unary("log10", _quiet(np.log10), "log(x) * 0.4342944819032518", 15, domain=(0.01, 9.0))
unary("exp2", _quiet(np.exp2), "exp(x * 0.6931471805599453)", 13)
unary("sin", _quiet(np.sin), "sin(x)", 16, onnx=("Sin",))
unary("cos", _quiet(np.cos), "cos(x)", 16, onnx=("Cos",))
unary("tan", _quiet(np.tan), "tan(x)", 24, onnx=("Tan",), domain=(-1.2, 1.2))
unary("asin", _quiet(np.arcsin), "asin(x)", 20, onnx=("Asin",), domain=(-0.99, 0.99))
unary("acos", _quiet(np.arccos), "acos(x)", 20, onnx=("Acos",), domain=(-0.99, 0.99))
unary("atan", _quiet(np.arctan), "atan(x)", 20, onnx=("Atan",))
unary("sinh", _quiet(np.sinh), "sinh(x)", 24, onnx=("Sinh",))
unary("cosh", _quiet(np.cosh), "cosh(x)", 24, onnx=("Cosh",))
unary("tanh", np.tanh, "tanh(x)", 16, onnx=("Tanh",))
unary("asinh", _quiet(np.arcsinh), "asinh(x)", 20, onnx=("Asinh",))
unary("acosh", _quiet(np.arccosh), "acosh(x)", 20, onnx=("Acosh",), domain=(1.01, 9.0))
unary("atanh", _quiet(np.arctanh), "atanh(x)", 20, onnx=("Atanh",), domain=(-0.99, 0.99))
unary("erf", widened(special.erf), "erf(x)", 18, onnx=("Erf",))
unary("lgamma", widened(_special("gammaln")), "lgamma(x)", 40, domain=(0.1, 9.0))
unary("digamma", widened(_special("psi")), "digamma(x)", 40, domain=(0.1, 9.0))

_whole = contents.elementwise
binary("add", np.add, "x + y", onnx=("Add",), track=_whole(lambda x, y: x + y, ring=True))
binary("sub", np.subtract, "x - y", onnx=("Sub",), track=_whole(lambda x, y: x - y, ring=True))
binary("mul", np.multiply, "x * y", onnx=("Mul",), track=_whole(lambda x, y: x * y, ring=True))
binary(
    "div", divide, "x / y", 4, onnx=("Div",), domain=(0.5, 3.0), track=_whole(contents.quotient),
    doc="integers divide toward zero",
)  # fmt: skip
binary(
    "floor_div", _quiet(np.floor_divide), "floor(x / y)", 5, domain=(0.5, 3.0), torch=("aten.floor_divide.default",),
    track=_whole(contents.floor_quotient),
)  # fmt: skip
binary(
    "mod", _quiet(np.remainder), "x - y * floor(x / y)", 6, domain=(0.5, 3.0), torch=("aten.remainder.Tensor",),
    track=_whole(contents.remainder), doc="the remainder has the sign of y",
)  # fmt: skip
binary(
    "fmod", _quiet(np.fmod), "fmod(x, y)", 6, domain=(0.5, 3.0), track=_whole(contents.truncated_remainder),
    doc="the remainder has the sign of x",
)  # fmt: skip
binary("pow", power, "pow(x, y)", 30, infer=infer_power, domain=(0.1, 3.0), torch=("aten.pow.Tensor_Tensor",))
binary("atan2", np.arctan2, "atan2(x, y)", 24, torch=("aten.atan2.default",))
binary("maximum", np.maximum, "max(x, y)", torch=("aten.maximum.default",), track=_whole(maximum), doc="NaN if either is")
binary("minimum", np.minimum, "min(x, y)", torch=("aten.minimum.default",), track=_whole(minimum), doc="NaN if either is")
