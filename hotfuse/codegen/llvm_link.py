"""Linking by LLVM, on machines whose relocations `link` does not know.

Each object gets a linker (LLJIT) of its own: one that is shared keeps 11 KB for every library dropped from it, one that is
closed with its library keeps nothing. JITLink puts all parts of an object into one block of memory.

State: what was dropped and is freed when the next object is linked: the garbage collector may come by at any moment, and must
not wait for LLVM then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from hotfuse.codegen.llvm_compile import LLVM, load_llvm, target_machine
from hotfuse.errors import CodegenError
from hotfuse.hardware.spec import host_spec

_DROPPED: deque[tuple[Any, Any]] = deque()


def link_by_llvm(data: bytes, names: Collection[str]) -> tuple[dict[str, int], Callable[[], None]]:
    """The addresses of an object's names, and what to call when nobody uses them any more."""
    with LLVM:
        while _DROPPED:
            library, linker = _DROPPED.popleft()
            library.close()
            linker.close()
        llvm, machine = load_llvm(), target_machine(host_spec())
        linker = llvm.create_lljit_compiler(machine, use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(data)
        for name in names:
            builder.export_symbol(name)
        try:
            library = builder.link(linker, "object")
        except RuntimeError as error:
            linker.close()
            raise CodegenError(f"the object cannot be linked: {str(error).strip()}") from None
        addresses = {name: int(library[name]) for name in names}
    return addresses, lambda: _DROPPED.append((library, linker))
