"""Small models, each returning something else: arguments, weights, views of them, results that share memory, odd strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Holder(torch.nn.Module):
    """The state that all models here have; what they do with it and the argument is their own."""

    function: Callable[..., Any]
    make_layer: Callable[[], torch.nn.Module] = torch.nn.Dropout

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(3, 4))
        self.register_buffer("buffer", torch.randn(5, 3))
        self.attribute = torch.randn(2, 3)
        self.layer = self.make_layer()

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return type(self).function(self, x, *more)


def _first_and_whole(m: Holder, x: torch.Tensor) -> Any:
    y = x @ m.weight
    return y[0], y, y.t()


def _twice(m: Holder, x: torch.Tensor) -> Any:
    y = x @ m.weight
    return y, y


def _nested(m: Holder, x: torch.Tensor) -> Any:
    y = x * 2
    return {"a": y, "b": [y, (x, y.view(-1))], "c": None, "d": 3}


def _write_cache(m: Holder, x: torch.Tensor, cache: torch.Tensor) -> Any:
    cache[:, 1:3].add_(1.0)
    return x * 1.0, cache, cache[:, :3], cache.t()


def _write_then_look(m: Holder, x: torch.Tensor) -> Any:
    seen = x[1:]
    x.mul_(3.0)
    return seen, x.view(-1)


def _count(m: Holder, x: torch.Tensor) -> Any:
    m.buffer.add_(1.0)
    return m.buffer, m.buffer[0], x + m.buffer[:1]


def _every_other(m: Holder, x: torch.Tensor) -> Any:
    y = x @ m.weight
    return y[:, ::2], y[:, 1::2]


def _changed_result(m: Holder, x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    row.add_(1.0)
    return row, y[:2]


def _mixed(m: Holder, x: torch.Tensor) -> Any:
    y, z = x * 2, x @ m.weight
    return x, y, x.t(), z.t(), m.weight, z[0], y, m.buffer[:, 1]


X = torch.arange(12.0).reshape(4, 3)
Y = torch.arange(21.0).reshape(7, 3)
ONE = torch.ones(1, 3)
IMAGE = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
PLAIN: dict[str, tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]] = {
    # tensors themselves
    "the same twice": (_twice, [(X,), (X,), (ONE,), (Y,)]),
    "the same nested": (_nested, [(X,), (Y,)]),
    "an argument": (lambda m, x: (x, x + 1), [(X,), (Y,)]),
    "an argument that nothing changed": (lambda m, x: (x.contiguous(), x.float(), x.to(x.device)), [(X,)]),
    "an argument past dropout": (lambda m, x: m.layer(x), [(X,)]),
    "one argument passed twice": (lambda m, x, y: (x + y, y), [(X, X)]),
    "a parameter": (lambda m, x: (m.weight, x * 1.0), [(X,), (Y,)]),
    "a parameter and nothing else": (lambda m, x: m.weight, [(X,)]),
    "a buffer": (lambda m, x: (m.buffer, x * 1.0, m.buffer), [(X,)]),
    "a tensor attribute": (lambda m, x: (m.attribute, m.attribute[1], x * 1.0), [(X,)]),
    # views of the caller's and the module's memory
    "a transposed argument": (lambda m, x: x.t(), [(X,), (Y,), (ONE,), (X.t().contiguous().t(),)]),
    "a slice": (lambda m, x: (x[1:], x[:, 1:], x[1]), [(X,), (Y,)]),
    "steps": (lambda m, x: (x[::2], x[:, ::2]), [(X,), (Y,)]),
    "the last row": (lambda m, x: x[-1], [(X,), (Y,)]),
    "expanded": (lambda m, x: x.unsqueeze(1).expand(-1, 5, -1), [(X,), (Y,)]),
    "flattened": (lambda m, x: (x.flatten(), x.view(3, -1), x.unsqueeze(0)), [(X,)]),
    "a diagonal and windows": (lambda m, x: (x.diagonal(), x.unfold(0, 2, 1)), [(X,), (Y,)]),
    "as_strided": (lambda m, x: x.as_strided((2, 2), (3, 1), 1), [(X,)]),
    "detached": (lambda m, x: (x.detach(), m.weight.detach()), [(X,)]),
    "a view of an argument with gaps": (lambda m, x: (x[:, 1:], x.t()), [(torch.arange(24.0).reshape(4, 6)[:, ::2],)]),
    "a view of a parameter": (lambda m, x: (m.weight[1], m.weight.t(), x * 1.0), [(X,), (Y,)]),
    "rows of a table, as many as there are": (lambda m, x: (m.buffer[: x.shape[0]], x * 1.0), [(X,), (Y[:2],)]),
    "a cache that is written": (_write_cache, [(X, torch.zeros(2, 4)), (X, torch.zeros(3, 5))]),
    "an argument that is written": (_write_then_look, [(X,), (Y,)]),
    "a buffer that is written": (_count, [(X,), (X,)]),
    # results that share memory
    "parts of a split": (lambda m, x: (x @ m.weight).split(2, dim=1), [(X,), (Y,)]),
    "rows": (lambda m, x: (x * 2)[:2].unbind(), [(X,), (Y,)]),
    "a view before what it shows": (_first_and_whole, [(X,), (ONE,), (Y,)]),
    "interleaved": (_every_other, [(X,), (Y,)]),
    "a result changed in place": (_changed_result, [(X,), (Y,)]),
    "everything at once": (_mixed, [(X,), (Y,)]),
    # how results of their own lie in memory
    "a transposed result": (lambda m, x: ((x + 1).t(), x.t() + 1, x.t() @ x), [(X,), (Y,)]),
    "permuted": (lambda m, x: (x * 2).permute(2, 0, 1), [(SEQUENCE,)]),
    "channels last": (lambda m, x: m.layer(x), [(IMAGE.to(memory_format=torch.channels_last),), (IMAGE,), (IMAGE[:1],)]),
    "a part of a result": (lambda m, x: ((x @ m.weight)[:, 0], (x * 2)[:, 1:], (x + 1)[1:]), [(X,), (Y,)]),
    "the last step": (lambda m, x: torch.tanh(x)[:, -1], [(SEQUENCE,), (SEQUENCE[:, :4],)]),
    "an expanded result": (lambda m, x: (x * 2).unsqueeze(0).expand(3, -1, -1), [(X,), (Y,)]),
    "a recurrent layer": (lambda m, x: m.layer(x), [(SEQUENCE,)]),
    "a gated recurrent layer": (lambda m, x: m.layer(x), [(SEQUENCE,)]),
    "attention": (lambda m, x: m.layer(x @ m.weight, x @ m.weight, x @ m.weight), [(SEQUENCE,)]),
    "places of data": (lambda m, x: ((x > 3).nonzero(), x[x > 3], (x > 3).nonzero()[:, 0]), [(X,), (Y,)]),
    "work on weights": (lambda m, x: (m.weight * 2, (m.weight + 1).t(), m.weight.clone()), [(X,), (X,)]),
    "constants": (lambda m, x: (torch.ones(3), torch.tensor([1.0, 2.0]), torch.zeros(2, 3).t()), [(X,), (X,)]),
}  # fmt: skip


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "channels last": lambda: torch.nn.Conv2d(3, 4, 3, padding=1),
    "a recurrent layer": lambda: torch.nn.LSTM(3, 4, batch_first=True),
    "a gated recurrent layer": lambda: torch.nn.GRU(3, 4, 2, bidirectional=True),
    "attention": lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
}


def _model_class(place: int, name: str) -> type:
    made = staticmethod(LAYERS.get(name, torch.nn.Dropout))
    return type(f"Model{place}", (Holder,), {"function": staticmethod(PLAIN[name][0]), "make_layer": made})


MODELS = {name: _model_class(place, name) for place, name in enumerate(PLAIN)}
globals().update({kind.__name__: kind for kind in MODELS.values()})  # a capture finds classes by name
