"""The work of a build worker: a skeleton becomes a build with its code, and a build is proved.

It is done in the worker's process, or in a thread of this one where no process can be started. Before a program is compiled the
cache is asked for its code, which is known by all that it follows from: the program, the machine, LLVM and the generator.
"""

from __future__ import annotations

import functools
import hashlib
import time
from dataclasses import replace
from pathlib import Path

from hotfuse.codegen import llvm_compile
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_text import print_program
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.runtime.build import Build, make_build
from hotfuse.runtime.build_jobs import BuildReply, BuildRequest, ProveReply, ProveRequest, Weight
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.proof import prove


def build_here(asked: BuildRequest) -> BuildReply:
    """The build of a skeleton, and its code. What cannot be built is left to tier 0, with the reason."""
    begun = time.thread_time()
    config = replace(asked.config, strict=False)
    spec = host_spec(config.isa)
    shop = _Workshop(spec, open_cache(config))
    build = _shared(make_build(asked.graph, spec, config, shop, asked.live))
    objects = tuple(shop.objects[program] for program in build.programs)
    return BuildReply(build, objects, shop.compiled, time.thread_time() - begun)


def prove_here(asked: ProveRequest, weight: Weight) -> ProveReply:
    """Verdicts on the units of a build. Its kernels run here: one that is wrong may take this process with it."""
    begun = time.process_time()
    kernels = {p: Kernel(p, data) for p, data in zip(asked.build.programs, asked.objects, strict=True)}
    verdicts = prove(asked.build, kernels, asked.inputs, weight, asked.config, asked.units)
    return ProveReply(tuple(verdicts), time.process_time() - begun)


class _Workshop:
    """Makes code of programs. State: the code by program, and how many were compiled for it."""

    def __init__(self, spec: Spec, cache: DiskCache | None) -> None:
        self._spec, self._cache = spec, cache
        self.objects: dict[TileProgram, bytes] = {}
        self.compiled = 0

    def __call__(self, program: TileProgram) -> None:
        if program not in self.objects:
            self.objects[program] = self._make(program)

    def _make(self, program: TileProgram) -> bytes:
        key = "" if self._cache is None else object_key(program, self._spec)
        found = None if self._cache is None else self._cache.get("object", key)
        if found is not None:
            return found
        data = llvm_compile.compile_ir(emit(program, self._spec.vector_bytes // 4, self._spec.isa), self._spec)
        self.compiled += 1
        if self._cache is not None:
            self._cache.put("object", key, data)
        return data


def _shared(build: Build) -> Build:
    """The build with one object for all equal programs, as layers alike have them: it travels once."""
    first: dict[TileProgram, TileProgram] = {}
    units = tuple(
        replace(u, recipes=tuple(replace(r, program=first.setdefault(r.program, r.program)) for r in u.recipes))
        for u in build.units
    )
    return replace(build, units=units)


def object_key(program: TileProgram, spec: Spec) -> str:
    """All that a program's code follows from."""
    return "\n".join((generator_version(), spec.key, print_program(program)))


@functools.cache
def generator_version() -> str:
    """The version of LLVM and a digest of the code generator's own sources: who edits them never meets old code."""
    with llvm_compile.LLVM:
        llvm = ".".join(map(str, llvm_compile.load_llvm().llvm_version_info))
    digest = hashlib.sha256()
    for path in sorted(Path(llvm_compile.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"llvm {llvm}, generator {digest.hexdigest()[:16]}"


def warm_up() -> None:
    """What the first build would otherwise wait for. The version is that of the sources as they are now, not of later ones."""
    generator_version()
    with llvm_compile.LLVM:
        llvm_compile.target_machine(host_spec())
