"""Object code -> code that can be called.

Each object gets a linker (LLJIT) of its own: one that is shared keeps 11 KB for every library dropped from it, one that is
closed with its library keeps nothing. JITLink puts all parts of an object into one block of memory, so that its 32-bit
addresses hold wherever the block lies.

State: a `Code` owns the memory of one object, from its making until `close`. What was dropped without that is freed when the
next object is linked: the garbage collector may come by at any moment, and must not wait for LLVM then.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from hotfuse.codegen.llvm_compile import LLVM, load_llvm, refuse_undefined, target_machine
from hotfuse.codegen.object_file import read_symbols
from hotfuse.errors import CodegenError
from hotfuse.hardware.spec import host_spec

_DROPPED: deque[tuple[Any, Any]] = deque()


class Code:
    """An object in memory. Whoever calls into it keeps it open meanwhile. Any thread may close it, any number of times."""

    __slots__ = ("__weakref__", "_addresses", "_drop", "size_bytes")

    def __init__(self, data: bytes) -> None:
        symbols = read_symbols(data)
        refuse_undefined(symbols.undefined)
        with LLVM:
            while _DROPPED:
                _free(*_DROPPED.popleft())
            llvm, machine = load_llvm(), target_machine(host_spec())
            linker = llvm.create_lljit_compiler(machine, use_jit_link=True)
            builder = llvm.JITLibraryBuilder().add_object_img(data)
            for name in symbols.defined:
                builder.export_symbol(name)
            try:
                library = builder.link(linker, "object")
            except RuntimeError as error:
                linker.close()
                raise CodegenError(f"the object cannot be linked: {str(error).strip()}") from None
            self._addresses = {name: int(library[name]) for name in symbols.defined}
        self.size_bytes = len(data)
        self._drop = weakref.finalize(self, _DROPPED.append, (library, linker))
        self._drop.atexit = False  # threads that outlive the interpreter may be in it

    def address(self, name: str) -> int:
        """Where a function or variable of the object lies."""
        if self.closed:
            raise CodegenError(f"{name!r} was asked of code that is closed")
        if name not in self._addresses:
            raise CodegenError(f"the object has no {name!r}; it has {', '.join(self._addresses) or 'nothing'}")
        return self._addresses[name]

    @property
    def closed(self) -> bool:
        return not self._drop.alive

    def close(self) -> None:
        """Free the memory, waiting for LLVM if another thread is in it. Addresses must not be used any more."""
        held = self._drop.detach()
        if held:
            with LLVM:
                _free(*held[2][0])


def _free(library: Any, linker: Any) -> None:
    """The caller holds `LLVM`."""
    library.close()
    linker.close()
