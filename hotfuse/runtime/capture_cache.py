"""Captured programs on disk: what the capture process answered to one request, for the next process that would ask the same.

    request --key--> up to `PLACES` entries --terms hold?--> the trace, with no child process and no torch.export

The key is a digest of the request as it would be sent (module, structure of the call, modes), of torch's and Python's versions,
of what is installed and of our own sources. It cannot hold what nobody knows before a trace: which code that goes through, and
what that reads. So each entry has its `Terms`: the class of shapes, the code that ran, and a digest of all that it could read,
which is taken anew before an entry is believed. Values of parameters are no part of it: programs read them anew in each call.

An entry is the terms and the trace, each in its record form. What has none is not kept, and says so. One whose program turned
out to answer otherwise than the module is replaced by nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from hotfuse.errors import CaptureError, ParseError
from hotfuse.frontends.torch_code import CodeKey
from hotfuse.frontends.torch_digest import digest_state
from hotfuse.frontends.torch_program import Trace
from hotfuse.frontends.torch_reach import reach_from
from hotfuse.frontends.torch_skeleton import skeleton_key
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.ir.guard import ShapeClass
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.pace import Pace, hurry
from hotfuse.records import dataclass
from hotfuse.runtime.cache import DiskCache

KIND = "capture"
PLACES = 4  # entries of one key: calls of other shapes may be other classes
ENTRY_BYTES = 16 << 20  # a program of BERT-base takes 0.1 MB; constants make some larger
_START = struct.Struct("<I")  # bytes of the terms
_FOLDERS = ("ir", "frontends", "passes")  # what makes a captured program of a module
_SETTINGS = ("TORCH_", "TORCHDYNAMO_", "PYTORCH_")  # environment variables that a trace may depend on


@dataclass(frozen=True)
class Terms:
    """What must hold for a trace to be that of a request with the same key."""

    shapes: ShapeClass
    ran: frozenset[CodeKey]
    state: str  # of all that this code can read


@dataclass(frozen=True)
class Recalled:
    """What the cache has for a request: a trace, and a watch that began when all was as it was then; or why there is none, and
    where one may be put."""

    place: str
    trace: Trace | None = None
    watch: ModuleWatch | None = None
    reason: str = ""


def recall(
    cache: DiskCache, request: bytes, module: torch.nn.Module, shapes: Sequence[Sequence[int]], pace: Pace = hurry
) -> Recalled:
    """The trace that was kept for a request, a skeleton, about a call of these shapes."""
    key = capture_key(request)
    place = reason = ""
    for number in range(PLACES):
        place = f"{key} {number}"
        data = cache.get(KIND, place)
        if not data:
            return Recalled(place, reason=reason or "nothing is kept for such a request")
        try:
            head = _START.size + _START.unpack_from(data)[0]
            terms = read_record(Terms, data[_START.size : head])
            reason = terms.shapes.check(shapes)
            if not reason:
                watch = _watch(module, terms, pace)
                return Recalled(place, read_record(Trace, data[head:]), watch)
        except (CaptureError, ParseError, struct.error) as error:
            return Recalled(place, reason=str(error))
    return Recalled(place, reason=reason)


def _watch(module: torch.nn.Module, terms: Terms, pace: Pace) -> ModuleWatch:
    """A watch over a module that is as the terms say; CaptureError if it is not."""
    reach = reach_from(module.named_modules(), terms.ran, pace)
    watch = ModuleWatch(module, terms.ran, pace, reach)  # before the look at all of it: what changes amid that is noticed
    state = digest_state(module, reach, pace)
    why = watch.changed() or ("the model's code, or what it reads, is not what it was" if state != terms.state else "")
    if why:
        raise CaptureError(why)
    return watch


def make_entry(module: torch.nn.Module, trace: Trace, pace: Pace = hurry) -> bytes:
    """A trace of a module that is as it was then, to be put where `recall` said. CaptureError where it cannot be kept."""
    program, form = trace.program, trace.form
    if isinstance(form, str):
        raise CaptureError(f"it has no form on disk: {form}")
    if program.ran is None:
        raise CaptureError("nobody knows which code ran")
    state = digest_state(module, reach_from(module.named_modules(), program.ran, pace), pace)
    terms = write_record(Terms(trace.shapes, program.ran, state))
    if len(terms) + len(form) > ENTRY_BYTES:
        raise CaptureError(f"it takes {len(form) >> 20} MiB, and an entry at most {ENTRY_BYTES >> 20}")
    return b"".join((_START.pack(len(terms)), terms, form))


def capture_key(request: bytes) -> str:
    """All that the capture process's answer follows from and that is known before: the request, what makes a program of it."""
    digest = hashlib.sha256(repr((_versions(), _installed())).encode())
    for path in _sources():  # who edits them never meets an old program
        digest.update(_contents(path))
    return f"{skeleton_key(request)} {digest.hexdigest()}"


def _versions() -> tuple[object, ...]:
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith(_SETTINGS))
    cpu = torch.backends.cpu.get_cpu_capability()
    return torch.__version__, torch.version.git_version, platform.python_version(), platform.machine(), cpu, settings


def _installed() -> list[tuple[str, int]]:
    """When packages were last installed or removed: models ask which there are, and so does torch."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)]
    return [(path, os.stat(path).st_mtime_ns) for path in folders]


@functools.cache
def _sources() -> tuple[Path, ...]:
    return tuple(path for name in _FOLDERS for path in sorted((Path(__file__).parents[1] / name).rglob("*.py")))


@functools.cache
def _contents(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
