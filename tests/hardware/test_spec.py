"""What code is generated for: each instruction set, from each kind of machine, and what is refused."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hotfuse.codegen.llvm_compile import feature_text
from hotfuse.config import Config
from hotfuse.errors import ConfigError
from hotfuse.hardware.machine import Machine, read_machine
from hotfuse.hardware.spec import Spec, host_spec, make_spec

AVX2 = ("sse4_2", "avx", "fma", "f16c", "avx2")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16")
AMX = (*AVX512, "amx_tile", "amx_bf16")
FEATURES = dict.fromkeys(
    ("sse4.2", "avx", "fma", "f16c", "avx2", "sm3", "avx512f", "avx512vl", "avx512bf16", "amx-tile"), True
) | {"xop": False}


def machine(instruction_sets: tuple[str, ...] = AMX, **changes: object) -> Machine:
    facts = {
        "system": "Linux 6 x86_64",
        "cpu": "Some CPU",
        "cores": 16,
        "usable_cores": 8,
        "cpu_quota": None,
        "instruction_sets": instruction_sets,
        "caches": {"L1": 48 << 10, "L2": 2 << 20, "L3": 96 << 20},
        "affinity": tuple(range(8)),
        "physical_cores": 4,
    }
    return Machine(**{**facts, **changes})  # type: ignore[arg-type]


def spec(instruction_sets: tuple[str, ...] = AMX, isa: str = "native", **changes: object) -> Spec:
    return make_spec(machine(instruction_sets, **changes), isa)


@pytest.mark.parametrize(
    ("instruction_sets", "isa", "found", "vector_bytes", "registers", "amx"),
    [
        (AMX, "native", "avx512", 64, 32, True),
        (AMX, "avx512", "avx512", 64, 32, False),
        (AMX, "avx2", "avx2", 32, 16, False),
        (AMX, "sse", "sse", 16, 16, False),
        (AVX512, "native", "avx512", 64, 32, False),
        (AVX2, "native", "avx2", 32, 16, False),
        ((*AVX2, "avx512f"), "native", "avx2", 32, 16, False),  # without the short vectors it is of no use
        (("sse4_2", "avx"), "native", "sse", 16, 16, False),
        ((), "native", "sse", 16, 16, False),
    ],
)
def test_the_widest_that_is_there_and_allowed(
    instruction_sets: tuple[str, ...], isa: str, found: str, vector_bytes: int, registers: int, amx: bool
) -> None:
    made = spec(instruction_sets, isa)
    assert (made.isa, made.vector_bytes, made.vector_registers, made.amx) == (found, vector_bytes, registers, amx)


@pytest.mark.parametrize(
    ("instruction_sets", "isa", "says"),
    [
        (AVX2, "avx512", r"isa='avx512': this processor \(Some CPU\) has avx2 and sse; unset HOTFUSE_ISA or choose another"),
        (("sse4_2", "avx"), "avx2", "has sse;"),
        (AMX[:-1], "neon", "has avx512 and avx2 and sse"),
    ],
)
def test_what_the_machine_lacks_is_refused(instruction_sets: tuple[str, ...], isa: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spec(instruction_sets, isa)


def test_a_processor_of_another_kind_has_no_x86_instruction_set() -> None:
    assert spec((), system="Linux 6 aarch64").isa == "other"
    with pytest.raises(ConfigError, match="has none of those that can be asked for"):
        spec((), "sse", system="Linux 6 aarch64")


@pytest.mark.parametrize(
    ("isa", "features", "extensions"),
    [
        ("native", "+amx-tile,+avx,+avx2,+avx512bf16,+avx512f,+avx512vl,+f16c,+fma,+sm3,+sse4.2,-xop", AMX),
        ("avx512", "+avx,+avx2,+avx512bf16,+avx512f,+avx512vl,+f16c,+fma,+sm3,+sse4.2,-amx-tile,-xop", AVX512),
        ("avx2", "+avx,+avx2,+f16c,+fma,+sm3,+sse4.2,-amx-tile,-avx512bf16,-avx512f,-avx512vl,-xop", AVX2),
        ("sse", "+sse4.2,-amx-tile,-avx,-avx2,-avx512bf16,-avx512f,-avx512vl,-f16c,-fma,-sm3,-xop", ("sse4_2",)),
    ],
)
def test_wider_instructions_are_forbidden_after_all_that_is_allowed(
    isa: str, features: str, extensions: tuple[str, ...]
) -> None:
    made = spec(isa=isa)
    assert (feature_text(FEATURES, made.forbidden), made.extensions) == (features, extensions)


@pytest.mark.parametrize(
    ("changes", "threads", "smt"),
    [
        ({}, 4, True),
        ({"physical_cores": 8}, 8, False),
        ({"physical_cores": None}, 8, False),
        ({"cpu_quota": 2.5}, 2, True),
        ({"cpu_quota": 0.5}, 1, True),
        ({"cpu_quota": 64.0}, 4, True),
    ],
)
def test_threads_are_the_physical_cores_that_the_quota_leaves(changes: dict[str, object], threads: int, smt: bool) -> None:
    made = spec(**changes)  # type: ignore[arg-type]
    assert (made.threads, made.smt) == (threads, smt)


def test_caches_that_are_not_told_are_small() -> None:
    made = spec(caches={"L2": 1 << 20})
    assert (made.l1_bytes, made.l2_bytes, made.l3_bytes) == (32 << 10, 1 << 20, 2 << 20)


def test_the_key_changes_with_all_that_code_depends_on_and_nothing_else() -> None:
    base = spec()
    assert base.key == spec().key
    others = [
        spec(isa="avx512"),
        spec(isa="avx2"),
        spec(isa="sse"),
        spec(AVX512),
        spec(cpu="Other CPU"),
        spec(flags="other"),
        *(spec(caches={**machine().caches, level: 1 << 14}) for level in ("L1", "L2", "L3")),
    ]
    assert len({base.key, *(other.key for other in others)}) == len(others) + 1
    same = spec(cpu_quota=1.0, physical_cores=2, affinity=(0,), usable_cores=1)
    assert same.key == base.key
    assert len(base.key) < 80


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    made = host_spec()
    assert made.affinity == tuple(psutil.Process().cpu_affinity())
    assert 1 <= made.threads <= made.physical_cores <= made.logical_cores
    if made.isa in ("avx512", "avx2"):
        monkeypatch.setenv("HOTFUSE_ISA", "avx2")
        narrow = host_spec(Config().isa)
        assert (narrow.isa, narrow.vector_bytes) == ("avx2", 32)
        assert narrow.forbidden == ("amx", "avx512", "avx10")


@pytest.mark.parametrize(
    ("siblings", "found"), [({0: "0,4", 1: "1,5", 4: "0,4"}, 2), ({0: "0", 1: "1", 4: "4"}, 3), ({0: "0", 1: "1"}, None)]
)
def test_logical_cores_of_one_physical_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str], found: int | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4})
    for number, text in siblings.items():
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    read = read_machine(tmp_path)
    assert (read.affinity, read.usable_cores, read.physical_cores) == ((0, 1, 4), 3, found)
