"""Variants: the same nodes in other loops than those that `codegen/loop_order` chooses by bytes.

    across    rows of a few elements: vectors run across many rows, which are turned in registers. A row by itself fills a part
              of one vector, and folding that takes longer than everything else
    abreast   rows that are one block each: a few of them at a time. What folds a row waits for itself, step by step, and the
              steps of other rows are done meanwhile
    strips    rows that are folded down columns: a strip of few vectors at a time, each a task of its own, so that threads share
              the columns and accumulators stay in registers
    heights   products of few rows: tiles of equal heights. Otherwise the rows that fill no tall tile go through lower and lower
              ones, each of which goes through the weights again
    sweep     products: the other of the two orders of tasks, panels of columns or chunks of rows outside

A group that is in other loops already may go on to others that are named before these, and not back: so there is an end to it.
Which of them pays depends on the machine, so each is an edit that is predicted or measured like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotfuse.fusion.rules import PLACED, Fused
from hotfuse.hardware.pairs import ABREAST, ACROSS, HEIGHTS, STRIPS, SWEEP, VARIANTS
from hotfuse.ir.dim import Dim
from hotfuse.ir.graph import Value
from hotfuse.ir.types import TensorType, numel

NARROW = 32  # elements of a row: with more, a row fills vectors, and as many of them fill no registers
MOST_WIDTH = 384  # elements of a row that is one block: 24 vectors of 16 (`codegen/loop_order`)
FEWEST_ROWS = 8  # of which a few go abreast: with less, hardly any do
FEWEST = 32  # rows, and columns of a strip: with less there is one vector of them
MOST_ROWS = 64  # of a product whose tiles are of equal heights: of more, the lower tiles are a small part
PANEL = 48  # columns of a product, about: with less there is one panel
_SCANS = ("cumsum", "cumprod")


def variant_refusal(group: Fused, variant: str, values: Mapping[str, Value]) -> str:
    """Why a group cannot go in these loops; "" where it can."""
    if group.variant and variant not in VARIANTS[: VARIANTS.index(group.variant)]:
        return "its loops are not the plain ones any more"
    if group.placed:
        return "its result is written in another order"
    if variant in (ACROSS, ABREAST, STRIPS):
        if group.kind != "rows":
            return f"a kernel of kind {group.kind} goes over no rows"
        return _across(group, values) if variant == ACROSS else _abreast(group) if variant == ABREAST else _strips(group)
    if group.kind != "product":
        return f"a kernel of kind {group.kind} has no tiles"
    return _heights(group) if variant == HEIGHTS else _sweep(group) if variant == SWEEP else f"there are no loops {variant}"


def _across(group: Fused, values: Mapping[str, Value]) -> str:
    if len(group.domain) < 2 or group.folded not in ((), (len(group.domain) - 1,)):
        return "rows are not its last axis"
    if any(node.op in (*PLACED, *_SCANS) for node in group.nodes):
        return "it reads rows in a way of its own, one by one"
    *rows, width = group.domain
    if not isinstance(width, int) or not 1 < width <= NARROW:
        return f"rows of {width} elements fill vectors by themselves"
    if _is_less(numel(tuple(rows)), FEWEST):
        return f"{numel(tuple(rows))} rows fill no vectors"
    if not group.folded and not _spreads(group, values):
        return "all its rows are one"
    return ""


def _spreads(group: Fused, values: Mapping[str, Value]) -> bool:
    """Whether rows are kept apart by something that is read of them other than element by element."""
    inside = {name for node in group.nodes for name in node.outputs}
    types = [values[name].type for node in group.nodes for name in node.uses if name not in inside]
    shapes = [type.shape or () for type in types if isinstance(type, TensorType)]
    return any(shape != group.domain and numel(shape) != 1 for shape in shapes)


def _abreast(group: Fused) -> str:
    if group.folded != (len(group.domain) - 1,):
        return "it folds no rows of its last axis"
    if any(node.op in (*PLACED, *_SCANS) for node in group.nodes):
        return "it reads rows in a way of its own, one by one"
    *rows, width = group.domain
    if not isinstance(width, int) or not 1 < width <= MOST_WIDTH:
        return f"rows of {width} elements are not one block each"
    if _is_less(numel(tuple(rows)), FEWEST_ROWS):
        return f"{numel(tuple(rows))} rows are too few"
    return ""


def _strips(group: Fused) -> str:
    if not group.folded or len(group.domain) - 1 in group.folded:
        return "it folds no columns"
    if _is_less(group.domain[-1], FEWEST):
        return f"{group.domain[-1]} columns are one strip"
    return ""


def _heights(group: Fused) -> str:
    rows = group.domain[-2] if len(group.domain) > 1 else 1
    if not isinstance(rows, int) or rows > MOST_ROWS:
        return "its lower tiles are a small part of it"
    return "its tiles are of equal heights" if rows in (1, 2, 4) or rows % 24 == 0 else ""


def _sweep(group: Fused) -> str:
    if _is_less(numel(group.domain[:-1]), MOST_ROWS + 1) or _is_less(group.domain[-1], PANEL + 1):
        return "there is one order of its tasks"
    return ""


def _is_less(size: Dim, than: int) -> bool:
    return isinstance(size, int) and size < than
