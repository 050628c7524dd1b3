"""Tier 1: an executor whose units run as native code, built now and here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.build import PLAN_FAILED, Build, Unit, attached, skeleton
from hotfuse.runtime.build_cache import cached_build, keep_build
from hotfuse.runtime.build_request import BuildReply, BuildRequest
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.dispatch import Dispatch
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.kernels import Kernel, kernel_of, link_kernels
from hotfuse.runtime.memory import ArenaPool
from hotfuse.runtime.native_binding import NativeBinder
from hotfuse.runtime.recent_code import RECENT


class Workshop:
    """Makes kernels here and holds them. State: those that it made."""

    def __init__(self, config: Config) -> None:
        self.spec = host_spec(config.isa)
        self._cache = open_cache(config)
        RECENT.bound(config.max_cache_bytes)
        self.kernels: dict[TileProgram, Kernel] = {}

    def __call__(self, program: TileProgram) -> None:
        if program not in self.kernels:
            self.kernels[program] = kernel_of(program, self.spec, self._cache)


def make_executor(graph: Graph, engine: Any, config: Config) -> Executor:
    """An executor of the highest tier that `config` has made before the first answer."""
    return native_executor(graph, engine, config) if config.native else Executor(trivial_plan(graph), engine, config)


def native_executor(graph: Graph, engine: Any, config: Config, events: EventLog | None = None) -> Executor:
    """An executor of a graph whose constants never change: what follows from them is computed once. Compiles now what the cache
    has not."""
    asked = BuildRequest(skeleton(graph), config)
    known = cached_build(asked)
    if known is not None:
        build, kernels = known.build, link_kernels(known.build.programs, known.objects)
    else:
        from hotfuse.runtime.building import make_build  # lowering is much code; who is given a build needs none of it

        shop = Workshop(config)
        build, kernels = make_build(asked.graph, shop.spec, config, shop), shop.kernels
        keep_build(asked, BuildReply(build, tuple(kernels[program].data for program in build.programs), 0, 0.0))
    if build.unplanned and events is not None:
        events.emit(PLAN_FAILED, graph.name, build.unplanned)
    return build_executor(attached(build.hoisted, graph.constants), build, kernels, engine, config)


def main_executor(hoisted: Hoisted, engine: Any, config: Config) -> Executor:
    """An executor of the main graph of a native form that was split already. Compiles now."""
    from hotfuse.runtime.building import build_hoisted

    shop = Workshop(config)
    build = build_hoisted(hoisted, shop.spec, config, shop)
    return build_executor(build.main, build, shop.kernels, engine, config)


def build_executor(graph: Graph, build: Build, kernels: Mapping[TileProgram, Kernel], engine: Any, config: Config) -> Executor:
    """An executor of a build's main graph, constants attached."""

    pool = ArenaPool(config.max_arena_bytes)

    def binder(units: Sequence[Unit]) -> NativeBinder:
        return NativeBinder(graph, units, kernels, engine, config, build.reasons, pool)

    special = {sizes: binder(units) for sizes, units in build.special.items()}
    generic = binder(build.units)
    return Executor(trivial_plan(graph), engine, config, pool, Dispatch(generic, special) if special else generic)
