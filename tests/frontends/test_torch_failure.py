"""Why a model cannot be captured, as its author reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.frontends.torch_failure import LONGEST, describe_failure, shorten
from hotfuse.runtime.torch_module import controls

X = torch.ones(2, 3)
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def branches(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def takes_a_number(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.max().item())]


class Odd:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def returns_an_object(x: torch.Tensor) -> Odd:
    return Odd(x)


def leaves_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


def calls_the_untraceable(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.hotfuse_failure.untraceable(x)  # type: ignore[no-any-return]


def line_of(function: Any) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    ("model", "where", "what", "do", "kind"),
    [
        (branches, True, "branches on values", "torch.where", "GuardOnDataDependentSymNode"),
        (takes_a_number, True, ".item()", "torch.where", "GuardOnDataDependentSymNode"),
        (returns_an_object, False, "an object of type Odd", "register the class", "RuntimeError"),
        (leaves_torch, True, ".numpy() is not supported", "torch operators", "RuntimeError"),
    ],
)
@pytest.mark.parametrize("capture", ["blocking", "background"])
def test_the_reason_is_one_sentence_with_a_place(model: Any, where: bool, what: str, do: str, kind: str, capture: str) -> None:
    fast = hotfuse.compile(model, wait=True, capture=capture)
    fast(X)
    why = fast.report().why
    assert what in why
    assert do in why
    assert (line_of(model) in why) is where
    assert why.count(what) == 1
    assert len(why) < 400
    assert "dynamic" not in why  # both attempts ended alike
    assert str(Path(__file__).parent) not in why
    (event,) = controls(fast).events.of("capture.failed")
    assert re.search(rf"dynamic: {kind}: .*static: {kind}: ", event.data["details"], re.S)


def test_an_operator_that_torch_cannot_trace_is_named() -> None:
    with torch.library._scoped_library("hotfuse_failure", "FRAGMENT") as library:
        library.define("untraceable(Tensor x) -> Tensor")
        library.impl("untraceable", lambda x: x * 2, "CPU")
        fast = hotfuse.compile(calls_the_untraceable, wait=True, capture="blocking")
        assert torch.equal(fast(X), X * 2)
    assert "hotfuse_failure.untraceable" in fast.report().why
    assert HERE in fast.report().why


def test_another_error_is_told_with_its_type_and_place() -> None:
    try:
        raise LookupError("word " * 100)
    except LookupError as error:
        told = describe_failure(error)
    assert told.startswith(f"{HERE}:")
    assert "LookupError: word word" in told
    assert told.endswith(" word ...")
    assert len(told) < LONGEST + 60


@pytest.mark.parametrize("text", ["short", "two words", "x" * 1000, "word " * 100])
def test_texts_are_cut_between_words(text: str) -> None:
    cut = shorten(text)
    assert len(cut) <= LONGEST
    assert set(cut.removesuffix(" ...").split()) <= {*text.split(), text[:LONGEST]}
