"""A graph that Dynamo traced, adapted while it serves.

    call -> its weights are known -> the module of the graph and these weights, which is served as any compiled module is
         -> gradients are wanted, or there are too many sets of weights: the graph itself

Dynamo hands parameters and buffers over with every call, and one graph may answer for several models. Each set of them becomes
the buffers of a module of its own, so that they can be packed and watched. They are held by aliases: the tensors of a model
that nobody holds any more go, and the module goes with them.

Where sizes may vary, Dynamo hands over numbers as well: sizes, which follow from the tensors beside them, and floating-point
numbers as tensors of one element that the graph takes them out of again. These become plain numbers, whose values a capture
may rest on.

State: the sets of weights that were seen, bounded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.locks import make_lock
from hotfuse.runtime.torch_module import Controls

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Adapt

RENEWALS = 8  # of one set of weights that came to lie elsewhere; then the graph itself answers


@dataclass(frozen=True)
class GivenSize:
    """A number among a graph's arguments that is the size of one of its tensors, at an axis."""

    tensor: int
    axis: int


class TracedGraph(torch.nn.Module):  # type: ignore[misc]
    """A graph with some of its arguments as its own buffers. It is called with the others; sizes follow from them."""

    def __init__(self, graph: fx.GraphModule, weights: Mapping[int, torch.Tensor], sizes: Mapping[int, GivenSize]) -> None:
        super().__init__()
        self.graph = graph
        self.training = graph.training
        for place, tensor in weights.items():
            self.register_buffer(_buffer(place), tensor.detach(), persistent=False)
        count = len(_placeholders(graph))
        given = [place for place in range(count) if place not in weights and place not in sizes]
        numbers = {place: number for number, place in enumerate(given)}
        # where each argument comes from: a buffer, an argument of the call, or a size of one
        self._sources = tuple(
            _buffer(place)
            if place in weights
            else (numbers[sizes[place].tensor], sizes[place].axis)
            if place in sizes
            else numbers[place]
            for place in range(count)
        )

    def forward(self, *given: Any) -> Any:
        return self.graph(*[self._argument(source, given) for source in self._sources])

    def _argument(self, source: str | int | tuple[int, int], given: tuple[Any, ...]) -> Any:
        if isinstance(source, str):
            return getattr(self, source)
        return given[source] if isinstance(source, int) else given[source[0]].shape[source[1]]


@dataclass
class _Bound:
    """One set of weights: the module that has them, where they lay when it was made, and references that tell when one goes."""

    served: Controls | None
    pointers: list[int]
    alive: list[weakref.ref[torch.Tensor]]
    renewals: int = 0


class GraphServing:
    """Answers as a traced graph does. Called with the values of its placeholders."""

    def __init__(self, graph: fx.GraphModule, config: Config, events: EventLog, adapt: Adapt) -> None:
        self._graph, self._config, self._events, self._adapt = graph, config, events, adapt
        placeholders = _placeholders(graph)
        self._numbers = {place for place, node in enumerate(placeholders) if _is_wrapped_number(node)}
        self._plain = _with_numbers(graph, self._numbers) if self._numbers else graph
        self._weights = [place for place, node in enumerate(placeholders) if _is_fixed(node)]
        self._sizes = _given_sizes(placeholders, self._weights)
        taken = {*self._weights, *self._sizes}
        self._given = [place for place in range(len(placeholders)) if place not in taken]
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._lock = make_lock()

    @property
    def served(self) -> list[Controls]:
        """What users may ask of each set of weights."""
        with self._lock:
            return [bound.served for bound in self._bound.values() if bound.served is not None]

    def __call__(self, *arguments: Any) -> Any:
        weights = [arguments[place] for place in self._weights]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in weights):
            return self._graph.forward(*arguments)
        served = self._find(weights)
        if served is None:
            return self._graph.forward(*arguments)
        given = [arguments[place].item() if place in self._numbers else arguments[place] for place in self._given]
        return served.root.call(served.module, tuple(given), {})

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
            if bound is None and len(self._bound) >= self._config.max_captures:
                return None
            renewals = 0 if bound is None else bound.renewals + 1
            served = None
            if renewals <= RENEWALS:
                module = TracedGraph(self._plain, dict(zip(self._weights, weights, strict=True)), self._sizes)
                served = Controls(module, self._config, self._adapt, self._events)
            forget = _forgetting(weakref.ref(self), key)
            alive = [weakref.ref(tensor, forget) for tensor in weights]
            self._bound[key] = bound = _Bound(served, pointers, alive, renewals)
            return bound


def _forgetting(serving: weakref.ref[GraphServing], key: tuple[int, ...]) -> Callable[[Any], None]:
    """For when one of the weights is gone: its number may soon be another tensor's. Takes no lock, for it runs anywhere."""

    def forget(gone: Any) -> None:
        found = serving()
        if found is not None:
            found._bound.pop(key, None)

    return forget


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _buffer(place: int) -> str:
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
