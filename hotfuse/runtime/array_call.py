"""Native calls that take numpy arrays as they are: type, layout, dtype and shape are compared in native code.

A small model is answered in a few microseconds, and looking at its inputs from Python takes as long. So the looking is native
too: a function that Python calls with input and output arrays compares the inputs with the form it was made for, writes their
addresses into the tables of a frame and runs the frame's job, without the interpreter lock. It answers True, False where an
index was out of range, or None where it did nothing: another form, or the frame is in use by another thread.

It reads the heads of arrays, which every numpy has had alike so far; `heads_are_known` looks before anything relies on it.

    words    0 busy   1 inputs   2 arguments   3 job   4 status   5 ndarray   6 True   7 False   8 None
             9 PyEval_SaveThread   10 PyEval_RestoreThread   11 run   12 Py_IncRef   13 forms   14 places   15 count of places
    forms    for each input: dtype, rank, sizes          places    for each pointer in a table: argument, address

State: an `ArrayCall` owns a frame. The code is one for the process, made at the first use.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.codegen.link import Code
from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.locks import make_lock
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.objects import object_of_ir

_FASTCALL = 0x80
_DATA, _RANK, _SIZES, _DTYPE, _FLAGS = 16, 24, 32, 56, 64  # bytes into an array
_CONTIGUOUS = 1

ARRAY_CALL_IR = f"""
define ptr @call(ptr %self, ptr %args, i64 %count) nounwind {{
  %words.at = getelementptr i8, ptr %self, i64 {_DATA}
  %w = load ptr, ptr %words.at
  %inputs.at = getelementptr i64, ptr %w, i64 1
  %inputs = load i64, ptr %inputs.at
  %total.at = getelementptr i64, ptr %w, i64 2
  %total = load i64, ptr %total.at
  %type.at = getelementptr i64, ptr %w, i64 5
  %type = load ptr, ptr %type.at
  %none.at = getelementptr i64, ptr %w, i64 8
  %none = load ptr, ptr %none.at
  %incref.at = getelementptr i64, ptr %w, i64 12
  %incref = load ptr, ptr %incref.at
  %forms.at = getelementptr i64, ptr %w, i64 13
  %forms = load ptr, ptr %forms.at
  %all = icmp eq i64 %count, %total
  br i1 %all, label %next, label %refuse

next:
  %i = phi i64 [ 0, %0 ], [ %i.next, %fits ]
  %form = phi ptr [ %forms, %0 ], [ %form.next, %fits ]
  %more = icmp slt i64 %i, %inputs
  br i1 %more, label %look, label %take
look:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at
  %own.at = getelementptr i8, ptr %arg, i64 8
  %own = load ptr, ptr %own.at
  %is.array = icmp eq ptr %own, %type
  br i1 %is.array, label %head, label %refuse
head:
  %flags.at = getelementptr i8, ptr %arg, i64 {_FLAGS}
  %flags = load i32, ptr %flags.at
  %bit = and i32 %flags, {_CONTIGUOUS}
  %is.plain = icmp ne i32 %bit, 0
  %dtype.at = getelementptr i8, ptr %arg, i64 {_DTYPE}
  %dtype = load ptr, ptr %dtype.at
  %dtype.wanted = load ptr, ptr %form
  %same.dtype = icmp eq ptr %dtype, %dtype.wanted
  %rank.at = getelementptr i8, ptr %arg, i64 {_RANK}
  %rank.32 = load i32, ptr %rank.at
  %rank = zext i32 %rank.32 to i64
  %rank.wanted.at = getelementptr i64, ptr %form, i64 1
  %rank.wanted = load i64, ptr %rank.wanted.at
  %same.rank = icmp eq i64 %rank, %rank.wanted
  %a = and i1 %is.plain, %same.dtype
  %b = and i1 %a, %same.rank
  %sizes.at = getelementptr i8, ptr %arg, i64 {_SIZES}
  %sizes = load ptr, ptr %sizes.at
  %wanted = getelementptr i64, ptr %form, i64 2
  br i1 %b, label %size, label %refuse
size:
  %d = phi i64 [ 0, %head ], [ %d.next, %compare ]
  %d.more = icmp slt i64 %d, %rank
  br i1 %d.more, label %compare, label %fits
compare:
  %size.at = getelementptr i64, ptr %sizes, i64 %d
  %one = load i64, ptr %size.at
  %other.at = getelementptr i64, ptr %wanted, i64 %d
  %other = load i64, ptr %other.at
  %d.next = add i64 %d, 1
  %same = icmp eq i64 %one, %other
  br i1 %same, label %size, label %refuse
fits:
  %form.next = getelementptr i64, ptr %wanted, i64 %rank
  %i.next = add i64 %i, 1
  br label %next

take:
  %taken = cmpxchg ptr %w, i64 0, i64 1 acquire monotonic
  %is.ours = extractvalue {{ i64, i1 }} %taken, 1
  br i1 %is.ours, label %fill, label %refuse
fill:
  %places.at = getelementptr i64, ptr %w, i64 14
  %places = load ptr, ptr %places.at
  %many.at = getelementptr i64, ptr %w, i64 15
  %many = load i64, ptr %many.at
  br label %place
place:
  %p = phi i64 [ 0, %fill ], [ %p.next, %put ]
  %p.more = icmp slt i64 %p, %many
  br i1 %p.more, label %put, label %go
put:
  %pair = getelementptr [2 x i64], ptr %places, i64 %p
  %which = load i64, ptr %pair
  %target.at = getelementptr i64, ptr %pair, i64 1
  %target = load ptr, ptr %target.at
  %given.at = getelementptr ptr, ptr %args, i64 %which
  %given = load ptr, ptr %given.at
  %data.at = getelementptr i8, ptr %given, i64 {_DATA}
  %data = load ptr, ptr %data.at
  store ptr %data, ptr %target
  %p.next = add i64 %p, 1
  br label %place
go:
  %save.at = getelementptr i64, ptr %w, i64 9
  %save = load ptr, ptr %save.at
  %restore.at = getelementptr i64, ptr %w, i64 10
  %restore = load ptr, ptr %restore.at
  %run.at = getelementptr i64, ptr %w, i64 11
  %run = load ptr, ptr %run.at
  %job.at = getelementptr i64, ptr %w, i64 3
  %job = load ptr, ptr %job.at
  %status.at = getelementptr i64, ptr %w, i64 4
  %status = load ptr, ptr %status.at
  %thread = call ptr %save()
  call void %run(ptr %job, i64 1)
  call void %restore(ptr %thread)
  %failed = load i64, ptr %status
  store i64 0, ptr %status
  store atomic i64 0, ptr %w release, align 8
  %right = icmp eq i64 %failed, 0
  %yes.at = getelementptr i64, ptr %w, i64 6
  %no.at = getelementptr i64, ptr %w, i64 7
  %answer.at = select i1 %right, ptr %yes.at, ptr %no.at
  %answer = load ptr, ptr %answer.at
  call void %incref(ptr %answer)
  ret ptr %answer

refuse:
  call void %incref(ptr %none)
  ret ptr %none
}}
"""


class _Method(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_MADE: list[tuple[Code, _Method]] = []  # at most one, for good: functions point to it
_MAKING = make_lock()


def _method() -> _Method:
    with _MAKING:
        if not _MADE:
            code = Code(object_of_ir(ARRAY_CALL_IR, host_spec(), open_cache(Config())))
            _MADE.append((code, _Method(b"call", code.address("call"), _FASTCALL, None)))
        return _MADE[0][1]


@functools.cache
def heads_are_known() -> bool:
    """Whether arrays look as this file believes, on this Python and this numpy."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    for array in (np.zeros((3, 5), np.float32), np.zeros((4, 2), np.int64).T, np.zeros(()), np.arange(8)[::2]):
        start = id(array)

        def word(place: int, kind: Any = ctypes.c_int64, start: int = start) -> int:
            return int(kind.from_address(start + place).value)

        if word(8) != id(np.ndarray) or word(_DATA) != array.ctypes.data or word(_DTYPE) != id(array.dtype):
            return False
        if word(_RANK, ctypes.c_int32) != array.ndim or bool(word(_FLAGS, ctypes.c_int32) & 1) != array.flags.c_contiguous:
            return False
        sizes = word(_SIZES)
        if [ctypes.c_int64.from_address(sizes + 8 * i).value for i in range(array.ndim)] != list(array.shape):
            return False
    return True


class ArrayCall:
    """`native(*inputs, *outputs)`, for inputs like `arrays`. `owner` is kept with it: the frame and the code that it runs."""

    __slots__ = ("_forms", "_owner", "_places", "_words", "native")

    def __init__(
        self,
        arrays: Sequence[Any],
        outputs: int,
        places: Sequence[tuple[int, int]],
        job: int,
        status: int,
        run: int,
        owner: Any,
    ) -> None:
        forms = [word for a in arrays for word in (id(a.dtype), a.ndim, *a.shape)]
        self._forms = np.array(forms or [0], np.int64)
        self._places = np.array([word for pair in places for word in pair] or [0], np.int64)
        self._owner = (owner, [a.dtype for a in arrays])
        api = ctypes.pythonapi
        functions = (api.PyEval_SaveThread, api.PyEval_RestoreThread, None, api.Py_IncRef)
        save, restore, _, incref = (ctypes.cast(f, ctypes.c_void_p).value or 0 if f else 0 for f in functions)
        words = (0, len(arrays), len(arrays) + outputs, job, status, id(np.ndarray), id(True), id(False), id(None))
        tables = (self._forms.ctypes.data, self._places.ctypes.data, len(places))
        self._words = np.array((*words, save, restore, run, incref, *tables), np.int64)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self.native = make(ctypes.addressof(_method()), self._words, None)
