"""A graph that Dynamo traced, adapted while it serves.

    call -> its weights are known -> the module of the graph and these weights, which is served as any compiled module is
         -> gradients are wanted, or weights are others in every call: the graph itself

Dynamo hands parameters and buffers over with every call, and one graph may answer for several models. Each set of them becomes
the weights of a module of its own, so that they can be packed and watched. They are held by aliases: the tensors of a model
that nobody holds any more go, and the module goes with them. A graph whose sets of weights go as they come gets a module for
fewer and fewer of them.

Where sizes may vary, Dynamo hands over numbers as well: sizes, which follow from the tensors beside them, and floating-point
numbers as tensors of one element that the graph takes them out of again. These become plain numbers, whose values a capture
may rest on.

State: the sets of weights there are modules for, bounded, how many of them have gone, and when the last came.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.metrics import watch
from hotfuse.runtime.torch_module import Controls

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Adapt

SETS = 64  # of weights that one graph has modules for at a time: a model whose layers are compiled one by one has some dozens
LONGEST = 10  # doublings of the calls between two modules, where those before have gone
GRAD_MODES = ("_set_grad_enabled", "set_grad_enabled")


@dataclass(frozen=True)
class GivenSize:
    """A number among a graph's arguments that is the size of one of its tensors, at an axis."""

    tensor: int
    axis: int


class TracedGraph(torch.nn.Module):  # type: ignore[misc]
    """A graph with some of its arguments as its own weights. It is called with the others; sizes follow from them."""

    def __init__(self, graph: fx.GraphModule, weights: Mapping[int, torch.Tensor], sizes: Mapping[int, GivenSize]) -> None:
        super().__init__()
        self.graph = graph
        self.training = graph.training
        for place, tensor in weights.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(_weight(place), torch.nn.Parameter(tensor.detach(), requires_grad=False))
            else:
                self.register_buffer(_weight(place), tensor.detach(), persistent=False)
        count = len(_placeholders(graph))
        given = [place for place in range(count) if place not in weights and place not in sizes]
        numbers = {place: number for number, place in enumerate(given)}
        # where each argument comes from: a weight, an argument of the call, or a size of one
        self._sources = tuple(
            _weight(place)
            if place in weights
            else (numbers[sizes[place].tensor], sizes[place].axis)
            if place in sizes
            else numbers[place]
            for place in range(count)
        )

    def forward(self, *given: Any) -> Any:
        return self.graph.forward(*[self._argument(source, given) for source in self._sources])

    def _argument(self, source: str | int | tuple[int, int], given: tuple[Any, ...]) -> Any:
        if isinstance(source, str):
            return getattr(self, source)
        return given[source] if isinstance(source, int) else given[source[0]].shape[source[1]]


@dataclass
class _Bound:
    """One set of weights: the module that has them, where they lay when it was made, and references that tell when one goes."""

    served: Controls
    pointers: list[int]
    alive: list[weakref.ref[torch.Tensor]]


class GraphServing:
    """Answers as a traced graph does. Called with the values of its placeholders."""

    def __init__(self, graph: fx.GraphModule, name: str, config: Config, events: EventLog, adapt: Adapt) -> None:
        """`events` hears of the graph; each of its modules has a log of its own."""
        self._graph, self._name, self._config, self._events, self._adapt = graph, name, config, events, adapt
        placeholders = _placeholders(graph)
        self._numbers = {place for place, node in enumerate(placeholders) if _is_wrapped_number(node)}
        self._plain = _with_numbers(graph, self._numbers) if self._numbers else graph
        self._weights = [place for place, node in enumerate(placeholders) if _is_fixed(node)]
        self._sizes = _given_sizes(placeholders, self._weights)
        taken = {*self._weights, *self._sizes}
        self._given = [place for place in range(len(placeholders)) if place not in taken]
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._made = self._calls = self._last = 0  # modules, calls, and calls when the last module was made
        self._wants_gradients = any(map(_enables_gradients, graph.graph.nodes))
        self._refused = ""
        self._lock = make_lock()

    @property
    def served(self) -> list[Controls]:
        """What users may ask of each set of weights."""
        return [bound.served for bound in list(self._bound.values())]

    def __call__(self, *arguments: Any) -> Any:
        weights = [arguments[place] for place in self._weights]
        self._calls += 1
        if (torch.is_grad_enabled() or self._wants_gradients) and any(tensor.requires_grad for tensor in weights):
            self._refuse("gradients are wanted of its weights; call it under torch.no_grad() or torch.inference_mode()")
            return self._graph.forward(*arguments)
        served = self._find(weights)
        if served is None:
            return self._graph.forward(*arguments)
        given = [arguments[place].item() if place in self._numbers else arguments[place] for place in self._given]
        return served.root.call(served.module.forward, tuple(given), {})  # hooks are for modules of the user's

    def _find(self, weights: Sequence[torch.Tensor]) -> Controls | None:
        """What serves calls with these weights; None where the graph itself is to."""
        key, pointers = tuple(map(id, weights)), [tensor.data_ptr() for tensor in weights]
        bound = self._bound.get(key)
        if bound is None or bound.pointers != pointers:
            bound = self._bind(key, weights, pointers)
        return None if bound is None else bound.served

    def _bind(self, key: tuple[int, ...], weights: Sequence[torch.Tensor], pointers: list[int]) -> _Bound | None:
        with self._lock:
            bound = self._bound.get(key)
            if bound is not None and bound.pointers == pointers:
                return bound
            self._bound.pop(key, None)  # they lie elsewhere now
            why = self._why_not()
            if why:
                self._refuse(why)
                return None
            self._made, self._last = self._made + 1, self._calls
            module = TracedGraph(self._plain, dict(zip(self._weights, weights, strict=True)), self._sizes)
            served = watch(Controls(module, self._config, self._adapt, f"{self._name}, weights {self._made}"))
            forget = _forgetting(weakref.ref(self), key)
            self._bound[key] = bound = _Bound(served, pointers, [weakref.ref(tensor, forget) for tensor in weights])
            return bound

    def _why_not(self) -> str:
        """Why there is no module for another set of weights now; "" if there may be."""
        if len(self._bound) >= SETS:
            return f"it has {SETS} sets of weights already"
        gone = self._made - len(self._bound)
        if self._calls - self._last < 2 ** min(gone, LONGEST) - 1:
            return "its weights are other tensors, or lie elsewhere, in call after call; keep them where they are"
        return ""

    def _refuse(self, why: str) -> None:
        """The graph itself answers. It is told once, until it is for another reason."""
        if why != self._refused:
            self._refused = why
            self._events.emit("backend.eager", self._name, why)


def _forgetting(serving: weakref.ref[GraphServing], key: tuple[int, ...]) -> Callable[[Any], None]:
    """For when one of the weights is gone: its number may soon be another tensor's. Takes no lock, for it runs anywhere."""

    def forget(gone: Any) -> None:
        found = serving()
        if found is not None:
            found._bound.pop(key, None)

    return forget


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _enables_gradients(node: fx.Node) -> bool:
    return node.args == (True,) and getattr(node.target, "__name__", "") in GRAD_MODES


def _weight(place: int) -> str:
    return f"weight{place}"


def _is_fixed(placeholder: fx.Node) -> bool:
    """Whether Dynamo takes an argument for the same tensor in every call: a parameter, a buffer, or one that was marked so."""
    return bool(placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def _given_sizes(placeholders: Sequence[fx.Node], fixed: Sequence[int]) -> dict[int, GivenSize]:
    """The placeholders that are a size of another one."""
    values = [node.meta.get("example_value") for node in placeholders]
    axes = {
        size.node.expr: GivenSize(place, axis)
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and place not in fixed
        for axis, size in enumerate(value.shape)
        if isinstance(size, torch.SymInt)
    }
    return {
        place: axes[value.node.expr]
        for place, value in enumerate(values)
        if isinstance(value, torch.SymInt) and value.node.expr in axes
    }


def _is_wrapped_number(placeholder: fx.Node) -> bool:
    """Whether an argument is a tensor of one element, from which the graph only takes the number."""
    value = placeholder.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64 or value.ndim or _is_fixed(placeholder):
        return False
    return all(user.op == "call_method" and user.target == "item" for user in placeholder.users)


def _with_numbers(graph: fx.GraphModule, places: Collection[int]) -> fx.GraphModule:
    """The same graph, which takes plain numbers at these places."""
    made = fx.Graph()
    made.output(made.graph_copy(graph.graph, {}))
    inner = [node for node in made.nodes if node.op == "placeholder"]
    for place in places:
        for user in tuple(inner[place].users):
            user.replace_all_uses_with(inner[place])
            made.erase_node(user)
    return fx.GraphModule(graph, made)
