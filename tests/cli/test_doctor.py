"""`hotfuse doctor`: what it reads off a machine, and each thing it can find wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from hotfuse.cli import doctor
from hotfuse.cli.doctor import CORE, EXTRA, TORCH, check_calibration, check_environment, check_machine, check_versions
from hotfuse.cli.main import main
from hotfuse.hardware.machine import Machine, read_machine
from hotfuse.hardware.spec import host_spec

EVERYTHING = dict.fromkeys((*CORE, *EXTRA), "1") | {"torch": f"{TORCH}+cpu"}


def machine(**changes: object) -> Machine:
    facts = {
        "system": "Linux 6 x86_64",
        "cpu": "",
        "cores": 8,
        "usable_cores": 8,
        "cpu_quota": None,
        "instruction_sets": ("avx2",),
    }
    return Machine(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_machine_is_read_as_psutil_reads_it() -> None:
    found = read_machine()
    assert found.cores == psutil.cpu_count()
    assert found.usable_cores == len(psutil.Process().cpu_affinity())
    assert found.memory_bytes == pytest.approx(psutil.virtual_memory().total, rel=0.01)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CPU = "sys/devices/system/cpu/cpu0/cache"


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": "model name\t: Some CPU\nflags\t\t: fpu avx2 amx_tile fma\n",
            "proc/meminfo": "MemTotal:        1024 kB\n",
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/memory.max": "4096\n",
            f"{CPU}/index0/type": "Data\n",
            f"{CPU}/index0/level": "1\n",
            f"{CPU}/index0/size": "48K\n",
            f"{CPU}/index1/type": "Instruction\n",
            f"{CPU}/index1/level": "1\n",
            f"{CPU}/index1/size": "32K\n",
        },
    )
    found = read_machine(root)
    assert found.cpu == "Some CPU"
    assert found.instruction_sets == ("fma", "avx2", "amx_tile")
    assert found.caches == {"L1": 48 * 1024}
    assert found.memory_bytes == 1 << 20
    assert found.cpu_quota == 1.5
    assert found.memory_limit_bytes == 4096


def test_limits_of_the_old_control_groups_are_read(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    found = read_machine(root)
    assert found.cpu_quota == 0.5
    assert found.memory_limit_bytes is None


def test_a_machine_that_tells_nothing_is_not_guessed(tmp_path: Path) -> None:
    found = read_machine(tmp_path)
    assert (found.instruction_sets, found.caches, found.cpu_quota, found.memory_limit_bytes) == ((), {}, None, None)


@pytest.mark.parametrize(
    ("changes", "level", "what", "do"),
    [
        ({"numpy": None}, "error", "numpy is not installed", "pip install numpy"),
        ({"torch": None}, "note", "only ONNX models", f"pip install torch=={TORCH}"),
        ({"torch": "2.12.1"}, "warning", "torch 2.12.1", f"pip install torch=={TORCH}"),
        ({"pillow": None}, "note", "ImageDecoder", "pip install pillow"),
        ({"cloudpickle": None}, "warning", "stay eager", "pip install cloudpickle"),
    ],
)
def test_each_missing_library_is_found(changes: dict[str, str | None], level: str, what: str, do: str) -> None:
    assert check_versions(EVERYTHING) == []
    (found,) = check_versions({**EVERYTHING, **changes})
    assert found.level == level
    assert what in found.what
    assert found.do == do


@pytest.mark.parametrize(
    ("changes", "what", "do"),
    [
        ({"cpu_quota": 2.5}, "allows 2.5 of 8 cores", "OMP_NUM_THREADS=2"),
        ({"instruction_sets": ("sse4_2",)}, "no AVX2", "newer machine"),
        ({"system": "Darwin 24 arm64"}, "not Linux", "tier 0"),
    ],
)
def test_each_limit_of_a_machine_is_found(changes: dict[str, object], what: str, do: str) -> None:
    assert check_machine(machine()) == []
    (found,) = check_machine(machine(**changes))
    assert what in found.what
    assert do in found.do


def test_a_wrong_variable_is_found() -> None:
    assert check_environment({}) == []
    (found,) = check_environment({"HOTFUSE_TIER": "9"})
    assert found.level == "error"


def test_a_machine_that_nobody_measured_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = host_spec()
    (found,) = check_calibration({}, spec)
    assert (found.level, found.do) == ("note", "hotfuse calibrate")
    assert check_calibration({}, None) == []  # no code is generated here
    measured = SimpleNamespace(pairs=object())
    monkeypatch.setattr(doctor, "known_model", lambda config, spec: measured)
    assert check_calibration({}, spec) == []


def test_the_command_says_all_of_it() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["versions"]["numpy"]
    assert data["machine"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert data["spec"]["isa"] in ("avx512", "avx2", "sse", "other")
    assert data["spec"]["key"].startswith(data["spec"]["isa"])
    assert "instruction sets" in result.stderr
    assert "code is generated for" in result.stderr


def test_a_folder_that_nothing_is_kept_in_is_not_spoken_of() -> None:
    result = CliRunner().invoke(main, ["doctor"], env={"XDG_CACHE_HOME": "/proc/hotfuse"})
    assert result.exit_code == 0, result.output
    assert "cache folder" not in result.output
    assert "/proc/hotfuse" not in result.output


def test_the_command_shows_the_instruction_set_that_was_asked_for() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"], env={"HOTFUSE_ISA": "sse"})
    assert json.loads(result.stdout)["spec"]["vector_bytes"] == 16
    refused = CliRunner().invoke(main, ["doctor", "--json", "-"], env={"HOTFUSE_ISA": "avx9"})
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["spec"] is None


def test_an_error_gives_exit_code_1() -> None:
    result = CliRunner().invoke(main, ["doctor"], env={"HOTFUSE_TIER": "9"})
    assert result.exit_code == 1
    assert "correct or unset" in result.output
