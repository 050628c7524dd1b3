"""The threads of generated code: those of the OpenMP library that is in the process anyway.

Two pools that spin on the same cores slow each other down by 10 to 500 times, so we have none of our own, and one team runs at
a time: whoever finds `TEAM` taken works alone. Who may lead one is in `leader`.

libgomp's threads that wait for work spin for it while there are no more of them than cores. With one more each falls asleep at
once, and whoever calls has to wake it in every region: so who led a team and leads none for a while dismisses it.

State: the lock; which threads work alone; how the libraries in use dismiss a team.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from hotfuse.hardware.spec import Spec
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.right_of_way import RIGHT_OF_WAY

TEAM = make_lock()


@dataclass(frozen=True)
class Gomp:
    """Addresses of the functions that the driver calls, and the library they were found through."""

    library: str = field(compare=False)
    parallel: int
    thread_number: int
    team_size: int
    sched_yield: int
    pause: int = 0  # not every version has it


class Alone(threading.local):
    """What a thread that says so runs meanwhile keeps to that thread, as a check beside a caller's own work does: another team
    on the same cores would hold both up."""

    active = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self.active = True
        try:
            yield
        finally:
            self.active = False


ALONE = Alone()


def beside_calls() -> contextlib.AbstractContextManager[None]:
    """For who runs kernels to check them: on all threads where there are pauses, on this one where calls follow each other."""
    return ALONE() if RIGHT_OF_WAY.crowded else contextlib.nullcontext()


def find_gomp() -> Gomp | None:
    """The OpenMP library that torch uses, else one that is loaded, else the system's. None where there is none."""
    for library in _libraries():
        try:
            found = ctypes.CDLL(library)
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "sched_yield")
            functions = [getattr(found, name) for name in names]
        except (OSError, AttributeError):
            continue
        if hasattr(found, "omp_pause_resource_all") and not hasattr(found, "__kmpc_fork_call"):  # LLVM's pauses all threads
            functions.append(found.omp_pause_resource_all)
        return Gomp(library, *[ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions])
    return None


_DISMISS: dict[int, Callable[[int], object]] = {}
_PAUSE_SOFT = 1  # of OpenMP's kinds: what was set stays as it is


def use(gomp: Gomp) -> None:
    """From now on `dismiss_team` is about this library, too."""
    if gomp.pause:
        _DISMISS[gomp.pause] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(gomp.pause)


def dismiss_team() -> None:
    """End the threads that this one led, in generated code and in torch; the next team that it leads is made anew, in 50 us."""
    for dismiss in tuple(_DISMISS.values()):
        dismiss(_PAUSE_SOFT)


def _libraries() -> Iterator[str]:
    """What to look in, in order. Symbols are found through a library's dependencies too: libtorch_cpu leads to the one that
    torch itself calls, whichever that is."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        yield from (str(path) for path in (Path(torch).parent / "lib").glob("libtorch_cpu.*"))
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        mapped = []
    paths = {line.split(maxsplit=5)[5] for line in mapped if "libgomp" in line}
    yield from sorted(paths, key=lambda path: (not Path(path).name.startswith("libgomp.so"), path))
    yield "libgomp.so.1"


def team_size(spec: Spec, asked: int = 0, environment: Mapping[str, str] = os.environ) -> int:
    """The threads of a team: what was asked for, or (0) the least of the machine's, OMP_NUM_THREADS and torch's."""
    if asked:
        return asked
    first = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    limits = [spec.threads, int(first) if first.isdigit() else 0]
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    limits.append(count() if count else 0)
    return min(limit for limit in limits if limit)
