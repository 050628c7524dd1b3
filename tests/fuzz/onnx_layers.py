"""Random steps of a draft: layers (convolution, pooling, norms, products, recurrence), the same spelled out in small operators
as exporters write them, and control flow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.onnx_draft import Discarded, Draft, Rejected, Tensor
from tests.fuzz.onnx_steps import STEPS, Step, either, has_attribute, signed, takes_input


def weight(draft: Draft, x: Tensor, *shape: int, low: float = -0.6, high: float = 0.6) -> Tensor:
    return draft.constant(draft.numpy.uniform(low, high, shape).astype(x.dtype))


def image(t: Tensor) -> bool:
    return t.dtype == np.float32 and t.rank in (3, 4) and isinstance(t.shape[1], int) and all(x.size for x in t.data)


def windowed(draft: Draft, x: Tensor, dilated: bool = True) -> dict[str, Any]:
    """Attributes of a window: odd paddings, strides, dilations."""
    spatial = x.rank - 2
    attrs: dict[str, Any] = {"kernel_shape": [draft.rng.randint(1, 3) for _ in range(spatial)]}
    if draft.rng.random() < 0.6:
        attrs["strides"] = [draft.rng.randint(1, 3) for _ in range(spatial)]
    if dilated and draft.rng.random() < 0.3:
        attrs["dilations"] = [draft.rng.randint(1, 2) for _ in range(spatial)]
    elif draft.rng.random() < 0.25:  # ONNX Runtime forgets dilations when it pads by itself
        attrs["auto_pad"] = draft.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif draft.rng.random() < 0.7:
        attrs["pads"] = [draft.rng.randint(0, k - 1) for k in attrs["kernel_shape"] * 2]
    check_room(x, attrs)
    return attrs


def check_room(x: Tensor, attrs: dict[str, Any]) -> None:
    """A window that is larger than its padded image has no place, whatever oracles make of it."""
    spatial = x.rank - 2
    ones, zeros = [1] * spatial, [0] * (2 * spatial)
    pads, dilations = attrs.get("pads", zeros), attrs.get("dilations", ones)
    for axis, taps in enumerate(attrs["kernel_shape"]):
        if x.least(2 + axis) + pads[axis] + pads[spatial + axis] < (taps - 1) * dilations[axis] + 1:
            raise Rejected("the window has no room")


def convolution(draft: Draft) -> None:
    x = draft.pick(image)
    channels = x.shape[1] or 1
    group = draft.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    attrs = {**windowed(draft, x), "group": group}
    transposed = draft.rng.random() < 0.3
    out = draft.rng.randint(1, 3)
    kernel = attrs["kernel_shape"]
    shape = [channels, out, *kernel] if transposed else [out * group, channels // group, *kernel]
    bias = [weight(draft, x, out * group)] if draft.rng.random() < 0.5 else []
    if transposed and "auto_pad" not in attrs and draft.rng.random() < 0.5:
        attrs["output_padding"] = [draft.rng.randint(0, s - 1) for s in attrs.get("strides", [1] * len(kernel))]
    y = draft.one("ConvTranspose" if transposed else "Conv", x, weight(draft, x, *shape), *bias, **attrs)
    if draft.rng.random() < 0.4:
        batch_norm(draft, y)


def batch_norm(draft: Draft, x: Tensor) -> None:
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Rejected("free channels")
    params = [weight(draft, x, channels, low=-1, high=1) for _ in range(3)]
    draft.one(
        "BatchNormalization", x, *params, weight(draft, x, channels, low=0.5, high=2), epsilon=draft.rng.choice([1e-5, 0.1])
    )


def pooling(draft: Draft) -> None:
    x = draft.pick(image)
    op = draft.rng.choice(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        draft.one(op, x, bits=op == "GlobalMaxPool")
        return
    attrs = windowed(draft, x, has_attribute(draft, op, "dilations"))
    if has_attribute(draft, op, "ceil_mode") and draft.rng.random() < 0.4:
        attrs["ceil_mode"] = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = draft.rng.choice([0, 1])
    draft.one(op, x, bits=op == "MaxPool", **attrs)


def norm(draft: Draft) -> None:
    ops = {"LayerNormalization": 17, "InstanceNormalization": 7, "GroupNormalization": 18, "RMSNormalization": 23,
           "LpNormalization": 7, "MeanVarianceNormalization": 9, "BatchNormalization": 7}  # fmt: skip
    op = draft.rng.choice([name for name, since in ops.items() if since <= draft.opset])
    if op in ("LayerNormalization", "RMSNormalization"):
        x = draft.pick(lambda t: t.is_float and t.rank > 0 and isinstance(t.shape[-1], int) and all(x.size for x in t.data))
        axis = max((a + 1 for a, d in enumerate(x.shape) if d is None), default=0)
        axis = draft.rng.randint(axis, x.rank - 1)
        params = [
            weight(draft, x, *(d or 0 for d in x.shape[axis:])) for _ in range(1 if op[0] == "R" else draft.rng.choice([1, 2]))
        ]
        draft.one(op, x, *params, axis=signed(draft, axis, x.rank))
        return
    x = draft.pick(image)
    channels = x.shape[1] or 1
    if op == "InstanceNormalization":
        draft.one(op, x, weight(draft, x, channels), weight(draft, x, channels))
    elif op == "GroupNormalization":
        groups = draft.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
        count = channels if draft.opset >= 21 else groups
        draft.one(op, x, weight(draft, x, count), weight(draft, x, count), num_groups=groups)
    elif op == "LpNormalization":
        draft.one(op, x, axis=signed(draft, draft.rng.randrange(x.rank), x.rank), p=draft.rng.choice([1, 2]))
    elif op == "MeanVarianceNormalization":
        axes = draft.rng.choice([[0, 2, 3], [2, 3], [1, 2, 3]])[: x.rank - 1]  # enough elements for a mean to mean something
        draft.one(op, x, axes=[a for a in axes if a < x.rank])
    else:
        batch_norm(draft, x)


def softmax(draft: Draft) -> None:
    x = draft.pick(lambda t: t.is_float and t.rank > 0)
    axis = draft.rng.randrange(x.rank)
    op = draft.rng.choice(["Softmax", "LogSoftmax"])
    if draft.rng.random() < 0.2:
        draft.one(op, x)
    else:
        draft.one(op, x, axis=signed(draft, axis, x.rank) if draft.opset >= 11 else axis)


def product(draft: Draft) -> None:
    op = draft.rng.choice(["MatMul", "MatMul", "Gemm", "Einsum"])
    # Gemm of half floats rounds once in the oracle and twice here, which one element in many shows
    x = draft.pick(
        lambda t: (
            t.is_float
            and (t.rank == 2 and t.dtype.itemsize > 2 if op == "Gemm" else t.rank > 0)
            and isinstance(t.shape[-1], int)
        )
    )
    k, n = x.shape[-1] or 0, draft.rng.randint(1, 4)
    if op == "Gemm":
        trans = draft.rng.choice([0, 1])
        w = weight(draft, x, n, k) if trans else weight(draft, x, k, n)
        c = (
            [weight(draft, x, *draft.rng.choice([(n,), (1, n), (1,), (1, 1)]))]
            if draft.rng.random() < 0.7 or draft.opset < 11
            else []
        )
        draft.one(op, x, w, *c, transB=trans, alpha=draft.rng.choice([1.0, 0.5]), beta=draft.rng.choice([1.0, 2.0, 0.0]))
    elif op == "Einsum":
        draft.one(op, x, weight(draft, x, k, n), equation="...k,kn->...n" if draft.rng.random() < 0.5 else "...k,kn->n...")
    else:
        found = [t for t in draft.pool() if t.dtype == x.dtype and t.rank > 1 and all(a.shape[-1] == b.shape[-2] for a, b in zip(x.data, t.data))]  # noqa: E501  # fmt: skip
        y = draft.rng.choice(found) if found and draft.rng.random() < 0.5 else weight(draft, x, *draft.rng.choice([(k,), (k, n), (2, k, n)]))  # noqa: E501  # fmt: skip
        z = draft.one(op, x, y)
        if draft.rng.random() < 0.3:
            draft.one("Add", z, weight(draft, x, *([z.shape[-1]] if z.rank and isinstance(z.shape[-1], int) else [])))


def recurrent(draft: Draft) -> None:
    x = draft.pick(
        lambda t: t.dtype == np.float32 and t.rank == 3 and isinstance(t.shape[2], int) and all(x.size for x in t.data)
    )
    op, gates = draft.rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = draft.rng.choice(["forward", "reverse", "bidirectional"])
    d, h, size = (2 if direction == "bidirectional" else 1), draft.rng.randint(1, 3), x.shape[2] or 0
    inputs: list[Tensor | None] = [x, weight(draft, x, d, gates * h, size), weight(draft, x, d, gates * h, h)]
    if draft.rng.random() < 0.6:
        inputs.append(weight(draft, x, d, 2 * gates * h))
    attrs = {"linear_before_reset": draft.rng.choice([0, 1])} if op == "GRU" else {}
    draft.add(op, inputs, 3 if op == "LSTM" else 2, hidden_size=h, direction=direction, **attrs)


def scalar(draft: Draft, x: Tensor, number: float) -> Tensor:
    return draft.constant(np.array(number, x.dtype))


def mean(draft: Draft, x: Tensor, axis: int = -1) -> Tensor:
    return either(draft, "ReduceMean", x, "axes", [axis if draft.opset >= 11 else x.rank - 1], keepdims=1)


def spelled_norm(draft: Draft) -> None:
    x = draft.pick(lambda t: t.is_float and t.rank > 0 and isinstance(t.shape[-1], int))
    y = x
    if draft.rng.random() < 0.6:
        y = draft.one("Sub", x, mean(draft, x))
    square = draft.one("Mul", y, y) if draft.rng.random() < 0.5 else draft.one("Pow", y, scalar(draft, x, 2))
    spread = draft.one("Sqrt", draft.one("Add", mean(draft, square), scalar(draft, x, draft.rng.choice([1e-5, 1e-2]))))
    z = draft.one("Div", y, spread) if draft.rng.random() < 0.6 else draft.one("Mul", y, draft.one("Reciprocal", spread))
    if draft.rng.random() < 0.7:
        z = draft.one("Mul", z, weight(draft, x, *draft.rng.choice([(x.shape[-1] or 0,), (), (1,)])))
        if draft.rng.random() < 0.7:
            draft.one("Add", z, weight(draft, x, x.shape[-1] or 0))


def spelled_activation(draft: Draft) -> None:
    x = draft.pick(lambda t: t.dtype == np.float32)
    kind = draft.rng.choice(["gelu", "tanh", "silu", "softmax"])
    if kind == "gelu":
        inner = draft.one("Erf", draft.one("Div", x, scalar(draft, x, draft.rng.choice([math.sqrt(2), 1.4]))))
        half = draft.one("Mul", x, scalar(draft, x, 0.5))
        draft.one("Mul", half, draft.one("Add", inner, scalar(draft, x, 1)))
    elif kind == "tanh":
        cube = draft.one("Mul", draft.one("Pow", x, scalar(draft, x, 3)), scalar(draft, x, 0.044715))
        inner = draft.one("Mul", draft.one("Add", x, cube), scalar(draft, x, math.sqrt(2 / math.pi)))
        draft.one("Mul", draft.one("Mul", x, scalar(draft, x, 0.5)), draft.one("Add", draft.one("Tanh", inner), scalar(draft, x, 1)))  # noqa: E501  # fmt: skip
    elif kind == "silu":
        draft.one("Mul", x, draft.one("Sigmoid", x))
    else:
        if not x.rank:
            raise Rejected("no axis")
        axis = draft.rng.randrange(x.rank)
        top = either(draft, "ReduceMax", x, "axes", [axis], keepdims=1)
        powers = draft.one("Exp", draft.one("Sub", x, top))
        draft.one("Div", powers, either(draft, "ReduceSum", powers, "axes", [axis], keepdims=1))


def headed(t: Tensor) -> bool:
    """A value to attend over; of nothing, ONNX Runtime does not survive."""
    return t.dtype == np.float32 and t.rank in (3, 4) and isinstance(t.shape[-1], int) and all(x.size for x in t.data)


def attention(draft: Draft) -> None:
    """Spelled-out attention over a value that serves as query, and key and value made from it or from another."""
    q = draft.pick(headed)
    size = q.shape[-1] or 0
    k = draft.one("MatMul", q, weight(draft, q, size, size))
    v = draft.one("MatMul", q, weight(draft, q, size, draft.rng.choice([size, 2])))
    order = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    if draft.rng.random() < 0.4:
        q = draft.one("Mul", q, scalar(draft, q, 0.7))
    scores = draft.one("MatMul", q, draft.one("Transpose", k, bits=True, perm=order))
    if draft.rng.random() < 0.6:
        scores = draft.one(draft.rng.choice(["Mul", "Div"]), scores, scalar(draft, q, math.sqrt(size)))
    masking = draft.rng.choice(["none", "add", "causal", "where"])
    if masking == "add" and isinstance(scores.shape[-1], int):
        scores = draft.one("Add", scores, weight(draft, q, scores.shape[-1]))
    elif masking != "none" and draft.opset >= 14:
        shape = draft.one("Shape", scores)
        ones = draft.one("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([1], np.float32)), bits=True)
        seen = draft.one("Cast", draft.one("Trilu", ones, upper=0, bits=True), to=onnx.TensorProto.BOOL)
        scores = draft.one("Where", seen, scores, scalar(draft, q, -1e2 if masking == "where" else -500.0))
    weights = draft.one("Softmax", scores, axis=scores.rank - 1)
    draft.one("MatMul", weights, v)


def fused_attention(draft: Draft) -> None:
    if draft.opset < 23:
        raise Rejected("no such operator")
    q = draft.pick(lambda t: headed(t) and t.rank == 4)
    size = q.shape[-1] or 0
    k, v = (draft.one("MatMul", q, weight(draft, q, size, size)) for _ in range(2))
    attrs = {"is_causal": draft.rng.choice([0, 1])} | ({"scale": 0.3} if draft.rng.random() < 0.3 else {})
    draft.one("Attention", q, k, v, **attrs)


def nested(draft: Draft, params: list[Tensor], steps: int) -> Draft:
    """A draft of a nested graph that reads `params` and the values around it."""
    inner = Draft(draft.rng, draft.opset, draft.settings, [*draft.outer, *draft.tensors.values()], f"{draft.name()}.")
    inner.discarded = draft.discarded
    for p in params:
        inner.tensors[p.name] = p
    grow(inner, steps, [s for s in STEPS if s[0].__name__ in ("smooth", "arithmetic", "logic", "reshape", "slices", "reduction", "symbolic_reshape")])  # noqa: E501  # fmt: skip
    return inner


def sealed(inner: Draft, params: list[Tensor], outputs: list[Tensor], name: str) -> onnx.GraphProto:
    def info(t: Tensor) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(t.name, helper.np_dtype_to_tensor_dtype(t.dtype), [None] * t.rank)

    owned = [numpy_helper.from_array(t.data[0], t.name) for t in inner.tensors.values() if t.constant]
    return helper.make_graph(inner.nodes, name, [info(p) for p in params], [info(o) for o in outputs], owned)


def produced(inner: Draft) -> list[Tensor]:
    names = [n for node in inner.nodes for n in node.output]
    return [inner.tensors[n] for n in names if inner.tensors[n].dtype in (np.float32, np.int64)]


def branch(draft: Draft) -> None:
    """If on a size, on data, or on a constant."""
    x = draft.pick(lambda t: t.rank > 0)
    kind = draft.rng.choice(["size", "size", "data", "constant"])
    if kind == "size":
        count = draft.one("Gather", draft.one("Shape", x), draft.constant(np.array(0, np.int64)), axis=0)
        condition = draft.one("Greater", count, draft.constant(np.array(draft.rng.choice([0, 1, 2, 4]), np.int64)))
    elif kind == "data":
        y = draft.pick(lambda t: t.bits and t.dtype in (np.float32, np.int64) and t.rank > 0)
        total = draft.one("ReduceMax", y, keepdims=0, bits=True)
        condition = draft.one("Greater", total, draft.constant(np.array(1, y.dtype)))
    else:
        condition = draft.constant(np.array(draft.rng.choice([True, False])))
    sides = [nested(draft, [], draft.rng.randint(0, 3)) for _ in range(2)]
    if x.is_float:
        for side in sides:
            side.one(draft.rng.choice(["Relu", "Tanh", "Neg", "Identity"]), x)
    first, second = (produced(s) for s in sides)
    pairs = [(a, b) for a in first for b in second if a.dtype == b.dtype and a.rank == b.rank]
    if not pairs:
        raise Rejected("branches have nothing alike")
    pairs = pairs[-draft.rng.randint(1, 2) :]
    graphs = [sealed(s, [], [p[i] for p in pairs], f"{s.prefix}side") for i, s in enumerate(sides)]
    for graph in graphs:
        if len({o.name for o in graph.output}) != len(pairs):
            raise Rejected("one output twice")
    draft.add(
        "If", [condition], len(pairs), all(t.bits for p in pairs for t in p), then_branch=graphs[0], else_branch=graphs[1]
    )


def loop(draft: Draft) -> None:
    """A Loop with a carried value and a stacked result; the trip count is a number or a size."""
    x = draft.pick(lambda t: t.dtype == np.float32)
    prefix = draft.name()
    count = len(draft.settings)
    i = Tensor(f"{prefix}.i", (np.array(1, np.int64),) * count, (np.array(1, np.int64),) * count, True)
    going = Tensor(f"{prefix}.go", (np.array(True),) * count, (np.array(True),) * count, True)
    state = Tensor(f"{prefix}.x", x.data, x.exact, False)
    inner = Draft(draft.rng, draft.opset, draft.settings, [*draft.outer, *draft.tensors.values()], f"{prefix}.b")
    for p in (i, going, state):
        inner.tensors[p.name] = p
    step = inner.one("Cast", i, to=onnx.TensorProto.FLOAT)
    scaled = inner.one(draft.rng.choice(["Tanh", "Sin", "Sigmoid"]), inner.one("Add", state, step))
    grow(inner, draft.rng.randint(0, 2), [s for s in STEPS if s[0].__name__ in ("smooth", "arithmetic", "reduction", "slices")])
    extra = [t for t in produced(inner) if t.dtype == np.float32]
    stacked = inner.one("Identity", inner.rng.choice(extra))
    again = inner.one("Less", i, inner.constant(np.array(draft.rng.choice([0, 1, 50]), np.int64)))
    body = sealed(inner, [i, going, state], [again, scaled, stacked], f"{prefix}.body")
    if draft.rng.random() < 0.5:
        trips = draft.constant(np.array(draft.rng.randint(1, 4), np.int64))
    else:
        y = draft.pick(lambda t: t.rank > 0 and t.least(0) > 0)
        trips = draft.one("Gather", draft.one("Shape", y), draft.constant(np.array(0, np.int64)), axis=0)
    start = draft.constant(np.array(True)) if draft.rng.random() < 0.7 else None
    draft.add("Loop", [trips, start, x], 2, body=body)


def scan(draft: Draft) -> None:
    """A running sum over the first axis, or from its end."""
    if draft.opset < 9:
        raise Rejected("an older form")
    x = draft.pick(
        lambda t: t.dtype == np.float32 and t.rank > 1 and t.least(0) > 0 and isinstance(t.shape[1], int) and t.rank == 2
    )
    prefix = draft.name()
    row = tuple(d[0] for d in x.data)
    taken = Tensor(f"{prefix}.r", row, tuple(d[0] for d in x.exact), False)
    state = Tensor(f"{prefix}.s", row, tuple(d[0] for d in x.exact), False)
    inner = Draft(draft.rng, draft.opset, draft.settings, [*draft.outer, *draft.tensors.values()], f"{prefix}.b")
    inner.tensors |= {taken.name: taken, state.name: state}
    total = inner.one("Add", state, inner.one("Sigmoid", taken))
    shown = inner.one("Tanh", total)
    body = sealed(inner, [state, taken], [total, shown], f"{prefix}.body")
    initial = draft.constant(np.zeros(x.shape[1] or 0, np.float32))
    attrs = {"scan_input_directions": [draft.rng.choice([0, 1])], "scan_output_directions": [draft.rng.choice([0, 1])]}
    draft.add("Scan", [initial, x], 2, body=body, num_scan_inputs=1, **attrs)


def resize(draft: Draft) -> None:
    x = draft.pick(lambda t: t.dtype == np.float32 and t.rank == 4 and None not in t.shape[2:] and t.least(0) > 0)
    scales = np.array([1, 1, draft.rng.choice([2, 0.5]), draft.rng.choice([1, 2, 4])], np.float32)
    if draft.opset < 10:
        if takes_input(draft, "Upsample", "scales"):
            draft.one("Upsample", x, draft.constant(np.maximum(scales, 1)), mode="nearest", bits=True)
        else:
            draft.one("Upsample", x, scales=np.maximum(scales, 1).tolist(), mode="nearest", bits=True)
    elif draft.opset > 10:
        mode = draft.rng.choice(["nearest", "linear"])  # with coordinates that float32 has exactly, as the oracles use it
        where = draft.rng.choice(["half_pixel", "asymmetric", "pytorch_half_pixel"])
        roi = draft.constant(np.zeros(0, np.float32))
        draft.one("Resize", x, roi, draft.constant(scales), mode=mode, coordinate_transformation_mode=where)


LAYERS: tuple[tuple[Step, int], ...] = (
    (convolution, 5), (pooling, 4), (norm, 4), (softmax, 3), (product, 5), (recurrent, 1), (spelled_norm, 4),
    (spelled_activation, 3), (attention, 3), (fused_attention, 1), (branch, 3), (loop, 2), (scan, 1), (resize, 1),
)  # fmt: skip


def grow(draft: Draft, steps: int, choices: Any = (*STEPS, *LAYERS)) -> None:
    """Add up to `steps` random steps; those that are rejected leave nothing behind."""
    functions, weights = [s for s, _ in choices], [w for _, w in choices]
    for _ in range(steps * 4):
        if steps <= 0:
            return
        mark = draft.mark()
        try:
            draft.rng.choices(functions, weights)[0](draft)
            steps -= 1
        except (Rejected, onnx.defs.SchemaError) as error:
            draft.undo(mark)
            if isinstance(error, Discarded):
                draft.discarded[str(error)] += 1
