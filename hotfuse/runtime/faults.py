"""Faults on purpose: what a child process does in place of its job, where `Stress.fail_compile_every` has it fail.

The parent sends the fault instead of the request, with limits that end it soon; the child's program commits it.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from hotfuse.errors import HotfuseError
from hotfuse.stress import FAULTS, Fault

HANG_S = 2.0  # after which a child that hangs is stopped
ROOM_BYTES = 1 << 28  # that a child may eat
_MARK = b"hotfuse fault: "
_BITE_BYTES = 1 << 24


def request_of(fault: Fault) -> bytes:
    return _MARK + fault.encode()


def fault_of(request: bytes) -> Fault:
    """The fault that a request asks for; "" if it is a job."""
    return next((fault for fault in FAULTS if request == request_of(fault)), "")


def commit(fault: Fault) -> Any:
    """Fail. Does not return."""
    if fault == "crash":
        ctypes.string_at(0)
    eaten: list[bytearray] = []
    while fault == "memory" and len(eaten) * _BITE_BYTES < 4 * ROOM_BYTES:  # and not all that the machine has
        eaten.append(bytearray(b"\1" * _BITE_BYTES))
        time.sleep(0.01)
    if fault in ("hang", "memory"):
        time.sleep(3600)
    raise HotfuseError(f"this job fails on purpose ({fault}); unset stress to have it done")
