"""Which edits a profile speaks for: each criterion alone decides against one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotfuse.adaptive.profile import Use
from hotfuse.adaptive.spotting import find_edits
from hotfuse.adaptive.target import Merged, Split
from hotfuse.fusion.grouping import Joint
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.dim import symbol
from hotfuse.runtime.build import Unit
from hotfuse.runtime.order import Chain

L2 = 1 << 20
SPEC = replace(host_spec(), l2_bytes=L2)
N = symbol("n", 1)


class Made:
    """Of a build, what is looked at."""

    def __init__(self, weights: int = L2 // 2) -> None:
        self.units = (Unit("product", ("m", "a"), ()), Unit("rows", ("b",), ()), Unit("rows", ("c", "d"), ()))
        self.joints = (Joint(("a", "b"), N * 4096, weights),)


def use(unit: str, seconds: float, flops: float = 1e6, moved: float = 1e5, **changes: Any) -> Use:
    rates = flops / seconds / 1e9, moved / seconds / 1e9
    plain = Use(
        "native", unit, "kernels", 1, 100, 100.0, 5, 100 * seconds, 0.3, seconds, seconds, 0.0, 2, 8, flops, moved, *rates
    )
    return replace(plain, **changes)


FAST = [use("a", 5e-5), use("b", 5e-5), use("d", 5e-5)]
FOLLOWS = [Chain("native", "a", "b", 100.0, 1.0, 1.0)]


def found(uses: list[Use], chains: list[Chain] = FOLLOWS, rows: int = 16, weights: int = L2 // 2) -> list[Any]:
    edits = find_edits(Made(weights), uses, chains, {"n": rows}, SPEC)  # type: ignore[arg-type]
    return [edit.edit for edit in edits]


def test_units_that_run_alike_are_left_alone() -> None:
    assert found(FAST) == []


def test_a_unit_far_above_its_work_is_taken_apart() -> None:
    slow = [use("a", 5e-3), *FAST[1:]]
    assert found(slow) == [Split(("a",))]
    (edit,) = find_edits(Made(), slow, FOLLOWS, {"n": 16}, SPEC)  # type: ignore[arg-type]
    assert 4e-3 < edit.saves_s < 5e-3
    assert "times what" in edit.reason


@pytest.mark.parametrize(
    "uses",
    [
        [FAST[0], use("b", 5e-3), FAST[2]],  # one node has no parts
        [use("a", 5e-3, share=0.001), *FAST[1:]],  # it takes next to nothing of the model's time
        [use("a", 5e-3, flops=1e9), *FAST[1:]],  # it has that much work
        [use("a", 5e-3, moved=1e9), *FAST[1:]],
        [*FAST[:2], use("d", 1e-3)],  # elementwise functions take their time
    ],
)
def test_what_explains_the_time_of_a_unit(uses: list[Use]) -> None:
    assert found(uses) == []


def test_units_that_hand_on_more_than_the_caches_hold_are_merged() -> None:
    assert found(FAST, rows=4096) == [Merged(("a", "b"))]
    assert found(FAST, rows=16) == []  # locality: it all stays in the caches
    assert found(FAST, rows=4096, weights=2 * L2) == []  # resources: the weights of both do not
    rare = [replace(FOLLOWS[0], of_second=0.5)]
    assert found(FAST, rare, rows=4096) == []  # frequency
    assert found(FAST, [], rows=4096) == []


def test_waiting_between_units_speaks_for_merging_them() -> None:
    waiting = [replace(FAST[0], waiting_s=4e-5), *FAST[1:]]
    assert found(waiting, rows=16) == [Merged(("a", "b"))]
