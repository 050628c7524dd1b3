"""Argument templates: how an opaque node remembers a torch call without holding live objects.

A template is nested tuples of plain data, so it prints, parses, hashes and travels. Its forms:

    ("in", i)          input i of the node, a tensor          ("number", i)   input i, a 0-d tensor read as a Python number
    ("dim", k)         entry k of the node's `dims`            ("list", items) a list
    ("dtype", name), ("device", name), ("layout", name), ("format", name)      torch's own constants
    ("value", x)       a Python number, string or None         ("live", x)     an object only this process knows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hotfuse.errors import InvalidModel

Template = tuple[Any, ...]


class Live:
    """An object that an opaque node must hold as it is (a nested graph module). Equal only to itself."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __repr__(self) -> str:
        return f"<live {type(self.item).__name__}>"


def encode(argument: Any, leaf: Callable[[Any], Template | None]) -> Template:
    """The template of one argument. `leaf` answers for what stands for graph values, and None for everything else."""
    found = leaf(argument)
    if found is not None:
        return found
    if isinstance(argument, (list, tuple)):
        return ("list", tuple(encode(a, leaf) for a in argument))
    if isinstance(argument, torch.dtype):
        return ("dtype", str(argument).removeprefix("torch."))
    if isinstance(argument, torch.device):
        return ("device", str(argument))
    if isinstance(argument, torch.layout):
        return ("layout", str(argument).removeprefix("torch."))
    if isinstance(argument, torch.memory_format):
        return ("format", str(argument).removeprefix("torch."))
    if argument is None or isinstance(argument, (bool, int, float, complex, str)):
        return ("value", argument)
    return ("live", Live(argument))


def decoder(template: Template, dims: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """A function from the node's inputs to the argument."""
    kind, body = template
    if kind == "in":
        return lambda inputs: inputs[body]
    if kind == "number":
        return lambda inputs: inputs[body].item()
    if kind == "list":
        parts = [decoder(t, dims) for t in body]
        if all(is_fixed(t) for t in body):
            fixed = [part(()) for part in parts]
            return lambda inputs: fixed
        return lambda inputs: [part(inputs) for part in parts]
    constant = _constant(kind, body, dims)
    return lambda inputs: constant


def is_fixed(template: Template) -> bool:
    """Whether the argument does not depend on the node's inputs."""
    kind, body = template
    return all(is_fixed(t) for t in body) if kind == "list" else kind not in ("in", "number")


def _constant(kind: str, body: Any, dims: Sequence[int]) -> Any:
    if kind == "value":
        return body
    if kind == "dim":
        return dims[body]
    if kind == "live":
        return body.item
    if kind == "device":
        return torch.device(body)
    if kind in ("dtype", "layout", "format"):
        found = getattr(torch, body, None)
        if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
    raise InvalidModel(f"the argument template ({kind!r}, {body!r}) has no meaning")


def caller(
    target: Callable[..., Any], args: Sequence[Template], kwargs: Mapping[str, Template], dims: Sequence[int]
) -> Callable[..., Any]:
    """`target` as a function of the node's inputs."""
    simple = [t[1] if t[0] == "in" else None for t in args]
    named = {k: decoder(t, dims) for k, t in kwargs.items()}
    if all(is_fixed(t) for t in kwargs.values()):
        fixed = {k: part(()) for k, part in named.items()}
        if simple == list(range(len(simple))) and not fixed:
            return target
        parts = [decoder(t, dims) for t in args]
        return lambda *inputs: target(*[part(inputs) for part in parts], **fixed)
    parts = [decoder(t, dims) for t in args]
    return lambda *inputs: target(*[part(inputs) for part in parts], **{k: part(inputs) for k, part in named.items()})


def find_operator(name: str) -> Callable[..., Any]:
    """The torch operator of a dotted name, `namespace.operator.overload`."""
    pieces = name.split(".")
    if len(pieces) != 3:
        raise InvalidModel(f"{name!r} does not name a torch operator (namespace.operator.overload)")
    namespace, operator, overload = pieces
    try:
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload)  # type: ignore[no-any-return]
    except AttributeError:
        raise InvalidModel(
            f"torch has no operator {name!r} in this process; import the library that defines it first"
        ) from None
