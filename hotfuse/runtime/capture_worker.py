"""The capture process: a program of `child_main`, in a copy of the process that serves or, as `python -m
hotfuse.runtime.capture_worker`, in one of its own.

    greeting  JSON: the parent's working directory, command line and limit of recursion
    request   a skeleton of a `TraceRequest`  ->  ("done", Trace), ("failed", (reason, details)) or, for a SelfChange,
                                                  ("changed", reason)

State: none between requests but imported modules.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import sys
from typing import Any, NoReturn

from hotfuse.errors import HotfuseError
from hotfuse.runtime.child_main import run

SELDOM = (100_000, 20, 20)  # objects between collections: a trace makes millions that live, and looking at them took a sixth


def main() -> NoReturn:
    run(lambda request, ask_back: answer(request), _prepare)


def answer(request: bytes) -> bytes:
    """The reply to one request; raises nothing but KeyboardInterrupt."""
    from hotfuse.frontends.torch_request import SelfChange
    from hotfuse.frontends.torch_skeleton import load_skeleton
    from hotfuse.frontends.torch_trace import formed, trace
    from hotfuse.passes import optimize

    try:
        return pickle.dumps(("done", formed(trace(lambda: load_skeleton(request), optimize))), protocol=5)
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
    sys.argv[:] = hello["arguments"]
    sys.setrecursionlimit(max(sys.getrecursionlimit(), hello["recursion"]))
    with contextlib.suppress(OSError):
        os.chdir(hello["directory"])


def _prepare(greeting: bytes) -> None:
    """Import what every capture needs, so that a warm process answers at once."""
    _greet(greeting)
    gc.set_threshold(*SELDOM)
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    for device in (torch.cuda, torch.xpu):
        if device._is_in_bad_fork():  # somebody asked for it before: whatever asks here would fail
            raise RuntimeError(f"{device.__name__} cannot be used in a copy of a process that has looked at it")
    import hotfuse.frontends.torch_trace
    import hotfuse.passes

    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import hotfuse.frontends.torch_export  # noqa: F401
    gc.freeze()


if __name__ == "__main__":
    main()
