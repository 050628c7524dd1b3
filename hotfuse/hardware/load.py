"""Load: what of the machine is in use at the moment, by this process and by others.

Cores' time is counted by Linux, for each core and for each process; two looks tell what was used between them. What cannot be
read is None, never guessed.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from hotfuse.hardware.machine import _field, _group_folders, _kib, _read
from hotfuse.records import dataclass

ROOT = Path("/")
_IDLE = (3, 4, 7)  # of the numbers of a core: idle, waiting for a disk, taken by the machine below
_COUNTED = 8  # the ones after are parts of others
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Look:
    """At a moment: seconds of all usable cores that anybody had so far, and those of them that are ours."""

    at_s: float
    used_s: float | None
    own_s: float


def look(children: Iterable[int] = (), root: Path = ROOT) -> Look:
    """What is ours is this process's, that of its children which are named, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_s = time.process_time() + ended.ru_utime + ended.ru_stime + sum(_process_s(pid, root) for pid in children)
    return Look(time.monotonic(), _used_s(root), own_s)


def cores_of_others(before: Look, after: Look) -> float | None:
    """How many cores others had on average between two looks."""
    passed_s = after.at_s - before.at_s
    if before.used_s is None or after.used_s is None or passed_s <= 0:
        return None
    return max(0.0, (after.used_s - before.used_s) - max(0.0, after.own_s - before.own_s)) / passed_s


def usable_cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """What could be had without harm to others: of the machine, or of the control group's limit where that leaves less."""
    machine = _kib(_field(_read(root / "proc/meminfo"), "MemAvailable")) or None
    rooms = []
    for folder in _group_folders(root, "memory"):
        for limit, used, files in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = (_read(folder / name).strip() for name in (limit, used))
            if most.isdigit() and now.isdigit() and int(most) < 1 << 60:  # the old tree writes "none" as a huge number
                rooms.append(max(0, int(most) - int(now) + _counted(_read(folder / "memory.stat"), files)))
    return min((room for room in (machine, *rooms) if room is not None), default=None)


def _counted(text: str, name: str) -> int:
    """The number of a line `name number`: files that are read are in the group's memory, and leave when it is needed."""
    for line in text.splitlines():
        head, _, number = line.partition(" ")
        if head == name and number.strip().isdigit():
            return int(number)
    return 0


def _used_s(root: Path) -> float | None:
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    ticks = found = 0
    for line in _read(root / "proc/stat").splitlines():
        name, *numbers = line.split()
        if name in cores and all(number.isdigit() for number in numbers):
            found += 1
            ticks += sum(int(n) for place, n in enumerate(numbers[:_COUNTED]) if place not in _IDLE)
    return ticks / _TICKS if found else None


def _process_s(pid: int, root: Path) -> float:
    fields = _read(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    try:
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (IndexError, ValueError):  # it is gone
        return 0.0
