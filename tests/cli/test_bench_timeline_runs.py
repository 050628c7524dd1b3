"""`hotfuse bench --timeline`: what workers write down, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.cli.bench import suites, timeline_runs
from hotfuse.cli.bench.contest import Rules
from hotfuse.cli.bench.engines import Settings, cold_caches
from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.timeline import Run, background_cpu_s, steady_state
from hotfuse.cli.bench.timeline_runs import Timeline, hold_timeline
from hotfuse.cli.bench.timeline_worker import CpuWatch
from hotfuse.cli.main import main
from hotfuse.cli.process_tree import children_cpu_s, thread_cpu_s
from tests.cli.timelines import made_up

ROOT = str(Path(hotfuse.__file__).parent.parent)
FAKES = "tests.cli.bench_engines:"
TEXT = """<ir_version: 10, opset_import: ["": 17]>
tiny (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { h = MatMul(x, w)  y = Softmax(h) }"""
BURN = "import time\nwhile time.process_time() < 0.15: pass"


def test_cpu_time_of_children_that_live_and_that_ended() -> None:
    watch = CpuWatch()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = watch.children_s()
    assert 0.15 <= ended < 5
    child = subprocess.Popen([sys.executable, "-c", f"{BURN}\nprint(1, flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert children_cpu_s() >= 0.13
        assert watch.children_s() >= ended + 0.13
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_cpu_time_of_threads_beside_the_client() -> None:
    def burn() -> None:
        while time.thread_time() < 0.1:
            pass
        waiting.wait(60)

    waiting, watch = threading.Event(), CpuWatch()
    before_s = watch.threads_s()
    thread = threading.Thread(target=burn)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while watch.threads_s() < before_s + 0.09 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        waiting.set()
        thread.join()
    assert before_s + 0.09 <= watch.threads_s() < before_s + 0.5  # it ended, and is still counted
    assert thread_cpu_s(1 << 22) == 0.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("timeline") / "tiny.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return str(path)


@pytest.fixture(scope="module")
def fakes(model: str, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Engines that swap, lapse, crash and are not made for it, in real processes."""
    engine = f"{FAKES}swapping"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ROOT)
        patch.setitem(timeline_runs.ADAPTIVE, engine, ("", f"{FAKES}lapsing"))
        patch.setitem(timeline_runs.ADAPTIVE, f"{FAKES}right", ("", f"{FAKES}crashing"))
        rules = Rules(Settings(1), rounds=1, seconds=1.5, limit_s=60)
        names = [engine, *(f"{FAKES}{name}" for name in ("lapsing", "crashing", "unfit", "right"))]
        return hold_timeline(Case(model), names, ("half",), rules, lambda text: None)


def run_of(timeline: Timeline, name: str) -> Run:
    return next(run for run in timeline.runs if run.engine.endswith(name))


def test_a_worker_writes_down_calls_events_and_cpu_time(fakes: Timeline) -> None:
    run = run_of(fakes, ":swapping")
    assert (run.status, run.adapts) == ("ok", True)
    assert [mark.kind for mark in run.marks] == ["tier.build", "tier.prove", "tier.shadow", "tier.publish"]
    opened = run.construct_s
    assert run.starts[0] == pytest.approx(opened, abs=0.05)
    for mark, at_s in zip(run.marks, (0.1, 0.2, 0.3, 0.4), strict=True):
        assert opened + at_s <= mark.at_s < opened + at_s + 1
    assert steady_state(run).median_s < 3e-3
    assert np.all(np.diff(run.starts[1:]) >= run.seconds[1:-1] * 2 - 1e-4)  # it sleeps as long as the call took
    assert run.end_s - run.first_call_s == pytest.approx(1.5, abs=0.5)
    assert run.cpu.children_s >= 0.19
    assert run.cpu.threads_s >= 0.05
    assert background_cpu_s(run.cpu) >= 0.24
    assert run.samples[-1][1] <= run.cpu.children_s
    turns = fakes.turns[0]
    assert (turns.engine, turns.failed) == (run.engine, "")
    assert len(turns.ours) == len(turns.theirs) == timeline_runs.TURNS
    assert np.median(turns.ours) < np.median(turns.theirs)  # 1 ms and 2 ms


def test_turns_follow_the_load_that_leaves_room_for_what_works_behind() -> None:
    assert timeline_runs.turns_after(("closed", "half")) == "half"
    assert timeline_runs.turns_after(("closed",)) == "closed"


def test_turns_with_an_engine_that_dies_say_so(fakes: Timeline) -> None:
    assert run_of(fakes, ":right").counts
    assert "crashing: the process was killed by SIGSEGV" in fakes.turns_failed(f"{FAKES}right")
    assert fakes.ratio(f"{FAKES}right") is None
    assert fakes.ratio(f"{FAKES}swapping") is not None


def test_an_answer_that_is_wrong_once_is_found(fakes: Timeline) -> None:
    run = run_of(fakes, ":lapsing")
    assert run.status == "wrong"
    assert "the answer at" in run.reason


def test_an_engine_that_gives_no_answer_is_a_run(fakes: Timeline) -> None:
    assert "SIGSEGV" in run_of(fakes, ":crashing").reason
    unfit = run_of(fakes, ":unfit")
    assert (unfit.status, unfit.reason) == ("skipped", "made for other models")


def test_every_process_begins_with_caches_of_its_own() -> None:
    a, b = cold_caches("/a"), cold_caches("/b")
    assert {"HOTFUSE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"} == set(a)
    assert not set(a.values()) & set(b.values())
    assert hotfuse.Config.from_environment(a).cache == os.path.join("/a", "hotfuse_cache")


# the command


def bench(*arguments: str) -> Any:
    return CliRunner(env={"PYTHONPATH": ROOT, "COLUMNS": "160"}).invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timeline", "--suite", "cpu"), "one of them, or --timeline"),
        (("--timeline", "--batch", "2"), "a timeline has sizes of its own"),
        (("--timeline", "--only", "bert-huge"), "--only bert-huge: no part"),
        (("mlp", "--timeline", "--only", "mlp"), "--only takes parts"),
        (("mlp", "--timeline", "--against", "tensorrt"), "there is no engine 'tensorrt'"),
        (("mlp", "--load", "half"), "it goes with --timeline"),
        (("mlp", "--timeline", "--plot", "x.txt"), "a picture ends in"),
        (("missing.onnx", "--timeline"), "there is no file missing.onnx"),
    ],
)
def test_what_is_refused_before_anything_runs(arguments: tuple[str, ...], message: str) -> None:
    done = bench(*arguments)
    assert done.exit_code != 0
    assert message in done.stderr


def test_wrong_answers_fail_the_command(fakes: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "run_timelines", lambda *arguments: ([fakes], []))
    done = bench("--timeline")
    assert done.exit_code == 1
    assert done.stderr.strip() == f"Error: {fakes.model}: {FAKES}lapsing is wrong"
    monkeypatch.setattr(suites, "run_timelines", lambda *arguments: ([made_up()], []))
    assert bench("--timeline").exit_code == 0


def test_a_quick_run_of_a_tiny_model() -> None:
    pytest.importorskip("torch")
    options = ("--quick", "--seconds", "1.5", "--threads", "1", "--load", "half", "--hotfuse", "onnx", "--against", "eager")
    done = bench("mlp", "--timeline", *options, "--json", "-")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["rules"]["rounds"] == 1
    (found,) = report["timelines"]
    rows = {row["engine"]: row for row in found["summaries"]}
    assert {engine: row["status"] for engine, row in rows.items()} == dict.fromkeys(
        ("eager", "adaptive-onnx", "unfused-onnx"), "ok"
    )
    assert all(row["first_call_s"] > 0 and row["answers"] >= 3 and row["calls"] > 5 for row in rows.values())
    assert found["against_waiting"]["adaptive-onnx"]["rounds"] == timeline_runs.TURNS
    events = next(run["events"] for run in found["runs"] if run["engine"] == "adaptive-onnx")
    assert "tier.build" in [event["kind"] for event in events]
    wanted = {c["what"]: c["figure"] for c in report["criteria"]}
    assert wanted["mlp onnx: first call / eager's"] > 0
    assert wanted["mlp onnx: CPU time behind / Inductor's"] is None  # nobody ran it
    assert "criteria (a quick run claims nothing)" in done.stderr


@pytest.mark.long
def test_a_quick_run_against_inductor() -> None:
    pytest.importorskip("transformers")
    done = bench("--timeline", "--quick", "--json", "-")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (found,) = report["timelines"]
    assert {row["status"] for row in found["summaries"]} == {"ok"}
    assert len(found["summaries"]) == 10
    assert set(found["against_waiting"]) == {"adaptive-torch", "adaptive-onnx"}
    assert all(c["figure"] is not None for c in report["criteria"] if "CPU" in c["what"] or "first call" in c["what"])
