"""The work of a build worker: a skeleton becomes a build with its code, and a build is proved.

It is done in the worker's process, or in a thread of this one where no process can be started. Before a program is compiled
(`foundry`) the cache is asked for its code (`objects`); what comes of it all is put there (`build_cache`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotfuse.codegen import llvm_compile
from hotfuse.codegen.tile import TileProgram
from hotfuse.errors import HotfuseError
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.build import Build
from hotfuse.runtime.build_cache import Witness, keep_build
from hotfuse.runtime.build_request import Array, BuildReply, BuildRequest, ProveReply, ProveRequest, Weight
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.foundry import Foundry
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.objects import generator_version
from hotfuse.runtime.proof import prove
from hotfuse.runtime.proof_sizes import at_other_sizes, cut
from hotfuse.runtime.recent_code import RECENT
from hotfuse.runtime.verdict import UnitVerdict


def build_here(asked: BuildRequest, ask_back: AskBack | None = None) -> BuildReply:
    """The build of a skeleton, and its code. Other workers help where somebody answers."""
    begun = time.thread_time()
    RECENT.bound(asked.config.max_cache_bytes)
    shop = Foundry(host_spec(asked.config.isa), open_cache(asked.config), ask_back)
    build = _shared(shop.build(asked))
    objects = tuple(shop.objects[program] for program in build.programs)
    reply = BuildReply(build, objects, shop.compiled, time.thread_time() - begun + shop.others_s)
    keep_build(asked, reply)
    return reply


def prove_here(asked: ProveRequest, weight: Weight) -> ProveReply:
    """Verdicts on the units of a build, on a call's inputs and on the same at other sizes, where a tail or a second task shows
    that these sizes do not have. Its kernels run here: one that is wrong may take this process with it."""
    begun = time.process_time()
    weight = witness = Witness(weight, asked)
    kernels = {p: Kernel(p, data) for p, data in zip(asked.build.programs, asked.objects, strict=True)}
    met: dict[str, Array] | None = {} if asked.other_sizes else None
    part = cut(asked.build.main, asked.inputs) if asked.other_sizes else asked.inputs
    found = _proved_on(part, asked, kernels, weight, met)
    alike = _alike(asked.build, [verdict.unit for verdict in found.values() if verdict.ok])
    for inputs in at_other_sizes(asked.build.main, part) if asked.other_sizes else ():
        try:
            elsewhere = prove(asked.build, kernels, inputs, weight, asked.config, tuple(alike), elsewhere=met)
        except HotfuseError:  # sizes that the model itself does not take: they prove nothing
            continue
        for verdict in elsewhere:
            if verdict.tried and not verdict.ok:
                found |= {unit: replace(verdict, unit=unit) for unit in alike[verdict.unit]}
    return ProveReply(tuple(found.values()), time.process_time() - begun, witness.digests, witness.steady)


def _proved_on(
    part: Mapping[str, Array],
    asked: ProveRequest,
    kernels: Mapping[TileProgram, Kernel],
    weight: Weight,
    met: dict[str, Array] | None,
) -> dict[int, UnitVerdict]:
    """Verdicts, by unit, on a part of a call's inputs; on the whole where that part proves nothing."""
    found: dict[int, UnitVerdict] = {}
    if part is not asked.inputs:
        with contextlib.suppress(HotfuseError):  # the model does not take such a part
            verdicts = prove(asked.build, kernels, part, weight, asked.config, asked.units, met=met)
            found = {verdict.unit: verdict for verdict in verdicts}
    units = range(len(asked.build.units)) if asked.units is None else asked.units
    left = [unit for unit in units if unit not in found or not found[unit].tried]
    if left:
        verdicts = prove(asked.build, kernels, asked.inputs, weight, asked.config, left, met=met)
        found |= {verdict.unit: verdict for verdict in verdicts}
    return {unit: found[unit] for unit in sorted(found)}


def _alike(build: Build, units: Sequence[int]) -> dict[int, list[int]]:
    """Units that run the same programs, under the first of them: at other sizes one speaks for all."""
    by_programs: dict[tuple[TileProgram, ...], list[int]] = {}
    for unit in units:
        by_programs.setdefault(tuple(recipe.program for recipe in build.units[unit].recipes), []).append(unit)
    return {same[0]: same for same in by_programs.values()}


def _shared(build: Build) -> Build:
    """The build with one object for all equal programs, as layers alike have them: it travels once."""
    first: dict[TileProgram, TileProgram] = {}
    units = tuple(
        replace(u, recipes=tuple(replace(r, program=first.setdefault(r.program, r.program)) for r in u.recipes))
        for u in build.units
    )
    return replace(build, units=units)


def warm_up() -> None:
    """What the first build would otherwise wait for. The version is that of the sources as they are now, not of later ones."""
    from hotfuse.codegen import llvm_cpu  # noqa: F401

    generator_version()
    with llvm_compile.LLVM:
        llvm_compile.target_machine(host_spec())
