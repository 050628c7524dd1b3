"""The torch engine: each operator's torch function against its numpy reference, and the way round it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hotfuse.ir.ops  # noqa: F401  (fills the table)
from hotfuse.config import Config
from hotfuse.errors import ExecutionError, InputError, InvalidModel, UnsupportedModel
from hotfuse.frontends.torch_template import caller, decoder, encode, find_operator
from hotfuse.frontends.torch_tensor import TO_TORCH, dtype_from_torch, in_order, to_numpy, to_torch
from hotfuse.ir.builder import GraphBuilder, contents_of
from hotfuse.ir.graph import Attrs, Constant, Node, Value
from hotfuse.ir.op import OPS, Pattern, Sample
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import ANY, F32, I64, SizeType, TensorType, tensor, type_of
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.torch_call import as_input
from hotfuse.runtime.torch_eager.table import EAGER
from hotfuse.runtime.torch_engine import TORCH

SAMPLED = [name for name in EAGER if OPS[name].samples is not None]


def run_sample(op: str, sample: Sample) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """The results of torch and of the reference."""
    record = OPS[op]
    arrays = [None if x is None else np.asarray(x) for x in sample.inputs]
    values = [
        Value("") if a is None else Value(f"x{i}", type_of(a), contents=contents_of(Constant.of(a)))
        for i, a in enumerate(arrays)
    ]
    assert record.reference is not None
    with np.errstate(all="ignore"):
        expected = record.reference(*arrays, **sample.attrs)
    theirs = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    node = Node(op, tuple(v.name or None for v in values), tuple(f"y{i}" for i in range(len(theirs))), Attrs(sample.attrs))
    compute = TORCH.bind(node, values, lambda graph, inputs: ())
    found = compute.function(*(None if a is None else to_torch(a.copy()) for a in arrays))
    return [to_numpy(t) for t in (found if compute.many else (found,))], [np.asarray(t) for t in theirs]


@pytest.mark.parametrize("op", SAMPLED)
def test_torch_and_the_reference_agree(op: str) -> None:
    record = OPS[op]
    assert record.samples is not None
    for sample in record.samples():
        target = sample.attrs.get("to")
        if target is not None and target.name not in TO_TORCH:
            continue  # torch has no such element type
        ours, theirs = run_sample(op, sample)
        for a, b in zip(ours, theirs, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if a.dtype.kind not in "fciub":  # bfloat16 and 8-bit floats: numpy's comparisons do not know their NaN
                a, b = a.astype(np.float32), b.astype(np.float32)
            if a.dtype.kind in "fc" and record.pattern is not Pattern.MOVEMENT:
                np.testing.assert_allclose(a, b, rtol=2e-3 if a.dtype.itemsize < 4 else 3e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, b)


def test_nearly_every_importable_operator_has_a_torch_function() -> None:
    assert {"add", "matmul", "conv", "attention", "layer_norm", "softmax", "gather", "reshape"} <= EAGER.keys()


def executor(op: str, *types: TensorType, **attrs: Any) -> Executor:
    builder = GraphBuilder()
    inputs = [builder.input(f"x{i}", t) for i, t in enumerate(types)]
    return Executor(trivial_plan(builder.build([builder.add(op, *inputs, **attrs)])), TORCH, Config())


def test_operators_without_a_torch_function_run_their_reference() -> None:
    assert "hardmax" not in EAGER
    x = torch.tensor([[1.0, 3.0, 2.0]])
    (y,) = executor("hardmax", tensor(F32, 1, 3), axis=-1).run([x])
    assert y.tolist() == [[0.0, 1.0, 0.0]]


def test_views_of_inputs_are_copied_unless_they_may_be_shared() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    run = executor("transpose", tensor(F32, 2, 3), perm=(1, 0))
    (own,) = run.run([x])
    (shared,) = run.run([x], sharing={0})
    assert own.data_ptr() != x.data_ptr()
    assert shared.data_ptr() == x.data_ptr()
    assert torch.equal(own, shared)


def test_a_failing_operator_is_named() -> None:
    with pytest.raises(ExecutionError, match="gather"):
        executor("gather", tensor(F32, 2, 3), tensor(I64, 1), axis=0).run([torch.zeros(2, 3), torch.tensor([7])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64])
def test_arrays_share_the_tensors_memory(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    array = to_numpy(x)
    assert array.ctypes.data == x.data_ptr()
    again = to_torch(array)
    assert again.dtype == dtype
    assert again.data_ptr() == x.data_ptr()


def test_read_only_and_backward_arrays_are_copied() -> None:
    array = np.arange(4.0)[::-1]
    assert to_torch(array).tolist() == [3.0, 2.0, 1.0, 0.0]
    frozen = np.arange(2.0)
    frozen.flags.writeable = False
    to_torch(frozen)[0] = 9
    assert frozen[0] == 0


def test_types_without_a_counterpart_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="counterpart"):
        dtype_from_torch(torch.quint8)
    with pytest.raises(UnsupportedModel, match="counterpart"):
        to_torch(np.array(["a"], dtype=object))


def test_types_of_values() -> None:
    assert TORCH.type_of(torch.zeros(2, 3)) == tensor(F32, 2, 3)
    assert TORCH.type_of(5) == SizeType(5)
    assert TORCH.type_of(None) is ANY


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (0, 2, 1)])
def test_axes_are_laid_out_in_the_given_order(order: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4).permute(1, 2, 0)
    y = in_order(x, order)
    assert torch.equal(x, y)
    assert y.permute(order).is_contiguous()
    assert in_order(y, order) is y


def test_what_cannot_be_an_input_is_refused() -> None:
    assert as_input(3) == 3
    assert as_input(0.5).dtype == torch.float64
    with pytest.raises(InputError, match="str"):
        as_input("three")


def test_templates_fill_in_inputs_sizes_and_constants() -> None:
    def leaf(argument: Any) -> Any:
        return argument if isinstance(argument, tuple) and argument and argument[0] in ("in", "dim", "number") else None

    template = encode(
        [("in", 0), [("dim", 0), 3], torch.float16, None, ("number", 1), torch.strided, torch.device("cpu")], leaf
    )
    found = decoder(template, (7,))((torch.ones(1), torch.tensor(2.5)))
    assert found[1:] == [[7, 3], torch.float16, None, 2.5, torch.strided, torch.device("cpu")]
    add = caller(torch.ops.aten.add.Tensor, (("in", 0), ("in", 0)), {"alpha": ("value", 3)}, ())
    assert add(torch.tensor(2)).item() == 8


@pytest.mark.parametrize("name", ["aten.no_such.default", "nowhere", "aten.add.NoOverload"])
def test_operators_torch_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidModel):
        find_operator(name)


@pytest.mark.parametrize("template", [("dtype", "manual_seed"), ("layout", "float32x"), ("what", 1)])
def test_templates_without_a_meaning_are_refused(template: tuple[str, Any]) -> None:
    with pytest.raises(InvalidModel, match="no meaning"):
        decoder(template, ())
