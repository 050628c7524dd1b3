"""The capture process: `python -m hotfuse.runtime.capture_worker [--idle]`.

It reads frames (8 bytes of length, then the body) from its standard input and answers each on its standard output:

    hello    JSON: the parent's process id, import path, working directory,
             command line and limit of recursion                              -> b"ready"
    request  a skeleton of a `TraceRequest`                                   -> pickle of ("done", Trace),
                                                                                 ("failed", (reason, details)) or, for a
                                                                                 SelfChange, ("changed", reason)

It dies with its parent: the kernel kills it (PR_SET_PDEATHSIG), and a reader thread leaves when the pipe closes. Whatever the
model prints goes to standard error. State: none between requests but imported modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import queue
import signal
import struct
import sys
import threading
from typing import Any

from hotfuse.errors import HotfuseError

PR_SET_PDEATHSIG = 1
LENGTH = struct.Struct("<Q")


def main() -> None:
    _die_with_parent()
    if "--idle" in sys.argv:
        _yield_to_everyone()
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_frames, args=(requests, frames), daemon=True).start()
    _greet(frames.get())
    _prepare()
    _send(answers, b"ready")
    while True:
        _send(answers, answer(frames.get()))


def answer(request: bytes) -> bytes:
    """The reply to one request; raises nothing but KeyboardInterrupt."""
    from hotfuse.frontends.torch_request import SelfChange
    from hotfuse.frontends.torch_skeleton import load_skeleton
    from hotfuse.frontends.torch_trace import trace
    from hotfuse.passes import optimize

    try:
        return pickle.dumps(("done", trace(lambda: load_skeleton(request), optimize)), protocol=5)
    except KeyboardInterrupt:
        raise
    except SelfChange as error:
        return pickle.dumps(("changed", str(error)), protocol=5)
    except HotfuseError as error:
        return pickle.dumps(("failed", (str(error), getattr(error, "details", ""))), protocol=5)
    except BaseException as error:
        return pickle.dumps(("failed", (f"{type(error).__name__}: {error}", "")), protocol=5)


def _greet(body: bytes) -> None:
    hello: dict[str, Any] = json.loads(body)
    if os.getppid() != hello["parent"]:
        os._exit(0)
    sys.path[:] = hello["path"]
    sys.argv[:] = hello["arguments"]
    sys.setrecursionlimit(max(sys.getrecursionlimit(), hello["recursion"]))
    with contextlib.suppress(OSError):
        os.chdir(hello["directory"])


def _prepare() -> None:
    """Import what every capture needs, so that a warm process answers at once."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    import hotfuse.frontends.torch_trace
    import hotfuse.passes

    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import hotfuse.frontends.torch_export  # noqa: F401


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _yield_to_everyone() -> None:
    """Nice 19 and the idle class: serving then sees 1.0 to 1.3x of its p99 while a capture goes on, and 7x without."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _read_frames(source: int, frames: queue.SimpleQueue[bytes]) -> None:
    with open(source, "rb") as stream:
        while header := stream.read(LENGTH.size):
            frames.put(stream.read(LENGTH.unpack(header)[0]))
    os._exit(0)


def _send(target: int, body: bytes) -> None:
    view = memoryview(LENGTH.pack(len(body)) + body)
    while view:
        view = view[os.write(target, view) :]


if __name__ == "__main__":
    main()
