"""Folds over sliding windows: the taps of a window are folded axes, and a read with limits finds what lies under them.

Each returns the step of its result and that step's type, as those of `body_folds` do. `WINDOWS` is the list of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hotfuse.codegen.body import Limit, Read
from hotfuse.codegen.scalar_ops import neutral
from hotfuse.codegen.tile import Fill
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Node
from hotfuse.ir.types import F32, F64, DType

if TYPE_CHECKING:
    from hotfuse.codegen.body_builder import BodyBuilder


def _max_pool(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    dtype = b.type(node.inputs[0] or "").dtype
    step, dtype = _taps(b, node, neutral("max", dtype))
    return b.fold("max", step, dtype), dtype


def _average_pool(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    step, dtype = _taps(b, node, 0)
    total = b.fold("sum", step, dtype)
    if node.attrs.get("divisor") is not None:
        return b.map("x / y", dtype, x=total, y=_number(b, dtype, node.attrs["divisor"])), dtype
    limits = _limits(b, node, with_pads=bool(node.attrs.get("count_include_pad", False)))
    count = b.row_length(dtype)
    if limits:
        inside, outside = (_number(b, dtype, x) for x in (1, 0))
        for limit in limits:
            inside = b.where(limit, inside, outside)
        count = b.fold("sum", inside, dtype)
    return b.map("x / y", dtype, x=total, y=count), dtype


def _lp_pool(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    step, dtype = _taps(b, node, 0)
    p, root = (_number(b, dtype, x) for x in (node.attrs["p"], 1 / node.attrs["p"]))
    return b.map("pow(x, y)", dtype, x=b.fold("sum", b.map("pow(abs(x), y)", dtype, x=step, y=p), dtype), y=root), dtype


def _taps(b: BodyBuilder, node: Node, fill: float) -> tuple[str, DType]:
    """What lies under each tap of each window, `fill` beside the tensor; floats as f32 or f64."""
    name, attrs = node.inputs[0] or "", node.attrs
    source, dtype, rank = b.layouts[name], b.type(name).dtype, len(attrs["kernel"])
    if any(not isinstance(p, int) or p < 0 for p in attrs["pads"]):
        raise TileError("windows over a part of a tensor, or padded by as much as run time tells, are left to tier 0")
    step, along = b.fresh(), source.strides[2:]
    offset: Dim = source.offset
    for stride, before in zip(along, attrs["pads"][:rank], strict=True):
        offset = offset - before * stride
    moves = [stride * many for stride, many in zip(along, attrs["strides"], strict=True)]
    reach = [stride * many for stride, many in zip(along, attrs["dilations"], strict=True)]
    strides = (*source.strides[:2], *moves, *reach)
    b.steps.append(Read(step, source.root, dtype, offset, strides, (), _limits(b, node), fill))
    return b.cast(step, dtype, F64 if dtype == F64 else F32) if dtype.is_float else (step, dtype)


def _limits(b: BodyBuilder, node: Node, with_pads: bool = False) -> tuple[Limit, ...]:
    """What says that a tap lies on the tensor (`with_pads`: on it or on its padding), where some tap does not."""
    attrs = node.attrs
    rank, sizes = len(attrs["kernel"]), b.layouts[node.inputs[0] or ""].shape[2:]
    found = []
    for i, size in enumerate(sizes):
        before, after = attrs["pads"][i], attrs["pads"][i + rank]
        strides = [0] * len(b.domain)
        strides[2 + i], strides[2 + rank + i] = attrs["strides"][i], attrs["dilations"][i]
        if with_pads and attrs.get("ceil", False):
            found.append(Limit(0, tuple(strides), size + before + after))
        elif not with_pads and ((before, after) != (0, 0) or attrs.get("ceil", False)):
            found.append(Limit(-before, tuple(strides), size))
    return tuple(found)


def _number(b: BodyBuilder, dtype: DType, value: float) -> str:
    name = b.fresh()
    b.steps.append(Fill(name, dtype, (1, 1), value))
    return name


WINDOWS: dict[str, Callable[[BodyBuilder, Node], tuple[str, DType]]] = {
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "lp_pool": _lp_pool,
}
