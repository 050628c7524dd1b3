"""Exported programs answer what the export allows, refuse what it excluded, and keep the model's own assertions."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import CaptureError, ExecutionError, InputError
from hotfuse.frontends.torch_guard_text import is_guard, read_guard
from hotfuse.ir.dim import evaluate, symbol
from hotfuse.runtime.torch_exported import ExportedModel, compile_exported

AUTO = Dim.AUTO
HALF = Dim("half", min=2)


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0, mode: str = "add") -> torch.Tensor:
        return x * scale + y if mode == "add" else x


class Windows(torch.nn.Module):
    """Reading it must not rely on sizes below 4, odd ones, or 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2)[:2] if x.shape[0] >= 4 and x.shape[0] != 8 and x.shape[0] % 2 == 0 else x


class Pairs(torch.nn.Module):
    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor], n: int) -> torch.Tensor:
        return x[: x.shape[0] // 2] + pair["left"] * n


def saved(program: Any) -> Any:
    """The program after a round trip through a file."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def rows() -> Any:
    shapes = {"x": {0: Dim("n", min=3, max=9)}, "y": {0: AUTO}, "scale": None, "mode": None}
    return torch.export.export(Rows(), (torch.randn(4, 2), torch.randn(4, 2), 2.0, "add"), dynamic_shapes=shapes)


@pytest.fixture(scope="module", params=["traced", "saved"])
def model(request: pytest.FixtureRequest) -> ExportedModel:
    return compile_exported(saved(rows()) if request.param == "saved" else rows(), Config(strict=True))


def two(n: int, **kind: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(n, 2, **kind), torch.ones(n, 2, **kind)


@pytest.mark.parametrize("n", [3, 4, 9])
def test_sizes_inside_the_range_are_served(model: ExportedModel, n: int) -> None:
    assert torch.equal(model(*two(n), 2.0, "add"), torch.full((n, 2), 3.0))


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((*two(2), 2.0, "add"), r"=2 is outside 3 <= s\d+ <= 9; the program was exported for x\[s\d+, 2\]"),
        ((*two(10), 2.0, "add"), r"=10 is outside 3 <= s\d+ <= 9"),
        ((torch.ones(4, 2), torch.ones(5, 2), 2.0, "add"), "is both 4 and 5"),
        ((torch.ones(4, 3), torch.ones(4, 3), 2.0, "add"), "tensor 0 has size 3 at axis 1, not 2"),
        ((torch.ones(4), torch.ones(4, 2), 2.0, "add"), "tensor 0 has rank 1, not 2"),
        ((*two(4, dtype=torch.float64), 2.0, "add"), "'x' must have elements of type torch.float32, not torch.float64"),
        ((*two(4, device="meta"), 2.0, "add"), "'x' must be on cpu, not meta"),
        ((torch.eye(4, 2).to_sparse(), torch.ones(4, 2), 2.0, "add"), "'x' must be a dense tensor"),
        ((3.0, torch.ones(4, 2), 2.0, "add"), "'x' must be a dense tensor of type torch.float32, not float"),
        ((*two(4), 3.0, "add"), "'scale' was exported with the value 2.0 and cannot be 3.0"),
        ((*two(4), 2, "add"), "'scale' was exported with the value 2.0 and cannot be 2"),
        ((*two(4), 2.0, "other"), "'mode' was exported with the value 'add' and cannot be 'other'"),
        (two(4), "structure"),
    ],
)
def test_what_the_export_excluded_is_refused(model: ExportedModel, args: tuple[Any, ...], what: str) -> None:
    with pytest.raises(InputError, match=what):
        model(*args)


def test_feeds_are_refused_alike(model: ExportedModel) -> None:
    x = torch.ones(4, 2).numpy()
    assert model.run(None, {"x": x, "y": x})[0].tolist() == [[3.0, 3.0]] * 4
    with pytest.raises(InputError, match="is outside 3 <="):
        model.run(None, {"x": x[:1], "y": x[:1]})
    with pytest.raises(InputError, match="input 'y' is missing"):
        model.run(None, {"x": x})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (None, "feeds must be a dict"),
        ({"z": 1}, "no input 'z'; its inputs are"),
        ({"x": [[1.0], [2.0, 3.0]]}, "input 'x' cannot be read as an array"),
        ({"x": np.full((4, 2), "text")}, "input 'x' must be torch.float32"),
        ({"x": torch.ones(4, 2, device="meta")}, "'x' must be on cpu, not meta"),
        ({"x": np.ones((4, 2))}, "'x' must have elements of type torch.float32"),
        ({"scale": 3.0}, "'scale' was exported with the value 2.0"),
    ],
)
def test_feeds_that_cannot_be_read(model: ExportedModel, changes: dict[str, Any] | None, says: str) -> None:
    x = np.ones((4, 2), np.float32)
    with pytest.raises(InputError, match=says):
        model.run(None, None if changes is None else {"x": x, "y": x, **changes})


def test_feeds_of_any_layout(model: ExportedModel) -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    for fed in (
        x[::-1][::-1],
        x.astype(">f4"),
        np.asfortranarray(x),
        torch.from_numpy(x).requires_grad_(),
        x.tolist() and list(x),
    ):
        (found,) = model.run(None, {"x": fed, "y": x})
        np.testing.assert_array_equal(found, x * 3)


def test_out_is_written_and_returned(model: ExportedModel) -> None:
    x = np.ones((4, 2), np.float32)
    out = np.zeros((2, 4), np.float32).T
    assert model.run(None, {"x": x, "y": x}, out=[out])[0] is out
    assert (out == 3).all()
    with pytest.raises(InputError, match="output 'output 0' is"):
        model.run(None, {"x": x, "y": x}, out=[np.zeros(4, np.float32)])


def test_results_of_run_are_the_callers_own() -> None:
    class View(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.t(), x

    model = compile_exported(torch.export.export(View(), (torch.ones(3, 2),)), Config(strict=True))
    x = np.ones((3, 2), np.float32)
    for result in model.run(None, {"x": x}):
        result[...] = 7
    assert (x == 1).all()


def test_numbers_are_fed_as_numbers() -> None:
    shapes = {"x": None, "pair": {"left": None}, "n": Dim.DYNAMIC}
    program = torch.export.export(Pairs(), (torch.randn(6), {"left": torch.randn(3)}, 5), dynamic_shapes=shapes)
    model = compile_exported(program, Config(strict=True))
    tensors = {s.name: np.ones(s.shape, np.float32) for s in model.inputs if s.shape}
    number = next(s.name for s in model.inputs if s.name not in tensors)
    assert model.run(None, {**tensors, number: np.array(7)})[0].tolist() == [8.0] * 3
    with pytest.raises(InputError, match=r"must be a number of type int, not 7\.5"):
        model.run(None, {**tensors, number: 7.5})
    with pytest.raises(InputError, match="must be one number, not an array of shape"):
        model.run(None, {**tensors, number: [1, 2]})


def test_what_sessions_offer_exported_programs_offer() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    model = compile_exported(program, Config(strict=True))
    x = torch.randn(4, 3)
    assert model.report().why == "it was not called yet"
    with torch.no_grad():
        expected = model(x)
        assert (model.report().calls, model.report().bound_shapes, model.report().captured_share) == (1, 1, 1.0)
        assert "no fused kernel" in model.report().why
        assert "matmul" in model.explain()
        assert model.settle()
        model.refresh()
        assert model.report().bound_shapes == 0
        assert torch.equal(model(x), expected)
        model.close()
        torch.testing.assert_close(model(x), expected)
    assert (model.report().bound_shapes, model.report().why) == (0, "it was closed")
    original = compile_exported(program, Config(tier=0))
    torch.testing.assert_close(original(x), program.module()(x))
    np.testing.assert_allclose(original.run(None, {original.inputs[0].name: x})[0], expected, rtol=1e-5)
    assert original.report().bound_shapes == 0


@pytest.mark.parametrize("reread", [False, True])
def test_conditions_that_tracing_relied_on_are_checked(reread: bool) -> None:
    program = torch.export.export(Windows(), (torch.randn(6),), dynamic_shapes=({0: AUTO},))
    model = compile_exported(saved(program) if reread else program, Config(strict=True))
    for n in (4, 10):
        x = torch.arange(float(n))
        assert torch.equal(model(x), x.reshape(-1, 2)[:2])
    for n in (2, 5, 8):
        with pytest.raises(InputError, match="the program was exported for"):
            model(torch.arange(float(n)))


@pytest.mark.parametrize("reread", [False, True])
def test_derived_sizes_and_numbers_are_checked(reread: bool) -> None:
    shapes = {"x": {0: 2 * HALF}, "pair": {"left": {0: HALF}}, "n": Dim.DYNAMIC}
    program = torch.export.export(Pairs(), (torch.randn(6), {"left": torch.randn(3)}, 5), dynamic_shapes=shapes)
    model = compile_exported(saved(program) if reread else program, Config(strict=True))
    x, left = torch.arange(8.0), torch.arange(4.0)
    assert torch.equal(model(x, {"left": left}, 7), x[:4] + left * 7)
    for args, what in {
        (9, 4, 7): "tensor 0 has size 9 at axis 0, not 2",
        (2, 1, 7): "=1 is outside 2 <=",
        (8, 3, 7): "tensor 0 has size 8",
        (8, 4, 7.0): "'n' must be a number of type int, not 7.0",
    }.items():
        with pytest.raises(InputError, match=what):
            model(torch.ones(args[0]), {"left": torch.ones(args[1])}, args[2])


def test_sizes_of_one_and_none_are_served_where_they_were_declared() -> None:
    layer = torch.nn.Linear(3, 2).requires_grad_(False)
    program = torch.export.export(layer, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n")},))
    model = compile_exported(program, Config(strict=True))
    for n in (0, 1, 5):
        x = torch.randn(n, 3)
        assert torch.equal(model(x), program.module()(x))
    (bounds,) = next(
        d.node.shape_env for d in program.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[:1]
    ).var_to_range.values()
    assert bounds.lower == 2  # the user's program is as it was


def test_a_guard_that_cannot_be_checked_refuses_the_program() -> None:
    program = saved(rows())
    program._guards_code.append("L['x'].stride()[0] == 1")
    with pytest.raises(CaptureError, match="cannot be checked"):
        compile_exported(program, Config())
    program._guards_code[-1] = "L['other'].size()[0] == 1"
    with pytest.raises(CaptureError, match="cannot be told"):
        compile_exported(program, Config())


def test_guards_are_read_and_never_run() -> None:
    found = read_guard("max(L['x'].size()[1], 3) // 2 - L['n'] % 4 >= -1", lambda path, axis: symbol(f"{path[0]}{axis}"))
    assert evaluate(found.left, {"x1": 8, "nNone": 7}) == 8 // 2 - 7 % 4
    assert (found.compare, found.right) == (">=", -1)
    for text in (
        "print(1)",
        "L['x'].size()[0]",
        "a == 1",
        "__import__('os') == 1",
        "L['x\"'].size()[0] == 1",
        "1 <",
        "1 == 2.5",
    ):
        assert not is_guard(text)


class Asserting(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "must be positive")
        count = n.item()
        torch._check(count >= 2)
        torch._check(count <= 5)
        return x * 2


@pytest.mark.parametrize("reread", [False, True])
def test_assertions_about_values_still_raise(reread: bool) -> None:
    program = torch.export.export(Asserting(), (torch.ones(3), torch.tensor(3)))
    model = compile_exported(saved(program) if reread else program, Config(strict=True))
    assert torch.equal(model(torch.ones(3), torch.tensor(5)), torch.full((3,), 2.0))
    assert not model.opaque
    for x, n in ((-torch.ones(3), 3), (torch.ones(3), 1), (torch.ones(3), 6)):
        with pytest.raises(RuntimeError):
            program.module()(x, torch.tensor(n))
        with pytest.raises(RuntimeError, match=r"must be positive|Runtime assertion failed"):
            model(x, torch.tensor(n))


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.head(self.rows(ids)))


def native(**options: Any) -> tuple[ExportedModel, torch.nn.Module]:
    torch.manual_seed(0)
    module = Classifier().eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    program = torch.export.export(module, (ids,), dynamic_shapes={"ids": {0: AUTO, 1: AUTO}})
    return compile_exported(program, Config(tier=1, wait=True, strict=True, **options)), module


def test_exported_programs_run_generated_kernels_of_any_length() -> None:
    model, module = native()
    with torch.no_grad():
        for shape in ((2, 3), (2, 3), (4, 7), (2, 3)):
            ids = torch.randint(0, 9, shape)
            torch.testing.assert_close(model(ids), module(ids))
    assert model.events.of("native.made")
    assert not model.events.of("native.missed")
    assert "generated kernels" in model.report().why
    model.refresh()
    with torch.no_grad():
        torch.testing.assert_close(model(ids), module(ids))


def test_weights_packed_for_an_exported_program_are_watched() -> None:
    model, module = native(audit_every=4)
    ids = torch.randint(0, 9, (2, 3))
    weight, live = model._weights["head.weight"], module.head.weight
    with torch.no_grad():
        model(ids)
        for tensor in {id(weight): weight, id(live): live}.values():
            tensor.mul_(-2.0)
        torch.testing.assert_close(model(ids), module(ids))
        for tensor in {weight.data_ptr(): weight, live.data_ptr(): live}.values():
            tensor.detach().numpy()[0, 0] += 3.0
        for _ in range(3):
            model(ids)
        torch.testing.assert_close(model(ids), module(ids))


def test_what_native_code_cannot_answer_is_tier_0s() -> None:
    model, module = native()
    with torch.no_grad():
        model(torch.zeros(2, 3, dtype=torch.int64))
        with pytest.raises((ExecutionError, IndexError)):
            model(torch.full((2, 3), 9))
    assert model.events.of("native.missed")
    model.close()
    with torch.no_grad():
        ids = torch.randint(0, 9, (2, 3))
        torch.testing.assert_close(model(ids), module(ids))
    assert model._runner is None


def test_weights_that_got_another_form_are_not_read_as_they_were() -> None:
    """What native code prepared from them is for 96 rows; with 48 the original answers."""
    layer = torch.nn.Linear(64, 96, bias=False).requires_grad_(False)
    program = torch.export.export(layer, (torch.randn(4, 64),))
    x = torch.randn(4, 64)
    model = compile_exported(program, Config(tier=1, wait=True, cache="off"))
    torch.testing.assert_close(model(x), layer(x))
    layer.weight.data = torch.randn(48, 64)
    torch.testing.assert_close(model(x), layer(x))


def test_by_default_programs_come_to_be_answered_by_kernels() -> None:
    torch.manual_seed(0)
    module = Classifier().eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    program = torch.export.export(module, (ids,), dynamic_shapes={"ids": {0: AUTO, 1: AUTO}})
    model = hotfuse.compile(program, cache="off", stress="always-top")
    with torch.no_grad():
        torch.testing.assert_close(model(ids), module(ids))
        assert not model.events.of("tier.publish")  # the program's own module answered
        deadline = time.monotonic() + 60
        while not model.events.of("tier.publish"):
            assert time.monotonic() < deadline, str(model.report())
            torch.testing.assert_close(model(ids), module(ids))
            model.settle(1.0)
        for shape in ((2, 3), (4, 7), (2, 3)):
            ids = torch.randint(0, 9, shape)
            torch.testing.assert_close(model(ids), module(ids))
            (found,) = model.run(None, {"ids": ids.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), module(ids))
        with pytest.raises(IndexError):
            model(torch.full((2, 3), 9))
        with pytest.raises(InputError, match="must have elements of type"):
            model(ids.float())
        report = model.report()
        assert "generated kernels" in report.why
        assert report.subgraphs
        assert report.calls == model._calls
        module.head.weight.mul_(-2.0)  # which is the program's own, or a copy
        model._weights["head.weight"].copy_(module.head.weight)
        torch.testing.assert_close(model(ids), module(ids))
    model.close()
    torch.testing.assert_close(model(ids), module(ids))
    assert model.report().why == "it was closed"


def test_gradients_of_an_adapted_program_are_torchs() -> None:
    module = Classifier()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    program = torch.export.export(module, (ids,))
    model = hotfuse.compile(program, cache="off", stress="always-top")
    model(ids).sum().backward()
    assert program.state_dict["head.weight"].grad is not None


def test_a_report_says_that_gradients_keep_a_program_as_it_is() -> None:
    module = Classifier()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    model = hotfuse.compile(torch.export.export(module, (ids,)), cache="off")
    model(ids)
    assert "gradients" in model.report().why


def test_many_threads_call_an_adapted_program() -> None:
    module = Classifier().eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    model = hotfuse.compile(torch.export.export(module, (ids,)), cache="off", stress="always-top")
    failures: list[Exception] = []

    def work(seed: int) -> None:
        given = torch.randint(0, 9, (2, 3), generator=torch.Generator().manual_seed(seed))
        try:
            with torch.no_grad():
                while not model.events.of("tier.publish") and time.monotonic() < deadline:
                    torch.testing.assert_close(model(given), module(given))
        except Exception as error:
            failures.append(error)

    deadline = time.monotonic() + 60
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert model.events.of("tier.publish")
