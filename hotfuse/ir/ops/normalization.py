"""Normalizations: statistics of a row (or group, or channel), then an elementwise map of the same row.

    softmax       exp(x - max) / sum(exp(x - max))           along `axis`
    log_softmax   x - max - log(sum(exp(x - max)))           along `axis`
    layer_norm    (x - mean) / sqrt(var + epsilon) * scale + bias    over the axes from `axis` on
    rms_norm      x / sqrt(mean(x * x) + epsilon) * scale            over the axes from `axis` on
    group_norm, instance_norm   as layer_norm, over groups of channels or single channels of (N, C, ...)
    batch_norm    (x - mean) / sqrt(var + epsilon) * scale + bias    with given statistics of each channel

Statistics are taken in float32 at least; half types are rounded once, at the end. Scale and bias may be of another float type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, broadcast_shapes, define, flops_per_element
from hotfuse.ir.ops.elementwise import infer_float, rng, widened
from hotfuse.ir.ops.movement import normal_axis
from hotfuse.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]


def softmax(x: Array, *, axis: int, out: Array | None = None) -> Any:
    if not x.size:
        return np.copy(x)
    with np.errstate(invalid="ignore"):
        result = np.asarray(np.subtract(x, np.max(x, axis=axis, keepdims=True), out=out))
        np.exp(result, out=result)
        result /= np.sum(result, axis=axis, keepdims=True)
    return result


def log_softmax(x: Array, *, axis: int, out: Array | None = None) -> Any:
    if not x.size:
        return np.copy(x)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.asarray(np.subtract(x, np.max(x, axis=axis, keepdims=True), out=out))
        result -= np.log(np.sum(np.exp(result), axis=axis, keepdims=True))
    return result


def hardmax(x: Array, *, axis: int) -> Any:
    result = np.zeros_like(x)
    if x.size:
        np.put_along_axis(result, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return result


def _along_infer(call: Call) -> Sequence[Type]:
    (x,) = infer_float(call)
    assert isinstance(x, TensorType)
    if x.shape is not None:
        normal_axis(call, call.attrs["axis"], max(1, len(x.shape)))
    return (x,)


def _along_samples() -> Iterable[Sample]:
    x = rng().uniform(-4, 4, (2, 3, 5)).astype(np.float32)
    for axis in (-1, 0, 1):
        yield Sample((x,), {"axis": axis})
    yield Sample((np.zeros((2, 0), np.float32),), {"axis": 1})


for _name, _function, _flops, _torch in (
    ("softmax", softmax, 20, ("aten.softmax.int", "aten._softmax.default")),
    ("log_softmax", log_softmax, 22, ("aten.log_softmax.int", "aten._log_softmax.default")),
    ("hardmax", hardmax, 2, ()),
):
    define(
        OpDef(
            _name, _along_infer, widened(_function), Pattern.NORMALIZATION,
            "1 at the first largest element along an axis, else 0" if _name == "hardmax" else "",
            flops=flops_per_element(_flops), torch=_torch, samples=_along_samples,
        )
    )  # fmt: skip


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with every input at least float32 (float64 if the first is), and its result in the first input's type."""

    @functools.wraps(function)
    def run(x: Array, *rest: Array | None, **attrs: Any) -> Any:
        wide = np.float64 if x.dtype == np.float64 else np.float32
        inputs = [None if v is None else v.astype(wide, copy=False) for v in (x, *rest)]
        out = attrs.pop("out", None) if x.dtype != wide else None
        with np.errstate(all="ignore"):
            result = function(*inputs, **attrs).astype(x.dtype, copy=False)
        if out is None:
            return result
        out[...] = result
        return out

    return run


def normalized(x: Array, axes: tuple[int, ...], epsilon: float, out: Array | None = None) -> Array:
    """x less its mean, over its standard deviation; never in the memory of x."""
    # a row of equal elements has a spread of nothing but epsilon, which would make much of the rounding of its mean
    mean = np.mean(x, axis=axes, keepdims=True, dtype=np.float64).astype(x.dtype)
    centered: Array = np.subtract(x, mean, out=out)
    variance = np.mean(np.square(centered), axis=axes, keepdims=True)
    centered *= 1 / np.sqrt(variance + x.dtype.type(epsilon))
    return centered


def _scaled(x: Array, scale: Array | None, bias: Array | None) -> Array:
    """x * scale + bias, in the memory of x."""
    if scale is not None:
        x *= scale
    if bias is not None:
        x += bias
    return x


def _of_channels(v: Array | None, x: Array) -> Array | None:
    return None if v is None else v.reshape(-1, *(1,) * (x.ndim - 2))


def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    out: Array | None = None,
) -> Array:
    return _scaled(normalized(x, tuple(range(axis % x.ndim, x.ndim)), epsilon, out), scale, bias)


def rms_norm(x: Array, scale: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean_square = np.mean(np.square(x), axis=axes, keepdims=True)
    return _scaled(x * (1 / np.sqrt(mean_square + x.dtype.type(epsilon))), scale, None)


def group_norm(x: Array, scale: Array | None = None, bias: Array | None = None, *, groups: int, epsilon: float = 1e-5) -> Array:
    if not x.size:
        return np.copy(x)
    grouped = normalized(x.reshape(x.shape[0], groups, -1), (2,), epsilon)
    return _scaled(grouped.reshape(x.shape), _of_channels(scale, x), _of_channels(bias, x))


def instance_norm(x: Array, scale: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-5) -> Array:
    return _scaled(normalized(x, tuple(range(2, x.ndim)), epsilon), _of_channels(scale, x), _of_channels(bias, x))


def batch_norm(x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, epsilon: float = 1e-5) -> Array:
    factor = scale / np.sqrt(var + x.dtype.type(epsilon))
    result = x - _of_channels(mean, x)
    return _scaled(result, _of_channels(factor, x), _of_channels(bias, x))


def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    before = (size - 1) // 2
    edges = [(before, size - 1 - before) if i == 1 else (0, 0) for i in range(x.ndim)]
    square = np.pad(np.square(x), edges)
    total = sum(square[:, i : i + x.shape[1]] for i in range(size))
    return x / np.power(x.dtype.type(bias) + x.dtype.type(alpha / size) * total, x.dtype.type(beta))


def _check_float_parameters(call: Call) -> None:
    for i in range(1, len(call.inputs)):
        if call.has(i) and not call.dtype(i).is_float:
            raise call.fail(f"input {i} must be a float, not {call.dtype(i)}")


def _trailing_infer(call: Call) -> Sequence[Type]:
    (x,) = infer_float(call)
    assert isinstance(x, TensorType)
    _check_float_parameters(call)
    if x.shape is not None:
        normal_axis(call, call.attrs.get("axis", -1), len(x.shape))
        for i in range(1, len(call.inputs)):
            if call.has(i) and (shape := call.shape(i)) is not None:
                whole = broadcast_shapes(x.shape, shape)
                if whole is None or len(whole) != len(x.shape):
                    raise call.fail(f"a parameter of shape {shape} does not fit {x}")
    return (x,)


def _channel_infer(call: Call) -> Sequence[Type]:
    (x,) = infer_float(call)
    assert isinstance(x, TensorType)
    _check_float_parameters(call)
    if x.shape is not None:
        if len(x.shape) < 2:
            raise call.fail(f"{x} has no channels: the axes must be (N, C, ...)")
        _check_channels(call, x.shape[1])
    return (x,)


def _check_channels(call: Call, channels: Dim) -> None:
    groups = call.attrs.get("groups", 1)
    if isinstance(channels, int) and (groups < 1 or channels % groups):
        raise call.fail(f"{channels} channels do not fall into {groups} equal groups")
    for i in range(1, len(call.inputs)):
        shape = call.shape(i) if call.has(i) else None
        if shape is not None and (len(shape) != 1 or NO_FACTS.decide(shape[0], channels) is False):
            raise call.fail(f"input {i} of shape {shape} does not fit {channels} channels")


def _trailing_samples(parameters: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        x = rng().uniform(-2, 2, (2, 3, 5)).astype(np.float32)
        for axis in (-1, 1):
            shape = x.shape[axis:]
            given = tuple(rng(i + 1).uniform(0.5, 2, shape).astype(np.float32) for i in range(parameters))
            yield Sample((x, *given), {"axis": axis, "epsilon": 1e-3})
        yield Sample((x,), {"axis": -1})
        yield Sample((x.astype(np.float16),), {"axis": -1})

    return make


def _channel_samples(parameters: int, required: bool = False, **attrs: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for shape in ((2, 6, 5), (3, 6, 2, 4)):
            x = rng().uniform(-2, 2, shape).astype(np.float32)
            given = tuple(rng(i + 1).uniform(0.5, 2, 6).astype(np.float32) for i in range(parameters))
            yield Sample((x, *given), {"epsilon": 1e-3, **attrs})
            if not required:
                yield Sample((x,), attrs)

    return make


def _norm(
    name: str, reference: Any, infer: Any, samples: Callable[[], Iterable[Sample]], torch: tuple[str, ...], flops: int = 8
) -> None:
    define(
        OpDef(
            name, infer, in_float32(reference), Pattern.NORMALIZATION, flops=flops_per_element(flops), torch=torch,
            samples=samples,
        )
    )  # fmt: skip


_norm("layer_norm", layer_norm, _trailing_infer, _trailing_samples(2), ("aten.native_layer_norm.default",))
_norm("rms_norm", rms_norm, _trailing_infer, _trailing_samples(1), ("aten._fused_rms_norm.default",), 5)
_norm("group_norm", group_norm, _channel_infer, _channel_samples(2, groups=3), ("aten.native_group_norm.default",))
_norm("instance_norm", instance_norm, _channel_infer, _channel_samples(2), ("aten.instance_norm.default",))
_norm(
    "batch_norm", batch_norm, _channel_infer, _channel_samples(4, required=True),
    ("aten._native_batch_norm_legit_no_training.default",), 4,
)  # fmt: skip


def _lrn_infer(call: Call) -> Sequence[Type]:
    if call.attrs["size"] < 1:
        raise call.fail(f"a window of {call.attrs['size']} channels holds nothing; the size must be at least 1")
    return _channel_infer(call)


def _lrn_samples() -> Iterable[Sample]:
    x = rng().uniform(-2, 2, (2, 6, 3, 2)).astype(np.float32)
    yield Sample((x,), {"size": 3})
    yield Sample((x,), {"size": 4, "alpha": 0.2, "beta": 0.5, "bias": 2.0})


define(
    OpDef(
        "lrn", _lrn_infer, widened(lrn), Pattern.NORMALIZATION,
        "x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta", flops=flops_per_element(40),
        samples=_lrn_samples,
    )
)  # fmt: skip
