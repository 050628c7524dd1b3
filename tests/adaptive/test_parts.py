"""A model that cannot be captured as a whole, with no option set: its parts get kernels while it answers, and are joined."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.torch_parts import ENOUGH_S, LOOK_EVERY, SHORT_S, TIMED_CALLS, Worth
from tests.adaptive.waiting import in_vain

WIDTH = 256


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.narrow(torch.nn.functional.gelu(self.wide(x))))


class Early(torch.nn.Module):
    """Leaves early, or late, as values tell: a graph cannot do that."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.last = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if x.abs().amax().item() > 1e6:
            return x * 0
        return self.last(x)


def call_until(fast: Any, model: torch.nn.Module, until: Any, limit_s: float = 240.0) -> None:
    deadline = time.monotonic() + limit_s
    with torch.no_grad():
        while not until():
            x = torch.randn(96, WIDTH)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
            assert time.monotonic() < deadline, in_vain(controls(fast).events)
            time.sleep(0.002)


def test_parts_get_kernels_in_the_background() -> None:
    model = Early().eval()
    fast = hotfuse.compile(model, cache="off")
    family = controls(fast).family

    def native() -> set[str]:
        return {c.module for c in fast.report().classes if c.tier > 0}

    wanted = {f"Early.blocks.{i}" for i in range(3)}
    call_until(fast, model, lambda: controls(fast).root.calls % 16 == 0 and native() >= wanted)
    report = fast.report()
    assert "branches on values" in report.failed["Early"]
    assert "Early.last" not in {c.module for c in report.classes}  # too short to ask for
    answered = family.members[id(model.blocks[0])].answered
    with torch.no_grad():
        for rows in (1, 3, 200):
            x = torch.randn(rows, WIDTH)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert family.members[id(model.blocks[0])].answered > answered
    fast.close()


@pytest.mark.parametrize("fuel", [0, 1, 2])
def test_all_parts_of_a_model_draw_from_the_same_fuel(fuel: int) -> None:
    """Whoever halves it finds the first bad decision of the model, whichever part it was of."""
    model = Early().eval()
    fast = hotfuse.compile(model, cache="off", fuel=fuel)
    family, events = controls(fast).family, controls(fast).events

    def decided() -> int:
        return len(events.of("tier.publish")) + len(events.of("parts.joining"))

    def is_over() -> bool:
        held = [subject.controller.why() for subject in family.adapted]  # type: ignore[attr-defined]
        return len(held) >= 3 and all("fuel" in why for why in held if why)

    call_until(fast, model, is_over, 60.0)
    assert decided() == family.fuel.spent == fuel
    end_s = time.monotonic() + 2.0
    call_until(fast, model, lambda: time.monotonic() > end_s)
    assert decided() == fuel
    fast.close()


@pytest.mark.long
def test_parts_are_joined_in_the_background() -> None:
    model = Early().eval()
    fast = hotfuse.compile(model, cache="off")
    events = controls(fast).events
    call_until(fast, model, lambda: events.of("parts.joined") or events.of("parts.apart"))
    (name, told), *_ = fast.report().rows.items()
    assert name == "Early.blocks.0 + Early.blocks.1 + Early.blocks.2"
    assert " ms joined, " in told  # it was wired, captured, proved and timed; which is faster is the machine's to say
    fast.close()


def test_gradients_leave_a_model_in_parts_alone() -> None:
    model = Early(1)
    fast = hotfuse.compile(model, cache="off", capture="blocking")
    x = torch.randn(8, WIDTH)
    fast(x).sum().backward()
    assert model.blocks[0].wide.weight.grad is not None
    assert controls(fast).family.all() == (controls(fast).root,)


def test_what_is_short_is_looked_at_now_and_then() -> None:
    worth = Worth()
    assert not worth.passes()
    for _ in range(TIMED_CALLS):
        worth.note(SHORT_S / 4)
    passed = [worth.passes() for _ in range(2 * LOOK_EVERY)]
    assert passed.count(False) == 2
    for _ in range(4 * TIMED_CALLS):  # calls grow longer
        worth.note(4 * SHORT_S)
    assert not worth.passes()
    assert not worth.is_enough
    worth.note(ENOUGH_S)
    assert worth.is_enough
