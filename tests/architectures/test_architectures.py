"""Every architecture of the zoo through `hotfuse.compile`: equal to eager by the float64 rule, waiting and by default."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.numerics import Verdict, close_to_exact
from hotfuse.runtime.torch_backend import EVENTS
from tests.architectures.zoo import ZOO, Architecture, build

QUICK = {"bert", "llama", "resnet", "t5", "mixtral", "mamba"}


def cases() -> list[Any]:
    return [pytest.param(a, id=a.name, marks=() if a.name in QUICK else pytest.mark.long) for a in ZOO]


def leaves(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's result, in order."""
    for leaf in torch.utils._pytree.tree_leaves(result.to_tuple() if hasattr(result, "to_tuple") else result):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def in_float64(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        return list(leaves(widened(module)(**wide)))


def widened(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64. Grouped products have no float64 kernel, so experts run one by one."""
    wide = copy.deepcopy(module).double()
    wide.config._experts_implementation = "eager"  # type: ignore[union-attr]
    return wide


def compare(ours: Any, original: Any, exact: list[torch.Tensor]) -> Verdict:
    mine, theirs = list(leaves(ours)), list(leaves(original))
    assert len(mine) == len(theirs) == len(exact)
    for a, b, c in zip(mine, theirs, exact, strict=True):
        verdict = close_to_exact(a.numpy(), b.numpy(), c.numpy())
        if not verdict:
            return verdict
    return Verdict(True)


@pytest.mark.parametrize("architecture", cases())
def test_equals_eager(architecture: Architecture) -> None:
    module, inputs = build(architecture)
    exact = in_float64(module, inputs)
    with torch.no_grad():
        original = module(**inputs)
        waiting = hotfuse.compile(module, wait=True, trial=True)  # the second answer is the plan's
        try:
            for _ in range(2):
                ours = waiting(**inputs)
                assert type(ours) is type(original)
                verdict = compare(ours, original, exact)
                assert verdict, verdict.reason
            report = waiting.report()
        finally:
            waiting.close()
        print(f"{architecture.name}: {report.captured_share:.1%} of operators captured")
        assert report.answered >= 2, report
        assert report.captured_share > 0.5, report
        assert {c.module for c in report.classes} == {type(module).__name__}, report  # as a whole
        default = hotfuse.compile(module)
        try:
            for _ in range(3):
                verdict = compare(default(**inputs), original, exact)
                assert verdict, verdict.reason
            assert default.settle(timeout_s=120)
            verdict = compare(default(**inputs), original, exact)
            assert verdict, verdict.reason
            assert default.report().classes, default.report()
        finally:
            default.close()


GRADIENTS = ("bert", "gpt2", "llama", "t5", "vit", "resnet", "convnext", "wav2vec2", "mixtral", "mamba", "clip", "bart")


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(a, id=a.name, marks=() if a.name == "bert" else pytest.mark.long) for a in ZOO if a.name in GRADIENTS],
)
def test_gradients_equal_eager(architecture: Architecture) -> None:
    """Through the Dynamo backend: forward and backward graphs both run on our plans."""
    module, inputs = build(architecture)
    exact = _gradients(widened(module), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    original = _gradients(module, inputs)
    torch._dynamo.reset()
    before = len(EVENTS)
    compiled = torch.compile(module, backend="hotfuse", options={"wait": True, "strict": True})
    ours = _gradients(module, inputs, call=compiled)
    happened = [(event.kind, event.subject) for event in list(EVENTS)[before:]]
    assert {("backend.compiled", "forward"), ("backend.compiled", "backward")} <= set(happened)
    assert "backend.failed" not in {kind for kind, _ in happened}
    assert ours.keys() >= original.keys()
    for name, gradient in ours.items():
        if name not in original:  # AOTAutograd writes zeros where eager leaves None
            assert not gradient.any()
            continue
        verdict = close_to_exact(gradient.numpy(), original[name].numpy(), exact[name].numpy())
        assert verdict, f"{name}: {verdict.reason}"


def _gradients(module: torch.nn.Module, inputs: dict[str, torch.Tensor], call: Any = None) -> dict[str, torch.Tensor]:
    module.zero_grad()
    result = next(leaf for leaf in leaves((module if call is None else call)(**inputs)) if leaf.is_floating_point())
    (result.double() ** 2).mean().to(result.dtype).backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def test_generate_gives_eagers_tokens() -> None:
    module, _ = build(next(a for a in ZOO if a.name == "llama"))
    prompt = torch.randint(3, 99, (2, 5))
    expected = module.generate(prompt, max_new_tokens=12, do_sample=False)
    for wait in (True, False):
        fast = hotfuse.compile(module, wait=wait)
        try:
            assert torch.equal(fast.generate(prompt, max_new_tokens=12, do_sample=False), expected)
            assert fast.settle(timeout_s=120)
            assert (fast.report().answered > 0) == wait, fast.report()
        finally:
            fast.close()
