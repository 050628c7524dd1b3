"""What the machine offers to this process: cores, instruction sets, caches, memory, and the limits set around it.

Everything is read from files that Linux keeps; what cannot be read is left out (None or empty), never guessed. This module
imports nothing of hotfuse, so that defaults of `Config` can come from it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import field
from pathlib import Path

from hotfuse.records import dataclass

# Flags of /proc/cpuinfo that decide which code can run, in the order they are shown.
INSTRUCTION_SETS = (
    "sse4_2", "avx", "fma", "f16c", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    system: str
    cpu: str
    cores: int  # logical ones of the machine
    usable_cores: int  # that this process may run on (affinity)
    cpu_quota: float | None  # cores' worth of time that the control group allows
    instruction_sets: tuple[str, ...]
    caches: dict[str, int] = field(default_factory=dict)  # bytes by level, of the first core
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None  # of the control group
    affinity: tuple[int, ...] = ()  # the numbers of the usable cores
    physical_cores: int | None = None  # among the usable ones; logical ones of one core count once
    flags: str = ""  # a digest of everything that the processor says it can do


def read_machine(root: Path = Path("/")) -> Machine:
    """The machine as files under `root` describe it."""
    info = _read(root / "proc/cpuinfo")
    flags = set(_field(info, "flags").split())
    affinity = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    return Machine(
        f"{platform.system()} {platform.release()} {platform.machine()}",
        _field(info, "model name") or platform.processor(),
        os.cpu_count() or 1,
        len(affinity) or os.cpu_count() or 1,
        _cpu_quota(root),
        tuple(name for name in INSTRUCTION_SETS if name in flags),
        _caches(root),
        _kib(_field(_read(root / "proc/meminfo"), "MemTotal")),
        _memory_limit(root),
        affinity,
        _physical_cores(root, affinity),
        hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16],
    )


def usable_memory_bytes(root: Path = Path("/")) -> int | None:
    """The memory this process may use: the machine's, or less where a control group says so. None if nothing tells."""
    total = _kib(_field(_read(root / "proc/meminfo"), "MemTotal"))
    if not total and root == Path("/"):  # not Linux
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            total = 0
    return min((size for size in (total, _memory_limit(root)) if size), default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    """The value of the first line `name : value`."""
    for line in text.splitlines():
        head, colon, value = line.partition(":")
        if colon and head.strip() == name:
            return value.strip()
    return ""


def _kib(text: str) -> int:
    digits = text.split()[0] if text else "0"
    return int(digits) * 1024 if digits.isdigit() else 0


def _caches(root: Path) -> dict[str, int]:
    found = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (_read(index / name).strip() for name in ("type", "level", "size"))
        if kind in ("Data", "Unified") and re.fullmatch(r"\d+K", size):
            found[f"L{level}"] = int(size[:-1]) * 1024
    return found


def _physical_cores(root: Path, affinity: tuple[int, ...]) -> int | None:
    """How many cores the logical ones in `affinity` belong to."""
    folder = root / "sys/devices/system/cpu"
    siblings = [_read(folder / f"cpu{number}/topology/thread_siblings_list").strip() for number in affinity]
    return len(set(siblings)) if siblings and all(siblings) else None


def _group_folders(root: Path, controller: str) -> list[Path]:
    """The control groups of this process, innermost first: in the unified tree, then in the tree of one controller."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, colon, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if colon and (controllers == "" or controller in controllers.split(",")):
            base = root / "sys/fs/cgroup" / (controllers and controller)
            inner = base / path.lstrip("/")
            folders += [inner, *[p for p in inner.parents if p.is_relative_to(base)]]
    return folders


def _cpu_quota(root: Path) -> float | None:
    quotas = []
    for folder in _group_folders(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory_limit(root: Path) -> int | None:
    texts = [
        _read(folder / name).strip()
        for folder in _group_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    limits = [int(t) for t in texts if t.isdigit() and int(t) < 1 << 60]  # the old tree writes "none" as a huge number
    return min(limits, default=None)
