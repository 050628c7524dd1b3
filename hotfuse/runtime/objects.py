"""Object code of what is generated: from memory or the disk, or compiled now and put there.

Code is known by all that it follows from: the program, the machine, LLVM and the generator. A process that finds all it needs
in the cache never loads LLVM.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import hotfuse.codegen
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_text import print_program
from hotfuse.hardware.spec import Spec
from hotfuse.runtime.cache import DiskCache
from hotfuse.runtime.recent_code import RECENT

KIND = "object"


def object_of(program: TileProgram, spec: Spec, cache: DiskCache | None) -> tuple[bytes, bool]:
    """The code of a program, and whether it was compiled for that. `CodegenError` where there can be none."""

    def text() -> str:
        from hotfuse.codegen.llvm_cpu import emit

        return emit(program, spec.vector_bytes // 4, spec.isa)

    return _found_or_compiled(object_key(program, spec), text, spec, cache)


def kept_object(program: TileProgram, spec: Spec, cache: DiskCache | None) -> bytes | None:
    """The code of a program, if it is in memory or on the disk."""
    return _found(object_key(program, spec), cache)


def object_of_ir(text: str, spec: Spec, cache: DiskCache | None) -> bytes:
    """The code of LLVM IR that no program stands behind."""
    return _found_or_compiled(_key(text, spec), lambda: text, spec, cache)[0]


def _found_or_compiled(key: str, text: Callable[[], str], spec: Spec, cache: DiskCache | None) -> tuple[bytes, bool]:
    """Code by its key, from memory or the disk, or of IR that is compiled now; and whether it was."""
    found = _found(key, cache)
    if found is not None:
        return found, False
    from hotfuse.codegen.llvm_compile import compile_ir

    data = compile_ir(text(), spec)
    if cache is not None:
        cache.put_later(KIND, key, data)
    RECENT.put(key, data)
    return data, True


def _found(key: str, cache: DiskCache | None) -> bytes | None:
    """Code by its key, from memory or the disk."""
    found = RECENT.get(key)
    if found is not None:
        if cache is not None and not cache.holds(KIND, key):  # another folder, or one that was cleared
            cache.put_later(KIND, key, found)
        return found
    data = None if cache is None else cache.get(KIND, key)
    if data is not None:
        RECENT.put(key, data)
    return data


def object_key(program: TileProgram, spec: Spec) -> str:
    """All that a program's code follows from."""
    return _key(print_program(program), spec)


def _key(text: str, spec: Spec) -> str:
    return "\n".join((generator_version(), spec.key, text))


@functools.cache
def generator_version() -> str:
    """The version of LLVM and a digest of the code generator's own sources: who edits them never meets old code."""
    digest = hashlib.sha256()
    for path in sorted(Path(hotfuse.codegen.__path__[0]).glob("*.py")):
        digest.update(path.read_bytes())
    return f"llvmlite {importlib.metadata.version('llvmlite')}, generator {digest.hexdigest()[:16]}"
