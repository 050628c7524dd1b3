"""Tier 1: an executor whose groups run as native code, or the reason why there is none."""

from __future__ import annotations

from typing import Any

from hotfuse.codegen.native_form import native_graph
from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.passes.dead_code import remove_dead
from hotfuse.passes.fold import fold_constants
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native_binding import NativeBinder


def prepared_graph(graph: Graph, config: Config) -> Graph:
    """The graph in the form that native code is made from, what follows from constants computed."""
    return remove_dead(fold_constants(native_graph(graph, host_spec(config.isa))))


def make_executor(graph: Graph, engine: Any, config: Config) -> Executor:
    """An executor of the highest tier that `config` has made before the first answer."""
    if config.native:
        return native_executor(prepared_graph(graph, config), engine, config)
    return Executor(trivial_plan(graph), engine, config)


def native_executor(graph: Graph, engine: Any, config: Config) -> Executor:
    """An executor of a graph that `prepared_graph` made. Compiles now."""
    return Executor(trivial_plan(graph), engine, config, binder=NativeBinder(graph, engine, config))
