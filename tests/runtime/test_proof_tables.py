"""Tables in proofs: a few rows are there, and what is wrong with a kernel shows as well as with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.file_map import map_file
from hotfuse.ir.types import BF16, F32, I64, tensor
from hotfuse.runtime import proof_inputs, proof_tables, unit_proof
from hotfuse.runtime.build_cache import Witness
from hotfuse.runtime.build_request import ProveRequest
from hotfuse.runtime.guard_bands import NAN_BYTES, Bands
from hotfuse.runtime.memory import empty_block, parts_in_memory
from tests.codegen.lowering import graph_of
from tests.runtime.mutants import fate_of, mutants
from tests.runtime.proof_models import SIZES, Array, Built, built, verdicts

TABLE, ROWS = "wt", 3000
NOTHING: Any = None  # where no build is looked at


@pytest.fixture(name="model", scope="module")
def _model() -> Built:
    return built("embedding")


@pytest.fixture(name="small")
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as large is small here."""
    for module in (proof_tables, proof_inputs):
        monkeypatch.setattr(module, "HUGE", ROWS)


def unit_of(model: Built) -> int:
    """The unit that reads the table."""
    return next(place for place, unit in enumerate(model.build.units) if any(TABLE in r.reads for r in unit.recipes))


def seen_tables(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Array, Array | None]]:
    """What kernels are given of the table, and which of its rows are there, in each run."""
    found: list[tuple[Array, Array | None]] = []
    original = unit_proof.run_kernels

    def run(subject: unit_proof.Subject, reads: Mapping[str, Array], *rest: Any) -> unit_proof.Outcome:
        if TABLE in reads:
            found.append((reads[TABLE], subject.rows.get(TABLE)))
        return original(subject, reads, *rest)

    monkeypatch.setattr(unit_proof, "run_kernels", run)
    return found


def test_kernels_get_the_rows_that_are_read_and_no_others(model: Built, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen_tables(monkeypatch)
    feeds = model.feeds(1, **SIZES)
    assert all(v.ok and v.tried for v in verdicts(model, feeds))
    whole, there = model.weight(TABLE), np.unique(feeds["i"])
    assert 0 < len(there) < ROWS
    assert found
    for array, rows in found:
        assert rows is not None
        assert rows.tolist() == there.tolist()
        assert not np.delete(array, rows, 0).any()
        assert np.array_equal(np.sort(array[rows], None), np.sort(whole[rows], None))  # in another order, in some runs
    assert np.array_equal(found[0][0][there], whole[there])
    assert not np.array_equal(found[-1][0][there], whole[there])


def test_places_from_behind_are_rows_too(model: Built, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen_tables(monkeypatch)
    feeds = model.feeds(1, **SIZES)
    feeds["i"][0, 0] = -3
    assert all(v.ok for v in verdicts(model, feeds))
    assert all(rows is not None and ROWS - 3 in rows for _, rows in found)


@pytest.mark.parametrize(("large", "few"), [(ROWS, 1000), (1 << 23, 8)])
def test_a_small_table_and_one_that_is_read_a_lot_are_whole(
    model: Built, large: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_tables, "HUGE", large)
    monkeypatch.setattr(proof_tables, "FEW", few)
    found = seen_tables(monkeypatch)
    assert all(v.ok for v in verdicts(model, model.feeds(1, **SIZES)))
    assert found
    for array, rows in found:
        assert rows is None
        assert np.array_equal(np.sort(array, None), np.sort(model.weight(TABLE), None))


def test_planted_miscompiles_show_as_well(model: Built, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, feeds = unit_of(model), [model.feeds(1, **SIZES)]
    programs = list(mutants(model.build.units[unit].recipes[0].program))
    with_rows = [fate_of(model, unit, 0, kind, program, feeds).is_caught for kind, program in programs]
    monkeypatch.setattr(proof_tables, "HUGE", 1 << 23)
    whole = [fate_of(model, unit, 0, kind, program, feeds).is_caught for kind, program in programs]
    assert sum(whole) > 5
    assert [place for place, (a, b) in enumerate(zip(with_rows, whole, strict=True)) if b and not a] == []


def test_a_weight_that_others_read_as_well_is_no_table(small: None) -> None:
    graph = graph_of(
        lambda b, w, i: [b.add("gather", w, i, axis=0), b.add("tanh", w)], {"w": tensor(F32, ROWS, 8), "i": tensor(I64, 3)}
    )
    graph = replace(graph, inputs=("i",), weights=("w",))
    tables = proof_tables.Tables(graph, lambda name: np.ones((ROWS, 8), np.float32))
    tables.read(graph.nodes[0], lambda name: np.array([1, 2, 3]))
    assert tables.rows == {}
    assert tables.value("w").all()


# memory that is not there


def test_an_empty_block_has_memory_where_somebody_wrote() -> None:
    block = empty_block(1 << 20)
    assert parts_in_memory(block) == []
    block[5000] = block[300_000] = 1
    assert parts_in_memory(block) == [slice(4096, 8192), slice(73 * 4096, 74 * 4096)]
    inner = block[4999:300_010]
    parts = parts_in_memory(inner)
    assert [(part.start, part.stop) for part in parts] == [(0, 8192 - 4999), (73 * 4096 - 4999, 300_010 - 4999)]
    assert inner[parts[0]][1] == 1


@pytest.mark.parametrize("row", [7, 900])
def test_who_writes_into_a_table_is_found_out(row: int) -> None:
    array = empty_block(4 << 20).view(np.float32).reshape(1024, 1024)
    rows = np.array([3, 7])
    array[rows] = 1
    copy = Bands(NAN_BYTES).copy(array, rows)
    assert np.array_equal(copy, array)
    assert not unit_proof._is_changed(copy, array, True)
    copy[row, 5] += 1
    assert unit_proof._is_changed(copy, array, True)


def table_of(make: Any, dtype: Any = F32) -> tuple[proof_tables.Tables, Any]:
    """The tables of a graph over a weight w and places i, of which row r has the number r."""
    graph = graph_of(make, {"w": tensor(dtype, ROWS, 8), "i": tensor(I64, 3)})
    graph = replace(graph, inputs=("i",), weights=("w",))
    whole = np.repeat(np.arange(ROWS)[:, None], 8, 1).astype(dtype.numpy)
    return proof_tables.Tables(graph, lambda name: whole), graph


def test_places_that_follow_from_floats_make_no_table(small: None) -> None:
    """On other inputs they are others."""

    def make(b: Any, w: Any, i: Any) -> Any:
        return b.add("gather", w, b.add("cast", b.add("tanh", b.add("cast", i, to=F32)), to=I64), axis=0)

    tables, graph = table_of(make)
    tables.read(graph.nodes[-1], lambda name: np.array([1, 2, 3]))
    assert tables.rows == {}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64])
def test_places_of_any_type_and_a_second_look(small: None, dtype: Any) -> None:
    tables, graph = table_of(lambda b, w, i: b.add("gather", w, i, axis=0), BF16)
    tables.read(graph.nodes[0], lambda name: np.array([1, 2, 100], dtype))
    tables.read(graph.nodes[0], lambda name: np.array([2, 7], dtype))
    assert tables.rows["w"].tolist() == [1, 2, 7, 100]
    found = tables.value("w")
    assert found[tables.rows["w"], 0].astype(int).tolist() == [1, 2, 7, 100]
    assert not found.flags.writeable


def test_a_place_outside_leaves_no_table_behind(small: None) -> None:
    tables, graph = table_of(lambda b, w, i: b.add("gather", w, i, axis=0))
    with pytest.raises(IndexError):
        tables.read(graph.nodes[0], lambda name: np.array([ROWS]))
    assert tables.value("w")[-1, 0] == ROWS - 1


def test_a_large_weight_that_is_not_aligned_is_copied_once(small: None) -> None:
    memory = np.zeros(ROWS * 32 + 1, np.uint8)[1:].view(np.float32).reshape(ROWS, 8)
    asked: list[str] = []
    graph = graph_of(lambda b, w: b.add("tanh", w), {"w": tensor(F32, ROWS, 8)})
    tables = proof_tables.Tables(replace(graph, inputs=(), weights=("w",)), lambda name: asked.append(name) or memory)
    assert not memory.flags.aligned
    assert tables.value("w").flags.aligned
    assert tables.value("w") is tables.value("w")
    assert asked == ["w"]


def test_witness_leaves_the_digest_of_a_mapped_table_to_who_has_the_model(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (1 << 17))
    with path.open("rb") as file:
        view = map_file(file.fileno(), 1 << 25)
    for dtype in (BF16.numpy, np.dtype(np.float16)):
        table = np.frombuffer(view, dtype)
        arrays = {"table": table, "small": table[:1000], "sent": np.array(table)}
        asked = ProveRequest(NOTHING, (), {}, Config(cache=str(tmp_path / "cache")))
        witness = Witness(arrays.__getitem__, asked)
        assert all(np.array_equal(witness(name).view(np.uint8), array.view(np.uint8)) for name, array in arrays.items())
        assert sorted(witness.digests) == ["sent", "small"]
