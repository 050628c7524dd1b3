"""Runs a graph three ways: tier 0, its groups' programs by the interpreter, and those programs as native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotfuse.codegen import interpret
from hotfuse.codegen.lower import lower
from hotfuse.codegen.native_form import native_graph
from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile_check import check
from hotfuse.config import Config
from hotfuse.fusion.chains import make_chains
from hotfuse.fusion.legality import Legality, Refusal
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import evaluate
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import TensorType, Type, numel
from hotfuse.numerics import close_to_exact
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.building import build_groups, build_hoisted
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY

Array = np.ndarray[Any, Any]
Make = Callable[..., Value | list[Value]]


def graph_of(make: Make, types: Mapping[str, Type]) -> Graph:
    """The graph of a function of a builder and named inputs."""
    builder = GraphBuilder()
    results = make(builder, **{name: builder.input(name, type) for name, type in types.items()})
    return builder.build(results if isinstance(results, list) else [results])


def recipes(graph: Graph, variant: str = "") -> list[Recipe]:
    """The recipes of every group of a graph in native form."""
    places, groups = layouts(graph, graph.values), groups_of(graph, variant)
    return [r for group in groups for r in lower(graph, graph.values, places, group, host_spec())]


def groups_of(graph: Graph, variant: str = "") -> list[Fused]:
    """Those of the rules; with a variant, all that may be are of it, and some must be."""
    places = layouts(graph, graph.values)
    groups = make_chains(fuse(graph, graph.values, places), graph, graph.values, places, host_spec().l2_bytes)
    if not variant:
        return groups
    found = [Legality(graph, graph.values, places).vary(group, variant) for group in groups]
    assert not all(isinstance(verdict, Refusal) for verdict in found), found
    return [group if isinstance(verdict, Refusal) else verdict for group, verdict in zip(groups, found, strict=True)]


def run_tier_0(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    return Executor(trivial_plan(graph), NUMPY, Config()).run([feeds[n] for n in graph.inputs])


def run_native(
    graph: Graph, feeds: Mapping[str, Array], isa: str = "native", threads: int = 2, variant: str = ""
) -> list[Array]:
    """All of it as native code: nothing but views may be left to tier 0."""
    config = Config(isa=isa, threads=threads)
    graph = native_graph(graph, host_spec(isa))
    executor, reasons = native_executor_of(graph, config, variant)
    assert not reasons, reasons
    return executor.run([feeds[n] for n in graph.inputs])


def native_executor_of(graph: Graph, config: Config, variant: str = "") -> tuple[Executor, Mapping[str, str]]:
    """An executor of a graph in native form, and why some of its nodes have no kernels."""
    shop = Workshop(config)
    if variant:
        groups = groups_of(graph, variant)
        build = build_groups(Hoisted(graph), graph, groups, shop.spec, config, shop)
        assert len(build.units) == len(groups)  # none was made of its parts
    else:
        build = build_hoisted(Hoisted(graph), shop.spec, config, shop)
    return build_executor(graph, build, shop.kernels, NUMPY, config), build.reasons


def run_interpreted(graph: Graph, feeds: Mapping[str, Array], sizes: Mapping[str, int], variant: str = "") -> list[Array]:
    """Every group's program by the interpreter; results are groups' results."""
    graph = native_graph(graph, host_spec())
    memory = {name: np.ascontiguousarray(array).reshape(-1) for name, array in feeds.items()}
    memory |= {name: np.asarray(c.numpy()).reshape(-1) for name, c in graph.constants.items()}
    for recipe in recipes(graph, variant):
        check(recipe.program)
        for name in recipe.writes:
            dtype, shape = form_of(graph, name)
            memory.setdefault(name, np.zeros(int(evaluate(numel(shape), sizes)), dtype.numpy))
        own = {s: int(evaluate(d, sizes)) for s, d in zip(recipe.program.sizes, recipe.sizes, strict=True)}
        buffers = {b.name: memory[a] for b, a in zip(recipe.program.arguments, recipe.arguments, strict=True)}
        assert interpret.run(recipe.program, buffers, own) == 0
    return [memory[n].reshape([int(evaluate(d, sizes)) for d in form_of(graph, n)[1]]) for n in graph.outputs]


def form_of(graph: Graph, name: str) -> tuple[Any, Any]:
    type = graph.values[name].type
    assert isinstance(type, TensorType)
    return type.dtype, type.shape


def check_all_ways(
    make: Make, types: Mapping[str, Type], feeds: Mapping[str, Array], sizes: Mapping[str, int], variant: str = ""
) -> None:
    """Interpreter and native code against tier 0, judged by the same graph in float64."""
    graph = graph_of(make, types)
    wide = {n: TensorType(_wide(t.dtype), t.shape) for n, t in types.items() if isinstance(t, TensorType)}
    exact = run_tier_0(graph_of(make, wide), {n: a.astype(wide[n].dtype.numpy) for n, a in feeds.items()})
    original = run_tier_0(graph, feeds)
    ways = {
        "interpreted": run_interpreted(graph, feeds, sizes, variant),
        "native": run_native(graph, feeds, variant=variant),
        "one thread, AVX2": run_native(graph, feeds, "avx2", 1, variant),
    }
    for way, results in ways.items():
        for got, want, truth in zip(results, original, exact, strict=True):
            verdict = close_to_exact(got, want, truth)
            assert verdict, f"{way}: {verdict.reason}"
    again = run_native(graph, feeds, variant=variant)
    for first, second in zip(ways["native"], again, strict=True):
        assert first.tobytes() == second.tobytes()


def _wide(dtype: Any) -> Any:
    from hotfuse.ir.types import F64

    return F64 if dtype.is_float else dtype
