"""Reductions: what a skeleton is made of where a module, or its class, refuses to be pickled or would come back as another.

    a parametrized module  ->  its class before it was parametrized, the names of its parametrized tensors, its state
    a GraphModule          ->  the Python code of its graph, and of its state what that code reads
    a class sent by value  ->  a class of its own on the other side, even where that is the process it came from; one of
                               modules without the code that makes them
    an object with a hash  ->  the object without it: hashes of text differ from process to process

torch refuses to pickle the first. The second it traces anew when it is loaded, which turns everything computed from its tensors
alone into further constants. The third would be the class of the live model, overwritten, in a capture within one process. Its
modules are made already, and whatever their making refers to (example inputs, say) is no part of their answers.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils import parametrize

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import GENERATED, names_in

Reduction = tuple[Any, ...]
_MODULE_STATE = frozenset(torch.nn.Module().__dict__)
HASH = "_original_object_hash"  # an attribute of transformers' generation settings, which tells whether they were changed


def reduce_module(value: Any) -> Reduction | None:
    """How to take apart a module, or what it holds, if that needs it, in pickle's terms; None for everything else."""
    if isinstance(value, torch.fx.GraphModule):
        return _reduce_graph(value)
    if isinstance(value, torch.nn.Module) and parametrize.is_parametrized(value):
        kind = type(value)
        if kind.__module__ == parametrize.__name__:  # where torch makes these classes; a copy by the user is the user's
            base: Any = kind.__bases__[0]
            return make_parametrized, (base, tuple(value.parametrizations)), base.__getstate__(value)
    if HASH in getattr(value, "__dict__", ()):
        make, args, state, *rest = value.__reduce_ex__(5)
        return make, args, {**state, HASH: 0}, *rest
    return None


def make_parametrized(base: Any, names: tuple[str, ...]) -> torch.nn.Module:
    """An object of the class `base`, without state, whose tensors of these names are parametrized."""
    module: torch.nn.Module = base.__new__(base)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def _reduce_graph(module: torch.fx.GraphModule) -> Reduction | None:
    """By the code that runs, which is the graph's unless somebody edited that since."""
    forward, source = type(module).forward, module.__dict__.get("_code")
    if source is None:  # generated on the first call
        return None
    variables = {name: value for name, value in forward.__globals__.items() if name != "__builtins__"}
    state = {key: module.__dict__[key] for key in state_of_graph(module)}
    return make_graph_code, (source, variables), state


def state_of_graph(module: torch.fx.GraphModule) -> set[str]:
    """The attributes of a GraphModule that its code may read. The others tell how the code came about."""
    return set(module.__dict__) & (_MODULE_STATE | names_in(type(module).forward.__code__))


def make_graph_code(source: str, variables: Mapping[str, Any]) -> torch.nn.Module:
    """A module, without state, whose forward pass is code that torch generated in the process that sends it."""
    space = dict(variables)
    exec(compile(source, GENERATED, "exec", dont_inherit=True), space)
    names = {"forward": space.pop("forward"), "__module__": __name__}
    kind: Any = type("GraphCode", (torch.nn.Module,), names)
    return kind.__new__(kind)  # type: ignore[no-any-return]


def sent_class(kind: type, reduction: Reduction) -> Reduction:
    """cloudpickle's reduction of a class, without the number by which it finds the class again where it knows it, and for
    modules without the functions that make them."""
    make, args, *rest = reduction
    if not isinstance(make, types.FunctionType) or make.__name__ not in _BY_NUMBER:
        return reduction
    if issubclass(kind, torch.nn.Module):
        (attributes, *others), *rest = rest
        made = {name: _refuse_to_make for name in ("__init__", "__new__") if name in attributes}
        rest = [({**attributes, **made}, *others), *rest]
    return make, (*args[:-2], None, args[-1]), *rest


def _refuse_to_make(kind: Any, *args: Any, **kwargs: Any) -> None:
    name = getattr(kind, "__name__", type(kind).__name__)
    raise CaptureError(f"forward makes a new {name}; make it once, in the module's own __init__")


_BY_NUMBER = ("_make_skeleton_class", "_make_skeleton_enum")
