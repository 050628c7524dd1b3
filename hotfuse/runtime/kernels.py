"""Kernels: tile programs as code that can be called, each compiled once in a process.

State: the code of each program and instruction set, as long as somebody holds the kernel; a lock guards the table, never LLVM.
"""

from __future__ import annotations

import weakref

from hotfuse.codegen.link import Code
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import TileProgram
from hotfuse.hardware.spec import Spec
from hotfuse.locks import make_lock


class Kernel:
    """A program and its code. Whoever may call it holds it."""

    __slots__ = ("__weakref__", "address", "code", "program")

    def __init__(self, program: TileProgram, data: bytes) -> None:
        self.program = program
        self.code = Code(data)
        self.address = self.code.address(program.name)


_KERNELS: weakref.WeakValueDictionary[tuple[TileProgram, str], Kernel] = weakref.WeakValueDictionary()
_LOCK = make_lock()


def kernel_of(program: TileProgram, spec: Spec) -> Kernel:
    """The kernel of a program on this machine, compiled now if nobody has it."""
    key = (program, spec.key)
    with _LOCK:
        found = _KERNELS.get(key)
    if found is None:
        made = Kernel(program, compile_ir(emit(program, spec.vector_bytes // 4), spec))
        with _LOCK:
            found = _KERNELS.setdefault(key, made)
    return found
