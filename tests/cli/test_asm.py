"""`hotfuse asm`: programs are shown in normal form, run on seeded inputs, and compared by results and by text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hotfuse.cli.main import main
from hotfuse.codegen.tile_reader import parse_program
from tests.codegen.goldens import FOLDER, GOLDENS, Golden, case_id

SOFTMAX = str(FOLDER / "softmax.tile")
SIZES = ("--size", "m=5", "--size", "n=37")


def asm(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["asm", *arguments])


def data(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = asm(*arguments, "--json", "-")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def changed(tmp_path: Path, old: str, new: str, name: str = "softmax") -> str:
    text = (FOLDER / f"{name}.tile").read_text()
    assert old in text
    path = tmp_path / "changed.tile"
    path.write_text(text.replace(old, new))
    return str(path)


@pytest.mark.parametrize("golden", GOLDENS, ids=case_id)
def test_dump_prints_the_normal_form(golden: Golden, tmp_path: Path) -> None:
    result = asm("dump", str(FOLDER / f"{golden.name}.tile"))
    assert result.exit_code == 0
    assert parse_program(result.stdout) == golden.program
    again = tmp_path / "again.tile"
    again.write_text(result.stdout)
    assert asm("dump", str(again)).stdout == result.stdout


def test_dump_refuses_what_is_no_sound_program(tmp_path: Path) -> None:
    bad = changed(tmp_path, "top = reduce max 1 most", "top = reduce mean 1 most")
    assert "changed.tile: tile program softmax: `top = reduce mean 1 most`: there is no reduction" in asm("dump", bad).output
    bad = changed(tmp_path, "top = reduce max 1 most", "top = reduce max most")
    assert "changed.tile: line 14: expected a whole number" in asm("dump", bad).output
    (tmp_path / "changed.tile").write_bytes(b"\xff\xfe\x00")
    assert "changed.tile: not text" in asm("dump", bad).output
    assert asm("dump", bad).exit_code == 1


def test_run_says_what_came_out(tmp_path: Path) -> None:
    found = data("run", SOFTMAX, *SIZES)
    assert (found["tasks"], found["status"]) == (5, 0)
    x, y = found["buffers"]
    assert (y["name"], y["kind"], y["type"]) == ("y", "output", "float32[185]")
    assert y["mean"] == pytest.approx(1 / 37, rel=1e-6)
    assert found["interpreted_ms"] > 0
    assert "5 tasks interpreted in" in asm("run", SOFTMAX, *SIZES).output
    assert x["kind"] == "input"


def test_the_seed_fixes_inputs_and_results() -> None:
    def sums(seed: int) -> list[str]:
        return [b["sha256"] for b in data("run", SOFTMAX, *SIZES, "--seed", str(seed))["buffers"]]

    assert sums(1) == sums(1)
    assert sums(1) != sums(2)


def test_indices_are_made_in_range() -> None:
    found = data("run", str(FOLDER / "gather.tile"), "--size", "m=50", "--size", "n=4", "--size", "t=3")
    assert found["status"] == 0
    assert found["buffers"][0]["max"] == 2


def test_an_index_out_of_range_is_told(tmp_path: Path) -> None:
    text = "program p {\n input i i64[1]\n output y f32[1]\n r = index i[0; 0, 0] 1x1 limit 0\n}"
    (tmp_path / "p.tile").write_text(text)
    assert "an index was out of range" in asm("run", str(tmp_path / "p.tile")).output


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("--size", "m=5"), "add --size n=N"),
        ((*SIZES, "--size", "k=5"), "the program has no size 'k'; its sizes are m, n"),
        (("--size", "m=100000", "--size", "n=100000"), "too much for the interpreter"),
        (("--size", "m"), "not of the form NAME=VALUE"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[str, ...], message: str) -> None:
    result = asm("run", SOFTMAX, *sizes)
    assert result.exit_code != 0
    assert message in result.output


def test_diff_of_a_program_with_itself(tmp_path: Path) -> None:
    found = data("diff", SOFTMAX, SOFTMAX, *SIZES)
    assert found["same_results"]
    assert found["outputs"] == [{"name": "y", "ok": True, "verdict": "the same bits"}]
    assert found["text"] == []
    assert "the programs are the same text" in asm("diff", SOFTMAX, SOFTMAX, *SIZES).output


def test_diff_of_two_ways_to_the_same_result(tmp_path: Path) -> None:
    """A product with the reciprocal in place of a quotient: other bits, right by the float64 rule."""
    other = changed(tmp_path, "    q = map div f total\n", "    inverse = map reciprocal total\n    q = map mul f inverse\n")
    found = data("diff", SOFTMAX, other, *SIZES)
    assert found["same_results"]
    (y,) = found["outputs"]
    assert y["verdict"] == "within the float64 rule"
    assert 0 < y["largest_difference"] < 1e-6
    assert found["instructions"]["map"] == [5, 6]
    assert "-    q = map div f total" in found["text"]
    shown = asm("diff", SOFTMAX, other, *SIZES).output
    assert "the results agree" in shown
    assert "+    q = map mul f inverse" in shown


@pytest.mark.parametrize(
    ("name", "old", "new", "sizes"),
    [
        (
            "softmax",
            "if ([j; 0, 1] < n) fill -inf\n    d",
            "if ([j; 0, 1] < n)\n    d",
            SIZES,
        ),  # the tail is summed with the row
        ("softmax", "reduce sum 1 parts", "reduce max 1 parts", SIZES),
        ("transpose", "y[8*j*m + 8*i; 1, m]", "y[8*i*n + 8*j; n, 1]", SIZES),
        ("layer_norm", "1e-05", "1e-03", SIZES),
        ("columns", "reduce min 0 c", "reduce max 0 c", SIZES),
    ],
)
def test_diff_of_different_results(name: str, old: str, new: str, sizes: tuple[str, ...], tmp_path: Path) -> None:
    other = changed(tmp_path, old, new, name)
    found = data("diff", str(FOLDER / f"{name}.tile"), other, *sizes, code=1)
    assert not found["same_results"]
    assert found["text"]
    assert "the results differ" in asm("diff", str(FOLDER / f"{name}.tile"), other, *sizes).output


def test_diff_of_different_status(tmp_path: Path) -> None:
    gather = str(FOLDER / "gather.tile")
    other = changed(tmp_path, "limit t", "limit min(t, 2)", "gather")
    found = data("diff", gather, other, "--size", "m=20", "--size", "n=4", "--size", "t=9", code=1)
    assert found["status"] == [0, 1]


def test_diff_needs_the_same_arguments(tmp_path: Path) -> None:
    other = changed(tmp_path, "output y f32[m*n]", "output y f32[m*n + 1]")
    result = asm("diff", SOFTMAX, other, *SIZES)
    assert result.exit_code == 1
    assert "do not take the same arguments: output y f32[m*n]" in result.output
    more = changed(tmp_path, "  output y f32[m*n]\n", "  output y f32[m*n]\n  output more f32[1]\n")
    assert "output more f32[1] is in one only" in asm("diff", SOFTMAX, more, *SIZES).output
