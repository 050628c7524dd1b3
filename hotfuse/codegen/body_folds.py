"""Operators that fold rows: each returns the step of its result and that step's type. `FOLDING` is the list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hotfuse.codegen.tile import Fill
from hotfuse.errors import TileError
from hotfuse.ir.graph import Node
from hotfuse.ir.types import I64, DType

if TYPE_CHECKING:
    from hotfuse.codegen.body_builder import BodyBuilder


def _scaled(b: BodyBuilder, step: str, dtype: DType, node: Node, first: int = 1) -> str:
    for place, formula in ((first, "x * y"), (first + 1, "x + y")):
        if place < len(node.inputs) and (name := node.inputs[place]) is not None:
            parameter = b.cast(b.step(name), b.type(name).dtype, dtype)[0]
            step = b.map(formula, dtype, x=step, y=parameter)
    return step


def _epsilon(b: BodyBuilder, node: Node, default: float, dtype: DType) -> str:
    name = b.fresh()
    b.steps.append(Fill(name, dtype, (1, 1), float(node.attrs.get("epsilon", default))))
    return name


def _layer_norm(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    """The rounding of the mean is measured and taken out again: where all elements of a row are equal, or nearly, it would
    be all that is left, made large by the division."""
    x, dtype = b.wide(_first(node))
    length = b.row_length(dtype)
    mean = b.map("x / y", dtype, x=b.fold("sum", x, dtype), y=length)
    rough = b.map("x - y", dtype, x=x, y=mean)
    rest = b.map("x / y", dtype, x=b.fold("sum", rough, dtype), y=length)
    square = b.map("x / y", dtype, x=b.fold("sum", b.map("x * x", dtype, x=rough), dtype), y=length)
    variance = b.map("where(x - x == 0, max(x - y * y, 0), x)", dtype, x=square, y=rest)  # an infinite one stays
    factor = b.map("1 / sqrt(x + z)", dtype, x=variance, z=_epsilon(b, node, 1e-5, dtype))
    centered = b.map("x - y", dtype, x=rough, y=rest)
    return _scaled(b, b.map("x * y", dtype, x=centered, y=factor), dtype, node), dtype


def _rms_norm(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    square = b.fold("sum", b.map("x * x", dtype, x=x), dtype)
    factor = b.map("1 / sqrt(x / y + z)", dtype, x=square, y=b.row_length(dtype), z=_epsilon(b, node, 1e-5, dtype))
    return _scaled(b, b.map("x * y", dtype, x=x, y=factor), dtype, node), dtype


def _softmax(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    power = b.map("exp(x - y)", dtype, x=x, y=b.fold("max", x, dtype))
    share = b.map("1 / x", dtype, x=b.fold("sum", power, dtype))  # a division for each row, not for each element
    return b.map("x * y", dtype, x=power, y=share), dtype


def _log_softmax(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    shifted = b.map("x - y", dtype, x=x, y=b.fold("max", x, dtype))
    total = b.fold("sum", b.map("exp(x)", dtype, x=shifted), dtype)
    return b.map("x - log(y)", dtype, x=shifted, y=total), dtype


def _reduction(op: str) -> Callable[[BodyBuilder, Node], tuple[str, DType]]:
    def lower(b: BodyBuilder, node: Node) -> tuple[str, DType]:
        name = _first(node)
        dtype = b.type(name).dtype
        step, dtype = b.wide(name) if dtype.is_float else (b.step(name), dtype)
        return b.fold(op, step, dtype), dtype

    return lower


def _mean(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    if not b.type(_first(node)).dtype.is_float:
        raise TileError("the mean of whole numbers is left to tier 0")
    total, dtype = _reduction("sum")(b, node)
    return b.map("x / y", dtype, x=total, y=b.row_length(dtype)), dtype


def _logsumexp(b: BodyBuilder, node: Node) -> tuple[str, DType]:
    x, dtype = b.wide(_first(node))
    most = b.fold("max", x, dtype)
    base = b.map("where(x - x == 0, x, 0)", dtype, x=most)  # 0 where there is no finite one
    total = b.fold("sum", b.map("exp(x - y)", dtype, x=x, y=base), dtype)
    return b.map("log(x) + y", dtype, x=total, y=base), dtype


def _extreme(fold: str) -> Callable[[BodyBuilder, Node], tuple[str, DType]]:
    """The place of the largest or smallest element: the extreme first, then the first place that has it. NaN is extreme."""

    def lower(b: BodyBuilder, node: Node) -> tuple[str, DType]:
        name = _first(node)
        dtype = b.type(name).dtype
        x, dtype = b.wide(name) if dtype.is_float else (b.step(name), dtype)
        extreme = b.fold(fold, x, dtype)
        found = b.map("or_(x == y, x != x)", dtype, x=x, y=extreme)
        last = bool(node.attrs.get("last", False))
        place, nowhere = b.place(b.folded), b.fresh()
        b.steps.append(Fill(nowhere, I64, (1, 1), -1 if last else (1 << 62)))
        chosen = b.select(found, place, nowhere)
        return b.fold("max" if last else "min", chosen, I64), I64

    return lower


def _running(op: str) -> Callable[[BodyBuilder, Node], tuple[str, DType]]:
    def lower(b: BodyBuilder, node: Node) -> tuple[str, DType]:
        name = _first(node)
        dtype = b.type(name).dtype
        x, dtype = b.wide(name) if dtype.is_float else (b.step(name), dtype)
        return b.scan(op, x, dtype, bool(node.attrs.get("exclusive", False))), dtype

    return lower


def _first(node: Node) -> str:
    name = node.inputs[0]
    assert name is not None
    return name


FOLDING: dict[str, Callable[[BodyBuilder, Node], tuple[str, DType]]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "reduce_sum": _reduction("sum"),
    "reduce_prod": _reduction("prod"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_any": _reduction("any"),
    "reduce_all": _reduction("all"),
    "reduce_mean": _mean,
    "logsumexp": _logsumexp,
    "argmax": _extreme("max"),
    "argmin": _extreme("min"),
    "cumsum": _running("sum"),
    "cumprod": _running("prod"),
}
