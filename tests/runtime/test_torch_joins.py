"""Parts of a model that follow each other are answered as one, exactly as they would be alone, and only while that pays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.runtime import torch_joins
from hotfuse.runtime.fuel import Fuel
from hotfuse.runtime.torch_chain import see, wire
from hotfuse.runtime.torch_guard import read_call
from hotfuse.runtime.torch_joins import Joins
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.torch_row import Row, fit_rows
from hotfuse.runtime.torch_serving import Member
from hotfuse.runtime.turns import Times

SIZE = 8
Between = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(SIZE, SIZE)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.tanh(self.linear(x)) * self.scale
        return y if shift is None else y + shift


class Stack(torch.nn.Module):
    """No whole of it can be captured; `between` is what it does after each block."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.between: list[Between] = []

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            if self.between and number:
                x = self.between[0](x)
            x = block(x, shift=shift)
        return x if x.sum().item() < 1e9 else x * 0


@dataclass
class Served:
    """A model whose parts have kernels, and a clock that tests move."""

    fast: Any
    model: Stack
    joins: Joins
    now_s: list[float]

    def call(self, *args: Any, times: int = 1, **kwargs: Any) -> None:
        """Call, and hold every answer against the model's own."""
        for _ in range(times):
            self.joins.begin()
            try:
                answer = self.fast(*args, **kwargs)
            finally:
                self.joins.end()
            torch.testing.assert_close(answer, self.model(*args, **kwargs))

    @property
    def events(self) -> Any:
        return controls(self.fast).events

    def told(self, kind: str) -> list[str]:
        return [f"{event.subject}: {event.reason}" for event in self.events.of(f"parts.{kind}")]


@pytest.fixture
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Joined unless a test says otherwise: what calls take is not left to the machine."""
    judge = Joins._judge
    monkeypatch.setattr(Joins, "_judge", lambda self, row, times: judge(self, row, Times(1e-3, 2e-3, 0.0)))
    return serve(Stack(getattr(request, "param", 3)))


def serve(model: Stack) -> Served:
    model.eval()
    fast = hotfuse.compile(model, wait=True, tier=1, capture="blocking", cache="off")
    family, now_s = controls(fast).family, [0.0]
    joins = Joins(family, lambda module, name: Member(module, name, family), lambda: now_s[0])
    found = Served(fast, model, joins, now_s)
    controls(fast).root.parts.joins = joins
    return found


X = torch.randn(4, SIZE)
ROW = "Stack.blocks.0 + Stack.blocks.1 + Stack.blocks.2"


def joined(served: Served, *args: Any, **kwargs: Any) -> None:
    args = args or (X,)
    served.call(*args, times=torch_joins.LOOK_EVERY + torch_joins.WIRED + 1, **kwargs)
    served.call(*args, times=48, **kwargs)
    assert served.told("joined"), served.joins.told()


def test_parts_that_always_follow_each_other_are_joined(served: Served) -> None:
    joined(served)
    (told,) = served.told("joined")
    assert told == f"{ROW}: 63 recent calls, 100% in this order; 1 ms joined, 2 ms apart"
    assert served.joins.told() == ((ROW, "joined: 63 recent calls, 100% in this order; 1 ms joined, 2 ms apart"),)
    assert "2 arguments are made by the parts before" in served.told("joining")[0]
    chain = next(iter(served.joins._rows.values())).chain
    assert chain is not None
    before = [chain.answered, *(controls(served.fast).family.members[id(b)].answered for b in served.model.blocks)]
    served.call(X, times=10)
    after = [chain.answered, *(controls(served.fast).family.members[id(b)].answered for b in served.model.blocks)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [10, 0, 10, 10]
    for rows in (2, 7, 30):
        served.call(torch.randn(rows, SIZE))
    report = served.fast.report()
    assert report.rows == dict(served.joins.told()) == report.json()["rows"]
    assert f"{ROW}: joined: 63 recent calls" in str(report)


def test_a_join_is_a_decision_that_takes_fuel(served: Served) -> None:
    family = controls(served.fast).family
    family.fuel = Fuel(1)
    joined(served)
    assert family.fuel.spent == 1


def test_without_fuel_parts_stay_apart(served: Served) -> None:
    controls(served.fast).family.fuel = Fuel(0)
    served.call(X, times=torch_joins.LOOK_EVERY + torch_joins.WIRED + 16)
    assert not served.told("joining")
    assert served.joins.told() == ((ROW, "apart: all 0 decisions that the fuel allows were made"),)


def test_what_all_parts_are_given_is_known_from_the_first_call(served: Served) -> None:
    joined(served, X, torch.randn(4, SIZE))
    served.call(X, torch.randn(4, SIZE))
    served.call(X)  # of another structure: the parts answer
    assert not served.told("apart")


def _in_place(y: torch.Tensor) -> torch.Tensor:
    return y.mul_(2)


def _another(y: torch.Tensor) -> torch.Tensor:
    return y + 1


@pytest.mark.parametrize("between", [_in_place, _another])
def test_what_happens_between_calls_counts(served: Served, between: Between) -> None:
    joined(served)
    served.model.between = [between]
    served.call(X, times=5)
    served.model.between = []
    served.call(X, times=5)


def test_weights_that_change_between_calls_count(served: Served) -> None:
    joined(served)
    weight = served.model.blocks[1].linear.weight
    seen: list[float] = []

    def between(y: torch.Tensor) -> torch.Tensor:
        seen.append(float(weight[0, 0]))
        weight.fill_(0.25 if (len(seen) - 1) // 4 % 2 else -0.25)  # the same in two calls, which must agree
        return y

    served.model.between = [between]
    served.call(X, times=6)
    assert {*seen[1:]} == {0.25, -0.25}


def test_attributes_and_hooks_that_change_between_calls_count(served: Served) -> None:
    joined(served)
    block = served.model.blocks[2]

    def slower(y: torch.Tensor) -> torch.Tensor:
        block.scale = 0.5
        return y

    served.model.between = [slower]
    served.call(X, times=3)
    handle = block.register_forward_hook(lambda module, args, output: output * 3)
    served.call(X, times=3)
    handle.remove()


def _around(served: Served, between: Between, times: int = 12) -> None:
    """Calls of a joined row, with something done before its second part, and its third."""
    joined(served)
    served.model.between = [between]
    served.call(X, times=times)
    served.model.between = []
    served.call(X, times=3)


def test_a_state_that_a_part_is_in_only_while_it_is_called_counts(served: Served) -> None:
    block = served.model.blocks[1]

    def toggle(y: torch.Tensor) -> torch.Tensor:
        block.scale = 2.0 if block.scale == 1.0 else 1.0  # twice in a call: it is 1.0 whenever the first part is called
        return y

    _around(served, toggle)
    assert block.scale == 1.0


def test_a_hook_is_called_once_for_each_call(served: Served) -> None:
    joined(served)
    seen: list[int] = []
    handle = served.model.blocks[2].register_forward_hook(lambda module, args, output: seen.append(1))
    for _ in range(5):
        served.joins.begin()
        served.fast(X)
        served.joins.end()
    assert len(seen) == 5
    handle.remove()


def test_a_part_that_begins_to_change_itself_does_so_once_for_each_call() -> None:
    model = Stack(2)
    model.blocks[1].linear = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.BatchNorm1d(SIZE))
    served = serve(model)
    served.call(X, times=torch_joins.LOOK_EVERY + torch_joins.WIRED + 40)
    model.train()
    norm = model.blocks[1].linear[1]
    twin = copy.deepcopy(model)
    before = int(norm.num_batches_tracked)
    for _ in range(5):
        served.joins.begin()
        answer = served.fast(X)
        served.joins.end()
        torch.testing.assert_close(answer, twin(X))
    assert int(norm.num_batches_tracked) == before + 5
    torch.testing.assert_close(norm.running_mean, twin.blocks[1].linear[1].running_mean)


def test_modes_between_calls_count(served: Served) -> None:
    joined(served)
    before = torch.get_default_dtype()

    def wider(y: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        return y

    served.model.between = [wider]
    try:
        for _ in range(3):
            torch.set_default_dtype(before)
            served.joins.begin()
            answer = served.fast(X)
            served.joins.end()
            torch.set_default_dtype(before)
            assert answer.dtype == served.model(X).dtype
    finally:
        torch.set_default_dtype(before)
    with torch.enable_grad():
        assert _wired([((X,), X + 1)] * 2) == "gradients are enabled"


def test_memory_that_is_exchanged_counts(served: Served) -> None:
    def exchange(y: torch.Tensor) -> torch.Tensor:
        y.data = y.data * 3
        return y

    _around(served, exchange)


def test_calls_that_are_refused_are_not_wired(served: Served) -> None:
    def marked(y: torch.Tensor) -> torch.Tensor:
        y.note = 1  # type: ignore[attr-defined]
        return y

    _around(served, marked)
    y = X + 1
    y.note = 1  # type: ignore[attr-defined]
    assert "attributes of its own" in _wired([((X,), y), ((y,), X)])


@dataclass
class Both:
    x: torch.Tensor
    y: torch.Tensor


def test_records_are_not_wired() -> None:
    a, b, c = (torch.randn(2) for _ in range(3))
    assert "records" in _wired([((Both(a, b), c), c), ((c, b), a)])


def test_what_is_not_a_number_is_no_change() -> None:
    x, y, z = torch.randn(2), torch.full((2,), float("nan")), torch.randn(2)
    assert _wired([((x,), y), ((y,), z)]) == ""


def test_what_fails_while_it_is_observed_fails_no_call(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_joins, "see", lambda *args: 1 / 0)
    served.call(X, times=torch_joins.LOOK_EVERY + 10)
    assert [e.reason for e in served.events.of("observer.failed")] == ["ZeroDivisionError: division by zero"]
    assert "ZeroDivisionError" in served.joins.told()[0][1]


def test_a_row_that_was_wired_keeps_its_links(served: Served) -> None:
    joined(served)
    (row,) = served.joins._rows.values()
    links = row.links
    served.joins._thread.trail = (row, [])
    served.joins._observe(row, row.members[0], (X,), {}, X)
    served.joins.end()
    assert row.links is links


def test_an_audit_finds_changes_without_a_trace(served: Served) -> None:
    joined(served)

    def between(y: torch.Tensor) -> torch.Tensor:
        y.numpy()[0, 0] += 1.0
        return y

    served.model.between = [between]
    served.joins._rows[next(iter(served.joins._rows))].calls = controls(served.fast).config.audit_every - 1
    served.call(X)
    assert served.told("apart") == [f"{ROW}: Stack.blocks.1: what it is called with was changed without a trace; for good"]
    served.call(X, times=40)
    assert len(served.told("apart")) == 1


def test_a_part_that_is_not_called_costs_its_promise(served: Served) -> None:
    joined(served)
    blocks = served.model.blocks
    served.model.blocks = torch.nn.ModuleList([blocks[0], blocks[2]])
    served.call(X, times=3)
    served.model.blocks = torch.nn.ModuleList([blocks[0]])
    served.call(X, times=torch_joins.PROMISES + torch_joins.AGAIN // 16)
    assert "of its promises are kept" in served.told("apart")[-1]
    assert "again in 60 s" in served.told("apart")[-1]
    before = len(served.told("joined"))
    served.model.blocks = blocks
    served.call(X, times=40)
    assert len(served.told("joined")) == before  # it rests
    served.now_s[0] = 61.0
    served.call(X, times=40)
    assert len(served.told("joined")) == before + 1


def test_a_part_that_fails_says_so_in_its_own_call(served: Served) -> None:
    joined(served)
    calls: list[int] = []

    def between(y: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return y

    served.model.between = [between]
    served.model.blocks[1].linear = torch.nn.Linear(SIZE + 1, SIZE)
    for _ in range(3):
        calls.clear()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            served.call(X)
        assert calls == [0]  # the first block had answered


def test_a_chain_that_is_slower_is_taken_apart(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    joined(served)
    judge = Joins._judge
    monkeypatch.setattr(torch_joins, "AGAIN", 8)
    monkeypatch.setattr(Joins, "_judge", lambda self, row, times: Joins._rest(self, row, "2 ms joined, 1 ms apart"))
    served.call(X, times=60)
    assert "2 ms joined, 1 ms apart; again in 60 s" in served.told("apart")[0]
    assert served.joins.told()[0][1].startswith("apart: ")
    monkeypatch.setattr(Joins, "_judge", judge)


@pytest.mark.parametrize("served", [2], indirect=True)
def test_calls_are_timed_both_ways(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Times] = []
    monkeypatch.setattr(Joins, "_judge", lambda self, row, times: found.append(times))
    served.call(X, times=torch_joins.LOOK_EVERY + torch_joins.WIRED + 48)
    assert len(found) == 1
    assert 0 < found[0].with_s < 1
    assert 0 < found[0].without_s < 1


# what cannot be joined


def _wired(calls: Any) -> str:
    trail = [see(None, read_call(args, {}), args, {}, answer) for args, answer in calls]  # type: ignore[arg-type]
    return wire(trail)[1]


def test_reasons_against_a_link() -> None:
    x, y, z = (torch.randn(2, 2) for _ in range(3))
    assert _wired([((x,), y), ((y,), z)]) == ""
    assert _wired([((x,), y), ((y, 3), z), ((z, x, y), x)]) == ""
    assert "not known when the first" in _wired([((x,), y), ((z,), x)])
    assert "takes nothing that the one before it makes" in _wired([((x,), y), ((x,), z)])
    with torch.inference_mode():
        a, b = torch.randn(2), torch.randn(2)
    assert "inference" in _wired([((x,), a), ((a,), b)])


def test_tensors_that_change_without_a_trace_are_not_wired() -> None:
    x, y, z = torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2)
    first = see(None, read_call((x,), {}), (x,), {}, y)  # type: ignore[arg-type]
    version = y._version
    y.numpy()[0, 0] = 7.0
    assert y._version == version
    second = see(None, read_call((y,), {}), (y,), {}, z)  # type: ignore[arg-type]
    assert "changed in between" in wire([first, second])[1]


def test_a_row_is_cut_where_parts_cannot_be_wired(served: Served) -> None:
    served.model.between = [_another]
    served.call(X, times=torch_joins.LOOK_EVERY + 4 * torch_joins.WIRED)
    assert [text.partition(":")[0] for text in served.told("apart")] == [
        "Stack.blocks.0 + Stack.blocks.1",
        "Stack.blocks.1 + Stack.blocks.2",
    ]
    assert all("not known when the first of them is called" in text for text in served.told("apart"))
    served.call(X, times=2 * torch_joins.LOOK_EVERY)
    assert len(served.told("apart")) == 2  # each is said once
    assert not served.told("joining")


def test_rows_are_as_long_as_resources_and_effects_allow() -> None:
    class Graph:
        nodes = range(10)

    class Class:
        tier, mutations, has_effects = 1, (), False

        def __init__(self, **other: Any) -> None:
            self.__dict__.update(other)
            self.program = self.runner = self.captured = self
            self.graph = Graph

    class Part:
        def __init__(self, name: str, **other: Any) -> None:
            self.name, self.classes, self.pending = name, [Class(**other)], 0

    def rows(parts: list[Any], apart: Any = (), nodes: int = 100) -> list[str]:
        return ["".join(p.name for p in row) for row in fit_rows(parts, apart, nodes)]

    a, b, c, d = (Part(name) for name in "abcd")
    assert rows([a, b, c, d]) == ["abcd"]
    assert rows([a, b, c, d], nodes=25) == ["ab", "cd"]
    assert rows([a, b, c, d], apart={(b, c)}) == ["ab", "cd"]
    assert rows([a, b, None, c, d]) == ["ab", "cd"]
    assert rows([a, b, Part("x", tier=0), c]) == ["ab"]
    assert rows([a, Part("x", has_effects=True), b, c]) == ["bc"]
    assert rows([a, b, Part("x", mutations=(1,))]) == ["ab"]


def test_a_longer_row_takes_the_place_of_those_within_it(served: Served) -> None:
    joins, family = served.joins, controls(served.fast).family
    served.call(X, times=2)
    members = tuple(family.members[id(block)] for block in served.model.blocks)
    joins._propose(Row(members[1:], ""))
    served.call(X, times=torch_joins.WIRED + 2)
    short = joins._rows[members[1]]
    assert short.chain is not None
    joins._propose(Row(members[:2], ""))  # it crosses the one that is there
    assert set(joins._rows) == {members[1]}
    joins._propose(Row(members, ""))
    assert set(joins._rows) == {members[0]}
    assert short.chain not in family.all()
    joined(served)
