"""Builds made and proved in another process: the same as made here, whatever a kernel does there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hotfuse.codegen import llvm_cpu
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import Map, TileProgram
from hotfuse.config import Config
from hotfuse.errors import HotfuseError, WorkerError
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Constant, Graph
from hotfuse.ir.types import BF16, F32, tensor
from hotfuse.pace import hurry
from hotfuse.rank import NICE
from hotfuse.runtime import build_worker, objects
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.build_jobs import ask_weights, build_job, prove_job, serve_weights
from hotfuse.runtime.build_pool import MODULE, build_pool
from hotfuse.runtime.build_request import BuildReply, BuildRequest, ProveReply, ProveRequest
from hotfuse.runtime.build_work import build_here, prove_here
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.objects import generator_version, object_key
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.workers import Job, Pool

CONFIG = Config(cache="off", threads=1, fusion="rules")
WIDTH = 128  # a square weight is just large enough to stay out of a skeleton


def two_layers() -> Graph:
    """Layers alike, side by side, which share a kernel, and weights that a skeleton leaves out."""
    chance = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", tensor(F32, symbol("n", 1), WIDTH))
    found = []
    for layer in range(2):
        weight = b.constant(chance.standard_normal((WIDTH, WIDTH), np.float32) / 12, f"w{layer}")
        bias = b.constant(chance.standard_normal(WIDTH, np.float32), f"b{layer}")
        found.append(b.add("relu", b.add("add", b.add("matmul", x, weight), bias)))
    return b.build([*found, b.add("softmax", b.add("transpose", b.add("add", *found), perm=(1, 0)), axis=0)])


GRAPH = two_layers()
X = np.random.default_rng(1).standard_normal((5, WIDTH), np.float32)


@pytest.fixture(name="pool", scope="module")
def _pool() -> Iterator[Pool]:
    made = Pool(MODULE, 1, name="build worker", first_rest_s=0.01)
    yield made
    made.close()


@pytest.fixture(name="fresh")
def _fresh() -> Iterator[Callable[[], Pool]]:
    """Pools whose worker has compiled nothing yet."""
    made: list[Pool] = []

    def start() -> Pool:
        made.append(Pool(MODULE, 1, name="build worker", first_rest_s=0.01))
        return made[-1]

    yield start
    for pool in made:
        pool.close()


def ended(pool: Pool, job: Any) -> Any:
    """What a job that `job(finish)` makes ends with."""
    found: list[Any] = []
    over = threading.Event()
    pool.submit(job(lambda result: (found.append(result), over.set())))
    assert over.wait(120)
    return found[0]


def build(pool: Pool, graph: Graph = GRAPH, config: Config = CONFIG, live: tuple[str, ...] = ()) -> BuildReply:
    request = BuildRequest(skeleton(graph), config, live)
    reply = ended(pool, lambda finish: build_job("b", lambda: request, finish, config, lambda: hurry))
    assert isinstance(reply, BuildReply), reply
    return reply


def prove(pool: Pool, reply: BuildReply, weight: Any = lambda name: GRAPH.constants[name].numpy(), **more: Any) -> Any:
    request = ProveRequest(reply.build, reply.objects, {"x": X}, CONFIG, **more)
    return ended(pool, lambda finish: prove_job("p", lambda: request, weight, finish, CONFIG, lambda: hurry))


def test_what_is_built_there_serves_here(pool: Pool) -> None:
    reply = build(pool)
    kernels = {p: Kernel(p, data) for p, data in zip(reply.build.programs, reply.objects, strict=True)}
    executor = build_executor(attached(reply.build.hoisted, GRAPH.constants), reply.build, kernels, NUMPY, CONFIG)
    assert executor.kernels >= 3
    from hotfuse.ir.plan import trivial_plan

    wanted = Executor(trivial_plan(GRAPH), NUMPY, CONFIG).run([X])
    for got, want in zip(executor.run([X]), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert reply.cpu_s > 0


def test_it_is_the_build_that_is_made_here(fresh: Callable[[], Pool]) -> None:
    there, here = build(fresh()), build_here(BuildRequest(skeleton(GRAPH), CONFIG))
    assert there.build.programs == here.build.programs
    assert there.build.units == here.build.units
    assert there.objects == here.objects
    assert there.compiled == here.compiled == len(here.objects)
    assert [n.id for n in there.build.main.nodes] == [n.id for n in here.build.main.nodes]


def test_weights_stay_where_they_are() -> None:
    request = wrap(BuildRequest(skeleton(GRAPH), CONFIG))
    assert len(request) < WIDTH * WIDTH * 4 / 2


def test_layers_alike_send_one_program(pool: Pool) -> None:
    programs = [r.program for u in build(pool).build.units for r in u.recipes]
    assert len(set(programs)) == len({id(p) for p in programs}) < len(programs)


def test_why_nodes_have_no_kernels_is_told(pool: Pool) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 4, symbol("n", 1)))
    kept = b.add("relu", b.add("cumsum", x, b.constant(np.array(0)), exclusive=False, reverse=False))
    graph = b.build([kept])
    there, here = build(pool, graph), build_here(BuildRequest(skeleton(graph), CONFIG))
    assert there.build.reasons == here.build.reasons


def test_a_fault_of_the_generator_leaves_nodes_to_tier_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(llvm_cpu, "emit", broken)
    reply = build_here(BuildRequest(skeleton(GRAPH), replace(CONFIG, strict=True)))
    assert (reply.build.units, reply.objects) == ((), ())
    assert set(reply.build.reasons.values()) == {"planted"}


def test_what_was_compiled_once_comes_from_memory(fresh: Callable[[], Pool]) -> None:
    pool = fresh()
    first, second = (build(pool) for _ in range(2))
    assert first.compiled == len(first.objects) > 1  # how many depends on how wide vectors are
    assert second.compiled == 0


def test_what_was_compiled_once_comes_from_the_cache(fresh: Callable[[], Pool], tmp_path: Path) -> None:
    config = replace(CONFIG, cache=str(tmp_path / "cache"))
    first = build(fresh(), config=config)
    cache, deadline = open_cache(config), time.monotonic() + 30
    assert cache is not None
    while cache.stats().kinds.get("object", (0, 0))[0] < len(first.objects):  # a thread writes them
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = build(fresh(), config=config)
    assert first.compiled == len(first.objects)
    assert second.compiled == 0
    assert first.objects == second.objects


def test_the_key_of_code_is_all_that_it_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = host_spec()
    first, second = build_here(BuildRequest(skeleton(GRAPH), CONFIG)).build.programs[:2]
    keys = {object_key(first, spec), object_key(second, spec), object_key(first, replace(spec, flags="others"))}
    monkeypatch.setattr(objects, "generator_version", lambda: "another")
    keys.add(object_key(first, spec))
    assert len(keys) == 4
    assert "llvm" in generator_version()


def test_it_has_one_thread_and_low_priority(pool: Pool) -> None:
    build(pool)
    prove(pool, build(pool))
    (process,) = (psutil.Process(pid) for pid in pool.pids)
    assert process.nice() == min(os.nice(0) + NICE, 19)
    assert process.num_threads() == 2  # the one that works and the one that reads


def test_a_warm_worker_imports_nothing_for_its_first_build(tmp_path: Path) -> None:
    """Half a tenth of a second went by that way, on the side of those who help."""
    (tmp_path / "request").write_bytes(wrap(BuildRequest(skeleton(GRAPH), CONFIG)))
    code = (
        "import pathlib, sys; from hotfuse.runtime import build_worker; build_worker._prepare(b''); before = set(sys.modules); "
        f"build_worker.answer(pathlib.Path({str(tmp_path / 'request')!r}).read_bytes(), bytes); "
        "print(*(name for name in sys.modules if name.startswith('hotfuse') and name not in before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []


def test_what_nobody_asks_is_not_answered() -> None:
    with pytest.raises(TypeError, match="nobody here answers a str"):
        build_worker.answer(wrap("what?"), bytes)


# proofs


def test_kernels_are_proved_there_on_weights_that_are_asked_back(pool: Pool) -> None:
    asked: list[str] = []

    def weight(name: str) -> Any:
        asked.append(name)
        return GRAPH.constants[name].numpy()

    reply = build(pool)
    proof = prove(pool, reply, weight)
    assert isinstance(proof, ProveReply), proof
    assert [v.unit for v in proof.verdicts] == list(range(len(reply.build.units)))
    assert all(v.ok and v.tried for v in proof.verdicts), proof.verdicts
    assert sorted(set(asked)) == ["w0", "w1"]
    assert len(asked) <= 8  # for the call's own sizes, and for others
    assert [v.unit for v in prove(pool, reply, units=(1,)).verdicts] == [1]


def mutant(program: TileProgram) -> TileProgram:
    """relu -> neg, or the like, wherever it stands."""

    def changed(body: Any) -> Any:
        return tuple(
            replace(i, op="add") if isinstance(i, Map) and i.op in ("max", "maximum") else
            replace(i, body=changed(i.body)) if hasattr(i, "body") else i
            for i in body
        )  # fmt: skip

    return replace(program, body=changed(program.body))


def test_a_wrong_kernel_is_found_there(pool: Pool) -> None:
    reply, spec = build(pool), host_spec()
    wrong = {p for p in reply.build.programs if mutant(p) != p}
    assert wrong
    objects = tuple(compile_ir(emit(mutant(p), spec.vector_bytes // 4, spec.isa), spec) for p in reply.build.programs)
    proof = prove(pool, replace(reply, objects=objects))
    for verdict in proof.verdicts:
        unit = reply.build.units[verdict.unit]
        assert verdict.ok == (not any(r.program in wrong for r in unit.recipes)), verdict


def test_a_kernel_that_crashes_costs_its_proof_and_nothing_else(pool: Pool) -> None:
    reply = build(pool)
    ir = """
        define void @{0}(ptr %table, ptr %scratch, i64 %begin, i64 %end) {{
          %nowhere = inttoptr i64 8 to ptr
          store volatile i64 0, ptr %nowhere
          ret void
        }}
    """
    objects = tuple(compile_ir(ir.format(p.name), host_spec()) for p in reply.build.programs)
    error = prove(pool, replace(reply, objects=objects))
    assert isinstance(error, WorkerError)
    assert error.cause == "died"
    assert all(v.ok for v in prove(pool, reply).verdicts)


def test_a_weight_that_is_gone_is_an_error_of_the_proof(pool: Pool) -> None:
    def gone(name: str) -> Any:
        raise HotfuseError(f"{name} was deleted")

    proof = prove(pool, build(pool), gone)
    assert not any(v.ok or v.tried for v in proof.verdicts if "was deleted" in v.reason)
    assert any("w0 was deleted" in v.reason for v in proof.verdicts)


def test_a_proof_here_is_the_proof_there(pool: Pool) -> None:
    reply = build(pool)
    request = ProveRequest(reply.build, reply.objects, {"x": X}, CONFIG)
    here = prove_here(request, lambda name: GRAPH.constants[name].numpy())
    assert [(v.unit, v.ok, v.what) for v in here.verdicts] == [(v.unit, v.ok, v.what) for v in prove(pool, reply).verdicts]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (7,)])
def test_weights_travel_as_they_are(dtype: Any, shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    w = b.weight("w", tensor(dtype, *shape))
    graph = b.build([b.add("relu", w)])
    there = np.asarray(np.random.default_rng(0).standard_normal(shape[::-1]), dtype.numpy).T
    reply = build_here(BuildRequest(graph, CONFIG, ("w",)))
    weight = ask_weights(reply.build, lambda name: bytes(serve_weights(lambda name: there)(name)))
    found = weight("w")
    assert (found.dtype, found.shape) == (there.dtype, there.shape)
    assert found.tobytes() == there.tobytes()


def test_an_answer_of_another_kind_is_nonsense(pool: Pool) -> None:
    build_request = BuildRequest(skeleton(GRAPH), CONFIG)

    def job(finish: Any) -> Job:
        return prove_job("p", lambda: build_request, lambda name: X, finish, CONFIG, lambda: hurry)  # type: ignore[arg-type, return-value]

    error = ended(pool, job)
    assert isinstance(error, WorkerError)
    assert error.cause == "nonsense"
    assert build(pool).objects


def test_one_pool_serves_all_models() -> None:
    assert build_pool(CONFIG) is build_pool(replace(CONFIG, workers=3))


# parcels


def test_graphs_travel_without_what_they_worked_out() -> None:
    graph = two_layers()
    before = wrap(graph)
    assert len(graph.producer) == len(graph.by_id) > 0
    assert wrap(graph) == before
    found = unwrap(before)
    assert "producer" not in vars(found)
    assert (found.inputs, found.outputs, found.nodes, found.values) == (graph.inputs, graph.outputs, graph.nodes, graph.values)


def test_constants_travel_as_arrays() -> None:
    class Mapped:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3.0)

    found = unwrap(wrap(Constant(Mapped(), tensor(F32, 3))))
    assert type(found.data) is np.ndarray
    np.testing.assert_array_equal(found.numpy(), np.arange(3.0))


def test_parcels_are_made_and_read_at_a_pace() -> None:
    turns = 0

    def pace() -> None:
        nonlocal turns
        turns += 1

    names = [f"a name that is not short {i}" for i in range(20_000)]
    body = wrap(names, pace)
    wrapping = turns
    assert unwrap(body, pace) == names
    assert wrapping >= len(body) // (128 << 10)
    assert turns - wrapping >= len(body) // (256 << 10)
