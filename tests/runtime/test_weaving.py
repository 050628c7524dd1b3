"""Woven plans: the same bits as the plan that runs one group after the other, for any product beside any long rows; and
answers that torch agrees with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hotfuse.codegen.lower import lower
from hotfuse.codegen.native_form import native_graph
from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile import For, Prefetch, TileProgram, walk
from hotfuse.codegen.tile_check import check
from hotfuse.config import Config
from hotfuse.errors import TileError
from hotfuse.fusion.rules import Fetch, Fused, fuse
from hotfuse.fusion.weaving import streams_of
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import Dim, evaluate, symbol
from hotfuse.ir.graph import Graph, Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, tensor
from hotfuse.numerics import close_to_exact
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.build import Build
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.segment import Frame, Segment

Array = np.ndarray[Any, Any]
KINDS = ("sum", "norm", "shift", "two", "wide", "less")


def model(kind: str, m: Dim, k: Dim, n: int, long: Dim, width: Dim) -> Graph:
    """A product, and rows of a long input; the sum of both is the last result where rows are as many."""
    b = GraphBuilder()
    x, w = b.input("x", tensor(F32, m, k)), b.input("w", tensor(F32, k, n))
    y, z = b.input("y", tensor(F32, long, width)), b.input("z", tensor(F32, long, width))
    product = b.add("relu", b.add("matmul", x, w))
    made: Value = y
    match kind:
        case "sum":
            made = b.add("reduce_sum", b.add("neg", y), axes=(1,), keepdims=False)
        case "norm":
            made = b.add("softmax", y, axis=1)
        case "shift":
            made = b.add("exp", b.add("neg", b.add("abs", y)))
        case "two":
            made = b.add("reduce_max", b.add("mul", y, z), axes=(1,), keepdims=True)
        case "wide":
            made = b.add("reduce_sum", b.add("mul", y, y), axes=(0, 1), keepdims=False)
        case _:
            made = b.add("sub", y, z)
    return native_graph(b.build([product, made]), host_spec())


def eager(kind: str, feeds: dict[str, Array], dtype: torch.dtype) -> list[Array]:
    x, w, y, z = (torch.from_numpy(feeds[name]).to(dtype) for name in "xwyz")
    made = {
        "sum": lambda: (-y).sum(1),
        "norm": lambda: y.softmax(1),
        "shift": lambda: torch.exp(-y.abs()),
        "two": lambda: (y * z).amax(1, keepdim=True),
        "wide": lambda: (y * y).sum(),
        "less": lambda: y - z,
    }[kind]()
    return [torch.relu(x @ w).numpy(), made.numpy()]


def groups_of(graph: Graph, grain: int, lines: int, is_woven: bool = True) -> list[Fused]:
    """Those of the rules, the product woven with the rows."""
    places = layouts(graph, graph.values)
    found = fuse(graph, graph.values, places)
    if not is_woven:
        return found
    product = next(group for group in found if group.kind == "product")
    rows = next(group for group in found if group.kind == "rows")
    streams = streams_of(rows, graph.values, places)
    assert isinstance(streams, tuple)
    fetches = tuple(Fetch(name, lines) for name in streams)
    woven = replace(product, row=1, grain=grain, fetches=fetches, parts=(product,))
    rest = [group for group in found if group is not product and group is not rows]
    return [*rest, woven, replace(rows, row=1)]


def made(graph: Graph, groups: list[Fused], threads: int, isa: str = "native") -> tuple[Executor, Build]:
    config = Config(threads=threads, isa=isa, strict=True)
    shop = Workshop(config)
    build = build_groups(Hoisted(graph), graph, [replace(g, team=-1) for g in groups], shop.spec, config, shop)
    assert not build.reasons
    return build_executor(graph, build, shop.kernels, NUMPY, config), build


def inputs(seed: int, m: int, k: int, n: int, long: int, width: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (m, k), "w": (k, n), "y": (long, width), "z": (long, width)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def woven_steps(executor: Executor, feeds: list[Array]) -> int:
    """How many steps of a call are woven."""
    bound = executor.bound(tuple(map(NUMPY.type_of, feeds)))
    segments = [step.function for step in bound.steps if isinstance(step.function, Segment)]
    return sum(Frame(s._steps, s._known, s._inner, s._sizes).job.woven for s in segments)


@pytest.mark.parametrize("seed", range(30))
def test_woven_plans_give_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    m, k, n, long, width = (int(rng.integers(1, most)) for most in (300, 700, 200, 500, 600))
    sizes: tuple[Dim, ...] = (m, k, n, long, width)
    is_open = [False, False, False, False, False] if seed % 3 == 0 else [True, False, False, seed % 3 == 1, False]
    dims = [symbol(f"s{i}", 1) if o else size for i, (o, size) in enumerate(zip(is_open, sizes, strict=True))]
    graph = model(kind, dims[0], dims[1], n, dims[3], dims[4])
    feeds = inputs(seed, m, k, n, long, width)
    given = [feeds[name] for name in graph.inputs]
    wanted = made(graph, groups_of(graph, 0, 1, is_woven=False), 2)[0].run(given)
    was_woven = 0
    for threads in (1, 2, 3):
        grain, lines = int(rng.integers(4)), int(rng.integers(1, 4))
        executor, _ = made(graph, groups_of(graph, grain, lines), threads)
        was_woven += woven_steps(executor, given)
        for _ in range(3):
            for got, want in zip(executor.run(given), wanted, strict=True):
                assert got.tobytes() == want.tobytes()
    for got, want, exact in zip(wanted, eager(kind, feeds, torch.float32), eager(kind, feeds, torch.float64), strict=True):
        assert close_to_exact(got, want.reshape(got.shape), exact.reshape(got.shape))
    if m > 64:
        assert was_woven, "nothing was tried"


def test_other_machines_weave_too() -> None:
    graph, feeds = model("sum", 96, 64, 96, 400, 64), inputs(0, 96, 64, 96, 400, 64)
    given = [feeds[name] for name in graph.inputs]
    plain, _ = made(graph, groups_of(graph, 0, 1, is_woven=False), 2, "avx2")
    woven, _ = made(graph, groups_of(graph, 1, 1), 2, "avx2")
    for got, want in zip(woven.run(given), plain.run(given), strict=True):
        assert got.tobytes() == want.tobytes()


def lowered(graph: Graph, group: Fused) -> tuple[Recipe, ...]:
    return lower(graph, graph.values, layouts(graph, graph.values), group, host_spec())


@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize("grain", [0, 1, 3])
@pytest.mark.parametrize("is_open", [False, True])
def test_all_that_the_other_one_reads_is_fetched_by_the_task_before_it(lines: int, grain: int, is_open: bool) -> None:
    m, k, n, long, width = 128, 64, 96, 300, 256
    names = (symbol("a", 1), symbol("b", 1)) if is_open else (m, long)
    graph = model("sum", names[0], k, n, names[1], width)
    product = next(group for group in groups_of(graph, grain, lines) if group.kind == "product")
    recipe = lowered(graph, product)[0]
    program = recipe.program
    check(program)
    buffer = program.arguments[recipe.arguments.index("y")].name
    sizes = {s: evaluate(d, {"a": m, "b": long}) for s, d in zip(program.sizes, recipe.sizes, strict=True)}
    places = fetched(program, buffer, sizes)
    size, tasks = long * width, len(places)
    share = -(-size // tasks)
    for task, found in enumerate(places):
        own = {place // 16 for place in found}
        wanted = set(range(task * share // 16, min(size, (task + 1) * share) // 16))
        each = -(-share // len(found))
        assert not wanted - own if each <= 16 else len(own) == len(found)
        assert min(found) == task * share
        assert max(found) < (task + 1) * share + len(found)  # steps are whole elements


def fetched(program: TileProgram, buffer: str, sizes: dict[str, int]) -> list[list[int]]:
    """The elements whose lines each task fetches."""
    found: list[list[int]] = []

    def visit(body: tuple[Any, ...], known: dict[str, int], into: list[int]) -> None:
        for it in body:
            if isinstance(it, For):
                for turn in range(evaluate(it.start, known), evaluate(it.stop, known), it.step):
                    visit(it.body, {**known, it.var: turn}, into)
            elif isinstance(it, Prefetch) and it.at.buffer == buffer:
                into.append(evaluate(it.at.offset, known))

    counts = [evaluate(axis.count, sizes) for axis in program.grid]
    for point in np.ndindex(*counts):
        found.append([])
        visit(program.body, {**sizes, **dict(zip((a.var for a in program.grid), map(int, point), strict=True))}, found[-1])
    return found


def test_a_woven_product_fetches_little_else() -> None:
    graph = model("sum", 128, 64, 96, 300, 256)
    plain = next(group for group in groups_of(graph, 0, 1, is_woven=False) if group.kind == "product")

    def fetches(group: Fused) -> list[str]:
        program = lowered(graph, group)[0].program
        return [it.at.buffer for it in walk(program.body) if isinstance(it, Prefetch)]

    assert len(fetches(plain)) == 2  # some steps ahead, and of the next panel
    assert len(fetches(replace(plain, fetches=(Fetch("y", 1),)))) == 2
    assert len(set(fetches(replace(plain, fetches=(Fetch("y", 2),))))) == 1


def test_equal_products_that_fetch_otherwise_are_other_programs() -> None:
    graph = model("two", 128, 64, 96, 300, 256)
    plain = next(group for group in groups_of(graph, 0, 1, is_woven=False) if group.kind == "product")
    known: dict[Any, Any] = {}
    groups = [plain, *(replace(plain, fetches=(Fetch("y", lines),)) for lines in (1, 2))]
    places = layouts(graph, graph.values)
    programs = {lower(graph, graph.values, places, group, host_spec(), known)[0].program for group in groups}
    assert len(programs) == 3
    other = lower(graph, graph.values, places, replace(plain, fetches=(Fetch("z", 2),)), host_spec(), known)[0]
    assert other.program in programs
    assert "z" in other.arguments


def test_a_product_that_cannot_fetch_is_made_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> TileProgram:
        raise TileError("not today")

    graph, feeds = model("sum", 96, 64, 96, 400, 64), inputs(1, 96, 64, 96, 400, 64)
    given = [feeds[name] for name in graph.inputs]
    monkeypatch.setattr("hotfuse.codegen.lower_gemm.fetch_for_another", refuse)
    executor, build = made(graph, groups_of(graph, 0, 1), 2)
    assert not any(unit.fetches for unit in build.units)
    assert woven_steps(executor, given) == 0
    for got, want in zip(executor.run(given), eager("sum", feeds, torch.float32), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_few_tasks_and_a_unit_by_itself_are_not_woven() -> None:
    graph, feeds = model("sum", 8, 64, 48, 400, 64), inputs(2, 8, 64, 48, 400, 64)
    given = [feeds[name] for name in graph.inputs]
    executor, _ = made(graph, groups_of(graph, 0, 1), 2)
    assert woven_steps(executor, given) == 0
    executor.run(given)
    graph, feeds = model("sum", 96, 64, 96, 400, 64), inputs(2, 96, 64, 96, 400, 64)
    given = [feeds[name] for name in graph.inputs]
    alone = [replace(group, row=0) for group in groups_of(graph, 1, 1)]
    assert woven_steps(made(graph, alone, 2)[0], given) == 0
    assert woven_steps(made(graph, groups_of(graph, 1, 1), 2)[0], given) == 1


def test_of_more_than_the_steps_or_the_cache_can_have_the_first_part_is_fetched() -> None:
    graph = model("sum", 128, 64, 96, 60000, 256)
    product = next(group for group in groups_of(graph, 0, 2) if group.kind == "product")
    for spec in (host_spec(), replace(host_spec(), l2_bytes=6 << 10)):
        (recipe, *_) = lower(graph, graph.values, layouts(graph, graph.values), product, spec)
        buffer = recipe.program.arguments[recipe.arguments.index("y")].name
        places = fetched(recipe.program, buffer, {})
        share = -(-60000 * 256 // len(places))
        for task, found in enumerate(places):
            lines = sorted({place // 16 for place in found})
            assert found[0] == task * share
            assert lines == list(range(lines[0], lines[-1] + 1))  # without gaps
            assert len(lines) <= len(found)
        if spec is not host_spec():
            assert all(max(found) - min(found) <= (1 << 10) // 4 + len(found) for found in places[1:])


def test_the_kernels_of_one_product_do_not_wait_for_each_other() -> None:
    """Whole panels and the narrow last one are kernels of their own that write one result; what reads it waits for both."""
    b = GraphBuilder()
    x, w, v = (b.input(name, tensor(F32, *shape)) for name, shape in (("x", (96, 64)), ("w", (64, 100)), ("v", (100, 100))))
    graph = native_graph(b.build([b.add("matmul", b.add("matmul", x, w), v)]), host_spec())
    feeds = [np.random.default_rng(n).standard_normal(s, np.float32) for n, s in enumerate(((96, 64), (64, 100), (100, 100)))]
    executor, _ = made(graph, groups_of(graph, 0, 1, is_woven=False), 2)
    bound = executor.bound(tuple(map(NUMPY.type_of, feeds)))
    (segment,) = [step.function for step in bound.steps if isinstance(step.function, Segment)]
    nodes = [part.nodes for part in segment.parts]
    products = [at for at, part in enumerate(segment.parts) if part.recipe.program.name == "product"]
    first = [at for at in products if nodes[at] is nodes[products[0]]]
    assert len(first) == 2
    assert not segment._steps[first[0]].barrier
    assert any(step.barrier for step in segment._steps[first[1] : products[2]])
    exact = feeds[0].astype(np.float64) @ feeds[1] @ feeds[2]
    for _ in range(50):
        assert close_to_exact(executor.run(feeds)[0], feeds[0] @ feeds[1] @ feeds[2], exact)


def test_rows_that_happen_to_have_the_same_number_are_not_woven() -> None:
    """As where units of two plans serve together."""
    graph, feeds = model("sum", 96, 64, 96, 400, 64), inputs(3, 96, 64, 96, 400, 64)
    given = [feeds[name] for name in graph.inputs]
    groups = [replace(g, fetches=(Fetch("z", 1),)) if g.fetches else g for g in groups_of(graph, 1, 1)]
    executor, _ = made(graph, groups, 2)
    assert woven_steps(executor, given) == 0
    for got, want in zip(executor.run(given), eager("sum", feeds, torch.float32), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
