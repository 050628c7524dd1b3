"""Programs in files: dumped from a model, edited, used instead; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.cli.main import main

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    """y = x + x"""
    graph = oh.make_graph(
        [oh.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(name="tiles")
def _tiles(model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiles"
    result = CliRunner().invoke(main, ["asm", "dump", str(model), "--to", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def answer(model: Path, tiles: Path) -> np.ndarray:
    session = hotfuse.load(model, tier=1, wait=True, strict=True, tiles=str(tiles))
    (found,) = session.run(None, {"x": X})
    return np.asarray(found)


def test_an_edited_program_is_used_instead(model: Path, tiles: Path) -> None:
    np.testing.assert_array_equal(answer(model, tiles), X + X)
    (file,) = tiles.iterdir()
    text = file.read_text()
    assert "map add" in text
    file.write_text(text.replace("map add", "map mul"))
    np.testing.assert_array_equal(answer(model, tiles), X * X)


def test_a_file_of_another_program_is_not(model: Path, tiles: Path) -> None:
    (file,) = tiles.iterdir()
    file.write_text(file.read_text().replace("map add", "map mul"))
    file.rename(file.with_name("rows-000000000000.tile"))
    np.testing.assert_array_equal(answer(model, tiles), X + X)


def test_what_cannot_be_read_or_takes_other_arguments_is_left_out(model: Path, tiles: Path) -> None:
    (file,) = tiles.iterdir()
    text = file.read_text()
    for bad in ("nonsense", text.replace("f32", "f64"), text.replace("program rows", "program lines")):
        file.write_text(bad)
        np.testing.assert_array_equal(answer(model, tiles), X + X)


def test_dump_prints_without_a_folder(model: Path) -> None:
    result = CliRunner().invoke(main, ["asm", "dump", str(model)])
    assert result.exit_code == 0
    assert "map add" in result.output
