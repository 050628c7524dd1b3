"""Bytes of a mapped file, found again by another process: the same ones, or none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotfuse.file_map import FilePart, map_file, part_of

CONTENT = bytes(range(256)) * 256
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can tell which file a descriptor is of")


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return path


def mapped(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return map_file(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def part(path: Path, begin: int = 3, end: int = 1003) -> FilePart:
    found = part_of(mapped(path)[begin:end])
    assert found is not None
    return found


def test_a_part_is_found_again_by_its_text(path: Path) -> None:
    found = FilePart.read(part(path).text())
    file = found.file.open()
    assert file is not None
    assert bytes(found.within(file)) == CONTENT[3:1003]
    assert file.readonly


def test_arrays_over_a_mapping_have_a_part(path: Path) -> None:
    array = np.frombuffer(mapped(path), np.uint16)[5:105].reshape(10, 10)
    found = part_of(array.data)
    assert found is not None
    assert (found.begin, found.size) == (10, 200)


def test_what_is_a_copy_has_none(path: Path) -> None:
    assert part_of(np.frombuffer(mapped(path), np.uint8).copy().data) is None
    assert part_of(memoryview(b"abc")) is None
    assert part_of(map_file(os.open(os.devnull, os.O_RDONLY), 0)) is None


def replace_by_another(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT)
    other.replace(path)


def write_into(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def cut_off(path: Path) -> None:
    os.truncate(path, 500)


def make_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


@pytest.mark.parametrize("change", [replace_by_another, write_into, cut_off, make_a_link, Path.unlink])
def test_a_file_that_is_another_by_now_is_not_taken(path: Path, change: Callable[[Path], None]) -> None:
    found = part(path)
    assert found.file.open() is not None
    change(path)
    assert found.file.open() is None


def test_what_was_mapped_is_still_there_when_the_file_is_replaced(path: Path) -> None:
    held = mapped(path)
    path.with_name("other").write_bytes(b"other" * 1000)
    path.with_name("other").replace(path)
    assert bytes(held) == CONTENT
