"""ONNX normalizations. Statistics that a model asks for as further results are computed apart, only where they are used."""

from __future__ import annotations

from hotfuse.errors import InvalidModel
from hotfuse.frontends.onnx_node import Decline, Imported, OnnxNode, onnx_op
from hotfuse.frontends.onnx_ops.convert import cast_to, dtype_attr
from hotfuse.frontends.onnx_ops.reduction import mean_and_variance
from hotfuse.ir.graph import Value
from hotfuse.ir.types import F32, TensorType

_ALONG = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}


@onnx_op(*_ALONG)
def along_axis(n: OnnxNode) -> Imported:
    """Before opset 13 all axes from `axis` on were taken together."""
    x, op, rank = n.input(0), _ALONG[n.op_type], n.rank()
    if n.version >= 13:
        return n.add(op, x, axis=n.attr("axis", -1))
    axis = n.attr("axis", 1)
    if rank is None:
        return Decline(f"{n.op_type} of this opset flattens its input, whose rank is not known")
    if not -rank <= axis <= rank:
        raise InvalidModel(f"{n.op_type}: axis {axis} is out of range for rank {rank}")
    axis = axis % rank if axis < 0 else axis
    if axis == rank - 1:
        return n.add(op, x, axis=axis)
    rows = n.add("reshape", x, n.builder.dims((*(0,) * axis, -1)))
    return n.add("reshape", n.add(op, rows, axis=-1), n.add("shape_of", x), allow_zero=True)


def _rank(n: OnnxNode) -> int:
    rank = n.rank()
    if rank is None:
        raise InvalidModel(f"{n.op_type}: the rank of the input must be known; add shapes to the graph inputs")
    return rank


@onnx_op("LayerNormalization")
def layer_normalization(n: OnnxNode) -> Imported:
    x, axis, epsilon = n.input(0), n.attr("axis", -1), n.attr("epsilon", 1e-5)
    result = n.add("layer_norm", x, n.optional(1), n.optional(2), axis=axis, epsilon=epsilon)
    if not n.wants(1) and not n.wants(2):
        return result
    rank = _rank(n)
    wide = cast_to(n, x, dtype_attr(n, "stash_type", F32) or F32)
    mean, variance = mean_and_variance(n, wide, tuple(range(axis % rank, rank)))
    return result, mean, n.add("rsqrt", n.add("add", variance, n.scalar(epsilon, variance)))


@onnx_op("RMSNormalization")
def rms_normalization(n: OnnxNode) -> Imported:
    return n.add("rms_norm", n.input(0), n.optional(1), axis=n.attr("axis", -1), epsilon=n.attr("epsilon", 1e-5))


@onnx_op("GroupNormalization")
def group_normalization(n: OnnxNode) -> Imported:
    x, scale, bias, groups = n.input(0), n.input(1), n.input(2), n.required("num_groups")
    if n.version < 21:  # one scale and bias for each group, not each channel
        if n.type(0).shape is None:
            return Decline("scales of groups need an input of known rank")
        each = n.add("floor_div", n.add("shape_of", x, start=1, end=2), n.builder.dims((groups,)))
        scale, bias = (_repeated(n, v, each) for v in (scale, bias))
    return n.add("group_norm", x, scale, bias, groups=groups, epsilon=n.attr("epsilon", 1e-5))


def _repeated(n: OnnxNode, value: Value, shape: Value) -> Value:
    """One element for each channel from one for each group."""
    return n.add("reshape", n.add("expand", n.add("unsqueeze", value, axes=(1,)), shape), n.builder.dims((-1,)))


@onnx_op("InstanceNormalization")
def instance_normalization(n: OnnxNode) -> Imported:
    return n.add("instance_norm", n.input(0), n.input(1), n.input(2), epsilon=n.attr("epsilon", 1e-5))


@onnx_op("BatchNormalization")
def batch_normalization(n: OnnxNode) -> Imported:
    x, scale, bias, mean, var = (n.input(i) for i in range(5))
    epsilon, momentum = n.attr("epsilon", 1e-5), n.attr("momentum", 0.9)
    training = n.attr("training_mode", 0) if n.version >= 14 else n.num_outputs > 1
    if n.version < 9 and not n.attr("spatial", 1):
        return Decline("BatchNormalization with spatial = 0 has statistics for each place") if training else _per_place(n)
    if not training:
        return n.add("batch_norm", x, scale, bias, mean, var, epsilon=epsilon)
    axes = (0, *range(2, _rank(n)))
    half = n.dtype().is_float and n.dtype().bits < 32
    batch_mean, batch_var = mean_and_variance(n, cast_to(n, x, F32) if half else x, axes, keepdims=False)
    result = n.add("batch_norm", x, scale, bias, batch_mean, batch_var, epsilon=epsilon)
    running = [_blend(n, old, new, momentum) for old, new in ((mean, batch_mean), (var, batch_var))]
    if n.version >= 14:
        return result, *running
    return result, *running, batch_mean, batch_var


def _blend(n: OnnxNode, old: Value, new: Value, momentum: float) -> Value:
    assert isinstance(old.type, TensorType)
    new = cast_to(n, new, old.type.dtype)
    kept, added = n.scalar(momentum, old), n.scalar(1 - momentum, old)
    return n.add("add", n.add("mul", old, kept), n.add("mul", new, added))


def _per_place(n: OnnxNode) -> Value:
    """Statistics for each element of a sample, not for each channel."""
    x, scale, bias, mean, var = (n.input(i) for i in range(5))
    inverse = n.add("rsqrt", n.add("add", var, n.scalar(n.attr("epsilon", 1e-5), var)))
    return n.add("add", n.add("mul", n.add("sub", x, mean), n.add("mul", inverse, scale)), bias)


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(n: OnnxNode) -> Imported:
    """ONNX's own function body takes the variance as E[x^2] - E[x]^2, which cancels; this one is centred first."""
    x, axes = n.input(0), tuple(n.attr("axes") or (0, 2, 3))
    if n.version < 9:
        return Decline("the experimental form of before opset 9")
    wide = cast_to(n, x, F32) if n.dtype().bits < 32 else x
    mean, variance = mean_and_variance(n, wide, axes)
    spread = n.add("sqrt", variance)
    ratio = n.add("div", n.add("sub", wide, mean), n.add("add", spread, n.scalar(1e-9, spread)))
    return cast_to(n, ratio, n.dtype())


@onnx_op("LpNormalization")
def lp_normalization(n: OnnxNode) -> Imported:
    """x over its norm; where the norm is 0 the result is 0."""
    x, p, dtype = n.input(0), n.attr("p", 2), n.dtype()
    if p not in (1, 2):
        raise InvalidModel(f"LpNormalization: p must be 1 or 2, not {p}")
    wide = cast_to(n, x, F32) if dtype.bits < 32 else x
    sizes = n.add("abs", wide) if p == 1 else n.add("mul", wide, wide)
    norm = n.add("reduce_sum", sizes, axes=(n.attr("axis", -1),), keepdims=True)
    norm = norm if p == 1 else n.add("sqrt", norm)
    zero = n.scalar(0.0, norm)
    ratio = n.add("where", n.add("equal", norm, zero), zero, n.add("div", wide, norm))
    return cast_to(n, ratio, dtype)


@onnx_op("LRN")
def lrn(n: OnnxNode) -> Imported:
    return n.add(
        "lrn",
        n.input(0),
        size=n.required("size"),
        alpha=n.attr("alpha", 1e-4),
        beta=n.attr("beta", 0.75),
        bias=n.attr("bias", 1.0),
    )
