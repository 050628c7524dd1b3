"""The campaigns of `benchmarks`, short, each with a planted defect that it finds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

import hotfuse
from benchmarks import compile_faults, false_alarms, shapes, swaps
from hotfuse import stress
from hotfuse.runtime import faults
from hotfuse.runtime.backoff import Backoff
from hotfuse.runtime.serving import Serving
from hotfuse.runtime.session import Session

# swaps


def test_swaps_leave_no_answer_mixed_or_stale() -> None:
    found = swaps.campaign(3000)
    assert (found.mixed, found.stale, found.failed, found.first_failure) == (0, 0, 0, "")
    assert found.links == 3
    assert found.calls > 100
    assert found.rarer > 0.1


def test_memory_that_grows_shows() -> None:
    flat, leak = [140, 150, 156, 155, 157, 154, 156, 155], [140, 150, 156, 160, 164, 168, 172, 176]
    assert swaps.growth(flat) <= swaps.FLAT < swaps.growth(leak)


class Torn(Session):
    """Publishes in two steps: what answers, and later the short way to it."""

    def publish(self, serving: Serving | None) -> None:
        if serving is not None and self._best.tier:
            super().publish(replace(serving, short=self._best.short))
            time.sleep(0)
        super().publish(serving if serving is None else replace(serving, short=self._best.short or serving.short))


class Twice(Session):
    """Asks twice what serves, once for each output."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        names = output_names or [output.name for output in self.outputs]
        return [super(Twice, self).run([name], feeds)[0] for name in names]


class Failing(Session):
    """Fails once. Its own count: threads pass over numbers of the session's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.numbers = count()

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        if next(self.numbers) == 50:
            raise ZeroDivisionError("planted")
        return super().run(output_names, feeds, out)


@pytest.mark.parametrize(("kind", "shows"), [(Torn, "stale"), (Twice, "mixed"), (Failing, "failed")])
def test_planted_defects_of_publication_are_found(kind: type[Session], shows: str) -> None:
    whole = hotfuse.load(swaps.model(1.0), config=swaps.CONFIG)
    session = kind(whole.graph, [output.name for output in whole.outputs], swaps.CONFIG)
    found = swaps.campaign(3000, session=session)
    assert getattr(found, shows) > 0
    assert not found.is_good


# false alarms (the rest of them is in tests/runtime/test_proof_campaigns.py)


def test_what_was_judged_is_read_back() -> None:
    made = false_alarms.judge(3)
    tally = false_alarms.Tally()
    tally.add(made)
    tally.add(replace(made, seed=4, blamed=made.kernels[:1], alarms=("planted",)))
    assert tally.models == 2
    assert len(tally.kernels) == len(set(made.kernels)) > 0
    assert tally.share > false_alarms.ALLOWED
    assert tally.notes == ["seed 4, planted"]


# compile faults


def test_compile_faults_fail_no_call_and_raise_no_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "HANG_S", 1.0)
    found = compile_faults.campaign(7, 1, "fail-compile-every-3,workers-1")
    assert (found.failed, found.wrong, found.storms) == (0, 0, 0)
    assert found.published > 0
    assert {"raise", "hang"} <= set(found.faults)


def test_a_storm_of_retries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "longer", lambda self, now_s, first_s, most_s: Backoff(self.times + 1, now_s))
    monkeypatch.setattr(stress, "FAULTS", ("raise",))  # no child has to be started anew
    found = compile_faults.campaign(3, 1, "fail-compile-every-1")
    assert found.storms > 0
    assert not found.is_good


def test_how_often_something_may_be_tried_again() -> None:
    first_s = compile_faults.Rules().back_off_s
    assert [compile_faults.most_retries(first_s * n) for n in (0, 0.9, 1, 2.9, 3, 6.9, 7)] == [0, 0, 1, 1, 2, 2, 3]


# shapes


def test_shapes_are_distinct_and_the_largest_comes_first() -> None:
    found = shapes.draw_shapes(1000)
    assert len(set(found)) == 1000
    assert found[0] == max(found) == (8, 512)
    assert all(1 <= batch <= 8 and 1 <= length <= 512 for batch, length in found)
    assert found == shapes.draw_shapes(1000)


def test_growth_and_other_answers_show_in_the_table() -> None:
    eager = shapes.Run("eager", [0.01] * 10, [1.0] * 10, 1000, 1010)
    ours = shapes.Run("hotfuse", [0.005] * 9 + [0.5], [1.0] * 9 + [1.1], 1000, 1030, {"kernels": 7})
    rows = [shapes.row(run, {"eager": eager, "hotfuse": ours}) for run in (eager, ours)]
    assert [row["is_flat"] for row in rows] == [True, False]
    assert (rows[1]["wrong"], rows[1]["kernels"], rows[1]["ratio_p50"]) == (1, 7, 0.5)
    assert rows[1]["p99.9_ms"] > 400
    assert "hotfuse" in shapes.show(rows).splitlines()[2]
