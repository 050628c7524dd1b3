"""`hotfuse bench`: who is right, who is out and why, and what is claimed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import psutil
import pytest
from click.testing import CliRunner, Result

import hotfuse
from hotfuse.cli.bench import suites
from hotfuse.cli.bench.contest import Result as Contest
from hotfuse.cli.bench.contest import Row
from hotfuse.cli.bench.plot import save_plot
from hotfuse.cli.bench.rounds import Failed, Player
from hotfuse.cli.bench.table import show_contest
from hotfuse.cli.bench.timing import summarize
from hotfuse.cli.main import main
from hotfuse.cli.process_tree import peak_bytes, resident_bytes, tree_of
from hotfuse.cli.view import make_console

ROOT = str(Path(hotfuse.__file__).parent.parent)
FAKES = "tests.cli.bench_engines:"
WEIGHTS = ", ".join(f"{(7 * i) % 11 - 5}" for i in range(40))
TEXT = f"""<ir_version: 10, opset_import: ["": 17]>
classifier (float[batch, 8] x) => (float[batch, 5] y)
<float[8, 5] w = {{{WEIGHTS}}}> {{ h = MatMul(x, w)  y = Softmax(h) }}"""


def bench(*arguments: str) -> Result:
    return CliRunner(env={"PYTHONPATH": ROOT, "COLUMNS": "160"}).invoke(main, ["bench", *arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "classifier.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return str(path)


@pytest.fixture(scope="module")
def contest(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, dict[str, Any]]:
    """One run with every kind of engine."""
    out = str(tmp_path_factory.mktemp("json") / "out.json")
    kinds = "right perturbed drifting crashing hanging raising starved not_installed unfit"
    against = ",".join(FAKES + kind for kind in kinds.split())
    done = bench(model, "--quick", "--against", against, "--hotfuse", "onnx", "--timeout", "8", "--batch", "3", "--json", out)
    return done, json.loads(Path(out).read_text())


def row_of(report: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(row for row in report["models"][0]["rows"] if row["engine"].endswith(kind))


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("hotfuse-onnx", "ok", ""),
        (":right", "ok", ""),
        (":perturbed", "wrong", "first answer: output 0: row 2"),
        (":drifting", "wrong", "last answer: output 0"),
        (":crashing", "failed", "SIGSEGV"),
        (":hanging", "failed", "took more than 8 s and was stopped"),
        (":raising", "failed", "ValueError: no such luck"),
        (":starved", "failed", "out of memory"),
        (":not_installed", "failed", "a_package_that_nobody_has is not installed; pip install 'hotfuse[bench]'"),
        (":unfit", "skipped", "made for other models"),
    ],
)
def test_whatever_an_engine_does_is_a_row(contest: tuple[Result, dict[str, Any]], kind: str, status: str, reason: str) -> None:
    row = row_of(contest[1], kind)
    assert row["status"] == status
    assert reason in row["reason"]
    assert bool(row["reason"]) == (status != "ok")


def test_a_wrong_answer_fails_the_run_and_is_marked(contest: tuple[Result, dict[str, Any]]) -> None:
    done, _ = contest
    assert done.exit_code == 1
    assert "perturbed is wrong" in done.stderr
    assert "WRONG" in done.stdout


def test_a_wrong_engine_is_no_peer_however_fast(contest: tuple[Result, dict[str, Any]]) -> None:
    found = contest[1]["models"][0]
    assert found["best_peer"] == FAKES + "right"
    assert row_of(contest[1], ":perturbed")["ratio"] is None


def test_what_the_json_holds(contest: tuple[Result, dict[str, Any]]) -> None:
    report = contest[1]
    assert set(report) == {"schema", "suite", "started", "machine", "versions", "rules", "models", "geometric_mean"}
    assert report["schema"] == 1
    assert report["rules"]["settings"] == {"threads": 2, "tier": 1}
    found = report["models"][0]
    assert {"model", "rows", "oracle", "work", "rates", "floor_s", "ours", "best_peer", "failed", "speedup"} == set(found)
    assert found["work"] == {"flops": 2 * 3 * 8 * 5, "bytes": 4 * (3 * 8 + 8 * 5 + 3 * 5)}
    assert found["floor_s"] == pytest.approx(
        max(found["work"]["flops"] / found["rates"]["flops_s"], found["work"]["bytes"] / found["rates"]["bytes_s"])
    )
    row = row_of(report, ":right")
    timing = row["timing"]
    assert set(timing) == {"median_s", "iqr_s", "p99_s", "min_s", "calls", "round_medians_s"}
    assert len(timing["round_medians_s"]) == report["rules"]["rounds"] == 3
    assert 0 < timing["min_s"] <= timing["median_s"] <= timing["p99_s"]
    assert timing["calls"] >= 6
    assert row["notes"] == "2 threads"
    assert row["peak_bytes"] > 10e6
    assert row["roofline_share"] == pytest.approx(found["floor_s"] / timing["median_s"])
    assert row["ratio"]["is_claim"] is False  # three rounds claim nothing
    assert found["speedup"] == {name: row["ratio"][name] for name in ("value", "low", "high", "rounds")}
    assert report["geometric_mean"] == pytest.approx(row["ratio"]["value"])


def test_nothing_is_left_behind(contest: tuple[Result, dict[str, Any]]) -> None:
    mine = psutil.Process().children(recursive=True)
    assert [
        p.pid for p in mine if "hotfuse.cli.bench.worker" in " ".join(p.cmdline()) or "sleep(600)" in " ".join(p.cmdline())
    ] == []


def test_an_answer_that_cannot_be_checked_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "dice.onnx"
    text = (
        '<ir_version: 10, opset_import: ["": 17]> dice (float[4] x) => (float[4] y) { r = RandomNormalLike(x)  y = Add(x, r) }'
    )
    onnx.save(onnx.parser.parse_model(text), path)
    done = bench(str(path), "--quick", "--against", "", "--hotfuse", "onnx")
    assert done.exit_code == 1
    assert "hotfuse-onnx is unchecked" in done.stderr
    assert "does not agree with the original" in done.stdout


def test_a_torch_model_by_name_gives_torch_and_onnx_engines_the_same_weights() -> None:
    done = bench("mlp", "--quick", "--against", "eager,onnxruntime", "--hotfuse", "onnx", "--json", "-", "--threads", "1")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["models"][0]["rows"]
    assert {row["engine"]: row["status"] for row in rows} == dict.fromkeys(("hotfuse-onnx", "eager", "onnxruntime"), "ok")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give models or --suite"),
        (("mlp", "--suite", "cpu"), "give models or --suite"),
        (("no_such_model",), "neither a path"),
        (("missing.onnx",), "there is no file missing.onnx"),
        (("mlp", "--against", "tensorrt"), "there is no engine 'tensorrt'"),
        (("mlp", "--seq", "7"), "mlp has no sequence"),
        (("--suite", "cpu", "--batch", "2"), "a suite has sizes of its own"),
        (("mlp", "--plot", "out.txt"), "a picture ends in"),
        (("--suite", "cpu", "--only", "mlp,resnet-51"), "--only resnet-51: no part of the suite has a name that begins so"),
        (("--suite", "gemm", "--only", "chain:"), "--only chain:: no part of the suite"),
        (("mlp", "--only", "mlp"), "--only takes parts of the suites cpu, gemm and pointwise"),
        (("--suite", "lengths", "--only", "17"), "--only takes parts of the suites cpu, gemm and pointwise"),
        (("--suite", "lengths", "--plot", "x.png"), "there is no picture of the suite lengths"),
    ],
)
def test_what_is_refused_before_anything_runs(arguments: tuple[str, ...], message: str) -> None:
    done = bench(*arguments)
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_model_that_cannot_be_built_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    done = bench(str(tmp_path / "bad.onnx"), "--quick")
    assert done.exit_code == 1
    assert "InvalidModel" in done.stdout


def test_a_size_that_the_model_has_not_is_refused(model: str) -> None:
    done = bench(model, "--quick", "--seq", "4")
    assert done.exit_code == 1
    assert "--seq names no free size of the model; its free sizes are batch" in " ".join(done.stdout.split())


def test_a_contest_goes_on_without_a_probe(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Player.ask

    def deaf(self: Player, limit_s: float, **request: Any) -> dict[str, Any]:
        if request["do"] == "probe":
            raise Failed("no answer")
        return ask(self, limit_s, **request)

    monkeypatch.setattr(Player, "ask", deaf)
    done = bench(model, "--quick", "--against", "", "--hotfuse", "onnx")
    assert done.exit_code == 0
    assert "roofline: unknown" in done.stdout


def test_a_chain_that_memory_cannot_hold_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    class Little:
        available = 100 << 20

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    found = suites.lack_of_memory("chain:silu:32MB")
    assert found is not None
    assert "nothing was run" in found.failed
    Little.available = 100 << 30
    assert suites.lack_of_memory("chain:silu:32MB") is None
    assert suites.lack_of_memory("gemm:4096x4096x4096") is None


def test_the_gemm_suite_runs() -> None:
    done = bench("--suite", "gemm", "--quick", "--threads", "1", "--json", "-")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    kernels = report["kernels"]
    assert len(kernels) == suites.QUICK_KERNELS
    for kernel in kernels:
        flops, rows = kernel["work"]["flops"], {row["engine"]: row for row in kernel["rows"]}
        assert set(kernel["rates_s"]) == {"hotfuse", "numpy", "torch"} == set(rows)
        assert kernel["rates_s"]["numpy"] == pytest.approx(flops / rows["numpy"]["timing"]["median_s"])
        assert kernel["share"] == pytest.approx(kernel["rates_s"]["hotfuse"] / kernel["rates"]["flops_s"])
    mean, least = report["criteria"]
    assert (mean["wanted"], least["wanted"]) == (0.9, 0.75)
    assert least["figure"] == pytest.approx(min(kernel["share"] for kernel in kernels))
    assert "criteria (a quick run claims nothing)" in done.stderr


def test_a_part_of_a_suite_runs_and_ends_with_its_criteria() -> None:
    done = bench("--suite", "cpu", "--only", "mlp", "--quick", "--against", "onnxruntime", "--hotfuse", "onnx", "--json", "-")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [found["model"] for found in report["models"]] == ["mlp"]
    assert next(row["facts"]["kernels"] for row in report["models"][0]["rows"] if row["engine"] == "hotfuse-onnx") > 0
    assert [c["what"] for c in report["criteria"]] == [
        "mlp against onnxruntime",
        "slowest against its best peer",
        "geometric mean over the best peers",
        "mlp through Session.run: time over ONNX Runtime's",
        "mlp: peak memory over onnxruntime's",
    ]
    assert all(c["figure"] > 0 for c in report["criteria"])


def test_only_keeps_the_parts_whose_names_begin_so() -> None:
    assert suites.choose(["mlp", "minilm-s16", "minilm-s128"], ["minilm"]) == ["minilm-s16", "minilm-s128"]
    assert suites.choose(["mlp", "gpt2"], []) == ["mlp", "gpt2"]
    assert suites.kernel_names("pointwise", True, ["chain:softmax"]) == ["chain:softmax:32MB", "chain:softmax:1GB"]
    assert len(suites.kernel_names("gemm", False, [])) == 40


# workers


def status_of(pid: int) -> str:
    return str(psutil.Process(pid).status())


def test_a_worker_is_stopped_unless_it_is_asked() -> None:
    player = Player({"PYTHONPATH": ROOT})
    try:
        for _ in range(2):
            with pytest.raises(Failed, match="KeyError"):
                player.ask(60, do="nothing of the kind")
            time.sleep(0.05)
            assert {status_of(pid) for pid in tree_of(player.pid)} == {psutil.STATUS_STOPPED}
        assert player.peak >= peak_bytes(player.pid) > 5e6
    finally:
        player.close()
    assert not psutil.pid_exists(player.pid)


def test_a_stopped_worker_dies_with_its_parent() -> None:
    code = (
        "import time\nfrom hotfuse.cli.bench.rounds import Failed, Player\nplayer = Player({})\n"
        "try: player.ask(60, do='nothing')\nexcept Failed: pass\n"
        "print(player.pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    assert status_of(worker.pid) == psutil.STATUS_STOPPED
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([worker], timeout=10)
    assert gone or worker.status() == psutil.STATUS_ZOMBIE


def test_the_tree_of_a_process_has_all_that_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(60)'])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        parent.stdout.readline()
        tree = tree_of(parent.pid)
        assert len(tree) == 2
        assert resident_bytes(parent.pid) > resident_bytes(tree[1]) > 1e6
    finally:
        for pid in tree_of(parent.pid):
            os.kill(pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    assert tree_of(parent.pid) == []
    assert resident_bytes(parent.pid) == 0


# what is shown


def made_up() -> Contest:
    fast, slow = summarize([[1e-3] * 4] * 6), summarize([[2e-3, 3e-3]] * 6)
    rows = (
        Row("hotfuse-onnx", "ok", timing=slow, peak_bytes=10**7, roofline_share=0.25),
        Row("liar", "wrong", "output 0: row 1", timing=fast),
        Row("a", "skipped", "made for other models"),
        Row("b", "skipped", "made for other models"),
    )
    return Contest("toy", rows, ours="hotfuse-onnx")


def test_the_table_marks_what_is_wrong_and_says_a_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_contest(make_console(), made_up())
    shown = capsys.readouterr().out
    assert "liar WRONG: output 0: row 1" in shown
    assert "a, b skipped: made for other models" in shown
    assert "no peer gave a right answer" in shown
    bars = {line.split()[0]: line for line in shown.splitlines() if "█" in line or "░" in line}
    assert "█" in bars["hotfuse-onnx"]
    assert "░" in bars["liar"]
    assert bars["hotfuse-onnx"].count("█") > bars["liar"].count("░")


def test_without_matplotlib_the_plot_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'hotfuse[bench]'" in save_plot([made_up()], str(tmp_path / "x.png"))
    assert not (tmp_path / "x.png").exists()


def test_with_matplotlib_the_plot_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for kind in ("png", "svg"):
        assert save_plot([made_up()], str(tmp_path / f"x.{kind}")) == ""
        assert (tmp_path / f"x.{kind}").stat().st_size > 1000


def test_arrays_survive_the_worker_without_pickle(model: str) -> None:
    """An engine that answers with objects is an error, not a pickle."""
    from hotfuse.cli.bench.subject import save_arrays

    with pytest.raises(ValueError, match="Object arrays"):
        save_arrays(Path(model).with_suffix(".npz"), [np.array([object()])])
