"""Scalar bodies, written as tile instructions and interpreted, give what the operator records' references give."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hotfuse.ir.ops  # noqa: F401  (fills OPS)
from hotfuse.codegen.interpret import run
from hotfuse.codegen.scalar_body import BODIES, expand, expand_op
from hotfuse.codegen.scalar_ops import BLOCK_DTYPES, NOT_OFFERED
from hotfuse.codegen.tile import Access, Axis, Bound, Buffer, Cast, Fill, Instruction, Load, Map, Store, TileProgram
from hotfuse.codegen.tile_types import types
from hotfuse.errors import TileError
from hotfuse.ir.dim import symbol
from hotfuse.ir.op import OPS, OpDef, Sample
from hotfuse.ir.types import BF16, BOOL, F16, F32, F64, I32, U8, DType, dtype_of
from hotfuse.numerics import Verdict, close_to_exact, same_bits, spacing, within_ulp

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.scalar is not None and op.name not in NOT_OFFERED and op.samples is not None
    for i, sample in enumerate(op.samples())
    if op.name != "cast" or sample.attrs["to"] in BLOCK_DTYPES
]


def program_of(op: OpDef, arrays: dict[str, np.ndarray], attrs: Any, shape: tuple[int, ...]) -> TileProgram:
    """The operator on broadcast, flat inputs, eight elements a block."""
    size = int(np.prod(shape))
    blocks = -(-size // 8)
    task = symbol("t") * 8
    bound = (Bound(task, 0, 1, size),)
    dtypes = {v: dtype_of(x) for v, x in arrays.items()}
    names = {v: f"{v}_block" for v in arrays}
    numbers = itertools.count()
    body, result = expand_op(op, names, dtypes, attrs, lambda: f"t{next(numbers)}")
    loads: list[Instruction] = [Load(names[v], Access(v, task, 0, 1, (1, 8), bound)) for v in arrays]
    buffers = tuple(Buffer(v, d, size) for v, d in dtypes.items())
    made = TileProgram("body", (), buffers, (Axis("t", blocks),), (*loads, *body))
    out = Buffer("out", types(made)[result][0], size, "output")
    store = Store(Access("out", task, 0, 1, (1, 8), bound), result)
    return TileProgram("body", (), (*buffers, out), (Axis("t", blocks),), (*loads, *body, store))


def computed(op: OpDef, sample: Sample) -> np.ndarray:
    given = {v: np.asarray(x) for v, x in zip("xyz", sample.inputs, strict=False) if x is not None}
    shape = np.broadcast_shapes(*(x.shape for x in given.values()))
    program = program_of(op, given, sample.attrs, shape)
    flat = {v: np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(-1) for v, x in given.items()}
    out = program.buffers[-1]
    flat["out"] = np.zeros(int(np.prod(shape)), out.dtype.numpy)
    assert run(program, flat, {}) == 0
    return flat["out"].reshape(shape)


def reference(op: OpDef, sample: Sample) -> np.ndarray:
    assert op.reference is not None
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(*sample.inputs, **sample.attrs))


def agree(op: OpDef, sample: Sample) -> Verdict:
    ours, original = computed(op, sample), reference(op, sample)
    if original.dtype.kind == "f" and op.name != "cast":
        return within_ulp(ours, original, 4)
    return same_bits(ours, original)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_the_instructions_compute_the_reference(op: OpDef, sample: Sample) -> None:
    verdict = agree(op, sample)
    assert verdict, verdict.reason


def takes_floats(op: OpDef) -> bool:
    samples = op.samples() if op.samples is not None else ()
    return all(x is None or x.dtype == np.float32 for s in samples for x in s.inputs)


FLOAT_OPS = [op for op in OPS.values() if op.scalar is not None and op.name not in (*NOT_OFFERED, "cast") and takes_floats(op)]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("op", FLOAT_OPS, ids=lambda op: op.name)
def test_half_types_are_rounded_once(op: OpDef, dtype: DType) -> None:
    assert op.samples is not None
    sample = next(s for s in op.samples() if all(x is not None and x.size > 1 for x in s.inputs[:1]))
    half = Sample(tuple(None if x is None else x.astype(dtype.numpy) for x in sample.inputs), sample.attrs)
    exact_inputs = tuple(None if x is None else x.astype(np.float64) for x in half.inputs)
    ours, exact = computed(op, half), reference(op, Sample(exact_inputs, sample.attrs))
    if exact.dtype == bool:
        assert same_bits(ours, exact)
        return
    assert ours.dtype == dtype.numpy
    apart = np.abs(ours.astype(np.float64) - exact) / spacing(exact, np.dtype(dtype.numpy).name)
    assert apart.max() <= 0.51


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("name", ["add", "mul", "div", "floor_div", "mod", "fmod", "relu", "abs", "neg", "clip", "logical_and",
                                  "logical_not", "less"])  # fmt: skip
def test_integers(name: str, dtype: Any) -> None:
    op = OPS[name]
    x = np.array([-7, -2, 0, 3, 9, 200]).astype(dtype)
    y = np.array([2, -3, 5, 4, -4, 7]).astype(dtype)
    arity = {"relu": 1, "abs": 1, "neg": 1, "clip": 3, "logical_not": 1}.get(name, 2)
    if name.startswith("logical"):
        y[1] = 0
    sample = Sample((x, y, np.array([100]).astype(dtype))[:arity])
    assert same_bits(computed(op, sample), reference(op, sample))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_follows_its_attribute_and_does_not_cancel(approximate: str) -> None:
    x = np.linspace(-6, 6, 101).astype(np.float32)
    ours = computed(OPS["gelu"], Sample((x,), {"approximate": approximate}))
    exact = reference(OPS["gelu"], Sample((x.astype(np.float64),), {"approximate": approximate}))
    if approximate == "none":  # the record's own body is off by 16,000 units at x = -5
        assert within_ulp(ours, exact.astype(np.float32), 32)
    assert close_to_exact(ours, reference(OPS["gelu"], Sample((x,), {"approximate": approximate})), exact)


def names_of(body: str, dtype: DType = F32, **attrs: Any) -> tuple[Instruction, ...]:
    numbers = itertools.count()
    return expand(body, {"x": "a", "y": "b"}, {"x": dtype, "y": dtype}, attrs, lambda: f"t{next(numbers)}")[0]


def test_equal_parts_are_computed_once_and_numbers_are_folded() -> None:
    assert names_of("x * beta + x * beta - alpha * beta", alpha=3, beta=2) == (
        Fill("t0", F32, (1, 1), 2),
        Map("t1", "mul", ("a", "t0")),
        Map("t2", "add", ("t1", "t1")),
        Fill("t3", F32, (1, 1), 6),
        Map("t4", "sub", ("t2", "t3")),
    )


def test_a_factor_of_one_costs_nothing() -> None:
    assert names_of("alpha * x / beta", alpha=1.0, beta=1.0) == ()
    assert len(names_of("1 / x")) == 2


def test_zeros_of_both_signs_are_two_numbers() -> None:
    assert [i.value for i in names_of("max(x, 0.0) + min(x, -0.0)") if isinstance(i, Fill)] == [0.0, -0.0]
    assert str([i.value for i in names_of("max(x, 0.0) + min(x, -0.0)") if isinstance(i, Fill)][1]) == "-0.0"


def test_half_inputs_are_widened_once_each() -> None:
    made = names_of("x * y + x", F16)
    assert [type(i).__name__ for i in made] == ["Cast", "Cast", "Map", "Map", "Cast"]
    assert isinstance(made[-1], Cast)
    assert made[-1].dtype == F16


def test_an_exponent_of_another_type_is_cast() -> None:
    numbers = itertools.count()
    made, _ = expand("pow(x, y)", {"x": "a", "y": "b"}, {"x": F64, "y": I32}, {}, lambda: f"t{next(numbers)}")
    assert made == (Cast("t0", F64, "b"), Map("t1", "pow", ("a", "t0")))


def test_numbers_take_the_type_of_what_they_meet() -> None:
    assert Fill("t0", I32, (1, 1), 0) in names_of("max(x, 0)", I32)
    numbers = itertools.count()
    made, _ = expand("where(x, y, 0)", {"x": "a", "y": "b"}, {"x": BOOL, "y": U8}, {}, lambda: f"t{next(numbers)}")
    assert made == (Fill("t0", U8, (1, 1), 0), Map("t1", "where", ("a", "b", "t0")))


@pytest.mark.parametrize(
    ("body", "dtype", "message"),
    [
        ("lgamma(x)", F32, "may not contain 'lgamma"),
        ("x + gamma", F32, "may not contain 'gamma'"),
        ("__import__('os')", F32, "may not contain"),
        ("x ** 2", F32, "may not contain"),
        ("x if y else x", F32, "may not contain"),
        ("max(x, 0.5)", I32, "0.5 of a scalar body is not a whole one"),
        ("exp(x)", I32, "exp is not defined for i32"),
    ],
)
def test_what_cannot_be_written_is_refused(body: str, dtype: DType, message: str) -> None:
    with pytest.raises(TileError, match=message):
        names_of(body, dtype)


def test_an_operator_without_a_body_is_refused() -> None:
    with pytest.raises(TileError, match="softmax has no scalar body"):
        expand_op(OPS["softmax"], {"x": "a"}, {"x": F32}, {}, lambda: "t")


def test_exceptions_are_of_operators_that_exist() -> None:
    assert all(OPS[name].scalar is not None for name in BODIES)
