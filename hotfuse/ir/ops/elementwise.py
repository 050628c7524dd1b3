"""Elementwise operators: one row per operator, with its numpy reference and its scalar body.

The scalar body is an expression over x, y, z (the inputs' elements) and the attributes' names. It uses + - * / comparisons and
the functions of `SCALAR_FUNCTIONS`; code generators read it, and a test holds it against the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.op import (
    Call,
    OpDef,
    Pattern,
    Sample,
    broadcast_shapes,
    contents_by_reference,
    define,
    flops_per_element,
    infer_broadcast,
    infer_same,
)
from hotfuse.ir.types import BOOL, TensorType, Type

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
        if small.kind == "f" and small.itemsize >= 4 or small.kind in "iubcO":
            return function(*inputs, **attrs)
        out = attrs.pop("out", None)
        wide = [x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == small else x for x in inputs]
        result = function(*wide, **attrs)
        if isinstance(result, tuple):
            return tuple(r.astype(small) if r.dtype == np.float32 else r for r in result)
        if out is not None:
            out[...] = result
            return out
        return result.astype(small) if result.dtype == np.float32 else result

    return run


def _special(name: str) -> Callable[..., Any]:
    def run(x: Array, out: Array | None = None) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(x, out=out)

    return run


def relu(x: Array, out: Array | None = None) -> Any:
    return np.maximum(x, x.dtype.type(0), out=out)


def rsqrt(x: Array, out: Array | None = None) -> Any:
    return np.reciprocal(np.sqrt(x, out=out), out=out)


def sigmoid(x: Array, out: Array | None = None) -> Any:
    with np.errstate(over="ignore"):
        result = np.exp(-x, out=out)
        result += x.dtype.type(1)
        return np.reciprocal(result, out=out if out is not None else result)


def silu(x: Array) -> Any:
    return x * sigmoid(x)


def gelu(x: Array, *, approximate: str = "none") -> Any:
    half, one = x.dtype.type(0.5), x.dtype.type(1)
    if approximate == "tanh":
        inner = x.dtype.type(0.7978845608028654) * (x + x.dtype.type(0.044715) * x * x * x)
        return half * x * (one + np.tanh(inner))
    import scipy.special

    result = scipy.special.erf(x * x.dtype.type(0.7071067811865476))
    result += one
    result *= x
    result *= half
    return result


def leaky_relu(x: Array, *, alpha: float = 0.01) -> Any:
    return np.where(x >= 0, x, x * x.dtype.type(alpha))


def elu(x: Array, *, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


def softplus(x: Array, *, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = x * x.dtype.type(beta)
    soft = np.log1p(np.exp(-np.abs(scaled))) + np.maximum(scaled, 0)
    return np.where(scaled > threshold, x, soft / x.dtype.type(beta))


def round_half_even(x: Array, out: Array | None = None) -> Any:
    return np.rint(x, out=out)


def divide(x: Array, y: Array, out: Array | None = None) -> Any:
    """True division of floats; integers divide toward zero."""
    if x.dtype.kind in "iu":
        with np.errstate(divide="ignore"):
            quotient = np.floor_divide(x, y)
            if x.dtype.kind == "i":
                quotient += ((x % y != 0) & ((x < 0) != (y < 0))).astype(quotient.dtype)
            return quotient
    if x.dtype == object:
        return x // y
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(x, y, out=out)


def floor_divide(x: Array, y: Array) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor_divide(x, y)


def power(x: Array, y: Array) -> Any:
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return np.power(x, y.astype(x.dtype)) if (y >= 0).all() else np.power(x.astype(np.float64), y).astype(x.dtype)
    with np.errstate(all="ignore"):
        wide = np.float32 if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else None
        base = x.astype(wide) if wide else x
        exponent = y.astype(np.float32) if y.dtype.kind not in "fiu" else y
        if base.dtype.kind == "f" and exponent.dtype.kind in "fiu":
            exponent = exponent.astype(base.dtype)
        return np.power(base, exponent).astype(x.dtype)


def maximum_nan(x: Array, y: Array, out: Array | None = None) -> Any:
    return np.maximum(x, y, out=out)


def minimum_nan(x: Array, y: Array, out: Array | None = None) -> Any:
    return np.minimum(x, y, out=out)


def shift_left(x: Array, y: Array) -> Any:
    return np.left_shift(x, y)


def shift_right(x: Array, y: Array) -> Any:
    return np.right_shift(x, y)


def python_mod(x: Array, y: Array) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mod(x, y)


def c_fmod(x: Array, y: Array) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.fmod(x, y)


def infer_compare(call: Call) -> Sequence[Type]:
    (both,) = infer_broadcast(call)
    assert isinstance(both, TensorType)
    return (TensorType(BOOL, both.shape),)


def infer_predicate(call: Call) -> Sequence[Type]:
    return (TensorType(BOOL, call.shape(0)),)


def infer_power(call: Call) -> Sequence[Type]:
    return (TensorType(call.dtype(0), broadcast_shapes(call.shape(0), call.shape(1))),)


def infer_where(call: Call) -> Sequence[Type]:
    if call.dtype(0) is not BOOL:
        raise call.fail(f"the condition must be bool, not {call.dtype(0)}")
    if call.dtype(1) != call.dtype(2):
        raise call.fail(f"the two choices have different types, {call.dtype(1)} and {call.dtype(2)}")
    return (TensorType(call.dtype(1), broadcast_shapes(*(call.shape(i) for i in range(3)))),)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def unary_samples(low: float = -3.0, high: float = 3.0, **attrs: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for shape in ((), (7,), (3, 5), (2, 0, 3)):
            yield Sample((np.asarray(_rng(len(shape)).uniform(low, high, shape), dtype=np.float32),), attrs)

    return make


def binary_samples(low: float = -3.0, high: float = 3.0, dtype: Any = np.float32) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for a, b in (((), ()), ((4, 5), (4, 5)), ((4, 1), (3,)), ((2, 3, 4), (1,)), ((0, 3), (1, 3))):
            rng = _rng(len(a))
            yield Sample(tuple(np.asarray(rng.uniform(low, high, s)).astype(dtype) for s in (a, b)))

    return make


def _quiet(function: Any) -> Callable[..., Any]:
    """A numpy function without its warnings about domains: NaN and infinity are results here."""

    def run(x: Array, out: Array | None = None) -> Any:
        with np.errstate(all="ignore"):
            return function(x, out=out)

    return run


def _unary(
    name: str,
    reference: Any,
    scalar: str | None,
    flops: int = 1,
    *,
    onnx: tuple[str, ...] = (),
    torch: tuple[str, ...] = (),
    domain: tuple[float, float] = (-3.0, 3.0),
    attrs: dict[str, Any] | None = None,
    doc: str = "",
) -> None:
    define(
        OpDef(
            name,
            infer_same,
            reference,
            Pattern.ELEMENTWISE,
            doc,
            scalar=scalar,
            flops=flops_per_element(flops),
            onnx=onnx,
            torch=torch or (f"aten.{name}.default",),
            samples=unary_samples(*domain, **(attrs or {})),
        )
    )


# name, reference, scalar body, flops of one element
_unary("abs", np.abs, "abs(x)", onnx=("Abs",))
_unary("neg", np.negative, "-x", onnx=("Neg",))
_unary("sign", np.sign, "sign(x)", onnx=("Sign",), torch=("aten.sign.default", "aten.sgn.default"))
_unary("ceil", np.ceil, "ceil(x)", onnx=("Ceil",))
_unary("floor", np.floor, "floor(x)", onnx=("Floor",))
_unary("trunc", np.trunc, "trunc(x)")
_unary("round", round_half_even, "round(x)", onnx=("Round",), doc="to the nearest whole number, halves to even")
_unary("sqrt", _quiet(np.sqrt), "sqrt(x)", 4, onnx=("Sqrt",), domain=(0.0, 9.0))
_unary("rsqrt", _quiet(rsqrt), "rsqrt(x)", 5, domain=(0.1, 9.0))
_unary("reciprocal", _quiet(np.reciprocal), "1 / x", 4, onnx=("Reciprocal",), domain=(0.1, 9.0))
_unary("exp", _quiet(np.exp), "exp(x)", 12, onnx=("Exp",))
_unary("expm1", _quiet(np.expm1), "expm1(x)", 14)
_unary("log", _quiet(np.log), "log(x)", 14, onnx=("Log",), domain=(0.01, 9.0))
_unary("log1p", _quiet(np.log1p), "log1p(x)", 16, domain=(-0.9, 9.0))
_unary("log2", _quiet(np.log2), "log(x) * 1.4426950408889634", 15, domain=(0.01, 9.0))
_unary("log10", _quiet(np.log10), "log(x) * 0.4342944819032518", 15, domain=(0.01, 9.0))
_unary("exp2", _quiet(np.exp2), "exp(x * 0.6931471805599453)", 13)
_unary("sin", _quiet(np.sin), "sin(x)", 16, onnx=("Sin",))
_unary("cos", _quiet(np.cos), "cos(x)", 16, onnx=("Cos",))
_unary("tan", _quiet(np.tan), "tan(x)", 24, onnx=("Tan",), domain=(-1.2, 1.2))
_unary("asin", _quiet(np.arcsin), "asin(x)", 20, onnx=("Asin",), domain=(-0.99, 0.99))
_unary("acos", _quiet(np.arccos), "acos(x)", 20, onnx=("Acos",), domain=(-0.99, 0.99))
_unary("atan", _quiet(np.arctan), "atan(x)", 20, onnx=("Atan",))
_unary("sinh", _quiet(np.sinh), "sinh(x)", 24, onnx=("Sinh",))
_unary("cosh", _quiet(np.cosh), "cosh(x)", 24, onnx=("Cosh",))
_unary("tanh", np.tanh, "tanh(x)", 16, onnx=("Tanh",))
_unary("asinh", _quiet(np.arcsinh), "asinh(x)", 20, onnx=("Asinh",))
_unary("acosh", _quiet(np.arccosh), "acosh(x)", 20, onnx=("Acosh",), domain=(1.01, 9.0))
_unary("atanh", _quiet(np.arctanh), "atanh(x)", 20, onnx=("Atanh",), domain=(-0.99, 0.99))
_unary("erf", widened(_special("erf")), "erf(x)", 18, onnx=("Erf",))
_unary("lgamma", widened(_special("gammaln")), "lgamma(x)", 40, domain=(0.1, 9.0))
_unary("digamma", widened(_special("psi")), "digamma(x)", 40, domain=(0.1, 9.0))
_unary("sigmoid", widened(sigmoid), "1 / (1 + exp(-x))", 15, onnx=("Sigmoid",))
_unary("silu", widened(silu), "x / (1 + exp(-x))", 16)
_unary("relu", relu, "max(x, 0)", onnx=("Relu",))
_unary(
    "gelu", widened(gelu), "0.5 * x * (1 + erf(x * 0.7071067811865476))", 22, attrs={"approximate": "none"},
    doc="approximate = tanh takes the tanh form",
)  # fmt: skip
_unary("leaky_relu", leaky_relu, "where(x >= 0, x, alpha * x)", 2, attrs={"alpha": 0.1})
_unary("elu", widened(elu), "where(x > 0, x, alpha * expm1(min(x, 0)))", 16, attrs={"alpha": 0.7})
_unary(
    "softplus", widened(softplus), "where(x * beta > threshold, x, log1p(exp(x * beta)) / beta)", 30,
    attrs={"beta": 1.0, "threshold": 20.0},
)  # fmt: skip


def _binary(
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
    symbolic: bool = False,
    doc: str = "",
) -> None:
    define(
        OpDef(
            name,
            infer,
            reference,
            Pattern.ELEMENTWISE,
            doc,
            scalar=scalar,
            contents=contents_by_reference if symbolic else None,
            flops=flops_per_element(flops),
            onnx=onnx,
            torch=torch or (f"aten.{name}.Tensor",),
            samples=binary_samples(*domain, dtype=dtype),
        )
    )


_binary("add", np.add, "x + y", onnx=("Add",), symbolic=True)
_binary("sub", np.subtract, "x - y", onnx=("Sub",), symbolic=True)
_binary("mul", np.multiply, "x * y", onnx=("Mul",), symbolic=True)
_binary("div", divide, "x / y", 4, onnx=("Div",), domain=(0.5, 3.0), symbolic=True, doc="integers divide toward zero")
_binary("floor_div", floor_divide, "floor(x / y)", 5, domain=(0.5, 3.0), torch=("aten.floor_divide.default",))
_binary("mod", python_mod, "x - y * floor(x / y)", 6, domain=(0.5, 3.0), torch=("aten.remainder.Tensor",))
_binary("fmod", c_fmod, "fmod(x, y)", 6, domain=(0.5, 3.0))
_binary("pow", power, "pow(x, y)", 30, infer=infer_power, domain=(0.1, 3.0), torch=("aten.pow.Tensor_Tensor",))
_binary("atan2", np.arctan2, "atan2(x, y)", 24, torch=("aten.atan2.default",))
_binary("maximum", maximum_nan, "max(x, y)", torch=("aten.maximum.default",), doc="NaN if either is")
_binary("minimum", minimum_nan, "min(x, y)", torch=("aten.minimum.default",), doc="NaN if either is")
_binary("logical_and", np.logical_and, "and_(x, y)", onnx=("And",), dtype=np.bool_, torch=("aten.logical_and.default",))
_binary("logical_or", np.logical_or, "or_(x, y)", onnx=("Or",), dtype=np.bool_, torch=("aten.logical_or.default",))
_binary("logical_xor", np.logical_xor, "xor(x, y)", onnx=("Xor",), dtype=np.bool_, torch=("aten.logical_xor.default",))
_binary("bitwise_and", np.bitwise_and, "and_(x, y)", onnx=("BitwiseAnd",), dtype=np.int32)
_binary("bitwise_or", np.bitwise_or, "or_(x, y)", onnx=("BitwiseOr",), dtype=np.int32)
_binary("bitwise_xor", np.bitwise_xor, "xor(x, y)", onnx=("BitwiseXor",), dtype=np.int32)
_binary("shift_left", shift_left, "shl(x, y)", dtype=np.uint8, domain=(0, 7), torch=("aten.bitwise_left_shift.Tensor",))
_binary("shift_right", shift_right, "shr(x, y)", dtype=np.uint8, domain=(0, 7), torch=("aten.bitwise_right_shift.Tensor",))
for _name, _function, _body, _onnx, _torch in (
    ("equal", np.equal, "x == y", ("Equal",), "eq"),
    ("not_equal", np.not_equal, "x != y", (), "ne"),
    ("less", np.less, "x < y", ("Less",), "lt"),
    ("less_equal", np.less_equal, "x <= y", ("LessOrEqual",), "le"),
    ("greater", np.greater, "x > y", ("Greater",), "gt"),
    ("greater_equal", np.greater_equal, "x >= y", ("GreaterOrEqual",), "ge"),
):
    _binary(_name, _function, _body, infer=infer_compare, onnx=_onnx, torch=(f"aten.{_torch}.Tensor",))

for _name, _function, _body, _onnx in (
    ("logical_not", np.logical_not, "not_(x)", ("Not",)),
    ("isnan", np.isnan, "isnan(x)", ("IsNaN",)),
    ("isinf", np.isinf, "isinf(x)", ()),
):
    define(
        OpDef(
            _name, infer_predicate, _function, Pattern.ELEMENTWISE, scalar=_body, flops=flops_per_element(1), onnx=_onnx,
            torch=(f"aten.{_name}.default",), samples=unary_samples(),
        )
    )  # fmt: skip

define(
    OpDef(
        "bitwise_not", infer_same, np.bitwise_not, Pattern.ELEMENTWISE, scalar="not_(x)", flops=flops_per_element(1),
        onnx=("BitwiseNot",), torch=("aten.bitwise_not.default",),
        samples=lambda: [Sample((np.arange(-4, 4, dtype=np.int32),))],
    )
)  # fmt: skip


def where(condition: Array, x: Array, y: Array) -> Any:
    return np.where(condition, x, y)


def _where_contents(call: Call) -> Sequence[tuple[Any, ...] | None]:
    condition = call.ints(0)
    return (None,) if condition is None else contents_by_reference(call)


define(
    OpDef(
        "where", infer_where, where, Pattern.ELEMENTWISE, "the second input where the first holds, else the third",
        scalar="where(x, y, z)", contents=_where_contents, flops=flops_per_element(1), onnx=("Where",),
        torch=("aten.where.self",),
        samples=lambda: [
            Sample((_rng().random((3, 4)) > 0.5, _rng(1).random((3, 4), np.float32), np.float32(2.0).reshape(()))),
            Sample((np.array([True, False]), np.arange(6).reshape(3, 2), np.zeros((3, 1), np.int64))),
        ],
    )
)  # fmt: skip
