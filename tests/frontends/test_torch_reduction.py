"""Modules that torch would not pickle, or would bring back as others: parametrized ones, graphs, classes sent by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, parametrize

import hotfuse
from hotfuse.frontends.torch_skeleton import load_skeleton, make_skeleton
from hotfuse.runtime.torch_module import controls

X = torch.randn(2, 4)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return hotfuse.compile(model, **{"wait": True, "capture": "blocking", **options})


def rebuilt(content: Any) -> Any:
    return load_skeleton(make_skeleton(content)[0])


class Doubling(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def _doubled(module: torch.nn.Module) -> torch.nn.Module:
    parametrize.register_parametrization(module, "weight", Doubling())
    return parametrize.register_parametrization(module, "bias", Doubling())


PARAMETRIZED: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": _doubled,
}


@pytest.mark.parametrize("make", PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_parametrized_modules_equal_eager_while_their_originals_change(make: Callable[..., torch.nn.Module]) -> None:
    model = torch.nn.Sequential(make(torch.nn.Linear(4, 4)), torch.nn.ReLU()).eval()
    fast = compiled(model)
    torch.testing.assert_close(fast(X), model(X))
    before = model(X)
    for parameter in model.parameters():
        parameter.mul_(1.5).add_(0.1)
    assert not torch.allclose(model(X), before)
    torch.testing.assert_close(fast(X), model(X))
    model.load_state_dict({name: tensor * 0.7 for name, tensor in model.state_dict().items()})
    torch.testing.assert_close(fast(X), model(X))
    model[0].weight = torch.eye(4)  # through the parametrization's inverse
    torch.testing.assert_close(fast(X), model(X))
    assert fast.report().answered == 4, fast.report()


def test_a_parametrized_module_keeps_its_ties_and_its_class() -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    parametrizations.weight_norm(first)
    second.bias = first.parametrizations.weight.original1  # type: ignore[union-attr, assignment]
    one, other, again = rebuilt([first, second, first])
    assert one is again
    assert isinstance(one, torch.nn.Linear)
    assert parametrize.is_parametrized(one, "weight")
    assert one.parametrizations.weight.original1 is other.bias
    torch.testing.assert_close(one(X), first(X))
    assert type(one) is not type(first)


def test_a_parametrization_that_goes_away_is_noticed() -> None:
    model = torch.nn.Sequential(_doubled(torch.nn.Linear(4, 4))).eval()
    fast = compiled(model)
    torch.testing.assert_close(fast(X), model(X))
    parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=False)
    for _ in range(2):
        torch.testing.assert_close(fast(X), model(X))


def test_while_parametrizations_are_cached_the_module_answers() -> None:
    model = torch.nn.Sequential(_doubled(torch.nn.Linear(4, 4))).eval()
    fast = compiled(model)
    fast(X)
    with parametrize.cached():
        expected = model(X)
        model[0].parametrizations.weight.original.mul_(3)  # eager keeps to what it cached
        assert torch.equal(fast(X), expected)
    torch.testing.assert_close(fast(X), model(X))


# graphs


def test_constants_of_a_graph_are_weights_that_may_change() -> None:
    kept = torch.randn(4, 4)
    graph = make_fx(lambda x: (x @ kept) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + kept.sum())(X)
    fast = compiled(graph, capture="background")
    torch.testing.assert_close(fast(X), graph(X))
    for name, constant in graph.named_buffers():
        assert name.startswith("_tensor_constant")
        before = graph(X)
        constant.mul_(2)
        assert not torch.allclose(before, graph(X))
        torch.testing.assert_close(fast(X), graph(X))
    assert fast.report().answered == 3, fast.report()


def test_a_graph_travels_as_the_code_that_runs() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    code = type(graph).forward
    node = next(n for n in graph.graph.nodes if n.op == "output")
    node.args = (node.args[0].args[0],)  # edited, not recompiled: the rectifier still runs
    torch.testing.assert_close(rebuilt(graph)(X), graph(X))
    assert type(graph).forward is code
    fast = compiled(graph)
    torch.testing.assert_close(fast(X), graph(X))
    graph.recompile()
    assert (graph(X) < 0).any()
    torch.testing.assert_close(fast(X), graph(X))


# classes by value

SCALE = 2.0


def test_a_blocking_capture_leaves_classes_alone_that_nobody_can_import() -> None:
    scale = [2.0]

    class Local(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale[0] * SCALE

    model, forward = Local(), Local.forward
    fast = compiled(model)
    torch.testing.assert_close(fast(X), X * 4)
    torch.testing.assert_close(fast(X), X * 4)
    assert Local.forward is forward
    assert controls(fast).root.answered == 2
    scale[0] = 3.0
    assert torch.equal(model(X), X * 6)
    torch.testing.assert_close(fast(X), X * 6)


def wrapped(inner: torch.nn.Module, example: torch.Tensor, anew: bool = False) -> torch.nn.Module:
    """A module of a class that only this function knows; making one refers to a tensor."""

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.rank = example.dim()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (type(self)() if anew else self).inner(x) * self.rank

    return Wrapper().eval()


@pytest.mark.parametrize("capture", ["blocking", "background"])
def test_what_the_making_of_a_module_refers_to_is_no_part_of_its_answers(capture: str) -> None:
    model = wrapped(torch.nn.Linear(4, 4), X)
    fast = compiled(model, capture=capture, strict=True)
    torch.testing.assert_close(fast(X), model(X))
    assert controls(fast).root.answered == 1


def test_a_forward_pass_that_makes_modules_stays_eager() -> None:
    model = wrapped(torch.nn.Linear(4, 4), X, anew=True)
    fast = compiled(model)
    torch.testing.assert_close(fast(X), model(X))
    (why,) = controls(fast).root.failed.values()
    assert "forward makes a new Wrapper" in why
    assert type(model)().rank == 2  # the class itself is as it was
