"""Operators that torch makes of others. Taking a graph apart means to trace it once more, which takes as long as the export
did; so where nothing else is in the way these are imported as they are. What is declined here torch does take apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hotfuse.frontends.torch_node import (
    COMPOSITES,
    IMPORTERS,
    Decline,
    Imported,
    TorchNode,
    axis_of,
    composite,
    rank_of,
    shape_of_value,
)
from hotfuse.frontends.torch_ops import elementwise  # noqa: F401  (what others have here as well)
from hotfuse.frontends.torch_ops.movement import constant_pad
from hotfuse.frontends.torch_ops.window import convolution
from hotfuse.ir.dim import Dim, Expr
from hotfuse.ir.graph import Value
from hotfuse.ir.types import BOOL

# other names of operators
for _name, _other in {
    "multiply.Tensor": "mul.Tensor",
    "divide.Tensor": "div.Tensor",
    "true_divide.Tensor": "div.Tensor",
    "subtract.Tensor": "sub.Tensor",
    "__and__.Tensor": "bitwise_and.Tensor",
    "__and__.Scalar": "bitwise_and.Scalar",
    "__or__.Tensor": "bitwise_or.Tensor",
    "__or__.Scalar": "bitwise_or.Scalar",
    "__xor__.Tensor": "bitwise_xor.Tensor",
    "__xor__.Scalar": "bitwise_xor.Scalar",
    "min.other": "minimum.default",
    "max.other": "maximum.default",
}.items():
    COMPOSITES[f"aten.{_name}"] = IMPORTERS[f"aten.{_other}"]


@composite("aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten.type_as.default")
def to(n: TorchNode, x: Value, *rest: Any) -> Imported:
    if any(isinstance(a, torch.device) and a.type != "cpu" for a in rest):
        return Decline("a copy to another device")
    if any(isinstance(a, torch.layout) and a is not torch.strided for a in rest):
        return Decline("another layout")
    return n.cast(x, n.dtype)


@composite("aten.reshape_as.default", "aten.view_as.default")
def reshape_as(n: TorchNode, x: Value, other: Value) -> Imported:
    return n.add("reshape", x, n.dims(n.shape), allow_zero=True)


@composite("aten.expand_as.default")
def expand_as(n: TorchNode, x: Value, other: Value) -> Imported:
    return n.add("expand", x, n.dims(n.shape))


@composite("aten.repeat_interleave.self_int")
def repeat_interleave(n: TorchNode, x: Value, repeats: Any, dim: int | None, output_size: Any) -> Imported:
    """A new axis behind the one whose elements are repeated, broadcast, then merged with it."""
    if not isinstance(repeats, (int, Expr)):
        return Decline("how often depends on data")
    shape = list(shape_of_value(x))
    axis = len(shape) - 1 if dim is None else axis_of(dim, len(shape))
    if not shape or (dim is None and len(shape) > 1):
        return Decline("of all elements")
    lifted = n.add("unsqueeze", x, axes=(axis + 1,))
    wide = n.add("expand", lifted, n.dims((*shape[: axis + 1], repeats, *shape[axis + 1 :])))
    return n.add("reshape", wide, n.dims(n.shape), allow_zero=True)


@composite("aten.diff.default")
def diff(n: TorchNode, x: Value, times: Any, dim: int, before: Value | None, after: Value | None) -> Imported:
    """Neighbours, less each other."""
    if times != 1:
        return Decline("more than once")
    axis = axis_of(dim, rank_of(x))
    parts = [n.cast(part, n.dtype) for part in (before, x, after) if part is not None]
    whole = parts[0] if len(parts) == 1 else n.add("concat", *parts, axis=axis)
    size: Dim = sum((shape_of_value(part)[axis] for part in parts), start=0)

    def part(first: Dim, last: Dim) -> Value:
        return n.add("slice", whole, n.dims((first,)), n.dims((last,)), axes=(axis,), steps=(1,))

    return n.add("bitwise_xor" if n.dtype is BOOL else "sub", part(1, size), part(0, size - 1))


@composite("aten.pad.default")
def pad(n: TorchNode, x: Value, pads: Sequence[Dim], mode: str, value: Any) -> Imported:
    if mode != "constant":
        return Decline(f"a border that is {mode}")
    return constant_pad(n, x, pads, 0 if value is None else value)


@composite("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    n: TorchNode, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Imported:
    return convolution(n, x, weight, bias, stride, padding, dilation, False, 0, groups)


@composite("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    n: TorchNode, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, output_padding: Any, groups: Any,
    dilation: Any,
) -> Imported:  # fmt: skip
    return convolution(n, x, weight, bias, stride, padding, dilation, True, output_padding, groups)
