"""What is asked of a capture: the module, and one call without its data.

These records are all that the request path needs of the capture; they import nothing of the IR, so that `hotfuse.compile` and
the first call stay light. (A NamedTuple takes a tenth of the time that a dataclass takes to define.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hotfuse.errors import CaptureError
from hotfuse.records import dataclass

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class TensorInput(NamedTuple):
    """A tensor argument as far as a capture sees it. `order` lists its axes from the largest stride to the smallest; None says
    that the tensor has gaps or overlaps, and that its exact strides count. `same_as` is an earlier leaf that is the same."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] | None
    dtype: torch.dtype
    device: str
    requires_grad: bool
    same_as: int = -1


@dataclass(frozen=True)
class TraceRequest:
    """What to trace: the module, the leaves of `(args, kwargs)`, these with leaves as numbers, and the call's modes."""

    module: Any
    leaves: tuple[Any, ...]
    structure: Any
    grad: bool
    default_dtype: torch.dtype


class SelfChange(CaptureError):
    """The forward pass changed its module while it was traced. Perhaps for the first and last time: the capture is worth
    another try once the module itself has answered a call."""


class FunctionModule(torch.nn.Module):  # type: ignore[misc]
    """A plain function or bound method as a module; the module that a method belongs to becomes a submodule."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        owner = getattr(function, "__self__", None)
        self.function = function.__func__ if isinstance(owner, torch.nn.Module) else function
        self.owner = owner if isinstance(owner, torch.nn.Module) else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs) if self.owner is None else self.function(self.owner, *args, **kwargs)


def own_attributes(tensor: torch.Tensor) -> list[str]:
    """What somebody has set on a tensor, Dynamo's marks left out: the model may read it, and no graph carries it."""
    return [name for name in tensor.__dict__ if not name.startswith("_dynamo")]


def unsendable(tensor: torch.Tensor) -> str:
    """What is special about a tensor that a capture cannot stand for; empty for plain ones."""
    if type(tensor) not in _PLAIN:
        return f"a tensor of type {type(tensor).__name__}"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"a tensor with layout {'quantized' if tensor.is_quantized else tensor.layout}"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazily conjugated or negated tensor"
    return ""
