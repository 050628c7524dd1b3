"""Which OpenMP library is used, and how many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hotfuse.hardware.spec import host_spec
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime import threads
from hotfuse.runtime.threads import ALONE, beside_calls, find_gomp, team_size


def mapped() -> str:
    with open("/proc/self/maps") as file:
        return file.read()


def owner(address: int) -> str:
    """The file that an address was mapped from."""
    for line in mapped().splitlines():
        start, end = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5]
    return ""


def test_torchs_library_is_used_when_torch_is_loaded() -> None:
    gomp = find_gomp()
    assert gomp
    assert "libgomp" in owner(gomp.parallel)
    assert owner(gomp.parallel) == owner(gomp.thread_number)
    threads_before = torch.get_num_threads()
    assert torch.__file__.removesuffix("__init__.py") in owner(gomp.parallel) or "torch/lib/libgomp" not in mapped()
    assert torch.get_num_threads() == threads_before


CODE = """
import sys
{first}
from hotfuse.runtime.threads import find_gomp
from tests.runtime.test_threads import owner
print(owner(find_gomp().parallel))
print(sum("libgomp" in line and "r-xp" in line for line in open("/proc/self/maps")))
print("torch" in sys.modules)
"""


def run(first: str) -> list[str]:
    code = CODE.format(first=first).replace("from tests.runtime.test_threads import owner", OWNER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


OWNER = """
def owner(address):
    for line in open("/proc/self/maps"):
        start, end = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5].strip()
"""


def test_the_systems_library_is_used_without_torch() -> None:
    path, copies, has_torch = run("")
    assert ("libgomp.so.1" in path, copies, has_torch) == (True, "1", "False")
    assert "torch" not in path


def test_a_library_that_is_loaded_is_not_loaded_twice() -> None:
    system, *_ = run("")
    path, copies, _ = run(f"import ctypes; ctypes.CDLL({system!r})")
    assert (path, copies) == (system, "1")
    path, copies, has_torch = run("import hotfuse.runtime.threads as t; t.find_gomp()\nimport torch")
    assert (has_torch, copies) == ("True", "1")  # torch takes the one that is there, and so do we


def test_no_library_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_libraries", lambda: iter(["libnowhere.so.1", "libc.so.6"]))
    assert find_gomp() is None


def test_threads_are_what_was_asked_for_or_the_least_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    spec = dataclasses.replace(host_spec(), physical_cores=16, logical_cores=16, cpu_quota=None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert team_size(spec, 3, {}) == 3
    assert team_size(spec, 0, {}) == 8
    assert team_size(spec, 0, {"OMP_NUM_THREADS": "4"}) == 4
    assert team_size(spec, 0, {"OMP_NUM_THREADS": "2,1"}) == 2
    assert team_size(spec, 0, {"OMP_NUM_THREADS": "many"}) == 8
    assert team_size(dataclasses.replace(spec, cpu_quota=5.5), 0, {"OMP_NUM_THREADS": "6"}) == 5
    monkeypatch.delitem(sys.modules, "torch")
    assert team_size(spec, 0, {}) == 16


def test_checks_beside_calls_that_follow_each_other_keep_to_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for crowded in (False, True):
        monkeypatch.setattr(RIGHT_OF_WAY, "crowded", crowded)
        with beside_calls():
            assert ALONE.active is crowded
        assert not ALONE.active
