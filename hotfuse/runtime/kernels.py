"""Kernels: tile programs as code that can be called, each compiled once in a process.

State: the code of each program and instruction set, as long as somebody holds the kernel, and what was compiled so far; a lock
guards both, never LLVM.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

from hotfuse.codegen.link import Code
from hotfuse.codegen.tile import TileProgram
from hotfuse.hardware.spec import Spec
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.cache import DiskCache
from hotfuse.runtime.objects import object_of


class Kernel:
    """A program and its code. Whoever may call it holds it."""

    __slots__ = ("__weakref__", "address", "code", "data", "program")

    def __init__(self, program: TileProgram, data: bytes) -> None:
        self.program = program
        self.data = data
        self.code = Code(data)
        self.address = self.code.address(program.name)


@dataclass(frozen=True)
class Compiled:
    """Kernels that this process has compiled, those included that nobody holds any more, and the CPU time that it took to emit,
    compile and link them."""

    kernels: int = 0
    cpu_s: float = 0.0


_KERNELS: weakref.WeakValueDictionary[tuple[TileProgram, str], Kernel] = weakref.WeakValueDictionary()
_LOCK = make_lock()
_COMPILED = Compiled()


def compiled_so_far() -> Compiled:
    """What this process has spent on kernels."""
    return _COMPILED


def link_kernels(programs: Sequence[TileProgram], objects: Sequence[bytes]) -> dict[TileProgram, Kernel]:
    """Kernels of programs whose code is at hand."""
    return {program: Kernel(program, data) for program, data in zip(programs, objects, strict=True)}


def kernel_of(program: TileProgram, spec: Spec, cache: DiskCache | None = None) -> Kernel:
    """The kernel of a program on this machine, compiled now if neither this process nor the cache has it."""
    global _COMPILED
    key = (program, spec.key)
    with _LOCK:
        found = _KERNELS.get(key)
    if found is None:
        begun = time.thread_time()
        data, is_new = object_of(program, spec, cache)
        made = Kernel(program, data)
        with _LOCK:
            _COMPILED = Compiled(_COMPILED.kernels + is_new, _COMPILED.cpu_s + time.thread_time() - begun)
            found = _KERNELS.setdefault(key, made)
    return found
