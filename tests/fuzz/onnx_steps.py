"""Random steps of a draft: elementwise operators, reductions, movement and shape arithmetic.

A step is a function `Draft -> None` that adds one or a few nodes, or raises `Rejected`. Operators that jump (rounding,
comparison, argmax) read only values without rounding, so that nobody stands on the edge of a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tests.fuzz.onnx_draft import Draft, Rejected, Tensor

Step = Callable[[Draft], None]
FAR = 2**31 - 1


def floats(t: Tensor) -> bool:
    return t.is_float


def sharp(t: Tensor) -> bool:
    return t.bits


def ranked(t: Tensor) -> bool:
    return t.rank > 0


def takes_input(draft: Draft, op: str, name: str) -> bool:
    """Whether an operator has `name` among its inputs at the draft's opset (axes and the like moved there over time)."""
    return name in [i.name for i in onnx.defs.get_schema(op, draft.opset).inputs]


def has_attribute(draft: Draft, op: str, name: str) -> bool:
    return name in onnx.defs.get_schema(op, draft.opset).attributes


def either(draft: Draft, op: str, x: Tensor, name: str, value: Any, bits: bool | None = None, **attrs: Any) -> Tensor:
    """A node whose parameter `name` is an input or an attribute, whichever the opset has."""
    if takes_input(draft, op, name):
        return draft.one(op, x, draft.constant(np.array(value, np.int64)), bits=bits, **attrs)
    return draft.one(op, x, bits=bits, **{name: value}, **attrs)


def signed(draft: Draft, axis: int, rank: int) -> int:
    return axis - rank if draft.rng.random() < 0.4 else axis


def some_axes(draft: Draft, rank: int, least: int = 1) -> list[int]:
    count = draft.rng.randint(least, rank) if rank else 0
    return [signed(draft, a, rank) for a in draft.rng.sample(range(rank), count)]


SMOOTH = ("Sigmoid", "Tanh", "Relu", "Elu", "Selu", "Softplus", "Softsign", "Erf", "Sin", "Cos", "Abs", "Neg", "Exp", "Atan",
          "LeakyRelu", "HardSigmoid", "Celu", "HardSwish", "Mish", "Gelu", "Identity", "Sinh", "Asinh", "Swish")  # fmt: skip
JUMPS = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "IsNaN", "IsInf")
KEEP_BITS = {"Relu", "Abs", "Neg", "Identity"}


def smooth(draft: Draft) -> None:
    op = draft.rng.choice(SMOOTH)
    attrs: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu", "Celu", "Swish", "HardSigmoid") and draft.rng.random() < 0.6:
        attrs["alpha"] = draft.rng.choice([0.1, 0.5, 1.0, 2.0])
    if op == "Gelu":
        attrs["approximate"] = draft.rng.choice(["none", "tanh"])
    wanted = (lambda t: t.is_float or t.dtype.kind == "i") if op in KEEP_BITS else floats
    if op in ("HardSwish", "Erf", "Gelu"):  # the oracle has float32 inside
        wanted = lambda t: t.dtype == np.float32  # noqa: E731
    draft.one(op, draft.pick(wanted), bits=op in KEEP_BITS, **attrs)


def positive(draft: Draft) -> None:
    """Functions with a pole at zero, kept away from it."""
    x = draft.pick(floats)
    away = draft.one("Add", draft.one("Abs", x), draft.constant(np.array(draft.rng.choice([0.5, 1, 2]), x.dtype)))
    kind = draft.rng.choice(["Sqrt", "Log", "Reciprocal", "Pow", "Div", "Mod"])
    if kind == "Div":
        draft.one("Div", draft.pick(lambda t: t.dtype == x.dtype and fits(t, x)), away)
    elif kind == "Mod":
        y = draft.pick(lambda t: t.bits and t.is_float)
        draft.one("Mod", y, draft.constant(np.array(0.7, y.dtype)), fmod=1)
    elif kind == "Pow":
        draft.one("Pow", away, draft.constant(np.array(draft.rng.choice([-1, -0.5, 0, 0.5, 1, 1.5, 2, 3]), x.dtype)))
    else:
        draft.one(kind, away)


def jump(draft: Draft) -> None:
    op = draft.rng.choice(JUMPS)
    draft.one(op, draft.pick(lambda t: t.is_float and t.bits), bits=True)


def fits(a: Tensor, b: Tensor) -> bool:
    try:
        for x, y in zip(a.data, b.data, strict=True):
            np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return True


def partner(draft: Draft, x: Tensor, special: Sequence[float] = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5)) -> Tensor:
    """A second operand: another value that broadcasts with `x`, or a constant, often one that a simplifier looks for."""
    found = [t for t in draft.pool() if t.dtype == x.dtype and fits(t, x)]
    if found and draft.rng.random() < 0.6:
        return draft.rng.choice(found)
    shape = [d if d is not None and draft.rng.random() < 0.5 else 1 for d in x.shape][draft.rng.randint(0, x.rank) :]
    if draft.rng.random() < 0.5:
        with np.errstate(invalid="ignore"):
            return draft.constant(np.full(shape, draft.rng.choice(special)).astype(x.dtype))
    return draft.constant(draft.numpy.uniform(-2, 3, shape).astype(x.dtype))


def swapped(draft: Draft, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (a, b) if draft.rng.random() < 0.7 else (b, a)


def arithmetic(draft: Draft) -> None:
    op = draft.rng.choice(["Add", "Sub", "Mul", "Min", "Max", "Sum", "Mean", "PRelu", "Pow"])
    x = draft.pick(lambda t: t.is_float or (t.dtype in (np.int32, np.int64) and op in ("Add", "Sub", "Mul", "Min", "Max")))
    if op in ("Min", "Max", "Sum", "Mean"):
        draft.one(op, *[x, *(partner(draft, x) for _ in range(draft.rng.randint(0, 2)))], bits=op in ("Min", "Max"))
    elif op == "PRelu":
        draft.one(op, x, draft.constant(draft.numpy.uniform(-1, 1, [1] * draft.rng.randint(0, x.rank)).astype(x.dtype)))
    elif op == "Pow":
        draft.one(op, x, draft.constant(np.array(draft.rng.choice([0, 1, 2, 3]), x.dtype)))
    else:
        draft.one(op, *swapped(draft, x, partner(draft, x)))


def integers(draft: Draft) -> None:
    op = draft.rng.choice(["Div", "Mod", "Mod", "BitShift", "BitwiseAnd", "BitwiseNot", "Abs", "Sign", "Neg"])
    x = draft.pick(lambda t: t.dtype.kind in "iu")
    small = draft.constant(np.array(draft.rng.choice([1, 2, 3, 7]), x.dtype))
    if op == "BitShift":
        draft.one(op, x, small, direction=draft.rng.choice(["LEFT", "RIGHT"]))
    elif op == "Mod":
        draft.one(op, x, small, fmod=draft.rng.choice([0, 1]))
    elif op in ("Div", "BitwiseAnd"):
        draft.one(op, x, small)
    else:
        draft.one(op, x)


def logic(draft: Draft) -> None:
    kind = draft.rng.choice(["compare", "compare", "logic", "where", "where", "not"])
    if kind == "compare":
        x = draft.pick(sharp)
        y = partner(draft, x)
        if not y.bits:
            raise Rejected("an edge")
        draft.one(draft.rng.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]), *swapped(draft, x, y))
    elif kind == "where":
        c = draft.pick(lambda t: t.dtype == bool)
        x = draft.pick(lambda t: fits(t, c) and t.dtype != bool)
        draft.one("Where", c, *swapped(draft, x, partner(draft, x)), bits=True)
    elif kind == "not":
        draft.one("Not", draft.pick(lambda t: t.dtype == bool))
    else:
        x = draft.pick(lambda t: t.dtype == bool)
        draft.one(draft.rng.choice(["And", "Or", "Xor"]), x, partner(draft, x))


def clip(draft: Draft) -> None:
    x = draft.pick(floats)
    low, high = draft.rng.choice([(-1.0, 1.0), (0.0, 6.0), (None, 0.5), (-0.25, None), (None, None), (0.5, -0.5)])
    if takes_input(draft, "Clip", "min"):
        ends = [None if v is None else draft.constant(np.array(v, x.dtype)) for v in (low, high)]
        draft.one("Clip", x, *(ends if high is not None else ends[:1]), bits=True)
    else:
        draft.one("Clip", x, bits=True, **{k: v for k, v in (("min", low), ("max", high)) if v is not None})


def cast(draft: Draft) -> None:
    to = np.dtype(draft.rng.choice([np.float32, np.float64, np.float16, np.int32, np.int64, np.bool_, np.int8, np.uint8]))
    x = draft.pick(lambda t: t.bits or to.kind == "f")
    if to.kind == "u" and any((d.astype(np.float64) < 0).any() for d in x.data):
        raise Rejected("negative numbers as unsigned ones: anything goes")
    exact = x.dtype.kind != "f" or to == np.float64
    draft.one("Cast", x, to=int(onnx.helper.np_dtype_to_tensor_dtype(to)), bits=exact)


REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
              "ReduceSumSquare")  # fmt: skip


def reduction(draft: Draft) -> None:
    op = draft.rng.choice(REDUCTIONS)
    x = draft.pick(lambda t: t.is_float or (t.dtype in (np.int32, np.int64) and op in ("ReduceSum", "ReduceMax", "ReduceMin")))
    attrs: dict[str, Any] = {} if draft.rng.random() < 0.3 else {"keepdims": draft.rng.choice([0, 1])}
    bits = op in ("ReduceMax", "ReduceMin")
    if draft.rng.random() < 0.2 or not x.rank:
        if has_attribute(draft, op, "noop_with_empty_axes") and draft.rng.random() < 0.5:
            attrs["noop_with_empty_axes"] = 1
        draft.one(op, x, bits=bits, **attrs)
    else:
        either(draft, op, x, "axes", some_axes(draft, x.rank), bits, **attrs)


def ordering(draft: Draft) -> None:
    op = draft.rng.choice(["ArgMax", "ArgMin", "TopK", "CumSum", "Hardmax"])
    x = draft.pick(lambda t: t.rank > 0 and (op == "CumSum" or t.bits) and t.dtype in (np.float32, np.int64, np.int32))
    axis = signed(draft, draft.rng.randrange(x.rank), x.rank)
    if op == "TopK":
        if x.least(axis) < 1:
            raise Rejected("nothing to choose from")
        k = draft.rng.randint(1, x.least(axis))
        attrs = {"largest": draft.rng.choice([0, 1])} if has_attribute(draft, op, "largest") else {}
        if takes_input(draft, op, "K"):
            draft.add(op, [x, draft.constant(np.array([k], np.int64))], 2, True, axis=axis, **attrs)
        else:
            draft.add(op, [x], 2, True, axis=axis, k=k)
    elif op == "CumSum":
        at = draft.constant(np.array(axis, draft.rng.choice([np.int32, np.int64])))
        draft.one(op, x, at, exclusive=draft.rng.choice([0, 1]), reverse=draft.rng.choice([0, 1]))
    elif op == "Hardmax":
        draft.one(op, x, axis=axis)
    else:
        attrs = {"select_last_index": draft.rng.choice([0, 1])} if has_attribute(draft, op, "select_last_index") else {}
        draft.one(op, x, axis=axis, keepdims=draft.rng.choice([0, 1]), **attrs)


def transpose(draft: Draft) -> None:
    x = draft.pick(lambda t: t.rank > 1)
    attrs = {} if draft.rng.random() < 0.2 else {"perm": draft.rng.sample(range(x.rank), x.rank)}
    y = draft.one("Transpose", x, bits=True, **attrs)
    if draft.rng.random() < 0.3:
        draft.one("Transpose", y, bits=True, perm=draft.rng.sample(range(x.rank), x.rank))


def reshape(draft: Draft) -> None:
    """By constant sizes with 0 and -1, by flattening, squeezing, and the other way."""
    kind = draft.rng.choice(["Reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze"])
    x = draft.pick(ranked)
    if kind == "Flatten":
        axis = draft.rng.randint(-x.rank, x.rank) if draft.opset >= 11 else draft.rng.randint(0, x.rank)
        draft.one(kind, x, bits=True, axis=axis)
    elif kind == "Unsqueeze":
        extra = draft.rng.randint(1, 2)
        axes = [signed(draft, a, x.rank + extra) for a in draft.rng.sample(range(x.rank + extra), extra)]
        either(draft, kind, x, "axes", axes, True)
    elif kind == "Squeeze":
        ones = [a for a, d in enumerate(x.shape) if d == 1]
        if draft.rng.random() < 0.2 and None not in x.shape:
            draft.one(kind, x, bits=True)
        elif ones:
            either(draft, kind, x, "axes", [signed(draft, a, x.rank) for a in draft.rng.sample(ones, draft.rng.randint(1, len(ones)))], True)  # noqa: E501  # fmt: skip
    else:
        sizes: list[int] = [0 if d is None or draft.rng.random() < 0.3 else d for d in x.shape]
        if draft.rng.random() < 0.7:
            at = draft.rng.randrange(x.rank)
            width = draft.rng.randint(1, x.rank - at)
            sizes[at : at + width] = [-1]
            if 0 in sizes[at + 1 :] and width != 1:
                raise Rejected("a zero would copy another size")
        draft.one(kind, x, draft.constant(np.array(sizes, np.int64)), bits=True)


def symbolic_reshape(draft: Draft) -> None:
    """Shape -> Gather -> arithmetic -> Concat -> Reshape, as exporters write it."""
    x = draft.pick(lambda t: t.rank > 1)
    shape = draft.one("Shape", x)
    parts = []
    for axis in range(x.rank):
        index = draft.constant(np.array(signed(draft, axis, x.rank), np.int64))
        parts.append(draft.one("Gather", shape, index, axis=0))
    form = draft.rng.choice(["merge", "split", "infer", "swap"])
    at = draft.rng.randrange(x.rank - 1)
    if form == "merge":
        parts[at : at + 2] = [draft.one("Mul", parts[at], parts[at + 1])]
    elif form == "split":
        factor = draft.rng.choice([1, 2, 3])
        if any(d.shape[at] % factor for d in x.data):
            raise Rejected("it does not divide")
        by = draft.constant(np.array(factor, np.int64))
        parts[at : at + 1] = [draft.one("Div", parts[at], by), by] if draft.rng.random() < 0.5 else [by, draft.one("Div", parts[at], by)]  # noqa: E501  # fmt: skip
    elif form == "infer":
        parts[at] = draft.constant(np.array(-1, np.int64))
    else:
        parts[at], parts[at + 1] = parts[at + 1], parts[at]
    vectors = [either(draft, "Unsqueeze", p, "axes", [0]) for p in parts]
    target = draft.one("Concat", *vectors, axis=0)
    draft.one("Reshape", x, target, bits=True)


def sizes(draft: Draft) -> None:
    """Tensors made from sizes: ranges, fills, counts."""
    x = draft.pick(ranked)
    kind = draft.rng.choice(["Range", "ConstantOfShape", "Size", "EyeLike", "Expand", "Slice", "Shape"])
    if kind == "Size":
        draft.one(kind, x)
    elif kind == "Shape":
        attrs = {} if draft.opset < 15 else {"start": draft.rng.randint(-4, 3), "end": draft.rng.randint(-3, 5)}
        draft.one(kind, x, **attrs)
    elif kind == "EyeLike":
        draft.one(kind, draft.pick(lambda t: t.rank == 2), k=draft.rng.randint(-2, 2), dtype=1, bits=True)
    elif kind == "ConstantOfShape":
        value = onnx.numpy_helper.from_array(np.array([draft.rng.choice([0, 1, 3])], draft.rng.choice([np.float32, np.int64])))
        draft.one(kind, draft.one("Shape", x), bits=True, **({} if draft.rng.random() < 0.3 else {"value": value}))
    elif kind == "Expand":
        y = draft.pick(lambda t: fits(t, x))
        draft.one(kind, y, draft.one("Shape", x), bits=True)
    else:
        axis = draft.rng.randrange(x.rank)
        length = draft.one("Gather", draft.one("Shape", x), draft.constant(np.array(axis, np.int64)), axis=0)
        if kind == "Range":
            step = draft.rng.choice([1, 2])
            start = draft.constant(np.array(draft.rng.choice([0, 1, -2]), np.int64))
            draft.one(kind, start, length, draft.constant(np.array(step, np.int64)))
        else:
            half = draft.one("Div", length, draft.constant(np.array(2, np.int64)))
            ends = [either(draft, "Unsqueeze", half, "axes", [0]), draft.constant(np.array([FAR], np.int64))]
            if draft.rng.random() < 0.5:
                ends = [draft.constant(np.array([0], np.int64)), ends[0]]
            draft.one("Slice", x, *ends, draft.constant(np.array([axis], np.int64)), bits=True)


def expand(draft: Draft) -> None:
    kind = draft.rng.choice(["Expand", "Tile", "Trilu"])
    x = draft.pick()
    if kind == "Expand":
        target = [1 if d is None or draft.rng.random() < 0.5 else d for d in x.shape]
        target = [draft.rng.choice([2, 3]) if d == 1 and draft.rng.random() < 0.5 else t for d, t in zip(x.shape, target)]
        target = [draft.rng.choice([1, 2])] * draft.rng.randint(0, 1) + target
        draft.one(kind, x, draft.constant(np.array(target, np.int64)), bits=True)
    elif kind == "Tile":
        draft.one(
            kind, x, draft.constant(np.array([draft.rng.choice([1, 1, 2, 3]) for _ in range(x.rank)], np.int64)), bits=True
        )
    else:
        y = draft.pick(lambda t: t.rank > 1)
        k = [draft.constant(np.array(draft.rng.randint(-2, 2), np.int64))] if draft.rng.random() < 0.6 else []
        draft.one(kind, y, *k, upper=draft.rng.choice([0, 1]), bits=True)


def join(draft: Draft) -> None:
    x = draft.pick(ranked)
    axis = draft.rng.randrange(x.rank)

    def joins(t: Tensor) -> bool:
        return (
            t.dtype == x.dtype
            and t.rank == x.rank
            and all(a.shape[i] == b.shape[i] for a, b in zip(t.data, x.data) for i in range(x.rank) if i != axis)
        )

    others = [draft.pick(joins) for _ in range(draft.rng.randint(0, 2))]
    draft.one("Concat", x, *others, axis=signed(draft, axis, x.rank) if draft.opset >= 11 else axis, bits=True)


def split(draft: Draft) -> None:
    x = draft.pick(lambda t: any(d is not None and d > 1 for d in t.shape))
    axis = draft.rng.choice([a for a, d in enumerate(x.shape) if d is not None and d > 1])
    size = x.shape[axis] or 0
    at = signed(draft, axis, x.rank) if draft.opset >= 11 else axis
    if draft.rng.random() < 0.5:
        first = draft.rng.randint(0 if draft.opset >= 13 else 1, size)
        parts = [p for p in (first, size - first) if p or draft.opset >= 13]
        if takes_input(draft, "Split", "split"):
            draft.add("Split", [x, draft.constant(np.array(parts, np.int64))], len(parts), True, axis=at)
        else:
            draft.add("Split", [x], len(parts), True, axis=at, split=parts)
    else:
        count = draft.rng.choice([n for n in range(1, size + 1) if size % n == 0 or draft.opset >= 18])
        draft.add("Split", [x], count, True, axis=at, **({"num_outputs": count} if draft.opset >= 18 else {}))


def slices(draft: Draft) -> None:
    x = draft.pick(ranked)
    axes = draft.rng.sample(range(x.rank), draft.rng.randint(1, x.rank))
    starts, ends, steps = [], [], []
    for _ in axes:
        step = draft.rng.choice([1, 1, 2, -1, -2, 3]) if draft.opset >= 10 else 1
        start, end = draft.rng.randint(-4, 4), draft.rng.choice([draft.rng.randint(-5, 6), FAR, -FAR])
        if step < 0:
            # an end of FAR would mean the beginning to ONNX Runtime, against the specification
            start, end = draft.rng.choice([(-1, -FAR), (FAR, 0), (3, -FAR), (start, draft.rng.randint(-5, 6))])
        starts.append(start), ends.append(end), steps.append(step)
    if draft.opset < 10:
        draft.one("Slice", x, bits=True, axes=axes, starts=starts, ends=ends)
        return
    kind = draft.rng.choice([np.int32, np.int64])
    given = [draft.constant(np.array(v, kind)) for v in (starts, ends, [signed(draft, a, x.rank) for a in axes], steps)]
    draft.one("Slice", x, *(given if draft.rng.random() < 0.8 or max(steps) > 1 or min(steps) < 0 else given[:3]), bits=True)


def pad(draft: Draft) -> None:
    x = draft.pick(lambda t: t.rank > 0 and t.is_float)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if draft.opset >= 19 else [])]
    mode = draft.rng.choice(modes)
    low = -1 if draft.rng.random() < 0.3 else 0
    pads = [draft.rng.randint(low, 2) for _ in range(2 * x.rank)]
    if mode != "constant" and any(d < 3 for s in x.data for d in s.shape):
        raise Rejected("too small to reflect")
    if not takes_input(draft, "Pad", "pads"):
        draft.one("Pad", x, pads=pads, mode=mode, bits=True, **({"value": 0.5} if mode == "constant" else {}))
        return
    value = [draft.constant(np.array(draft.rng.choice([0, 1.5, -2]), x.dtype))] if mode == "constant" and draft.rng.random() < 0.6 else []  # noqa: E501  # fmt: skip
    draft.one("Pad", x, draft.constant(np.array(pads, np.int64)), *value, mode=mode, bits=True)


def gather(draft: Draft) -> None:
    kind = draft.rng.choice(["Gather", "Gather", "GatherElements", "GatherND", "OneHot", "Compress", "NonZero"])
    x = draft.pick(ranked)
    axis = draft.rng.randrange(x.rank)
    if x.least(axis) < 1:
        raise Rejected("nothing to gather")
    size = x.least(axis)
    low = -size if draft.opset >= 11 else 0
    itype = draft.rng.choice([np.int32, np.int64])
    if kind == "Gather":
        shape = [draft.rng.randint(1, 3) for _ in range(draft.rng.randint(0, 2))]
        draft.one(kind, x, draft.constant(draft.numpy.integers(low, size, shape).astype(itype)), axis=signed(draft, axis, x.rank) if draft.opset >= 11 else axis, bits=True)  # noqa: E501  # fmt: skip
    elif kind == "GatherElements":
        shape = [max(1, draft.rng.randint(1, max(1, x.least(a)))) for a in range(x.rank)]
        if any(x.least(a) < s for a, s in enumerate(shape) if a != axis):
            raise Rejected("outside")
        draft.one(kind, x, draft.constant(draft.numpy.integers(low, size, shape).astype(itype)), axis=signed(draft, axis, x.rank), bits=True)  # noqa: E501  # fmt: skip
    elif kind == "GatherND":
        depth = draft.rng.randint(1, x.rank)
        least = [x.least(a) for a in range(depth)]
        if min(least) < 1:
            raise Rejected("nothing to gather")
        rows = np.stack([draft.numpy.integers(-s, s, [2]) for s in least], -1)
        draft.one(kind, x, draft.constant(rows.astype(np.int64)), bits=True)
    elif kind == "OneHot":
        i = draft.pick(lambda t: t.dtype in (np.int32, np.int64))
        values = draft.constant(np.array([0, 1], np.float32))
        draft.one(kind, i, draft.constant(np.array(4, np.int64)), values, axis=draft.rng.randint(-1, i.rank), bits=True)
    elif kind == "Compress":
        flags = draft.constant(draft.numpy.integers(0, 2, [size]).astype(bool))
        draft.one(kind, x, flags, axis=axis, bits=True)
    else:
        draft.one(kind, draft.pick(lambda t: t.bits and t.rank > 0))  # of scalars ONNX Runtime has a view of its own


def scatter(draft: Draft) -> None:
    kind = draft.rng.choice(["ScatterElements", "ScatterND"])
    x = draft.pick(lambda t: t.rank > 0 and t.dtype in (np.float32, np.int64))
    least = [x.least(a) for a in range(x.rank)]
    if min(least) < 1:
        raise Rejected("nothing to scatter to")
    attrs: dict[str, Any] = {}
    if has_attribute(draft, kind, "reduction"):
        attrs["reduction"] = draft.rng.choice(["none", "add", "mul", *(["max", "min"] if draft.opset >= 18 else [])])
    unique = attrs.get("reduction", "none") == "none"
    if kind == "ScatterElements":
        axis = draft.rng.randrange(x.rank)
        shape = [draft.rng.randint(1, s) for s in least]
        order = np.argsort(draft.numpy.random([*shape[:axis], least[axis], *shape[axis + 1 :]]), axis)
        index = np.take(order, range(shape[axis]), axis) if unique else draft.numpy.integers(-least[axis], least[axis], shape)
        attrs["axis"] = signed(draft, axis, x.rank)
    else:
        depth = draft.rng.randint(1, x.rank)
        if None in x.shape[depth:]:
            raise Rejected("updates would need a free size")
        flat = draft.numpy.choice(int(np.prod(least[:depth])), 1 if unique else 2, replace=not unique)
        index = np.stack(np.unravel_index(flat, least[:depth]), -1)
        shape = [len(flat), *least[depth:]]
    updates = draft.numpy.uniform(-2, 2, shape).astype(x.dtype)
    bits = attrs.get("reduction", "none") in ("none", "max", "min")
    draft.one(kind, x, draft.constant(index.astype(np.int64)), draft.constant(updates), bits=bits, **attrs)


def blocks(draft: Draft) -> None:
    x = draft.pick(lambda t: t.rank == 4 and t.is_float)
    if draft.rng.random() < 0.5:
        attrs = {"mode": draft.rng.choice(["DCR", "CRD"])} if draft.opset >= 11 else {}
        draft.one("DepthToSpace", x, blocksize=2, bits=True, **attrs)
    else:
        draft.one("SpaceToDepth", x, blocksize=2, bits=True)


STEPS: tuple[tuple[Step, int], ...] = (
    (smooth, 8), (positive, 3), (jump, 2), (arithmetic, 10), (integers, 2), (logic, 5), (clip, 2), (cast, 3), (reduction, 6),
    (ordering, 3), (transpose, 4), (reshape, 5), (symbolic_reshape, 4), (sizes, 4), (expand, 3), (join, 3), (split, 3),
    (slices, 5), (pad, 3), (gather, 4), (scatter, 3), (blocks, 1),
)  # fmt: skip
