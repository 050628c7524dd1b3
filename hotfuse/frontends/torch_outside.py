"""Outside: calls by which a forward pass looks beyond its module and its arguments, or acts there.

A graph would freeze what such a call found and never do again what it did. Counted is what the model's code calls itself or
through Python's own library (`Path.exists` is a `stat`); not what torch and numpy do for it, nor what importing a module does.
Installed packages may warn, log and ask for process state: they do so for reasons that stay.
"""

from __future__ import annotations

import datetime
import io
import logging
import os
import sys
import time
import types
from typing import Any

import numpy
import torch

from hotfuse.frontends.torch_code import is_library

_CLOCK, _SYSTEM, _FILE = "reads the clock", "asks the operating system", "opens a file"
_PROCESS = "looks at the state of the process"
_MEMORY = "asks how a tensor lies in memory"
_LENIENT = frozenset({"warns", "logs", "asks for an object's address", _PROCESS, _MEMORY})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PURE = ("fspath", "cpu_count", "strerror", "sleep")
_C_CALLS: dict[tuple[Any, str], str] = {
    **{("time", name): _CLOCK for name in vars(time) if name not in _PURE},
    **{(os.name, name): _SYSTEM for name in vars(sys.modules[os.name]) if name not in _PURE},
    **{(module, "open"): _FILE for module in ("io", "_io")},
    ("builtins", "print"): "prints",
    ("builtins", "input"): "reads a line of input",
    ("builtins", "id"): "asks for an object's address",
    ("_warnings", "warn"): "warns",
    ("_warnings", "warn_explicit"): "warns",
    ("sys", "getrecursionlimit"): _PROCESS,
    ("gc", "isenabled"): _PROCESS,
    ("decimal", "getcontext"): _PROCESS,
}
_METHODS = frozenset(["now", "today", "utcnow", "write", "writelines", "read", "readline", "readlines"])
_TENSOR_METHODS = frozenset(["storage_offset", "untyped_storage", "data_ptr", "_is_view"])
_NAMES = frozenset(name for _, name in _C_CALLS) | _METHODS | _TENSOR_METHODS
_LOGGING = ("debug", "info", "warning", "error", "exception", "critical", "log")
_PYTHON_CALLS: dict[types.CodeType, str] = {
    **{getattr(logging.Logger, name).__code__: "logs" for name in _LOGGING},
    **{f.__code__: _PROCESS for f in (torch.initial_seed, torch.random.get_rng_state)},
    **{f.__code__: _PROCESS for f in (numpy.geterr, numpy.geterrcall) if isinstance(f, types.FunctionType)},
    **{f.__code__: _MEMORY for f in (torch.Tensor.is_shared, torch.Tensor.storage)},
    **({torch.distributed.is_initialized.__code__: _PROCESS} if torch.distributed.is_available() else {}),
}


def outside_c_call(frame: types.FrameType, called: Any) -> str:
    """What a call of a C function out of a frame does outside, and where the model asks for it; "" if nothing."""
    name = getattr(called, "__name__", "")
    if name not in _NAMES:
        return ""
    kind = _C_CALLS.get((getattr(called, "__module__", None), name)) or _method_kind(called, name)
    return _described(kind, name, frame) if kind else ""


def outside_kind(code: types.CodeType) -> str:
    """What a Python function does outside; "" if nothing that is known here."""
    return _PYTHON_CALLS.get(code, "")


def outside_call(kind: str, frame: types.FrameType) -> str:
    """The same as `outside_c_call`, for a frame that has just begun and whose code is of this kind."""
    return _described(kind, frame.f_code.co_name, frame.f_back)


def _method_kind(called: Any, name: str) -> str:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, type):
        return _CLOCK if issubclass(owner, datetime.date) else ""
    if name in _TENSOR_METHODS:
        return _MEMORY if isinstance(owner, torch.Tensor) else ""
    if name in _METHODS and isinstance(owner, io.IOBase) and not isinstance(owner, (io.StringIO, io.BytesIO)):
        return "uses a file"
    return ""


def _described(kind: str, name: str, frame: types.FrameType | None) -> str:
    asker = _asker(frame)
    if asker is None or (kind in _LENIENT and any(part in asker.f_code.co_filename for part in _INSTALLED)):
        return ""
    return f"{kind}: {name} in {asker.f_code.co_name}, line {asker.f_lineno}"


def _asker(frame: types.FrameType | None) -> types.FrameType | None:
    """The frame of the model's code behind a call, if only Python's own library lies between."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_name == "<module>" or "importlib" in package:
            return None
        if package not in sys.stdlib_module_names or package == "__main__":
            return None if is_library(package) else frame
        frame = frame.f_back
    return None
