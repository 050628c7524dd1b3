"""Tier 1: native code behind sessions and modules: right for every shape, thread and weight, and tier 0 where it cannot be."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import psutil
import pytest
import torch

import hotfuse
from hotfuse.codegen.tile import Axis, TileProgram
from hotfuse.fusion.rules import ALL, fuse
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, tensor
from hotfuse.numerics import close_to_exact
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime import native_binding
from hotfuse.runtime.building import build_groups
from hotfuse.runtime.native import Workshop, build_executor, native_executor
from hotfuse.runtime.native_binding import BESIDE
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.segment import Segment, tasks_at_once
from hotfuse.runtime.tables import _lanes

OPTIONS: dict[str, Any] = {"tier": 1, "wait": True, "capture": "blocking"}


class Block(torch.nn.Module):
    """A small transformer block with an embedding: all families of kernels."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, width)
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).split(w, dim=2))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]


def right(model: torch.nn.Module, fast: Any, ids: torch.Tensor) -> None:
    with torch.no_grad():
        got, want = fast(ids), model(ids)
        exact = _double(model)(ids)
    verdict = close_to_exact(got.numpy(), want.numpy(), exact.numpy())
    assert verdict, verdict.reason


def _double(model: torch.nn.Module) -> torch.nn.Module:
    import copy

    return copy.deepcopy(model).double()


def native_parts(fast: Any) -> list[Any]:
    """The runs of kernels of every captured class."""
    return [item for c in fast._hotfuse.served for item in c.runner.executor._binder.items if isinstance(item, tuple)]


@pytest.fixture(name="block")
def _block() -> torch.nn.Module:
    torch.manual_seed(0)
    return Block().eval()


def test_one_build_serves_all_lengths(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS)
    for batch, length in ((1, 1), (1, 7), (3, 20), (1, 130), (2, 3)):
        right(block, fast, torch.randint(0, 40, (batch, length)))
    report = fast.report()
    assert report.answered == 5
    assert len(report.classes) == 1
    assert report.classes[0].tier == 1


def test_changed_weights_are_packed_again(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS)
    ids = torch.randint(0, 40, (2, 9))
    right(block, fast, ids)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    block(ids).square().mean().backward()
    optimizer.step()
    right(block, fast, ids)
    with torch.no_grad():
        block.up.weight.mul_(2)  # type: ignore[operator, union-attr]
    right(block, fast, ids)
    assert fast.report().answered == 3


def test_an_index_out_of_range_is_eagers_error(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS)
    right(block, fast, torch.randint(0, 40, (2, 9)))
    with torch.no_grad(), pytest.raises(IndexError):
        fast(torch.tensor([[1, 40]]))
    right(block, fast, torch.randint(0, 40, (2, 9)))


def test_arguments_need_not_be_contiguous(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS)
    right(block, fast, torch.randint(0, 40, (9, 4)).t())
    right(block, fast, torch.randint(0, 40, (4, 18))[:, ::2])


def test_repeated_calls_have_the_same_bits_and_own_their_results(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS)
    ids = torch.randint(0, 40, (2, 50))
    with torch.no_grad():
        first = fast(ids)
        kept = first.clone()
        for _ in range(50):
            assert torch.equal(fast(ids), kept)
    assert torch.equal(first, kept)


def test_many_threads_call_one_model(block: torch.nn.Module) -> None:
    fast = hotfuse.compile(block, **OPTIONS, threads=2)
    inputs = [torch.randint(0, 40, (1, length)) for length in (3, 17, 40, 64)]
    with torch.no_grad():
        wanted = [fast(ids) for ids in inputs]
    wrong: list[str] = []
    before = psutil.Process().num_threads()
    most = 0

    def work(number: int) -> None:
        nonlocal most
        with torch.no_grad():
            for turn in range(40):
                place = (number + turn) % len(inputs)
                if not torch.equal(fast(inputs[place]), wanted[place]):
                    wrong.append(f"thread {number}, turn {turn}")
                most = max(most, psutil.Process().num_threads())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert most <= before + 8 + 8 * 1  # the callers, and one helper for each that ever led a team of two


def onnx_model(tmp_path: Path) -> Path:
    """ids -> rows of a table, a product, and Unique, which has no native code, in between."""
    table, weight = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((20, 8), (8, 6)))
    nodes = [
        oh.make_node("Gather", ["table", "ids"], ["rows"]),
        oh.make_node("MatMul", ["rows", "weight"], ["product"]),
        oh.make_node("Relu", ["product"], ["active"]),
        oh.make_node("TopK", ["active", "k"], ["best", "places"], axis=-1),
        oh.make_node("Exp", ["best"], ["out"]),
    ]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])],
        [oh.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 3])],
        [
            onnx.numpy_helper.from_array(table, "table"),
            onnx.numpy_helper.from_array(weight, "weight"),
            onnx.numpy_helper.from_array(np.array([3]), "k"),
        ],
    )
    path = tmp_path / "model.onnx"
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_sessions_mix_native_code_and_tier_0(tmp_path: Path) -> None:
    path = onnx_model(tmp_path)
    fast, slow = hotfuse.load(path, tier=1, wait=True, strict=True), hotfuse.load(path, tier=0)
    for length in (1, 5, 300):
        ids = np.random.default_rng(length).integers(-20, 20, length)
        np.testing.assert_allclose(fast.run(None, {"ids": ids})[0], slow.run(None, {"ids": ids})[0], rtol=2e-6)
    report = fast.report()
    assert report.events == {"native.made": 1}
    assert report.kernels
    assert all(k.reasons for k in report.kernels)
    assert any("vectors along axis" in reason for k in report.kernels for reason in k.reasons)
    assert report.kernels[0].reasons[0] in str(report)


def test_a_sessions_index_out_of_range_is_tier_0s_error(tmp_path: Path) -> None:
    path = onnx_model(tmp_path)
    fast = hotfuse.load(path, tier=1, wait=True)
    with pytest.raises(hotfuse.HotfuseError, match=r"Gather|gather"):
        fast.run(None, {"ids": np.array([1, 20])})
    assert fast.report().events["native.missed"] == 1
    assert fast.run(None, {"ids": np.array([1, 19])})[0].shape == (2, 3)


def test_a_closed_session_refuses(tmp_path: Path) -> None:
    fast = hotfuse.load(onnx_model(tmp_path), tier=1, wait=True)
    fast.close()
    with pytest.raises(hotfuse.errors.InputError, match="closed"):
        fast.run(None, {"ids": np.array([1])})


def test_an_input_that_is_a_result_too_does_not_go_the_short_way() -> None:
    graph = oh.make_graph(
        [oh.make_node("Floor", ["x"], ["y"])],
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in ("y", "x")],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)
    fast = hotfuse.load(model, tier=1, wait=True)
    x = np.array([1.5, -2.5], np.float32)
    for _ in range(3):
        y, same = fast.run(None, {"x": x})
        np.testing.assert_array_equal(y, [1, -3])
        np.testing.assert_array_equal(same, x)
        assert not np.shares_memory(same, x)


def test_numbers_between_operators_are_arrays_to_kernels() -> None:
    """ReduceMax over all axes is numpy's, and gives a scalar of numpy's where kernels take memory."""
    nodes = [oh.make_node("ReduceMax", ["x"], ["most"], axes=[0], keepdims=0), oh.make_node("Exp", ["most"], ["y"])]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)
    fast = hotfuse.load(model, tier=1, wait=True, strict=True)
    np.testing.assert_allclose(fast.run(None, {"x": np.array([0.5, 1], np.float32)})[0], np.exp(np.float32(1)), rtol=1e-6)
    for scalar in (np.float32(3), np.int64(7), np.zeros((3, 4)).T, np.zeros((4, 4))[::2]):
        array = NUMPY.contiguous(scalar)
        assert type(array) is np.ndarray
        assert NUMPY.address(array) == array.ctypes.data
        assert array.flags.c_contiguous


def test_many_tasks_are_handed_out_several_at_a_time() -> None:
    assert [tasks_at_once(tasks, 2) for tasks in (0, 1, 100, 128, 8192)] == [1, 1, 1, 1, 64]


@pytest.mark.parametrize(("with_conv", "beside", "threads"), [(False, BESIDE, 2), (True, BESIDE, 1), (True, 1000, 2)])
def test_no_team_beside_operators_with_threads_of_their_own(
    with_conv: bool, beside: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy's products wake their own library's threads, and a team that still spins would hold them up."""
    monkeypatch.setattr(native_binding, "BESIDE", beside)
    b = GraphBuilder()
    x = b.input("x", tensor(F32, 1, 3, 64, 3000))
    made = b.add("relu", b.add("exp", x))
    if with_conv:
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        made = b.add("relu", b.add("conv", made, b.input("w", tensor(F32, 3, 3, 3, 3)), **window))
    graph = b.build([made])
    config = hotfuse.Config(threads=2)
    executor = native_executor(graph, NUMPY, config)
    given = [np.zeros([int(str(d)) for d in graph.values[n].type.shape], np.float32) for n in graph.inputs]  # type: ignore[union-attr]
    executor.run(given)
    (bound,) = executor._bound.values()
    teams = {s.function._sizes.threads for s in bound.steps if isinstance(s.function, Segment)}
    assert teams == {threads}


@pytest.mark.parametrize(("columns", "team", "threads"), [(8, 0, 1), (8, ALL, 2), (40000, 0, 2), (40000, 1, 1)])
def test_a_plan_has_the_threads_that_it_was_measured_to_want(columns: int, team: int, threads: int) -> None:
    b = GraphBuilder()
    graph = b.build([b.add("exp", b.add("softmax", b.input("x", tensor(F32, 64, columns)), axis=-1))])
    config = hotfuse.Config(threads=2, cache="off")
    shop, places = Workshop(config), layouts(graph, graph.values)
    groups = [replace(group, team=team) for group in fuse(graph, graph.values, places)]
    build = build_groups(Hoisted(graph), graph, groups, shop.spec, config, shop)
    executor = build_executor(graph, build, shop.kernels, NUMPY, config)
    executor.run([np.zeros((64, columns), np.float32)])
    (bound,) = executor._bound.values()
    assert {s.function._sizes.threads for s in bound.steps if isinstance(s.function, Segment)} == {threads}


def test_how_threads_share_tasks() -> None:
    rows, panels, batch = (lambda shared: Axis("i", symbol("m"), shared)), Axis("j", symbol("n")), Axis("b", 3)
    for grid, wanted in (
        ((panels, rows(True)), (5, 1)),
        ((rows(True), panels), (20, 4)),
        ((batch, rows(True), panels), (20, 4)),
        ((panels, rows(False)), (0, 1)),
    ):
        assert _lanes(TileProgram("p", ("m", "n"), (), grid, ()), {"m": 5, "n": 4}) == wanted
    assert _lanes(TileProgram("p", ("m", "n"), (), (rows(True), panels), ()), {"m": 5, "n": 0}) == (0, 1)
