"""Operators that move data, in torch. Shapes that are known when a plan is bound are not read again at each call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from hotfuse.frontends.torch_tensor import TO_TORCH
from hotfuse.ir.graph import Node, Value
from hotfuse.runtime.torch_eager.table import Function, Tensor, dtype_of, eager, numbers, rank_of, shape_of


@eager("reshape")
def reshape(node: Node, values: Sequence[Value]) -> Function | None:
    shape = numbers(values[1])
    if not node.attrs.get("allow_zero", False) and (shape is None or 0 in shape):
        return None
    if shape is None:
        return lambda x, sizes: x.reshape(sizes.tolist())
    fixed = shape
    return lambda x, sizes: x.reshape(fixed)


@eager("unsqueeze")
def unsqueeze(node: Node, values: Sequence[Value]) -> Function:
    rank = rank_of(values[0]) + len(node.attrs["axes"])
    axes = sorted(a % rank for a in node.attrs["axes"])
    if len(axes) == 1:
        (axis,) = axes
        return lambda x: x.unsqueeze(axis)

    def run(x: Tensor) -> Tensor:
        for a in axes:
            x = x.unsqueeze(a)
        return x

    return run


@eager("squeeze")
def squeeze(node: Node, values: Sequence[Value]) -> Function:
    axes = node.attrs.get("axes")
    return torch.squeeze if axes is None else lambda x: x.squeeze(axes)


@eager("transpose")
def transpose(node: Node, values: Sequence[Value]) -> Function:
    perm = node.attrs.get("perm")
    order = tuple(reversed(range(rank_of(values[0])))) if perm is None else perm
    return lambda x: x.permute(order)


@eager("expand")
def expand(node: Node, values: Sequence[Value]) -> Function:
    """Broadcast both ways: the tensor's own sizes count too."""
    shape = numbers(values[1])
    own = shape_of(values[0])
    if shape is not None and all(isinstance(d, int) for d in own):
        fixed = torch.broadcast_shapes(own, shape)  # type: ignore[arg-type]
        return lambda x, sizes: x.expand(fixed)
    return lambda x, sizes: x.expand(torch.broadcast_shapes(x.shape, tuple(sizes.tolist())))


@eager("slice")
def slice_(node: Node, values: Sequence[Value]) -> Function | None:
    axes, steps = node.attrs["axes"], node.attrs["steps"]
    starts, ends = numbers(values[1]), numbers(values[2])
    if any(s < 0 for s in steps):
        return None
    rank = rank_of(values[0])
    if starts is None or ends is None:

        def run(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
            for axis, start, end, step in zip(axes, first.tolist(), last.tolist(), steps, strict=True):
                x = torch.ops.aten.slice(x, axis % rank, start, end, step)
            return x

        return run
    where: list[slice] = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(start, end, step)
    key = tuple(where)
    return lambda x, first, last: x[key]


@eager("concat")
def concat(node: Node, values: Sequence[Value]) -> Function:
    axis = node.attrs["axis"]
    return lambda *parts: torch.cat(parts, axis)


@eager("split")
def split(node: Node, values: Sequence[Value]) -> Function | None:
    axis, sizes = node.attrs["axis"], node.attrs.get("sizes")
    if not isinstance(sizes, tuple) or len(values) > 1:
        return None
    parts = list(sizes)
    return lambda x: x.split(parts, axis)


@eager("flip")
def flip(node: Node, values: Sequence[Value]) -> Function:
    axes = node.attrs["axes"]
    return lambda x: x.flip(axes)


@eager("roll")
def roll(node: Node, values: Sequence[Value]) -> Function:
    shifts, axes = node.attrs["shifts"], node.attrs["axes"]
    return lambda x: torch.roll(x, shifts if axes is not None else sum(shifts), axes)


@eager("tile")
def tile(node: Node, values: Sequence[Value]) -> Function:
    return lambda x, repeats: torch.tile(x, repeats.tolist())


@eager("trilu")
def trilu(node: Node, values: Sequence[Value]) -> Function:
    function = torch.triu if node.attrs.get("upper", True) else torch.tril
    return lambda x, k=None: function(x, 0 if k is None else int(k))


@eager("pad")
def pad(node: Node, values: Sequence[Value]) -> Function | None:
    widths = numbers(values[1])
    if node.attrs.get("mode", "constant") != "constant" or len(values) > 3 or widths is None:
        return None
    rank = rank_of(values[0])
    theirs = [w for axis in reversed(range(rank)) for w in (widths[axis], widths[axis + rank])]

    def run(x: Tensor, pads: Tensor, value: Tensor | None = None) -> Tensor:
        return F.pad(x, theirs, value=0 if value is None else value.item())

    return run if dtype_of(values[0]).kind != "complex" else None


@eager("shape_of")
def shape_vector(node: Node, values: Sequence[Value]) -> Function:
    part = slice(node.attrs.get("start", 0), node.attrs.get("end"))
    return lambda x: torch.tensor(x.shape[part], dtype=torch.int64)


@eager("full")
def full(node: Node, values: Sequence[Value]) -> Function:
    value, dtype, shape = node.attrs["value"], TO_TORCH[node.attrs["dtype"].name], numbers(values[0])
    if shape is None:
        return lambda sizes: torch.full(sizes.tolist(), value, dtype=dtype)
    fixed = shape
    return lambda sizes: torch.full(fixed, value, dtype=dtype)
