"""Operators that read or write at places given as data, and those that sort, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hotfuse.ir.graph import Node, Value
from hotfuse.runtime.torch_eager.table import Function, Tensor, eager, numbers, rank_of


def _places(indices: Tensor) -> Tensor:
    return indices if indices.dtype == torch.int64 else indices.to(torch.int64)


@eager("gather")
def gather(node: Node, values: Sequence[Value]) -> Function:
    axis = node.attrs.get("axis", 0) % rank_of(values[0])
    before: list[Any] = [None] * axis

    def by_index(x: Tensor, indices: Tensor) -> Tensor:
        return torch.ops.aten.index.Tensor(x, [*before, _places(indices)])  # type: ignore[no-any-return]

    if axis != 0 or rank_of(values[0]) != 2:
        return by_index

    def by_row(x: Tensor, indices: Tensor) -> Tensor:
        try:
            return torch.embedding(x, _places(indices))
        except IndexError:  # a place counted from the end, or one outside: the index operator tells them apart
            return by_index(x, indices)

    return by_row


def _from_front(indices: Tensor, size: int) -> Tensor:
    """Places counted from the front; torch's gather and scatter know no others."""
    places = _places(indices)
    return torch.where(places < 0, places + size, places)


@eager("gather_elements")
def gather_elements(node: Node, values: Sequence[Value]) -> Function:
    axis = node.attrs["axis"]

    def run(x: Tensor, indices: Tensor) -> Tensor:
        try:
            return torch.gather(x, axis, _places(indices))
        except RuntimeError:
            return torch.gather(x, axis, _from_front(indices, x.shape[axis]))

    return run


@eager("gather_nd")
def gather_nd(node: Node, values: Sequence[Value]) -> Function | None:
    if node.attrs.get("batch_dims", 0):
        return None
    return lambda x, indices: x[tuple(_places(indices).unbind(-1))]


@eager("scatter_elements")
def scatter_elements(node: Node, values: Sequence[Value]) -> Function | None:
    axis, reduction = node.attrs["axis"], node.attrs.get("reduction", "none")
    function = {"none": torch.scatter, "add": torch.scatter_add}.get(reduction)
    if function is None or not rank_of(values[0]):
        return None

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        try:
            return function(x, axis, _places(indices), updates)  # type: ignore[no-any-return]
        except RuntimeError:
            return function(x, axis, _from_front(indices, x.shape[axis]), updates)  # type: ignore[no-any-return]

    return run


@eager("scatter_nd")
def scatter_nd(node: Node, values: Sequence[Value]) -> Function | None:
    reduction = node.attrs.get("reduction", "none")
    if reduction not in ("none", "add"):
        return None
    accumulate = reduction == "add"
    return lambda x, indices, updates: x.index_put(_places(indices).unbind(-1), updates, accumulate)


@eager("topk")
def topk(node: Node, values: Sequence[Value]) -> Function:
    axis, largest, ordered = node.attrs.get("axis", -1), node.attrs.get("largest", True), node.attrs.get("sorted", True)
    count = numbers(values[1])
    return lambda x, k: torch.topk(x, count[0] if count else int(k), axis, largest, ordered)


@eager("sort")
def sort(node: Node, values: Sequence[Value]) -> Function:
    axis, descending = node.attrs.get("axis", -1), node.attrs.get("descending", False)
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)
