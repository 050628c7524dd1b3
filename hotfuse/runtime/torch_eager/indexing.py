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


@eager("gather_elements")
def gather_elements(node: Node, values: Sequence[Value]) -> Function:
    axis = node.attrs["axis"]

    def run(x: Tensor, indices: Tensor) -> Tensor:
        try:
            return torch.gather(x, axis, _places(indices))
        except RuntimeError:  # places counted from the end
            places = _places(indices)
            return torch.gather(x, axis, torch.where(places < 0, places + x.shape[axis], places))

    return run


@eager("gather_nd")
def gather_nd(node: Node, values: Sequence[Value]) -> Function | None:
    if node.attrs.get("batch_dims", 0):
        return None
    return lambda x, indices: x[tuple(_places(indices).unbind(-1))]


@eager("scatter_elements")
def scatter_elements(node: Node, values: Sequence[Value]) -> Function | None:
    axis, reduction = node.attrs["axis"], node.attrs.get("reduction", "none")
    if reduction == "none":
        return lambda x, indices, updates: torch.scatter(x, axis, _places(indices), updates)
    if reduction == "add":
        return lambda x, indices, updates: torch.scatter_add(x, axis, _places(indices), updates)
    return None


@eager("topk")
def topk(node: Node, values: Sequence[Value]) -> Function:
    axis, largest, ordered = node.attrs.get("axis", -1), node.attrs.get("largest", True), node.attrs.get("sorted", True)
    count = numbers(values[1])
    return lambda x, k: torch.topk(x, count[0] if count else int(k), axis, largest, ordered)


@eager("sort")
def sort(node: Node, values: Sequence[Value]) -> Function:
    axis, descending = node.attrs.get("axis", -1), node.attrs.get("descending", False)
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)
