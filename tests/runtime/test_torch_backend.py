"""`torch.compile(backend="hotfuse")`: answers, gradients, dynamic shapes, and what happens when something fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hotfuse.cli import opinfo_suite
from hotfuse.errors import ConfigError, ExecutionError
from hotfuse.runtime import torch_backend
from hotfuse.runtime.torch_eager.table import EAGER
from hotfuse.runtime.weights import PreparedWeights

WAIT = {"wait": True, "strict": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch_backend.COMPILED.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Any, **kwargs: Any) -> Any:
    return torch.compile(function, backend="hotfuse", fullgraph=True, options=WAIT, **kwargs)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x)))).softmax(-1)


def test_inference_runs_through_our_plan() -> None:
    model, x = Block().eval(), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))
    (program,) = torch_backend.COMPILED
    assert not program.opaque
    assert program.operators >= 6


def test_gradients_are_eagers() -> None:
    mine, theirs, x = Block(), Block(), torch.randn(4, 8)
    compiled(mine)(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert [p.graph.name for p in torch_backend.COMPILED] == ["forward", "backward"]


def test_a_training_step_changes_what_the_next_call_sees() -> None:
    model, x = Block(), torch.randn(4, 8)
    fast, optimizer = compiled(model), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        loss = fast(x).square().sum()
        torch.testing.assert_close(loss, model(x).square().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_dropout_draws_eagers_numbers() -> None:
    drop, x = nn.Dropout(0.4), torch.ones(5, 6, requires_grad=True)
    torch.manual_seed(3)
    expected = drop(x) + torch.rand(6)
    torch.manual_seed(3)
    assert torch.equal(compiled(lambda t: drop(t) + torch.rand(6))(x), expected)


def test_one_graph_serves_marked_sizes() -> None:
    model, x = Block().eval(), torch.randn(3, 5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    fast = compiled(model)
    with torch.no_grad():
        for shape in ((3, 5), (7, 2), (4, 9)):
            given = x if shape == (3, 5) else torch.randn(*shape, 8)
            torch.testing.assert_close(fast(given), model(given))
    assert len(torch_backend.COMPILED) == 1


def test_integers_that_vary_become_sizes() -> None:
    fast = compiled(lambda x, n: x[:n].repeat(2, 1) * n, dynamic=True)
    x = torch.randn(12, 2)
    for n in (3, 5, 9):
        torch.testing.assert_close(fast(x, n), x[:n].repeat(2, 1) * n)
    assert len(torch_backend.COMPILED) == 1


def test_gradients_with_dynamic_sizes() -> None:
    model = Block()
    fast = compiled(model, dynamic=True)
    for batch in (3, 6):
        x = torch.randn(batch, 8)
        a = torch.autograd.grad(fast(x).square().sum(), model.parameters())
        b = torch.autograd.grad(model(x).square().sum(), model.parameters())
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert len(torch_backend.COMPILED) == 2


def test_mutation_views_and_layout_are_eagers() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return x.view(-1), y.T, y.permute(1, 0).contiguous(), (y * 2).T

    x1, y1 = torch.randn(3, 4), torch.randn(3, 4)
    x2, y2 = x1.clone(), y1.clone()
    ours, theirs = compiled(function)(x1, y1), function(x2, y2)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    assert torch.equal(x1, x2)
    assert ours[0].data_ptr() == x1.data_ptr()
    assert ours[1].data_ptr() == y1.data_ptr()


def test_results_never_are_a_plans_constants() -> None:
    fast = compiled(lambda x: (x + 1, torch.arange(3), torch.full((2,), 7.0)))
    first = fast(torch.zeros(1))
    first[1].add_(5)
    first[2].add_(5)
    assert fast(torch.zeros(1))[1].tolist() == [0, 1, 2]
    assert fast(torch.zeros(1))[2].tolist() == [7.0, 7.0]


def test_without_waiting_the_traced_graph_answers_at_once() -> None:
    model, x = Block(), torch.randn(4, 8)
    graph = torch.fx.symbolic_trace(model)
    started = time.perf_counter()
    answer = torch_backend.hotfuse(graph, [x])
    assert time.perf_counter() - started < 0.01
    answer(x).sum().backward()
    assert model.up.weight.grad is not None
    assert not torch_backend.COMPILED
    torch.testing.assert_close(torch.compile(model, backend="hotfuse")(x), model(x))


def test_the_environment_sets_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_WAIT", "1")
    with torch.no_grad():
        torch.compile(Block(), backend="hotfuse")(torch.randn(4, 8))
    assert len(torch_backend.COMPILED) == 1


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


def test_a_failure_leaves_eager_and_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "import_program", broken)
    model, x = Block(), torch.randn(4, 8)
    before = torch_backend.EVENTS.counts["backend.failed"]
    found = torch.compile(model, backend="hotfuse", options={"wait": True})(x)
    torch.testing.assert_close(found, model(x))
    found.sum().backward()
    assert model.up.weight.grad is not None
    assert torch_backend.EVENTS.counts["backend.failed"] > before
    assert "planted" in torch_backend.EVENTS.of("backend.failed")[-1].reason


def test_a_plan_that_fails_while_running_leaves_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EAGER, "tanh", lambda node, values: broken)
    fast, x = torch.compile(torch.tanh, backend="hotfuse", options={"wait": True}), torch.randn(3)
    assert torch.equal(fast(x), torch.tanh(x))
    assert "planted" in torch_backend.EVENTS.of("backend.failed")[-1].reason
    with pytest.raises(ExecutionError, match="tanh failed: RuntimeError: planted"):
        compiled(lambda t: torch.tanh(t))(x)


def test_a_plan_that_fails_leaves_the_random_numbers_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EAGER, "tanh", lambda node, values: broken)
    torch.manual_seed(5)
    expected = torch.tanh(torch.rand(3)), torch.rand(1)
    torch.manual_seed(5)
    fast = torch.compile(lambda: torch.tanh(torch.rand(3)), backend="hotfuse", options={"wait": True})
    found = fast(), torch.rand(1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert "planted" in torch_backend.EVENTS.of("backend.failed")[-1].reason


def test_assertions_about_values_raise() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "only positive numbers")
        return x * 2

    assert torch.equal(compiled(positive)(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="only positive numbers"):
        compiled(positive)(-torch.ones(3))
    with pytest.raises(RuntimeError, match="only positive numbers"):
        torch.compile(positive, backend="hotfuse", options={"wait": True})(-torch.ones(3))


def test_the_users_own_mistakes_raise_torchs_own_errors() -> None:
    fast = torch.compile(lambda x, i: x[i], backend="hotfuse", options={"wait": True})
    with pytest.raises(IndexError):
        fast(torch.zeros(3), torch.tensor([7]))


def test_disabling_leaves_the_traced_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_DISABLE", "1")
    compiled(torch.tanh)(torch.zeros(2))
    assert not torch_backend.COMPILED


def test_strict_raises_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "import_program", broken)
    with pytest.raises(Exception, match="planted"), torch.no_grad():
        compiled(Block())(torch.randn(4, 8))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="no option 'wat'"):
        torch_backend.hotfuse(torch.fx.symbolic_trace(Block()), [], {"wat": 1})


def test_effects_stay_in_order() -> None:
    matrix = torch.eye(3) * 4
    torch.testing.assert_close(compiled(torch.linalg.cholesky)(matrix), torch.eye(3) * 2)
    with pytest.raises(Exception, match="positive-definite"):
        compiled(torch.linalg.cholesky)(-matrix)


OPERATORS = (
    r"^(add|softmax\.with_dtype|nn\.functional\.(conv2d|layer_norm|scaled_dot_product_attention)"
    r"|cumsum|scatter_add|uniform|sort)$"
)


def test_a_part_of_torchs_own_operator_tests() -> None:
    outcomes = opinfo_suite.run_opinfo(OPERATORS)
    assert {o.name for o in outcomes} >= {"add", "nn.functional.conv2d", "sort"}
    assert [o.name for o in outcomes if not (o.passed and o.reached and o.ran) or o.noted] == []


def test_gradients_of_a_part_of_them() -> None:
    outcomes = opinfo_suite.run_opinfo(
        r"^(mul|nn\.functional\.(linear|gelu|max_pool2d|layer_norm)|index_select)$", gradients=True
    )
    assert len(outcomes) == 6
    assert [(o.name, o.reason) for o in outcomes if not o.passed] == []


def test_the_suite_notices_wrong_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EAGER, "tanh", lambda node, values: lambda x: torch.tanh(x) * 1.001)
    monkeypatch.setitem(EAGER, "flip", lambda node, values: lambda x: x.clone())
    outcomes = opinfo_suite.run_opinfo(r"^(tanh|flip)$")
    assert [o.status for o in outcomes] == ["wrong", "wrong"]


def test_the_suite_tells_reaching_the_compiler_from_running_a_plan() -> None:
    found = {o.name: (o.passed, o.reached, o.ran) for o in opinfo_suite.run_opinfo(r"^(T|equal|mul)$")}
    assert found == {"T": (True, True, False), "equal": (True, False, False), "mul": (True, True, True)}


def test_the_judge_takes_the_strictest_rule_that_applies() -> None:
    exact = torch.linspace(1, 2, 9, dtype=torch.float64)
    eager = exact.float()
    two_ulp = eager + 2 * torch.finfo(torch.float32).eps
    worse = (exact * (1 + 9e-5)).float()

    def judge(ours: torch.Tensor, theirs: torch.Tensor = eager, **kind: Any) -> str | None:
        return opinfo_suite.judge([theirs], [ours], lambda: [exact], **kind)

    assert judge(eager.clone()) is None
    assert judge(two_ulp) is None
    assert judge(two_ulp, elementwise=2) is None
    assert "units in the last place" in str(judge(two_ulp, elementwise=1))
    assert "elements differ" in str(judge(two_ulp, given=eager.double().numpy()))
    assert "error" in str(judge(worse))
    assert "elements differ" in str(judge(torch.tensor([1, 3]), torch.tensor([1, 2])))
    assert "type float64" in str(judge(exact))
    assert "requires_grad=True" in str(judge(eager.clone().requires_grad_()))
    assert "elements differ" in str(opinfo_suite.judge([eager], [two_ulp], lambda: None))


def test_options_of_inductor_are_refused_by_name() -> None:
    with pytest.raises(Exception, match=r"ConfigError: mode is Inductor's; pass options=\{\.\.\.\}"):
        torch.compile(nn.Linear(3, 3), backend="hotfuse", mode="max-autotune")(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="mode is Inductor's"):
        torch_backend.hotfuse(torch.fx.symbolic_trace(nn.ReLU()), [], mode="max-autotune")


def test_weights_of_a_traced_graph_are_packed_once_and_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = PreparedWeights._make
    monkeypatch.setattr(PreparedWeights, "_make", lambda self, *args: made.append(self) or original(self, *args))
    model = Block().eval()
    options = {**WAIT, "tier": 1, "audit_every": 4}
    fast = torch.compile(model, backend="hotfuse", fullgraph=True, dynamic=True, options=options)
    with torch.no_grad():
        for n in (4, 5, 4, 6):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), model(x))
        assert len(made) == 1
        model.up.weight.mul_(-2.0)
        torch.testing.assert_close(fast(x), model(x))
        assert len(made) == 2
        model.down.weight.detach().numpy()[0] += 1.0
        for _ in range(3):
            fast(x)
        torch.testing.assert_close(fast(x), model(x))
        model.up.weight = nn.Parameter(torch.randn(32, 8))
        torch.testing.assert_close(fast(x), model(x))
    assert all(event.data["kernels"] for event in torch_backend.EVENTS.of("backend.compiled")[-1:])
