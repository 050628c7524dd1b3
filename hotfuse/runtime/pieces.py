"""Pieces: costly elementwise operators of tier 0, some elements at a time, on all cores.

numpy computes an operator on one core, and what is made of several functions goes through memory once for each of them. Pieces
that fit into a cache do not, and other threads take some of them: whoever calls takes the next piece as long as there is one,
and so does each helper that has nothing else to do.

State: the helpers, threads that wait for work. They begin with the first work; a forked child begins with none.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hotfuse.hardware.spec import host_spec
from hotfuse.locks import make_lock
from hotfuse.runtime.threads import team_size

PIECE = 1 << 14  # elements
FEWEST = 4  # pieces; with fewer a helper would come too late

COSTLY = frozenset((
    "gelu", "erf", "ndtr", "sigmoid", "silu", "softplus", "mish", "elu", "tanh", "exp", "expm1", "log", "log1p", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma",
))  # fmt: skip

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def in_pieces(function: Function) -> Function:
    """A function of one array, which gives another of the same shape and type, that computes large ones in pieces."""

    def run(x: Any, out: Array | None = None) -> Any:
        if not _is_large(x):
            return function(x) if out is None else function(x, out=out)
        result = np.empty(x.shape, x.dtype) if out is None or not out.flags.c_contiguous else out
        given, made = x.reshape(-1), result.reshape(-1)

        def compute(first: int) -> None:
            made[first : first + PIECE] = function(given[first : first + PIECE])

        _share(compute, deque(range(0, given.size, PIECE)))
        if out is not None and result is not out:
            out[...] = result
        return result if out is None else out

    return run


def _is_large(x: Any) -> bool:
    return type(x) is np.ndarray and x.size >= FEWEST * PIECE and x.dtype.kind == "f" and x.flags.c_contiguous


def _share(compute: Callable[[int], None], pieces: deque[int]) -> None:
    """Compute all pieces, with those helpers that come in time."""
    errors: list[BaseException] = []

    def work() -> None:
        with np.errstate(all="ignore"):
            while pieces and not errors:
                try:
                    compute(pieces.popleft())
                except IndexError:  # another thread was faster
                    return
                except BaseException as error:
                    errors.append(error)

    asked = [_Ask(work) for _ in range(_helpers())]
    for ask in asked:
        _WORK.put(ask)
    work()
    for ask in asked:
        ask.end()
    if errors:
        raise errors[0]


class _Ask:
    """Work for a helper, if one comes before it has ended. State: whether somebody has begun with it, and has ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._open = True

    def begin(self) -> None:
        with self._lock:
            if self._open:
                self._work()

    def end(self) -> None:
        """Wait for the helper that has begun; none begins any more."""
        with self._lock:
            self._open = False


def _helpers() -> int:
    """How many may help: all but one of the threads that products run on. Those that are not there yet are started."""
    products = os.environ.get("OPENBLAS_NUM_THREADS", "")
    wanted = min(team_size(host_spec()), int(products) if products.isdigit() else 1 << 16) - 1
    if len(_THREADS) < wanted:
        with _STARTING:
            while len(_THREADS) < wanted:
                thread = threading.Thread(target=_help, args=(_WORK,), name="hotfuse-pieces", daemon=True)
                _THREADS.append(thread)
                thread.start()
    return wanted


def _help(work: queue.SimpleQueue[_Ask]) -> None:
    while True:
        work.get().begin()


def _forget() -> None:
    """In a forked child: the threads do not exist here."""
    global _WORK
    _THREADS.clear()
    _WORK = queue.SimpleQueue()


_WORK: queue.SimpleQueue[_Ask] = queue.SimpleQueue()
_THREADS: list[threading.Thread] = []
_STARTING = make_lock()
os.register_at_fork(after_in_child=_forget)
