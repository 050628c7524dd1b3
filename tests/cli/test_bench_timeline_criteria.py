"""`hotfuse bench --timeline`: what a whole timeline must show, and how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotfuse.cli.bench.plot import save_timelines
from hotfuse.cli.bench.timeline import Mark, Run
from hotfuse.cli.bench.timeline_criteria import judge_timelines
from hotfuse.cli.bench.timeline_runs import Timeline, Turns
from hotfuse.cli.bench.timeline_summary import summary_of, timeline_json
from hotfuse.cli.bench.timeline_view import show_marks, show_timeline
from hotfuse.cli.view import make_console
from tests.cli.timelines import made_up, series


def unmet(timeline: Timeline) -> list[str]:
    return [c.what for c in judge_timelines([timeline]) if not c.met]


def slower(engine: str, load: str, share: float) -> Callable[[Run], Run]:
    """The calls of that engine before its publication take longer, in the same time."""

    def edit(run: Run) -> Run:
        if (run.engine, run.load) != (engine, load):
            return run
        slow = (run.seconds > 0.1) & (run.starts > run.starts[0])
        return replace(run, seconds=np.where(slow, run.seconds * share, run.seconds))

    return edit


def test_a_timeline_that_is_as_it_should_be_meets_everything() -> None:
    found = judge_timelines([made_up()])
    assert [c.what for c in found if not c.met] == []
    assert [c.what for c in found][:9] == [
        "toy torch: first call / eager's",
        "toy torch: CPU time behind / Inductor's",
        "toy torch: p99.9 / eager's median, closed",
        "toy torch: lost to work behind, closed",
        "toy torch: rounds that became steady, closed",
        "toy torch: p99.9 / eager's median, half",
        "toy torch: p99 until steady / un-fused alone, half",
        "toy torch: steady pace met after / Inductor's, half",
        "toy torch: time to steady / Inductor's, half",
    ]
    assert len(found) == 20
    figures = {c.what: c.figure for c in found}
    assert figures["toy torch: first call / eager's"] == pytest.approx(1.05)
    assert figures["toy torch: CPU time behind / Inductor's"] == pytest.approx(1 / 3)
    assert figures["toy torch: lost to work behind, closed"] == pytest.approx(0.05, abs=0.01)
    assert figures["toy torch: time to steady / Inductor's, half"] == pytest.approx((1.05 + 100 * 0.205) / 40, abs=0.01)
    assert figures["toy torch: steady / tier=1, wait=True"] == pytest.approx(0.0601 / 0.06)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda r: replace(r, starts=r.starts + 0.1) if r.engine == "adaptive-torch" else r, ["first call / eager's"]),
        (
            lambda r: replace(r, cpu=replace(r.cpu, threads_s=0.6)) if r.engine == "adaptive-torch" else r,
            ["CPU time behind / Inductor's"],
        ),
        (slower("adaptive-torch", "half", 1.2), ["p99 until steady / un-fused alone, half"]),
        (slower("adaptive-torch", "closed", 2.5), ["p99.9 / eager's median, closed"]),
        (
            lambda r: replace(r, marks=()) if r.engine == "adaptive-torch" and r.load == "closed" else r,
            ["rounds that became steady, closed"],
        ),
        (
            lambda r: replace(r, starts=r.starts / 3, seconds=r.seconds / 3) if r.engine == "inductor" else r,
            ["steady pace met after / Inductor's, half", "time to steady / Inductor's, half"],
        ),
    ],
)
def test_each_defect_shows_in_its_criterion(edit: Callable[[Run], Run], what: Sequence[str]) -> None:
    found = [name for name in unmet(made_up(edit)) if name.startswith("toy torch")]
    assert found == [f"toy torch: {name}" for name in what]


def test_time_lost_and_the_end_of_the_way_have_their_defects() -> None:
    def delayed(run: Run) -> Run:
        if (run.engine, run.load) != ("eager", "closed"):
            return run
        return replace(run, seconds=run.seconds * 0.8, starts=run.starts * 0.8)

    assert "toy torch: lost to work behind, closed" in unmet(made_up(delayed))

    def held_up(run: Run) -> Run:
        if (run.engine, run.load) != ("eager", "closed"):
            return run
        return replace(run, seconds=run.seconds * 1.3, starts=run.starts * 1.3)

    found = next(c for c in judge_timelines([made_up(held_up)]) if c.what == "toy torch: lost to work behind, closed")
    assert (found.met, found.detail) == (True, "more than alone: others used the machine")
    whole = made_up()
    slow = [replace(one, ours=(0.0625,) * 5) if one.engine == "adaptive-torch" else one for one in whole.turns]
    worse = replace(whole, turns=tuple(slow))
    assert unmet(worse) == ["toy torch: steady / tier=1, wait=True"]
    partly = replace(whole, turns=(*whole.turns, Turns("adaptive-torch", failed="the process ended")))
    assert unmet(partly) == ["toy torch: steady / tier=1, wait=True"]
    assert "the process ended" in [c.detail for c in judge_timelines([partly])]
    assert unmet(replace(whole, turns=())) == ["toy torch: steady / tier=1, wait=True", "toy onnx: steady / tier=1, wait=True"]


def test_onnx_must_be_steady_in_a_fifth_of_the_time() -> None:
    def hasty(run: Run) -> Run:
        return replace(run, starts=run.starts / 3, seconds=run.seconds / 3) if run.engine == "inductor" else run

    assert "toy onnx: time to steady / Inductor's, half" in unmet(made_up(hasty))
    assert next(c for c in judge_timelines([made_up()]) if c.what.startswith("toy onnx: time")).wanted == 0.2


def test_a_round_that_failed_spoils_every_figure_of_its_engine() -> None:
    def broken(run: Run) -> Run:
        last = run.engine == "adaptive-torch" and run.round == 1
        return Run(run.engine, run.load, run.round, "wrong", "the answer at 3.00 s: output 0") if last else run

    timeline = made_up(broken)
    row = summary_of(timeline, "adaptive-torch", "closed")
    assert (row.status, row.reason, row.steady_s) == ("wrong", "the answer at 3.00 s: output 0", None)
    torch_criteria = [c for c in judge_timelines([timeline]) if c.what.startswith("toy torch") and "tier=1" not in c.what]
    assert not any(c.met for c in torch_criteria)
    assert [c.met for c in judge_timelines([Timeline("toy", failed="no such model")])] == [False] * 6


def test_a_tail_of_eagers_own_is_allowed() -> None:
    def wild(run: Run) -> Run:
        if run.engine != "eager":
            return run
        seconds = run.seconds.copy()
        seconds[50:60] = 0.5
        return replace(run, seconds=seconds)

    found = next(c for c in judge_timelines([made_up(wild)]) if c.what == "toy torch: p99.9 / eager's median, closed")
    assert found.wanted == pytest.approx(1.2 * 0.5 / 0.1)
    assert "(eager: 20)" in found.detail


def test_what_is_shown_and_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    timeline = made_up()
    show_timeline(make_console(), timeline)
    shown = capsys.readouterr().out
    assert "toy, a client that never rests" in shown
    assert "toy, a client that sleeps as long as its last call took" in shown
    assert "adaptive-torch: tier.publish 11.50 s" in shown
    assert "adaptive-torch at the end over tier=1, wait=True: 1.002" in shown
    show_timeline(make_console(), replace(timeline, failed="it cannot be built"))
    assert "toy: it cannot be built" in capsys.readouterr().out
    found = json.loads(json.dumps(timeline_json(timeline)))
    assert [row["engine"] for row in found["summaries"]][:3] == ["eager", "inductor", "adaptive-torch"]
    assert found["runs"][2]["steady"]["median_s"] == pytest.approx(0.06)
    assert found["runs"][2]["events"][0]["kind"] == "tier.publish"
    assert len(found["runs"][0]["latency"]) <= 200
    many = series((5, 0.1), marks=tuple(Mark(i, "guard.miss") for i in range(20)))
    assert show_marks(many).endswith(", and 8 more")


def test_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib", None)
        assert "pip install 'hotfuse[bench]'" in save_timelines([made_up()], str(path))
    pytest.importorskip("matplotlib")
    assert "nothing was measured" in save_timelines([Timeline("toy")], str(path))
    assert save_timelines([made_up()], str(path)) == ""
    assert path.stat().st_size > 1000
