"""CodeRecord: which Python code a trace went through, and what that code did that no graph can stand for."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.frontends.torch_code import CodeKey, code_key, is_library
from hotfuse.frontends.torch_outside import outside_c_call, outside_call, outside_kind

_TORCH = os.path.dirname(str(importlib.util.find_spec("torch").origin)) + os.sep  # type: ignore[union-attr]
# Calls of sympy's functions that a trace may make for all its sizes, and for each operator. Of the models tried Segformer makes
# the most and ends: 9.2 million for 1,450 operators, 20 s. Swin makes 30 million for 500, and would go on for many minutes.
SIZE_CALLS = 1_000_000
SIZE_CALLS_EACH = 10_000
# Seconds of the processor that torch's own functions may take before such calls are counted, in all and each. Listening to
# every call of theirs takes as long as they do: 2 s for the two traces of a BERT of 6 layers.
UNHEARD_S = 2.0
UNHEARD_EACH_S = 0.01
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)


class IntricateSizes(BaseException):
    """A trace thinks about its symbolic sizes for longer than that is worth. No Exception: nobody on the way may take it for an
    answer."""

    def __str__(self) -> str:
        return "its sizes depend on each other in too many ways"


class CodeRecord:
    """Notes, while entered, which Python code the thread runs, and where the user's code reads or does something outside of
    the model; and raises IntricateSizes in a trace that runs more of sympy's functions than `SIZE_CALLS` and
    `SIZE_CALLS_EACH` for each operator, once these have taken their time. State: the code, `outside` ("" or what was first
    called, and where), `intricate`, the counts, the time left for torch's functions, and the profiler it stands in for."""

    def __init__(self) -> None:
        self._codes: dict[int, types.CodeType] = {}  # by id, and held: equal code may come from different files
        self._taken_for_granted: set[int] = set()
        self._sympy: set[int] = set()
        self._dispatch: set[int] = set()
        self._outside: dict[int, str] = {}
        self._left = SIZE_CALLS
        self._unheard_s = UNHEARD_S
        self._listens = False
        self.outside = ""
        self.intricate = False

    def __enter__(self) -> CodeRecord:
        self._before = sys.getprofile()
        codes, sympy, dispatch, outside = self._codes, self._sympy, self._dispatch, self._outside

        def note(frame: types.FrameType, event: str, called: Any) -> None:
            if event == "call":
                code = frame.f_code
                key = id(code)
                if key not in codes:
                    self._add(code, frame)
                if key in sympy:
                    self._left -= 1
                    if self._left < 0:  # here, amid arithmetic: nothing is left half done, as no context is being left
                        self.intricate = True
                        raise IntricateSizes
                elif key in dispatch:
                    self._left += SIZE_CALLS_EACH
                elif key in outside:
                    self.outside = self.outside or outside_call(outside[key], frame)
            elif event == "c_call" and not self.outside:
                self.outside = outside_c_call(frame, called)

        self._note = note
        self._thread = threading.get_ident()
        gc.callbacks.insert(0, self._collection_begins)
        gc.callbacks.append(self._collection_ends)
        self._listen()
        return self

    def _listen(self) -> None:
        self._listens = True
        sys.setprofile(self._note)

    def run(self, function: Any, kinds: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a torch function that the model calls. What torch's own do is neither the model's code nor its doing."""
        if self._unheard_s < 0 or not self._listens or not _is_torchs(function, kinds, (*args, *kwargs.values())):
            return function(*args, **kwargs)
        start = time.thread_time()
        self._listens = False
        sys.setprofile(None)
        try:
            return function(*args, **kwargs)
        finally:
            self._unheard_s += UNHEARD_EACH_S - (time.thread_time() - start)
            self._listen()

    def _add(self, code: types.CodeType, frame: types.FrameType) -> None:
        self._codes[id(code)] = code
        if code.co_filename.startswith(_TORCH) or (code.co_filename.startswith("<") and _is_generated_by_library(frame)):
            self._taken_for_granted.add(id(code))
        if f"{os.sep}sympy{os.sep}" in code.co_filename:
            self._sympy.add(id(code))
        elif code.co_name == "__torch_dispatch__":
            self._dispatch.add(id(code))
        elif kind := outside_kind(code):
            self._outside[id(code)] = kind

    def __exit__(self, *_: Any) -> None:
        self._listens = False
        sys.setprofile(self._before)
        gc.callbacks.remove(self._collection_begins)
        gc.callbacks.remove(self._collection_ends)

    # What others hook into the garbage collector (pytest plug-ins time it) is no part of the forward pass it interrupts.
    def _collection_begins(self, phase: str, _: Any) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            sys.setprofile(None)

    def _collection_ends(self, phase: str, _: Any) -> None:
        if phase == "stop" and threading.get_ident() == self._thread and self._listens:
            sys.setprofile(self._note)

    def keys(self) -> frozenset[CodeKey]:
        """The code that ran, torch's own left out, and what libraries generated."""
        return frozenset(code_key(code) for key, code in self._codes.items() if key not in self._taken_for_granted)


def _is_torchs(function: Any, kinds: Sequence[type], arguments: Sequence[Any]) -> bool:
    """Whether nobody else's code runs in a call: the function is torch's own and no operator (those may be anybody's), the
    tensors are of its classes, and it is given nothing to call."""
    own = isinstance(function, _C_FUNCTIONS) or _file(function).startswith(_TORCH)
    if not own or any(kind.__module__.partition(".")[0] != "torch" for kind in kinds):
        return False
    return not any(callable(a) or (isinstance(a, (list, tuple)) and any(map(callable, a))) for a in arguments)


def _is_generated_by_library(frame: types.FrameType) -> bool:
    """Whether code that lies in no file is of a library's classes. That of a named tuple says nothing of its origin; it is
    taken for its caller's."""
    name = str(frame.f_globals.get("__name__"))
    caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
    return is_library(name) or (name.startswith("namedtuple_") and caller.startswith(_TORCH))


def _file(function: Any) -> str:
    return function.__code__.co_filename if isinstance(function, types.FunctionType) else ""
