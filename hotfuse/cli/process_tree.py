"""A process and all that it started: who they are, the memory they hold, the CPU time they took, and signals to all of them.

Linux lists the children of each thread, which is read in microseconds; elsewhere psutil looks through all processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_S = os.sysconf("SC_CLK_TCK")


def tree_of(pid: int) -> list[int]:
    """`pid` and its descendants, parents first; those that ended are left out."""
    found, pending = [], [pid]
    while pending:
        one = pending.pop(0)
        if psutil.pid_exists(one):
            found.append(one)
            pending += _children(one)
    return found


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task")
    try:
        texts = [(thread / "children").read_text() for thread in threads.iterdir()]
    except OSError:  # it ended, or this is not Linux, or its kernel keeps no such lists
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    return [int(child) for text in texts for child in text.split()]


def resident_bytes(pid: int) -> int:
    """Physical memory of the tree now; what processes share counts for each."""
    return sum(_resident(one) for one in tree_of(pid))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0


def peak_bytes(pid: int) -> int:
    """The most physical memory that this one process ever held; 0 where nothing tells."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def children_cpu_s() -> float:
    """CPU seconds of the living descendants of this process, and of those of theirs that ended."""
    return sum(_cpu_s(f"/proc/{one}/stat", 4) for one in tree_of(os.getpid())[1:])


def thread_cpu_s(native_id: int) -> float:
    """CPU seconds of one thread of this process; 0 where it ended or nothing tells."""
    return _cpu_s(f"/proc/self/task/{native_id}/stat", 2)


def _cpu_s(path: str, count: int) -> float:
    """The first of the four times in a file `stat`: user, system, and both of children that ended."""
    try:
        fields = Path(path).read_text().rpartition(")")[2].split()  # the name before may hold anything
        return sum(map(int, fields[11 : 11 + count])) / _TICKS_S
    except (OSError, ValueError):
        return 0.0


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to every process of the tree, parents first, so that a stopped parent starts nothing new."""
    for one in tree_of(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, number)
