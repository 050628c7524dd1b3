"""Builds and proofs on disk: a second process makes and proves nothing, and nothing stands for what it was not made for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hotfuse
from hotfuse.codegen import llvm_cpu
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.config import Config
from hotfuse.fusion.grouping import Grouping
from hotfuse.hardware.rates import typical_rates
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Constant, Graph
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.ir.text import print_graph
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime import build_cache
from hotfuse.runtime.build import Build, skeleton
from hotfuse.runtime.build_cache import Witness, cached_build, cached_proof, keep_build, keep_proof, version, with_digests
from hotfuse.runtime.build_jobs import build_job, prove_job
from hotfuse.runtime.build_pool import MODULE
from hotfuse.runtime.build_request import BuildReply, BuildRequest, ProveReply, ProveRequest, Weight
from hotfuse.runtime.build_work import build_here, prove_here
from hotfuse.runtime.building import make_build
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.calibration import forget_machine, keep_rates
from hotfuse.runtime.workers import Pool
from tests.runtime.test_build_worker import WIDTH, X, ended, mutant, two_layers

GRAPH = two_layers()


def stack(layers: int) -> Graph:
    """Layers alike, one after the other."""
    chance, b = np.random.default_rng(0), GraphBuilder()
    x = b.input("x", tensor(F32, symbol("n", 1), WIDTH))
    for layer in range(layers):
        weight = b.constant(chance.standard_normal((WIDTH, WIDTH), np.float32) / 12, f"w{layer}")
        x = b.add("softmax", b.add("matmul", x, weight), axis=0)
    return b.build([x])


@pytest.fixture(name="config")
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A cache of its own, in which everything is written at once."""
    monkeypatch.setattr(DiskCache, "put_later", DiskCache.put)
    monkeypatch.setattr(build_cache, "version", lambda: "this one")
    return Config(cache=str(tmp_path / "cache"), threads=1, fusion="rules")


def weights(graph: Graph = GRAPH) -> Weight:
    return lambda name: graph.constants[name].numpy()


def build_request(config: Config, graph: Graph = GRAPH) -> BuildRequest:
    return BuildRequest(skeleton(graph), config)


def prove_request(reply: BuildReply, config: Config, weight: Weight | None = None) -> ProveRequest:
    return with_digests(ProveRequest(reply.build, reply.objects, {"x": X}, config), weight or weights())


def prove_and_keep(asked: ProveRequest, weight: Weight | None = None) -> ProveReply:
    """As a maker does: what was not looked at is read afterwards."""
    proof = prove_here(asked, weight or weights())
    keep_proof(with_digests(replace(asked, digests={**asked.digests, **proof.digests}), weights()), proof)
    return proof


# ---- the second process

PROGRAM = """
import json, sys, threading
import numpy as np
from hotfuse.config import Config
from hotfuse.ir.record_form import read_record
from hotfuse.ir.graph import Graph
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.build_cache import cached_build, cached_proof, with_digests
from hotfuse.runtime.build_request import BuildRequest, ProveRequest
graph = read_record(Graph, open(sys.argv[1], "rb").read())
config = Config(cache=sys.argv[2], threads=1, fusion="rules")
x = np.load(sys.argv[3])
reply = cached_build(BuildRequest(skeleton(graph), config))
asked = with_digests(ProveRequest(reply.build, reply.objects, {"x": x}, config), lambda name: graph.constants[name].numpy())
proof = cached_proof(asked)
from hotfuse.runtime.kernels import link_kernels
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
kernels = link_kernels(reply.build.programs, reply.objects)
executor = build_executor(attached(reply.build.hoisted, graph.constants), reply.build, kernels, NUMPY, config)
made = [name for name in sys.modules if name.startswith("llvmlite") or name in (
    "hotfuse.codegen.lower", "hotfuse.runtime.building", "hotfuse.runtime.proof", "hotfuse.runtime.workers")]
print(json.dumps([[v.ok for v in proof.verdicts], [y.tolist() for y in executor.run([x])], made]))
"""


def test_a_second_process_lowers_compiles_and_proves_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotfuse.ir.plan import trivial_plan
    from hotfuse.runtime.executor import Executor
    from hotfuse.runtime.numpy_engine import NUMPY

    monkeypatch.setattr(build_cache, "version", version)
    reply = build_here(build_request(config))
    prove_and_keep(prove_request(reply, config))
    (tmp_path / "graph").write_bytes(write_record(GRAPH))
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "graph"), config.cache, str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    verdicts, answers, made = json.loads(done.stdout)
    assert verdicts == [True] * len(reply.build.units)
    assert made == []
    for got, want in zip(answers, Executor(trivial_plan(GRAPH), NUMPY, config).run([X]), strict=True):
        np.testing.assert_allclose(np.array(got), want, rtol=1e-5, atol=1e-6)


def test_what_a_worker_made_and_proved_is_found_here(tmp_path: Path) -> None:
    config = Config(cache=str(tmp_path / "cache"), threads=1)
    request = build_request(config)
    pool = Pool(MODULE, 1, name="build worker")
    try:
        reply = ended(pool, lambda finish: build_job("b", lambda: request, finish, config))
        asked = prove_request(reply, config)
        proof = ended(pool, lambda finish: prove_job("p", lambda: asked, weights(), finish, config))
        wait_for(config, {"build": 1})
    finally:
        pool.close()
    keep_proof(asked, proof)
    wait_for(config, {"build": 1, "proof": 1})
    found, proved = cached_build(request), cached_proof(asked)
    assert found is not None
    assert proved is not None
    assert (found.build.units, found.objects, found.compiled) == (reply.build.units, reply.objects, 0)
    assert proved.verdicts == proof.verdicts
    assert cached_proof(prove_request(found, config)) is not None  # a build that was read is the build that was made


def wait_for(config: Config, kinds: dict[str, int]) -> None:
    cache, deadline = open_cache(config), time.monotonic() + 30
    assert cache is not None
    while any(cache.stats().kinds.get(kind, (0, 0))[0] < count for kind, count in kinds.items()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- builds


def another_constant(asked: BuildRequest) -> BuildRequest:
    name = next(iter(asked.graph.constants))
    constant = Constant.of(asked.graph.constants[name].numpy() + 1)
    return replace(asked, graph=replace(asked.graph, constants={**asked.graph.constants, name: constant}))


@pytest.mark.parametrize(
    "changed",
    [
        another_constant,
        lambda asked: replace(asked, graph=replace(asked.graph, name="another")),
        lambda asked: replace(asked, live=("w0",)),
        lambda asked: replace(asked, sizes=(("n", 5),)),
        lambda asked: replace(asked, grouping=Grouping(apart=("y",))),
        lambda asked: replace(asked, config=replace(asked.config, isa="sse")),
        lambda asked: replace(asked, config=replace(asked.config, tiles="somewhere")),
        lambda asked: replace(asked, config=replace(asked.config, cache="off")),
    ],
)
def test_a_build_stands_for_what_was_asked_alone(config: Config, changed: Callable[[BuildRequest], BuildRequest]) -> None:
    asked = build_request(config)
    reply = build_here(asked)
    found = cached_build(asked)
    assert found is not None
    assert (found.build.units, found.objects) == (reply.build.units, reply.objects)
    assert cached_build(changed(asked)) is None


def test_what_is_known_of_the_machine_is_part_of_a_build(config: Config) -> None:
    """Who calibrates after a model has run gets a plan that was made with it."""
    spec, cache = host_spec(config.isa), open_cache(config)
    ruled, planned = build_request(config), build_request(replace(config, fusion="engine"))
    for asked in (ruled, planned):
        build_here(asked)
        assert cached_build(asked) is not None
    assert keep_rates(replace(typical_rates(spec, 1), handed=77.0), spec, cache)
    forget_machine()
    assert cached_build(planned) is None
    assert cached_build(ruled) is not None  # rules know nothing of machines
    build_here(planned)
    forget_machine()
    assert cached_build(planned) is not None  # the same is known again


def test_another_version_builds_and_proves_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = build_here(build_request(config))
    prove_and_keep(prove_request(reply, config))
    assert cached_proof(prove_request(reply, config))
    monkeypatch.setattr(build_cache, "version", lambda: "another")
    assert cached_build(build_request(config)) is None
    assert cached_proof(prove_request(reply, config)) is None


def test_the_version_is_that_of_sources_generator_and_numpy() -> None:
    assert all(part in version() for part in ("llvmlite", "generator", "sources", "numpy"))


def test_programs_edited_by_hand_are_not_kept(config: Config, tmp_path: Path) -> None:
    edited = replace(config, tiles=str(tmp_path))
    reply = build_here(build_request(edited))
    asked = prove_request(reply, edited)
    prove_here(asked, weights())
    cache = open_cache(config)
    assert cache is not None
    assert asked.digests == {}
    assert set(cache.stats().kinds) == {"object"}


def test_what_failed_and_may_not_fail_again_is_not_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise MemoryError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(llvm_cpu, "emit", broken)
        assert not build_here(build_request(config)).build.lasting
    assert cached_build(build_request(config)) is None
    assert build_here(build_request(config)).build.lasting
    assert cached_build(build_request(config)) is not None


def test_what_has_no_record_form_is_built_and_not_kept(config: Config) -> None:
    asked = build_request(config)
    node = replace(asked.graph.nodes[0], attrs=type(asked.graph.nodes[0].attrs)(strange=object()))
    asked = replace(asked, graph=replace(asked.graph, nodes=(node, *asked.graph.nodes[1:])))
    keep_build(asked, build_here(build_request(config)))
    assert cached_build(asked) is None


@pytest.mark.parametrize("data", [b"", b"no record", b"\0" * 100])
def test_an_entry_that_is_no_record_is_a_miss(config: Config, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = build_request(config)
    reply = build_here(asked)
    monkeypatch.setattr(build_cache, "write_record", lambda facts, pace=None: data if isinstance(facts, BuildReply) else b"x")
    keep_build(asked, reply)
    assert cached_build(asked) is None


def few_models() -> list[Any]:
    data = Path(onnx.__file__).parent / "backend/test/data"
    return sorted(data.glob("*/*/model.onnx"))[::12]


def all_models() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    return [case.model for case in collect_testcases(None)]


@pytest.mark.parametrize("models", [few_models, pytest.param(all_models, marks=pytest.mark.long)])
def test_skeletons_and_builds_of_all_sorts_read_back(models: Callable[[], list[Any]]) -> None:
    """Those of the ONNX suite: every operator, nested graphs, strings, sequences."""
    spec, config, built, found_models = host_spec(), Config(cache="off"), 0, models()
    for model in found_models:
        graph = skeleton(hotfuse.load(model, tier=0).graph)
        data = write_record(graph)
        found = read_record(Graph, data)
        assert print_graph(found) == print_graph(graph)
        assert write_record(found) == data
        build = make_build(graph, spec, config, lambda program: None)
        assert read_record(Build, write_record(build)).units == build.units
        built += bool(build.units)
    assert built > len(found_models) // 3


# ---- proofs


def test_other_weights_are_proved_again(config: Config) -> None:
    reply = build_here(build_request(config))
    prove_and_keep(prove_request(reply, config))
    assert cached_proof(prove_request(reply, config)) is not None

    def nudged(name: str) -> Any:
        array = GRAPH.constants[name].numpy().copy()
        array.reshape(-1).view(np.uint8)[-1] ^= 1
        return array

    assert cached_proof(prove_request(reply, config, lambda name: nudged(name) if name == "w1" else weights()(name))) is None
    swapped = prove_request(reply, config, lambda name: weights()({"w0": "w1", "w1": "w0"}[name]))
    assert cached_proof(swapped) is None


@pytest.mark.parametrize(
    "changed",
    [
        lambda asked: replace(asked, build=replace(asked.build, units=asked.build.units[1:])),
        lambda asked: replace(asked, objects=(asked.objects[0] + b"\0", *asked.objects[1:])),
        lambda asked: replace(asked, units=(0,)),
        lambda asked: replace(asked, other_sizes=False),
        lambda asked: replace(asked, digests={}),
        lambda asked: replace(asked, config=replace(asked.config, isa="sse")),
        lambda asked: replace(asked, config=replace(asked.config, threads=2)),
    ],
)
def test_a_proof_stands_for_what_was_proved_alone(config: Config, changed: Callable[[ProveRequest], ProveRequest]) -> None:
    asked = prove_request(build_here(build_request(config)), config)
    keep_proof(asked, ProveReply((), 0.0))
    assert cached_proof(asked) is not None
    assert cached_proof(changed(asked)) is None


def test_inputs_are_no_part_of_what_was_proved(config: Config) -> None:
    asked = prove_request(build_here(build_request(config)), config)
    keep_proof(asked, ProveReply((), 0.0))
    assert cached_proof(replace(asked, inputs={"x": X + 1})) is not None


def test_wrong_kernels_stay_wrong(config: Config) -> None:
    reply, spec = build_here(build_request(config)), host_spec()
    objects = tuple(compile_ir(emit(mutant(p), spec.vector_bytes // 4, spec.isa), spec) for p in reply.build.programs)
    assert objects != reply.objects
    asked = prove_request(replace(reply, objects=objects), config)
    proof = prove_and_keep(asked)
    found = cached_proof(asked)
    assert found is not None
    assert found.verdicts == proof.verdicts
    assert {verdict.ok for verdict in found.verdicts} == {True, False}


def test_what_could_not_be_tried_is_not_remembered(config: Config) -> None:
    asked = prove_request(build_here(build_request(config)), config)

    def gone(name: str) -> Any:
        raise OSError("unmounted")

    proof = prove_and_keep(asked, gone)
    assert not all(verdict.tried for verdict in proof.verdicts)
    assert cached_proof(asked) is None


def test_weights_that_change_meanwhile_are_not_what_was_proved(config: Config) -> None:
    asked = prove_request(build_here(build_request(config)), config)
    proof = prove_and_keep(asked, lambda name: weights()(name) * np.float32(2))
    assert all(verdict.ok for verdict in proof.verdicts)
    assert not proof.steady
    assert cached_proof(asked) is None


def test_a_proof_is_remembered_for_the_weights_that_it_was_given(config: Config) -> None:
    asked = prove_request(build_here(build_request(config)), config)
    proof = prove_and_keep(replace(asked, digests={}))
    assert proof.digests == asked.digests
    assert cached_proof(asked) is not None


def test_a_proof_reads_no_more_weights_than_it_looks_at(config: Config) -> None:
    graph = stack(5)
    reply = build_here(build_request(config, graph))
    asked = ProveRequest(reply.build, reply.objects, {"x": X}, config)
    proof = prove_here(asked, weights(graph))
    assert all(verdict.ok for verdict in proof.verdicts)
    assert set(proof.digests) == {"w0", "w1"}
    assert set(with_digests(asked, weights(graph)).digests) == {f"w{layer}" for layer in range(5)}


def test_a_witness_asks_once_for_what_it_can_keep(config: Config) -> None:
    asked = replace(prove_request(build_here(build_request(config)), config), digests={})
    count: Counter[str] = Counter()

    def counted(name: str) -> Any:
        count[name] += 1
        return weights()(name) * np.float32(count[name])

    witness = Witness(counted, asked)
    assert np.array_equal(witness("w0"), witness("w0"))
    assert count["w0"] == 1
    assert set(witness.digests) == set(count)
    assert witness.steady
    witness = Witness(counted, replace(asked, config=replace(config, max_worker_bytes=4)))
    witness("w0")
    witness("w0")  # another one now
    assert count["w0"] == 3
    assert not witness.steady


def test_without_a_cache_no_weight_is_read() -> None:
    reply = build_here(build_request(Config(cache="off")))

    def unread(name: str) -> Any:
        raise AssertionError(name)

    assert prove_request(reply, Config(cache="off"), unread).digests == {}
