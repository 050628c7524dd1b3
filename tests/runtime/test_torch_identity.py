"""Returned tensors are to their caller what eager's are: the same objects, the same shared memory, strides, offsets and flags.

The oracle is a copy of the model, answered by eager, on copies of the arguments. Strides of axes of size 1 address nothing and
are not compared.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import hotfuse
from tests.runtime.identity_models import IMAGE, MODELS, PLAIN, Holder, X, Y


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def signature(known: list[torch.Tensor], answer: Any) -> list[tuple[Any, ...]]:
    """Of each returned tensor: the first tensor that is the same object, the first in the same memory, how it lies there."""
    returned = [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]
    tensors = [*known, *returned]
    objects, memories = [id(t) for t in tensors], [memory(t) for t in tensors]
    return [
        (
            objects.index(id(t)),
            memories.index(memory(t)),
            tuple(t.shape),
            tuple(step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1 and t.numel()),
            t.is_contiguous(),
            t.storage_offset(),
            t.untyped_storage().nbytes(),
            t.requires_grad,
            t.is_leaf,
            t.is_inference(),
            t.grad_fn is None,
            type(t),
        )
        for t in returned
    ]


class Watched:
    """A model, its weights, and all that it returned so far."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        self.model = model
        self.call = call
        self.before: list[torch.Tensor] = []

    def __call__(self, *args: Any) -> tuple[Any, list[tuple[Any, ...]]]:
        weights = [*self.model.parameters(), *self.model.buffers()]
        answer = self.call(*args)
        found = signature([*args, *weights, *self.before], answer)
        self.before += [*args, *(t for t in pytree.tree_leaves(answer) if isinstance(t, torch.Tensor))]
        return answer, found


def compare(model: torch.nn.Module, calls: list[tuple[torch.Tensor, ...]], mode: Any, compile: Any) -> Any:
    """Answer each call with both; returns what `compile` made."""
    model = model.eval().requires_grad_(mode is not torch.enable_grad)
    twin = copy.deepcopy(model)
    fast = compile(model)
    ours, eager = Watched(model, fast), Watched(twin, twin)
    with mode():
        for args in calls:
            mine, theirs = (tuple(torch.empty_strided(a.shape, a.stride()).copy_(a) for a in args) for _ in range(2))
            answer, found = ours(*mine)
            expected, wanted = eager(*theirs)
            assert found == wanted
            torch.testing.assert_close((answer, mine), (expected, theirs))
            for t in (t for t in pytree.tree_leaves((answer, expected)) if _writable(t)):  # what is shared changes with it
                t.mul_(2.0)
            torch.testing.assert_close((answer, mine, ours.before), (expected, theirs, eager.before))
            torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    return fast


def _writable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not leaf.requires_grad and 0 not in leaf.stride()


def captured(model: torch.nn.Module) -> Any:
    return hotfuse.compile(model, wait=True, capture="blocking")


@pytest.mark.parametrize("name", PLAIN)
def test_captured_plans_return_what_eager_returns(name: str) -> None:
    calls = PLAIN[name][1]
    fast = compare(MODELS[name](), calls, torch.no_grad, captured)
    assert fast.report().answered == len(calls), fast.report()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["everything at once", "parts of a split", "a parameter", "detached", "a part of a result"])
def test_modes(name: str, mode: Any) -> None:
    calls = PLAIN[name][1]
    fast = compare(MODELS[name](), calls, mode, captured)
    assert fast.report().answered == len(calls), fast.report()


def test_plans_made_in_inference_mode_serve_outside_of_it() -> None:
    fast = captured(MODELS["work on weights"]())
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            assert all(t.is_inference() == (mode is torch.inference_mode) for t in fast(X))


@pytest.mark.parametrize("name", ["the same twice", "everything at once"])
def test_through_the_capture_process(name: str) -> None:
    calls = PLAIN[name][1]
    fast = compare(MODELS[name](), calls, torch.no_grad, lambda m: hotfuse.compile(m, wait=True))
    assert fast.report().answered == len(calls), fast.report()


# what a plan cannot return as eager does is left to eager


class Odd(Holder):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.ones(2, 3)]
        self.register_buffer("part", self.buffer[:3])


class TurnsItsArgument(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        x.t_()
        return x + 1


class ReturnsWhatItKeeps(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return self.kept[0], x * 1.0


class ReturnsAPartOfWhatItKeeps(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return self.kept[0][1:], x * 1.0


class ReturnsAPartOfTwoBuffers(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return self.part[1:], x * 1.0


class Conjugates(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.complex(x, x).conj()


class Reinterprets(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return x.view(torch.int32)


class ReinterpretsAResult(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        y = x + 1
        return y, y.view(torch.int32)


class WantsGradients(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return (x + 1).requires_grad_()


class AsksForGradients(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return x @ self.weight


class CallsInAWayOfItsOwn(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        return x + 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


class SharesWhatOnlyDataSizes(Odd):
    def forward(self, x: torch.Tensor) -> Any:
        y = x[x > 3]
        return y[::2], y[1::2]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TurnsItsArgument, ""),
        (ReturnsWhatItKeeps, "held in a Python object"),
        (ReturnsAPartOfWhatItKeeps, "held in a Python object"),
        (ReturnsAPartOfTwoBuffers, "several weights share"),
        (Conjugates, "lazily conjugated"),
        (Reinterprets, "memory of argument 0 as torch.int32"),
        (ReinterpretsAResult, "memory of another output as torch.int32"),
        (WantsGradients, "requires a gradient"),
        (AsksForGradients, ""),
        (CallsInAWayOfItsOwn, "a `__call__` of its own"),
        (SharesWhatOnlyDataSizes, "which no argument shows"),
    ],
)
def test_what_eager_alone_can_return(kind: type, reason: str) -> None:
    fast = compare(kind(), [(X,), (X,)], torch.no_grad, captured)
    report = fast.report()
    assert report.answered == 0
    assert reason in report.failed[kind.__name__]


def test_arguments_that_are_two_tensors_over_one_memory() -> None:
    fast = captured(MODELS["one argument passed twice"]())
    with torch.no_grad():
        x = X.clone()
        assert fast(x, x)[1] is x
        other = x.view_as(x)
        assert fast(x, other)[1] is other
    assert fast.report().answered == 1


def test_keywords_in_any_order() -> None:
    fast = hotfuse.compile(in_any_order, wait=True, capture="blocking")
    with torch.no_grad():
        for _ in range(2):
            x, y = X.clone(), Y.clone()
            one, two = fast(last=y, first=x)
            assert one is y
            assert (two.data_ptr(), two.stride()) == (x.data_ptr(), (1, 3))
    assert fast.report().answered == 2


def in_any_order(*, last: torch.Tensor, first: torch.Tensor) -> Any:
    return last, first.t()


# weights that come to lie otherwise


def test_weights_that_lie_in_memory_another_way() -> None:
    model = MODELS["a view of a parameter"]()
    twin = copy.deepcopy(model)
    fast = captured(model)
    with torch.no_grad():
        for turn in (False, True, False):
            for m in (model, twin):
                m.weight.data = m.weight.data.t().contiguous().t() if turn else m.weight.data.contiguous()
            answers = [signature([X, m.weight], f(X)) for m, f in ((model, fast), (twin, twin))]
            assert answers[0] == answers[1]
    assert fast.report().answered == 3


def test_a_model_made_channels_last() -> None:
    model = MODELS["channels last"]()
    twin = copy.deepcopy(model)
    fast = captured(model)
    with torch.no_grad():
        for order in (torch.contiguous_format, torch.channels_last):
            for m in (model, twin):
                m.layer.to(memory_format=order)
            assert signature([], fast(IMAGE)) == signature([], twin(IMAGE))


def test_parameters_that_are_frozen_and_thawed() -> None:
    model = MODELS["detached"]()
    twin = copy.deepcopy(model)
    fast = captured(model)
    with torch.no_grad():
        for wanted in (False, True, False):
            model.requires_grad_(wanted)
            twin.requires_grad_(wanted)
            assert signature([], fast(X)) == signature([], twin(X))


# Dynamo sees to what shares memory with arguments and weights


WITH_DYNAMO = (
    "the same twice", "an argument", "a parameter", "a transposed argument", "a slice", "expanded", "a cache that is written",
    "an argument that is written", "a buffer that is written", "a view of a parameter", "a transposed result", "permuted",
)  # fmt: skip


@pytest.mark.parametrize("name", WITH_DYNAMO)
def test_through_dynamo(name: str) -> None:
    torch.compiler.reset()
    options = {"wait": True, "strict": True}
    compare(MODELS[name](), PLAIN[name][1][:1], torch.no_grad, lambda m: torch.compile(m, backend="hotfuse", options=options))
    torch.compiler.reset()


# exported programs: the oracle is torch's own module of the program


EXPORTED = (
    "the same nested", "a parameter", "a buffer that is written", "expanded", "as_strided", "a view of a parameter", "a slice",
    "a cache that is written", "parts of a split", "a view before what it shows", "everything at once", "places of data",
)  # fmt: skip
SAVED = ("everything at once", "a cache that is written", "parts of a split")


def exported(name: str) -> Any:
    args = PLAIN[name][1][0]
    sizes = {0: torch.export.Dim.AUTO}
    with torch.no_grad():
        shapes = {"x": sizes} | ({"more": (sizes,) * (len(args) - 1)} if len(args) > 1 else {})
        return torch.export.export(MODELS[name]().eval(), args, dynamic_shapes=shapes, strict=False)


def compare_exported(program: Any, fast: Any, *args: torch.Tensor) -> None:
    twin = copy.deepcopy(program)
    with torch.no_grad():
        mine, theirs = (tuple(torch.empty_strided(a.shape, a.stride()).copy_(a) for a in args) for _ in range(2))
        answer, expected = fast(*mine), twin.module()(*theirs)
        found = signature([*mine, *program.state_dict.values()], answer)
        assert found == signature([*theirs, *twin.state_dict.values()], expected)
        torch.testing.assert_close((answer, mine), (expected, theirs))


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_programs(name: str) -> None:
    program = exported(name)
    fast = hotfuse.compile(program, wait=True)
    compare_exported(program, fast, *PLAIN[name][1][0])
    assert "serve.eager" not in fast.report().events


@pytest.mark.parametrize("name", SAVED)
def test_exported_programs_that_were_saved(name: str) -> None:
    file = io.BytesIO()
    torch.export.save(exported(name), file)
    file.seek(0)
    program = torch.export.load(file)
    for _ in range(2):  # making one plan teaches the program nothing that the next would hold against a call
        fast = hotfuse.compile(program, wait=True)
        compare_exported(program, fast, *PLAIN[name][1][0])
        assert str(fast.arguments) == str(hotfuse.compile(program).arguments)


def test_an_exported_program_whose_argument_lies_otherwise_is_left_to_torch() -> None:
    program = exported("a slice")
    fast = hotfuse.compile(program, wait=True)
    for x in (X, Y, Y.t().contiguous().t()):
        compare_exported(program, fast, x)
    assert fast.report().events["serve.eager"] == 1


def test_arrays_of_an_exported_program_are_the_callers_own() -> None:
    program = exported("a view of a parameter")
    before = program.state_dict["weight"].clone()
    for array in hotfuse.compile(program, wait=True).run(None, {"x": X.numpy()}):
        array[...] = 7.0
    assert torch.equal(program.state_dict["weight"], before)
