"""A PyTorch module whose kernels are edited while it serves: what traces of its calls speak for, and what is told of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.adaptive.target import Generic, Merged
from hotfuse.events import Event
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.torch_module import controls
from tests.adaptive.waiting import in_background, in_vain

L2 = host_spec().l2_bytes
WIDTH = int((L2 / 10) ** 0.5) // 16 * 16  # two matrices of weights have room in that cache, with nothing beside them
ROWS = 2 * L2 // (4 * WIDTH)  # what passes between them has not

STEPS = [f"tier.{step}" for step in ("build", "units", "built", "prove", "proved", "shadow", "shadowed", "publish", "measure")]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.product(x))


class Pair(torch.nn.Module):
    """Two submodules that always follow each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.fixture
def alone() -> Iterator[None]:
    """Eager has one thread, as the kernels here do: what they are to be faster than must not have two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("alone")
def test_submodules_that_always_follow_each_other_are_merged_and_that_is_told() -> None:
    model = Pair().eval()
    fast = hotfuse.compile(model, cache="off", tier=1, threads=1, fusion="rules", trial=True)
    events, x = controls(fast).events, torch.randn(ROWS, WIDTH)

    def call_until(until: Any) -> None:
        deadline = time.monotonic() + 240
        while not until():
            assert time.monotonic() < deadline, in_vain(events)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)

    def care_for_little() -> None:
        controller._state = replace(controller._state, rules=replace(controller._state.rules, build_share=0.0, keep_share=0.0))

    def of_the_merge(kind: str) -> list[Event]:
        return [event for event in events.of(kind) if event.subject == merge]

    with torch.no_grad():
        call_until(lambda: events.of("tier.publish"))
        controller: Any = controls(fast).family.adapted[0].controller  # type: ignore[attr-defined]
        in_background(care_for_little)
        merge = str(Merged(controller._lineup.made[Generic()].build.joints[0].groups))
        call_until(lambda: of_the_merge("tier.measured"))
    assert "the second follows the first in 100% of the calls" in of_the_merge("tier.spotted")[0].reason
    kinds = [event.kind for event in of_the_merge("tier") if event.kind != "tier.spotted"]
    assert kinds[: len(STEPS) + 1] == [*STEPS, "tier.measured"]

    (fusion,) = of_the_merge("tier.units")[0].data["fusions"]
    told = fast.story(fusion.id)
    assert told.subgraph.operators.count("panel_matmul") == 2
    chapters = [chapter.kind for chapter in told.chapters if chapter.target == merge]
    assert [kind for kind in chapters if kind in STEPS[2:]][: len(STEPS) - 2] == STEPS[2:]
    assert sum(told.id in story.became for story in fast.report().subgraphs) == 2
    fast.close()
