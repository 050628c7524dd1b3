"""`hotfuse replay`: what was planted is found again and made smaller, and what is right is told right."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hotfuse.cli.main import main
from hotfuse.codegen.tile_check import check
from hotfuse.config import Config
from hotfuse.errors import CodegenError, TileError
from hotfuse.events import EventLog
from hotfuse.runtime.build_jobs import prove_job
from hotfuse.runtime.build_pool import build_pool
from hotfuse.runtime.build_request import ProveReply, ProveRequest
from hotfuse.runtime.reproduce import ReproduceRequest, submit_reproduction
from hotfuse.runtime.reproduction_folder import read_reproduction
from tests.runtime.mutants import mutants, planted
from tests.runtime.proof_models import TEXTS, Built, built, from_graph
from tests.runtime.reproductions import feeds, reproduction_of, request, rows, unit_of, written, wrong


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def report(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reproduction of a softmax that computes another function."""
    return written(tmp_path_factory.mktemp("kept") / "it", reproduction_of(wrong(built("norms"), 1, "map exp", "map sin"), 1))


def test_a_planted_miscompile_from_the_proof_to_the_smallest_reproduction(path: Path) -> None:
    command = [sys.executable, "-m", "hotfuse.cli.main", "replay", str(path), "--shrink"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    for text in ("softmax (1 node, 1 program, b = 3)", "interpreted", "compiled", "today", "softmax_0[0, 0, 0], row 0"):
        assert text in done.stdout
    assert "the saved program is wrong; today's generator makes another one that is right" in done.stdout
    (small,) = [p for p in path.parent.iterdir() if p != path]
    assert f"kept at {small}" in done.stdout
    assert read_reproduction(small).elements < read_reproduction(path).elements
    again = run(small, "--json", "-")
    assert again.exit_code == 1
    assert report(again)["reproduces"]


def test_the_honest_program_is_told_right(tmp_path: Path, path: Path) -> None:
    honest = replace(read_reproduction(path), units=built("norms").build.units[1:2])
    result = run(written(tmp_path / "kept", honest), "--shrink", "--json", "-")
    assert result.exit_code == 0
    verdicts = [(f["way"], f["verdict"]) for f in report(result)["findings"]]
    assert verdicts == [("interpreted", "right"), ("compiled", "right"), ("today", "right")]
    assert "shrunk" not in report(result)
    assert "nothing is wrong any more" in result.stderr


def test_a_report_has_everything_but_the_values(path: Path) -> None:
    found = report(run(path, "--json", "-"))
    (compiled,) = [finding for finding in found["findings"] if finding["way"] == "compiled"]
    assert compiled["same"]
    assert compiled["place"]["first"] == [0, 0, 0]
    assert compiled["place"]["largest_error"] > 0.1
    assert "reads" not in compiled


def test_other_circumstances_are_told(tmp_path: Path, path: Path) -> None:
    reproduction = read_reproduction(path)
    then = replace(reproduction.circumstances, numpy="0.0.1", machine="another", edited=True, objects=())
    text = run(written(tmp_path / "kept", replace(reproduction, circumstances=then))).stdout
    assert f"numpy was 0.0.1, and is {np.__version__} here" in text
    assert "machine was another" in text
    assert "HOTFUSE_TILES" in text


@pytest.mark.parametrize("damage", ["missing", "empty", "json", "graph", "tensors"])
def test_bad_input_is_exit_code_2_and_one_line(tmp_path: Path, path: Path, damage: str) -> None:
    target = tmp_path / "it"
    if damage != "missing":
        target.mkdir()
    if damage not in ("missing", "empty"):
        for file in path.iterdir():
            data = file.read_bytes()
            (target / file.name).write_bytes(data[: len(data) // 2] if damage in file.name else data)
    result = run(target)
    assert result.exit_code == 2
    assert str(target) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_smaller_one_that_cannot_be_kept_is_told(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(path, "--shrink", "--keep", tmp_path / "file")
    assert result.exit_code == 1
    assert "not kept: " in result.stdout


def test_texts_of_a_file_do_not_steer_the_terminal(tmp_path: Path, path: Path) -> None:
    reproduction = replace(read_reproduction(path), reason="red \x1b[31m text\x07")
    result = run(written(tmp_path / "kept", reproduction))
    assert "it was wrong: red ?[31m text?" in result.stdout
    assert "\x1b" not in result.stdout


def test_where_nothing_can_be_judged_the_exit_code_is_2(tmp_path: Path) -> None:
    reproduction = reproduction_of(from_graph(rows("tanh"), feeds), 0)
    empty = replace(reproduction, tensors={n: array[:0] for n, array in reproduction.tensors.items()})
    result = run(written(tmp_path / "kept", empty))
    assert result.exit_code == 2
    assert "native code was made for 1 and more" in " ".join(result.stdout.split())


# planted miscompiles


def disproved(asked: ReproduceRequest, model: Built) -> bool:
    """Whether a build worker finds the unit wrong; one that kills it does not count."""
    answers: queue.SimpleQueue[ProveReply | BaseException] = queue.SimpleQueue()
    assert asked.unit is not None
    proof = ProveRequest(asked.build, asked.objects, asked.inputs, asked.config, (asked.unit,))
    build_pool(asked.config).submit(prove_job("proof", lambda: proof, model.weight, answers.put, asked.config))
    found = answers.get(timeout=120)
    return isinstance(found, ProveReply) and not found.verdicts[0].ok


def reproduced(asked: ReproduceRequest, model: Built) -> Path:
    events = EventLog()
    submit_reproduction(build_pool(asked.config).submit, "it", asked, model.weight, events)
    deadline = time.monotonic() + 120
    while not len(events):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    (event,) = events
    return Path(event.data["path"])


def campaign(models: dict[str, Built], folder: Path, count: int, seed: int) -> Counter[str]:
    """Planted, disproved, written down, replayed, shrunk, replayed: how many came how far."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    config = Config(threads=2, reproductions=str(folder), cache="off")
    while counts["disproved"] < count:
        model = models[list(models)[int(rng.integers(len(models)))]]
        unit = int(rng.integers(len(model.build.units)))
        options = list(mutants(model.build.units[unit].recipes[0].program))
        _, program = options[int(rng.integers(len(options)))]
        try:
            check(program)
            broken = planted(model, unit, 0, program)
        except (TileError, CodegenError):
            continue
        asked = request(broken, unit, config)
        if not disproved(asked, model):
            counts["right, or deadly"] += 1
            continue
        counts["disproved"] += 1
        path = reproduced(asked, model)
        result = run(path, "--shrink", "--keep", folder / "small", "--json", "-")
        found = report(result)
        counts["reproduced"] += result.exit_code == 1
        verdicts = {finding["way"]: finding["verdict"] for finding in found["findings"]}
        counts["interpreted too"] += verdicts["interpreted"] == "wrong"
        counts["today is right"] += verdicts["today"] == "right"
        counts.update(f"today: {f['reason']}" for f in found["findings"] if f["way"] == "today" and f["reason"])
        if found.get("shrunk", {}).get("path"):
            small = read_reproduction(Path(found["shrunk"]["path"]))
            counts["smaller"] += small.not_zero < read_reproduction(path).not_zero
            counts["reproduced when small"] += run(found["shrunk"]["path"]).exit_code == 1
    return counts


def test_planted_miscompiles_are_reproduced_and_shrunk(tmp_path: Path) -> None:
    counts = campaign({"norms": built("norms"), "reductions": built("reductions")}, tmp_path / "kept", 2, seed=2)
    print(dict(counts))
    assert counts["reproduced"] == counts["reproduced when small"] == counts["smaller"] == counts["today is right"] == 2


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_planted_miscompiles_are_reproduced_and_shrunk(tmp_path: Path) -> None:
    counts = campaign({name: built(name) for name in TEXTS}, tmp_path / "kept", 100, seed=1)
    print(dict(counts))
    assert counts["reproduced"] == counts["reproduced when small"] == counts["today is right"] == 100
    assert counts["smaller"] >= 95  # some are as small as can be, or show only on the values that they were found on


def test_a_campaign_in_which_nothing_is_planted_finds_nothing(tmp_path: Path) -> None:
    model = built("norms")
    path = written(tmp_path / "kept", reproduction_of(model, unit_of(model, "softmax")))
    assert run(path).exit_code == 0
