"""Digests: equal for what is the same in every process, different for all that a trace may tell apart."""

from __future__ import annotations

import functools
import itertools
import os
import re
import types
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import CodeKey, code_key
from hotfuse.frontends.torch_digest import code_digest, digest_state
from hotfuse.frontends.torch_reach import reach_from
from hotfuse.frontends.torch_reduction import HASH
from hotfuse.frontends.torch_skeleton import load_skeleton, make_skeleton, skeleton_key


class Holder(torch.nn.Module):
    """A module whose answers may depend on one thing."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> Any:
        return self.held


class Thing:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Other(Thing):
    pass


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


def made(by: float) -> types.FunctionType:
    def inner(x: float, more: float = 1.0) -> float:
        return x * by + more

    return inner  # type: ignore[return-value]


def digest(held: Any, *ran: types.FunctionType) -> str:
    module = Holder(held)
    keys: frozenset[CodeKey] = frozenset(code_key(f.__code__) for f in (Holder.forward, *ran))  # type: ignore[attr-defined]
    return digest_state(module, reach_from(module.named_modules(), keys))


SHARED = [1]
DIFFERENT: tuple[Any, ...] = (
    None, 1, 1.0, True, -0.0, 0.0, "1", b"1", 1j, numpy.float32(1), numpy.int64(1), (1, 2), [1, 2], {1, 2}, {1: 2}, {2: 1},
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, frozenset({1}), range(3), range(4), slice(1), re.compile("a"), re.compile("a", re.I),
    torch.float32, torch.float64, torch.device("cpu"), torch.relu, torch.sigmoid, torch.Tensor.relu, torch.Tensor.abs, os, re,
    torch.ops.aten.relu.default, torch.ops.aten.abs.default, int, Thing, Other, Thing(), Other(), Thing(a=1), Thing(b=1),
    Thing(a=Thing(a=1)), Slotted(1), Slotted(2), numpy.zeros(2), numpy.zeros(3), numpy.zeros(2, numpy.int32), bytearray(b"a"),
    [torch.zeros(2)], [torch.ones(2)], [torch.zeros(2, 1)], made(1.0), made(2.0), functools.partial(made, 1.0),
    functools.partial(made, 2.0), [SHARED, SHARED], [[1], [1]], Thing(a=1).__init__, torch.nn.ReLU(), torch.nn.GELU(),
    torch.nn.GELU("tanh"),
)  # fmt: skip


def test_what_differs_has_another_digest() -> None:
    ran = made(0.0)
    found = [digest(value, ran) for value in DIFFERENT]
    alike = [(a, b) for (a, x), (b, y) in itertools.combinations(zip(DIFFERENT, found, strict=True), 2) if x == y]
    assert alike == []


def test_what_is_made_anew_has_the_same_digest() -> None:
    def things() -> Iterator[Any]:
        inner = Thing(a=[1], b={"c": (1, 2.5)})
        inner.me = inner
        yield from (inner, Slotted({"x"}), made(3.0), re.compile("x+"), numpy.arange(3), [torch.arange(3)], Thing().__init__)
        yield functools.lru_cache(made(1.0))
        yield Thing(**{HASH: id(inner)})

    for first, second in zip(things(), things(), strict=True):
        assert digest(first, made(0.0)) == digest(second, made(0.0))


def test_code_that_did_not_run_counts_by_name() -> None:
    assert digest(made(1.0)) == digest(made(2.0))


@pytest.mark.parametrize("held", [{Thing()}, [torch.zeros(1 << 16)], numpy.zeros(1 << 16)])
def test_what_cannot_be_told_is_refused(held: Any) -> None:
    with pytest.raises(CaptureError, match=r"told in the same order|outside of the modules"):
        digest(held)


def test_code_that_nothing_leads_to_counts_by_its_file() -> None:
    module = Holder(None)
    here = frozenset({code_key(Holder.forward.__code__), (__file__, "found_by_a_computed_name", 1)})
    gone = frozenset({("/nowhere/model.py", "forward", 1)})
    assert digest_state(module, reach_from(module.named_modules(), here)) != digest(None)
    with pytest.raises(CaptureError, match=r"/nowhere/model\.py"):
        digest_state(module, reach_from(module.named_modules(), gone))


def test_code_is_known_by_what_it_does() -> None:
    sources = (
        "x + 1", "x + 1.0", "x - 1", "y + 1", "x in {'a', 'b'}", "x in ('a', 'b')", "(lambda: x + 1)()", "(lambda: x + 2)()",
        "x.a", "x.b", "x(a=1)", "x(b=1)",
    )  # fmt: skip
    compiled = [[compile(source, "model.py", "eval") for source in sources] for _ in range(2)]
    first, second = ([code_digest(code) for code in codes] for codes in compiled)
    assert first == second
    assert len(set(first)) == len(sources)


def test_keys_of_requests() -> None:
    """The order of sets and hashes of one process are no part of a request; all else is, but for the values of parameters."""

    def key(**attributes: Any) -> str:
        module = Holder(None)
        module.register_buffer("table", torch.arange(3.0))
        module.weight = torch.nn.Parameter(torch.rand(3))
        for name, value in attributes.items():
            setattr(module, name, value)
        return skeleton_key(make_skeleton(module)[0])

    base, other = {0, 8}, {8, 0}
    assert list(base) != list(other)
    assert key(held=base) == key(held=other)
    assert key(held=Thing(**{HASH: 1})) == key(held=Thing(**{HASH: 2}))
    others = [key(held=base), key(held={0}), key(held=frozenset(base)), key(held=base, table=torch.arange(3.0) + 1)]
    assert len(set(others)) == len(others)


def test_sets_that_are_one_stay_one() -> None:
    one, other = load_skeleton(make_skeleton([SHARED_SET, SHARED_SET])[0])
    assert one is other == SHARED_SET


SHARED_SET = {1, "a", None}
