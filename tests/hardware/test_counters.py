"""Counters: those that there are count, those that there are not are said to be absent, and no machine is asked twice."""

from __future__ import annotations

import errno
import mmap
import os
import platform
from pathlib import Path

import pytest

from hotfuse.hardware.counters import ENERGY, EVENTS, Counts, Meter, energy_joules, open_event


def refuse(kind: int, number: int) -> int:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def package(root: Path, name: str, joules: float, most: float = 1000.0) -> None:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    (folder / "max_energy_range_uj").write_text(f"{most * 1e6:.0f}\n")


def test_a_machine_that_refuses_has_every_counter_absent_with_the_reason(tmp_path: Path) -> None:
    meter = Meter(refuse, tmp_path)
    found = meter.read()
    meter.close()
    assert found.numbers == {}
    assert set(found.absent) == {*EVENTS, ENERGY}
    assert found.absent["cycles"] == os.strerror(errno.EACCES)
    assert "RAPL" in found.absent[ENERGY]
    assert found.instructions_per_cycle is None
    assert found.watts is None


def test_what_the_kernel_counts_itself_is_counted(tmp_path: Path) -> None:
    try:
        os.close(open_event(*EVENTS["page faults"]))
    except OSError as error:
        pytest.skip(f"this system refuses even its own counters: {error}")
    meter = Meter(root=tmp_path)
    before = meter.read().numbers["page faults"]
    with mmap.mmap(-1, 1 << 22) as fresh:
        for place in range(0, len(fresh), mmap.PAGESIZE):
            fresh[place] = 1
    after = meter.read().numbers["page faults"]
    meter.close()
    assert after - before >= 1  # one for each page, or for all where pages are huge


def test_counters_are_closed_once(tmp_path: Path) -> None:
    opened: list[int] = []

    def open_file(kind: int, number: int) -> int:
        opened.append(os.open("/dev/zero", os.O_RDONLY))
        return opened[-1]

    meter = Meter(open_file, tmp_path)
    assert len(opened) == len(EVENTS)
    meter.close()
    meter.close()
    for file in opened:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(file)


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Plan 9")
    with pytest.raises(OSError, match="Plan 9"):
        open_event(*EVENTS["cycles"])


def test_energy_of_packages_adds_up_and_begins_again(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 990.0)
    package(tmp_path, "intel-rapl:1", 5.0)
    package(tmp_path, "intel-rapl:0:0", 70.0)  # cores of the first: they count in it
    assert energy_joules(tmp_path) == {"intel-rapl:0": (990.0, 1000.0), "intel-rapl:1": (5.0, 1000.0)}
    meter = Meter(refuse, tmp_path)
    package(tmp_path, "intel-rapl:0", 2.0)  # beyond 1000, from 0 on
    package(tmp_path, "intel-rapl:1", 8.0)
    found = meter.read()
    assert found.numbers[ENERGY] == pytest.approx(12.0 + 3.0)
    assert ENERGY not in found.absent
    assert found.watts == pytest.approx(15.0 / found.seconds)


def test_a_package_that_may_not_be_read_makes_energy_absent(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 1.0)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("none")
    assert energy_joules(tmp_path) == {}


def test_ratios_of_what_was_counted() -> None:
    found = Counts(2.0, {"cycles": 100.0, "instructions": 250.0, ENERGY: 30.0}, {})
    assert found.instructions_per_cycle == 2.5
    assert found.watts == 15.0
    assert Counts(0.0, {"cycles": 0.0, "instructions": 1.0, ENERGY: 1.0}, {}).instructions_per_cycle is None
