"""Every operator record is held against itself and against torch, over the record's own samples.

Inference must say what the reference returns; writing into given memory must give the same bits; a reference never returns
its inputs' memory unless it is a view of the first; scalar bodies, read by the small interpreter below, must give what the
reference gives; and where a record names an ATen operator that is the same function, torch must agree.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as nn

import hotfuse.ir.ops  # noqa: F401  (fills OPS)
from hotfuse.ir.builder import infer_node
from hotfuse.ir.graph import Attrs, Value
from hotfuse.ir.op import CONTENTS_LIMIT, OPS, FreshSymbols, OpDef, Pattern, Sample
from hotfuse.ir.ops.elementwise import SCALAR_FUNCTIONS, infer_float
from hotfuse.ir.types import AnyType, OptionalType, SequenceType, TensorType, Type, type_of
from hotfuse.numerics import Verdict, close_to_exact, same_bits, spacing, within_ulp

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.samples is not None and op.reference is not None
    for i, sample in enumerate(op.samples())
]


def cases(keep: Callable[[OpDef, Sample], bool]) -> list[Any]:
    return [case for case in CASES if keep(*case.values)]


def run(op: OpDef, sample: Sample, **extra: Any) -> list[Any]:
    """The results of the reference; one that is a list is a sequence."""
    assert op.reference is not None
    with np.errstate(all="ignore"):
        result = op.reference(*sample.inputs, **sample.attrs, **extra)
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(r) if isinstance(r, np.generic) else r for r in results]


def arrays_in(results: list[Any]) -> list[np.ndarray]:
    return [a for r in results for a in (r if isinstance(r, list) else [r]) if isinstance(a, np.ndarray)]


def fits(value_type: Type, result: Any) -> bool:
    """Whether a result is of an inferred type; sizes that inference left open may be anything."""
    if isinstance(value_type, SequenceType):
        return isinstance(result, list) and all(fits(value_type.element, r) for r in result)
    if isinstance(value_type, OptionalType):
        return result is None or fits(value_type.element, result)
    if isinstance(value_type, AnyType):
        return True
    assert isinstance(value_type, TensorType)
    actual = type_of(np.asarray(result))
    if actual.dtype != value_type.dtype:
        return False
    if value_type.shape is None:
        return True
    assert actual.shape is not None
    return len(actual.shape) == len(value_type.shape) and all(
        not isinstance(d, int) or d == s for d, s in zip(value_type.shape, actual.shape, strict=True)
    )


def value_of(array: Any, name: str) -> Value | None:
    if array is None:
        return None
    array = np.asarray(array)
    known = array.dtype.kind in "iub" and array.ndim <= 1 and array.size <= CONTENTS_LIMIT
    return Value(name, type_of(array), contents=tuple(int(x) for x in array.reshape(-1)) if known else None)


def test_operators_have_samples() -> None:
    bare = [op.name for op in OPS.values() if op.reference is not None and op.samples is None]
    assert not bare, f"operators without samples: {bare}"


@pytest.mark.parametrize(("op", "sample"), cases(lambda op, s: all(x is None or isinstance(x, np.ndarray) for x in s.inputs)))
def test_inference_agrees_with_the_reference(op: OpDef, sample: Sample) -> None:
    results = run(op, sample)
    inputs = [value_of(x, f"x{i}") for i, x in enumerate(sample.inputs)]
    found = infer_node(op.name, inputs, Attrs(sample.attrs), (), FreshSymbols(), len(results))
    for value, result in zip(found, results, strict=True):
        assert fits(value.type, result), f"{value.type} was inferred, the reference gave {result!r}"
        if value.contents is not None:
            assert tuple(value.contents) == tuple(int(x) for x in result.reshape(-1))


@pytest.mark.parametrize(("op", "sample"), cases(lambda op, s: op.writes_out))
def test_writing_into_given_memory_gives_the_same_bits(op: OpDef, sample: Sample) -> None:
    (expected,) = run(op, sample)
    memory = np.full_like(expected, 1 if expected.dtype == bool else 77)
    (result,) = run(op, sample, out=memory)
    assert same_bits(result, expected)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_references_keep_to_their_own_memory(op: OpDef, sample: Sample) -> None:
    arrays = [x for x in sample.inputs if isinstance(x, np.ndarray)]
    before = [x.copy() for x in arrays]
    results = arrays_in(run(op, sample))
    for array, copy in zip(arrays, before, strict=True):
        assert same_bits(array, copy), "an input was changed"
    foreign = arrays[1:] if op.view else arrays
    for result in results:
        assert not any(np.shares_memory(result, array) for array in foreign)
    for i, result in enumerate(results):
        assert op.view or not any(np.shares_memory(result, other) for other in results[:i])


def strided(x: Any) -> Any:
    """The same elements with gaps between them."""
    return np.repeat(x, 2, axis=-1)[..., ::2] if isinstance(x, np.ndarray) and x.ndim else x


@pytest.mark.parametrize(("op", "sample"), cases(lambda op, s: op.pattern in (Pattern.ELEMENTWISE, Pattern.MOVEMENT)))
def test_layout_of_the_inputs_does_not_matter(op: OpDef, sample: Sample) -> None:
    for ours, packed in zip(
        run(op, Sample(tuple(strided(x) for x in sample.inputs), sample.attrs)), run(op, sample), strict=True
    ):
        if packed.dtype.name.startswith("float8"):
            ours, packed = ours.astype(np.float32), packed.astype(np.float32)
        verdict = within_ulp(ours, packed, 2) if packed.dtype.kind == "f" else same_bits(ours, packed)
        assert verdict, verdict.reason


# scalar bodies


def _digamma(x: float) -> float:
    import scipy.special

    return float(scipy.special.psi(x))


def _sign(x: float) -> float:
    return x if math.isnan(x) else float((x > 0) - (x < 0))


MEANINGS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
        "fmod", "isinf", "isnan", "log", "log1p", "pow", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "lgamma",
    )},
    "abs": abs, "max": max, "min": min, "round": round, "rsqrt": lambda x: 1 / math.sqrt(x), "sign": _sign,
    "where": lambda c, a, b: a if c else b, "digamma": _digamma, "and_": operator.and_, "or_": operator.or_,
    "xor": operator.xor, "not_": lambda x: not x if isinstance(x, bool) else ~x, "shl": operator.lshift, "shr": operator.rshift,
}  # fmt: skip
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.USub: operator.neg,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def interpret(node: ast.expr, scope: dict[str, Any]) -> Any:
    """The value of a scalar body, in Python numbers."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return scope[name]
        case ast.BinOp(left=left, op=kind, right=right):
            return OPERATORS[type(kind)](interpret(left, scope), interpret(right, scope))
        case ast.UnaryOp(op=kind, operand=operand):
            return OPERATORS[type(kind)](interpret(operand, scope))
        case ast.Compare(left=left, ops=[kind], comparators=[right]):
            return OPERATORS[type(kind)](interpret(left, scope), interpret(right, scope))
        case ast.Call(func=ast.Name(id=name), args=args):
            assert name in SCALAR_FUNCTIONS, f"{name} is not a function of scalar bodies"
            return MEANINGS[name](*(interpret(a, scope) for a in args))
    raise AssertionError(f"a scalar body may not contain {ast.dump(node)}")


def test_every_scalar_function_has_a_meaning() -> None:
    assert sorted(MEANINGS) == sorted(SCALAR_FUNCTIONS)


def readable(op: OpDef, sample: Sample) -> bool:
    narrow = op.name == "cast" and sample.attrs["to"].bits < 16  # what does not fit is the conversion's business
    if op.scalar is None or narrow or any(x is None for x in sample.inputs):
        return False
    names = {node.id for node in ast.walk(ast.parse(op.scalar)) if isinstance(node, ast.Name)}
    return names <= {*"xyz"[: len(sample.inputs)], *sample.attrs, *SCALAR_FUNCTIONS}


@pytest.mark.parametrize(("op", "sample"), cases(readable))
def test_scalar_bodies_say_what_the_reference_does(op: OpDef, sample: Sample) -> None:
    assert op.scalar is not None
    body = ast.parse(op.scalar, mode="eval").body
    (expected,) = run(op, sample)
    columns = [x.reshape(-1).tolist() for x in np.broadcast_arrays(*sample.inputs)]
    scopes = [{**sample.attrs, **dict(zip("xyz", row, strict=False))} for row in zip(*columns, strict=True)]
    found = np.array([interpret(body, scope) for scope in scopes], dtype=None if scopes else expected.dtype)
    with np.errstate(all="ignore"):
        found = found.astype(expected.dtype).reshape(expected.shape)
    verdict = within_ulp(expected, found, 4) if op.scalar != "x" and expected.dtype.kind == "f" else same_bits(expected, found)
    assert verdict, verdict.reason


# torch

HAVE_ROOTS = ("digamma", "lgamma")  # near a root that is no short number, everybody's relative error grows
Adapter = Callable[..., Any]
ADAPTERS: dict[str, Adapter] = {
    "gelu": lambda f, x, approximate: f(x, approximate=approximate),
    "leaky_relu": lambda f, x, alpha: f(x, alpha),
    "elu": lambda f, x, alpha, scale, input_scale: f(x, alpha, scale, input_scale),
    "softplus": lambda f, x, beta, threshold: f(x, beta, threshold),
    "silu": lambda f, x, alpha: f(x),
    "hard_sigmoid": lambda f, x, alpha, beta: f(x),
    "prelu": lambda f, x, y: torch.where(x < 0, x * y, x),
    "clip": lambda f, x, low=None, high=None: torch.clamp(x, low, high) if low is not None or high is not None else x.clone(),
    "reduce_sum": lambda f, x, axes, keepdims: f(x, _axes(x, axes), keepdims) if axes != () else x.clone(),
    "reduce_mean": lambda f, x, axes, keepdims: f(x, _axes(x, axes), keepdims) if axes != () else x.clone(),
    "reduce_max": lambda f, x, axes, keepdims: f(x, _axes(x, axes), keepdims) if axes != () else x.clone(),
    "reduce_min": lambda f, x, axes, keepdims: f(x, _axes(x, axes), keepdims) if axes != () else x.clone(),
    "logsumexp": lambda f, x, axes, keepdims: f(x, _axes(x, axes), keepdims) if axes != () else x.clone(),
    "softmax": lambda f, x, axis: f(x, axis),
    "log_softmax": lambda f, x, axis: f(x, axis),
    "layer_norm": lambda f, x, s=None, b=None, axis=-1, epsilon=1e-5: f(x, x.shape[axis:], s, b, epsilon)[0],
    "rms_norm": lambda f, x, s=None, axis=-1, epsilon=1e-5: nn.rms_norm(x, x.shape[axis:], s, epsilon),
    "group_norm": lambda f, x, s=None, b=None, *, groups, epsilon=1e-5: nn.group_norm(x, groups, s, b, epsilon),
    "instance_norm": lambda f, x, s=None, b=None, epsilon=1e-5: nn.instance_norm(x, weight=s, bias=b, eps=epsilon),
    "batch_norm": lambda f, x, s, b, m, v, epsilon: nn.batch_norm(x, m, v, s, b, eps=epsilon),
    "cumsum": lambda f, x, axis, exclusive=False, reverse=False: _running(f, x, axis, exclusive, reverse, 0),
    "cumprod": lambda f, x, axis, exclusive=False, reverse=False: _running(f, x, axis, exclusive, reverse, 1),
}  # fmt: skip


def _axes(x: torch.Tensor, axes: tuple[int, ...] | None) -> list[int]:
    return list(range(x.ndim)) if axes is None else list(axes)


def _running(f: Any, x: torch.Tensor, axis: int, exclusive: bool, reverse: bool, start: int) -> torch.Tensor:
    x = x.flip(axis) if reverse else x
    if exclusive and x.shape[axis]:
        x = torch.cat([torch.full_like(x.narrow(axis, 0, 1), start), x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    return f(x, axis).flip(axis) if reverse else f(x, axis)


def aten(name: str) -> Any:
    """The overload of this name, if torch has it."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def comparable(op: OpDef, sample: Sample) -> bool:
    if not op.torch or not sample.inputs or any(x is not None and not _in_torch(x) for x in sample.inputs):
        return False
    return op.name in ADAPTERS or (not sample.attrs and op.scalar is not None and None not in [*map(type, sample.inputs)])


def _in_torch(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")


def by_torch(op: OpDef, sample: Sample, wide: bool = False) -> np.ndarray:
    tensors = [None if x is None else torch.from_numpy(np.array(x)) for x in sample.inputs]
    if wide:
        tensors = [t.double() if t is not None and t.is_floating_point() else t for t in tensors]
    function = aten(op.torch[0])
    assert function is not None, f"torch has no operator {op.torch[0]}"
    adapter = ADAPTERS.get(op.name)
    result = function(*tensors) if adapter is None else adapter(function, *tensors, **sample.attrs)
    return result.numpy()


def agree(op: OpDef, sample: Sample) -> Verdict:
    (ours,) = run(op, sample)
    original = by_torch(op, sample)
    if original.dtype.kind != "f":
        return same_bits(ours, original)
    if op.pattern is Pattern.ELEMENTWISE and op.name not in ADAPTERS and op.name not in HAVE_ROOTS:
        return within_ulp(ours, original, 4)
    return close_to_exact(ours, original, by_torch(op, sample, wide=True))


@pytest.mark.parametrize(("op", "sample"), cases(comparable))
def test_torch_agrees(op: OpDef, sample: Sample) -> None:
    verdict = agree(op, sample)
    assert verdict, verdict.reason


def test_named_aten_operators_exist() -> None:
    missing = [name for op in OPS.values() for name in op.torch if aten(name) is None]
    assert not missing, f"torch has no operators {missing}"


# half types


HALF_OPS = [op for op in OPS.values() if op.infer is infer_float and op.pattern is Pattern.ELEMENTWISE]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("op", HALF_OPS, ids=lambda op: op.name)
def test_half_types_are_rounded_once(op: OpDef, dtype: Any) -> None:
    """As near to the float64 result as its type allows: one rounding, half a unit, and a little for float32's own error."""
    assert op.samples is not None
    sample = next(s for s in op.samples() if s.inputs[0].size > 5)
    x = np.linspace(sample.inputs[0].min(), sample.inputs[0].max(), 400).astype(dtype)
    (ours,) = run(op, Sample((x,), sample.attrs))
    (exact,) = run(op, Sample((x.astype(np.float64),), sample.attrs))
    apart = np.abs(ours.astype(np.float64) - exact) / spacing(exact, np.dtype(dtype).name)
    assert ours.dtype == dtype
    assert apart.max() <= 0.51
