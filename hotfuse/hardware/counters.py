"""Counters: what the processor and the kernel count while something runs, and the energy that it took, where they let us look.

    Meter  --reads before and after-->  Counts: a number for each counter, or why there is none

Counters come from Linux (`perf_event_open`), for the thread that opens them; many virtual machines have none of the
processor's, and many systems let only root read them. Energy comes from the files of RAPL, for whole packages. What cannot be
read is said to be absent, with the reason, and never guessed.

State: a `Meter` holds a file descriptor for each counter until it is closed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hotfuse.records import dataclass

_HARDWARE, _SOFTWARE = 0, 1  # kinds of events, as Linux numbers them
EVENTS: Mapping[str, tuple[int, int]] = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache misses": (_HARDWARE, 3),
    "page faults": (_SOFTWARE, 2),
    "lost cores": (_SOFTWARE, 3),  # switches to another thread
}
ENERGY = "energy"
_ATTRIBUTES = 128  # bytes of the record that describes an event
_USER_ONLY = 1 << 5 | 1 << 6  # not what the kernel or a hypervisor does for us: anybody may count the rest
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}  # the number of perf_event_open

Open = Callable[[int, int], int]  # kind and number of an event -> file descriptor; raises OSError


@dataclass(frozen=True)
class Counts:
    """Numbers by the name of a counter, `absent` ones with the reason. Energy is in joules."""

    seconds: float
    numbers: Mapping[str, float]
    absent: Mapping[str, str]

    @property
    def instructions_per_cycle(self) -> float | None:
        return self._ratio("instructions", "cycles")

    @property
    def watts(self) -> float | None:
        joules = self.numbers.get(ENERGY)
        return None if joules is None or self.seconds <= 0 else joules / self.seconds

    def _ratio(self, above: str, below: str) -> float | None:
        first, second = self.numbers.get(above), self.numbers.get(below)
        return None if first is None or not second else first / second


def open_event(kind: int, number: int) -> int:
    """A counter of the calling thread, running already. Raises OSError."""
    call = _SYSTEM_CALL.get(platform.machine()) if platform.system() == "Linux" else None
    if call is None:
        raise OSError(f"{platform.system()} on {platform.machine()} has no such counters")
    record = struct.pack("IIQQQQQ", kind, _ATTRIBUTES, number, 0, 0, 0, _USER_ONLY).ljust(_ATTRIBUTES, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(call, ctypes.create_string_buffer(record, _ATTRIBUTES), 0, -1, -1, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


class Meter:
    """Counts from when it is made until `read`, in the thread that made it."""

    def __init__(self, open: Open = open_event, root: Path = Path("/")) -> None:
        self._root = root
        self._files: dict[str, int] = {}
        self._absent: dict[str, str] = {}
        for name, (kind, number) in EVENTS.items():
            try:
                self._files[name] = open(kind, number)
            except OSError as error:
                self._absent[name] = error.strerror or str(error)
        self._before = self._read()
        self._energy = energy_joules(root)
        if not self._energy:
            self._absent[ENERGY] = "no file of RAPL can be read"
        self._begun = time.perf_counter()

    def read(self) -> Counts:
        """What was counted so far."""
        seconds = time.perf_counter() - self._begun
        numbers = {name: number - self._before[name] for name, number in self._read().items()}
        now = energy_joules(self._root)
        if self._energy and now.keys() == self._energy.keys():
            passed = [now[zone][0] - joules for zone, (joules, _) in self._energy.items()]
            ranges = [most for _, most in self._energy.values()]  # counters begin at 0 again beyond these
            numbers[ENERGY] = sum(p if p >= 0 else p + most for p, most in zip(passed, ranges, strict=True))
        return Counts(seconds, numbers, dict(self._absent))

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def _read(self) -> dict[str, float]:
        return {name: float(int.from_bytes(os.read(file, 8), "little")) for name, file in self._files.items()}


def energy_joules(root: Path = Path("/")) -> dict[str, tuple[float, float]]:
    """What each package took since some time, and where its counter begins again; empty where nobody lets us read it."""
    found = {}
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") == 1:  # parts of packages count in these
            try:
                joules, most = (int((zone / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj"))
                found[zone.name] = (joules, most)
            except (OSError, ValueError):
                return {}
    return found
