"""Contractions: sums of products over shared axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, Loops, OpDef, Pattern, Sample, broadcast_dim, broadcast_shapes, define, size_of
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.types import Shape, TensorType, Type

Array = np.ndarray[Any, Any]

EXACT_F64 = 2**53  # whole numbers up to here are exact in float64


def matmul(x: Array, y: Array, out: Array | None = None) -> Any:
    """numpy's matmul; half types are summed in float32 and integers exactly."""
    if x.dtype.kind in "fc" and x.dtype.itemsize >= 4:
        return np.matmul(x, y, out=out) if out is not None and out.ndim else np.matmul(x, y)
    if x.dtype.kind in "iub":
        result = _exact_through_f64(x, y)
    else:
        result = np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    if out is not None:
        out[...] = result
        return out
    return result


def _exact_through_f64(x: Array, y: Array) -> Any:
    """An integer product by BLAS where no sum can leave the exact range of float64 (numpy's own loops are 50 times slower)."""
    if x.size and y.size and x.dtype.kind != "b":
        largest = max(-int(x.min()), int(x.max())) * max(-int(y.min()), int(y.max()))
        if largest * x.shape[-1] < EXACT_F64:
            return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int64).astype(x.dtype)
    return np.matmul(x, y)


def matmul_shape(call: Call, a: Shape, b: Shape) -> Shape | None:
    if not a or not b:
        raise call.fail("a scalar cannot be multiplied as a matrix")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    if NO_FACTS.decide(left[-1], right[-2]) is False:
        raise call.fail(f"inner sizes {left[-1]} and {right[-2]} differ")
    batch = broadcast_shapes(left[:-2], right[:-2])
    assert batch is not None
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*batch, *rows, *columns)


def _matmul_infer(call: Call) -> Sequence[Type]:
    x, y = call.tensor(0), call.tensor(1)
    if x.dtype != y.dtype:
        raise call.fail(f"inputs have different types, {x.dtype} and {y.dtype}")
    return (TensorType(x.dtype, None if x.shape is None or y.shape is None else matmul_shape(call, x.shape, y.shape)),)


def matmul_flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(0)
    return 0 if not shape else 2 * shape[-1] * size_of(types)


def _normal(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


def _samples() -> list[Sample]:
    shapes = (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4,)),
        ((4,), (2, 4, 3)),
        ((0, 4), (4, 3)),
    )
    return [Sample(_normal(*pair)) for pair in shapes]


define(
    OpDef(
        "matmul", _matmul_infer, matmul, Pattern.CONTRACTION, "matrix product over the last two axes, numpy's broadcasting",
        loops=Loops("a + b", 0.0, map="x * y"), flops=matmul_flops, onnx=("MatMul",),
        torch=("aten.mm.default", "aten.bmm.default", "aten.matmul.default"), samples=_samples,
    )
)  # fmt: skip


def einsum(*inputs: Array, equation: str) -> Any:
    result = np.einsum(equation, *inputs, optimize=len(inputs) > 1)
    return result if result.base is None else result.copy()


def parse_equation(call: Call, equation: str, ranks: Sequence[int | None]) -> tuple[list[list[str]], list[str]]:
    """The axis labels of each input and of the result; an ellipsis becomes labels `...0`, `...1`, counted from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise call.fail(f"the equation {equation!r} names {len(terms)} inputs, there are {len(ranks)}")
    inputs = [_labels(call, term, rank) for term, rank in zip(terms, ranks, strict=True)]
    wide = max((sum(label.startswith("...") for label in labels) for labels in inputs), default=0)
    if arrow:
        before, dots, after = right.partition("...")
        return inputs, [*before, *_dots(wide if dots else 0), *after]
    letters = [label for labels in inputs for label in labels if not label.startswith("...")]
    return inputs, [*_dots(wide), *sorted(label for label in set(letters) if letters.count(label) == 1)]


def _dots(count: int) -> list[str]:
    return [f"...{i}" for i in reversed(range(count))]


def _labels(call: Call, term: str, rank: int | None) -> list[str]:
    before, dots, after = term.partition("...")
    named = len(before) + len(after)
    if rank is None:
        if dots:
            raise call.fail("an ellipsis needs an input of known rank")
        return list(term)
    if (not dots and rank != named) or rank < named:
        raise call.fail(f"the term {term!r} does not fit an input of rank {rank}")
    return [*before, *_dots(rank - named), *after]


def _label_sizes(call: Call, inputs: Sequence[Sequence[str]]) -> Mapping[str, Dim]:
    sizes: dict[str, Dim] = {}
    for i, labels in enumerate(inputs):
        for label, size in zip(labels, call.shape(i) or call.unknown(len(labels)) or (), strict=True):
            sizes[label] = broadcast_dim(sizes.get(label, 1), size)
    return sizes


def _einsum_infer(call: Call) -> Sequence[Type]:
    dtype = call.dtype(0)
    if any(call.dtype(i) != dtype for i in range(len(call.inputs))):
        raise call.fail("inputs have different types; cast them to one")
    if "..." in call.attrs["equation"] and any(call.shape(i) is None for i in range(len(call.inputs))):
        return (TensorType(dtype, None),)
    inputs, result = parse_equation(call, call.attrs["equation"], [call.tensor(i).rank for i in range(len(call.inputs))])
    sizes = _label_sizes(call, inputs)
    unknown = [label for label in result if label not in sizes]
    if unknown:
        raise call.fail(f"the result's axis {unknown[0]!r} is in no input of {call.attrs['equation']!r}")
    return (TensorType(dtype, tuple(sizes[label] for label in result)),)


def _einsum_flops(call: Call, types: Sequence[Type]) -> Dim:
    if any(call.shape(i) is None for i in range(len(call.inputs))):
        return 0
    inputs, _ = parse_equation(call, call.attrs["equation"], [call.tensor(i).rank for i in range(len(call.inputs))])
    total: Dim = len(inputs)
    for size in _label_sizes(call, inputs).values():
        total = total * size
    return total


define(
    OpDef(
        "einsum", _einsum_infer, widened(einsum), Pattern.CONTRACTION,
        "sum of products over the axes that `equation` does not keep",
        loops=Loops("a + b", 0.0, map="x * y"), flops=_einsum_flops, torch=("aten.einsum.default",),
        samples=lambda: [
            Sample(_normal((3, 4), (4, 5)), {"equation": "ij,jk->ik"}),
            Sample(_normal((2, 3, 4), (2, 4, 5)), {"equation": "...ij,...jk"}),
            Sample(_normal((2, 3, 3)), {"equation": "...ii->...i"}),
            Sample(_normal((3, 4)), {"equation": "ij->ji"}),
            Sample(_normal((3,), (3,)), {"equation": "i,i"}),
        ],
    )
)  # fmt: skip
