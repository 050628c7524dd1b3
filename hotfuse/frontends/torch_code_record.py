"""CodeRecord: which Python code a trace went through, and what that code did that no graph can stand for."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
import types
from typing import Any

from hotfuse.frontends.torch_code import CodeKey, code_key
from hotfuse.frontends.torch_outside import outside_c_call, outside_call, outside_kind

_TORCH = os.path.dirname(str(importlib.util.find_spec("torch").origin)) + os.sep  # type: ignore[union-attr]
# Calls of sympy's functions that a trace may make for all its sizes, and for each operator. Of the models tried Segformer makes
# the most and ends: 9.2 million for 1,450 operators, 20 s. Swin makes 30 million for 500, and would go on for many minutes.
SIZE_CALLS = 1_000_000
SIZE_CALLS_EACH = 10_000


class IntricateSizes(BaseException):
    """A trace thinks about its symbolic sizes for longer than that is worth. No Exception: nobody on the way may take it for an
    answer."""

    def __str__(self) -> str:
        return "its sizes depend on each other in too many ways"


class CodeRecord:
    """Notes, while entered, which Python code the thread runs, and where the user's code reads or does something outside of
    the model; and raises IntricateSizes in a trace that runs more of sympy's functions than `SIZE_CALLS` and
    `SIZE_CALLS_EACH` for each operator. State: the code, `outside` ("" or what was first called, and where), `intricate`, the
    counts, and the profiler it stands in for."""

    def __init__(self) -> None:
        self._codes: dict[int, types.CodeType] = {}  # by id, and held: equal code may come from different files
        self._sympy: set[int] = set()
        self._dispatch: set[int] = set()
        self._outside: dict[int, str] = {}
        self._left = SIZE_CALLS
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
                    self._add(code)
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
        sys.setprofile(note)
        return self

    def _add(self, code: types.CodeType) -> None:
        self._codes[id(code)] = code
        if f"{os.sep}sympy{os.sep}" in code.co_filename:
            self._sympy.add(id(code))
        elif code.co_name == "__torch_dispatch__":
            self._dispatch.add(id(code))
        elif kind := outside_kind(code):
            self._outside[id(code)] = kind

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(self._before)
        gc.callbacks.remove(self._collection_begins)
        gc.callbacks.remove(self._collection_ends)

    # What others hook into the garbage collector (pytest plug-ins time it) is no part of the forward pass it interrupts.
    def _collection_begins(self, phase: str, _: Any) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            sys.setprofile(None)

    def _collection_ends(self, phase: str, _: Any) -> None:
        if phase == "stop" and threading.get_ident() == self._thread:
            sys.setprofile(self._note)

    def keys(self) -> frozenset[CodeKey]:
        """The code that ran, torch's own left out."""
        return frozenset(code_key(c) for c in self._codes.values() if not c.co_filename.startswith(_TORCH))
