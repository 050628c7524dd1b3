"""What `hotfuse.compile` returns for a PyTorch module or function.

The wrapper of a module is an object of a subclass of the module's own class that shares its state: `isinstance`, parameters,
`state_dict`, `.to()`, attributes, methods such as `generate`, hooks and `repr` are the module's own. Only calling it goes
through a `Member`. Copies are wrapped anew; pickling and `torch.save` give the plain module.

Added methods: `settle`, `report`, `explain`, `refresh`, `close` (each only where the module has no attribute of that name;
`hotfuse.runtime.torch_module.controls(wrapper)` always has them).
"""

from __future__ import annotations

import copy
import copyreg
import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config, resolve
from hotfuse.errors import ConfigError
from hotfuse.events import EventLog
from hotfuse.frontends.torch_request import FunctionModule
from hotfuse.runtime.fuel import Fuel
from hotfuse.runtime.torch_family import Family
from hotfuse.runtime.torch_serving import Member
from hotfuse.runtime.torch_twin import make_plain, share_state, subclass

if TYPE_CHECKING:
    from hotfuse.runtime.story import Story
    from hotfuse.runtime.torch_family import Adapt
    from hotfuse.runtime.torch_report import TorchReport


class Controls:
    """What users may ask of a compiled model."""

    def __init__(
        self,
        module: torch.nn.Module,
        config: Config,
        adapt: Adapt | None = None,
        name: str = "",
        events: EventLog | None = None,
    ) -> None:
        """`name` is the module's class, unless something says more; `events` is a log that others write to as well."""
        self.module = module
        self.config = config
        self.events = EventLog(config.max_events) if events is None else events
        self.family = Family(config, self.events, Fuel(config.fuel), adapt=adapt)
        self.root = Member(module, name, self.family)

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until no capture is pending for the calls seen so far; False if that takes longer than `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for member in self.family.all():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not member.settled(left):
                return False
        return True

    def report(self) -> TorchReport:
        """What was captured, what answers, what happened, and why it is not faster yet."""
        from hotfuse.runtime.torch_report import make_torch_report

        return make_torch_report(self.family)

    def story(self, id: str) -> Story:
        """What became of one subgraph, known by its id, the beginning of that, or one of its nodes."""
        return self.report().story(id)

    def explain(self) -> str:
        """Every captured class: its guard and its nodes."""
        from hotfuse.runtime.torch_report import explain_classes

        return explain_classes(self.family)

    def refresh(self) -> None:
        """Look at the model anew: weights that changed without a trace are read again, failed captures may be tried again."""
        for member in self.family.all():
            member.refresh()

    def close(self) -> None:
        """From now on the module itself answers; what was captured is dropped."""
        self.family.open = False
        for adapting in self.family.adapted:
            adapting.close()
        for member in self.family.all():
            member.close()


_ADDED = ("settle", "report", "explain", "story", "refresh", "close")


class _Compiled:
    """What a compiled module does differently; first among the bases of its class."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return make_plain(cls, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a compiler around us sees the module, and nothing of ours
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        inner: Controls = self._hotfuse  # type: ignore[attr-defined]
        return inner.root.call(inner.module, args, kwargs)  # the module: its code may ask for `type(self)`

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        inner: Controls = self._hotfuse  # type: ignore[attr-defined]
        return compile_module(copy.deepcopy(inner.module, memo), inner.config, inner.family.adapt)

    def __copy__(self) -> Any:
        inner: Controls = self._hotfuse  # type: ignore[attr-defined]
        return compile_module(copy.copy(inner.module), inner.config, inner.family.adapt)

    def __reduce_ex__(self, protocol: Any) -> Any:
        module = self._hotfuse.module  # type: ignore[attr-defined]
        make, args, *rest = module.__reduce_ex__(protocol)
        if getattr(make, "__name__", "") == "__newobj__" and args == (
            type(module),
        ):  # pickle allows that form only for an object's own class
            make, args = copyreg._reconstructor, (type(module), object, None)  # type: ignore[attr-defined]
        return make, args, *rest


def compile_model(model: Any, config: Config | None, options: Mapping[str, Any], adapt: Adapt | None = None) -> Any:
    """A drop-in for a module, function or exported program. `adapt` is told of what is captured."""
    chosen = resolve(config, options)
    if isinstance(model, torch.export.ExportedProgram):
        from hotfuse.runtime.torch_exported import compile_exported

        return compile_exported(model, chosen, adapt)
    if hasattr(type(model), "_hotfuse"):
        model = model._hotfuse.module
    if isinstance(model, torch.nn.Module):
        return compile_module(model, chosen, adapt)
    if callable(model) and not isinstance(model, type):
        return compile_function(model, chosen, adapt)
    raise ConfigError(f"compile takes an nn.Module, a function or an ExportedProgram, not {type(model).__name__}")


def compile_module(module: torch.nn.Module, config: Config, adapt: Adapt | None = None) -> torch.nn.Module:
    added = {name: _forwarding(name) for name in _ADDED if not hasattr(module, name)}
    kind = subclass(_Compiled, type(module), "_hotfuse", added)
    return share_state(kind, module, "_hotfuse", Controls(module, config, adapt))  # type: ignore[no-any-return]


def compile_function(function: Callable[..., Any], config: Config, adapt: Adapt | None = None) -> Callable[..., Any]:
    """The function, answered by a capture where its guard holds."""
    inner = Controls(FunctionModule(function), config, adapt)

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return inner.root.call(function, args, kwargs)

    for name in _ADDED:
        setattr(compiled, name, getattr(inner, name))
    compiled._hotfuse = inner  # type: ignore[attr-defined]
    return compiled


def controls(compiled: Any) -> Controls:
    """The controls of anything that `hotfuse.compile` returned."""
    return compiled._hotfuse  # type: ignore[no-any-return]


def _forwarding(name: str) -> Callable[..., Any]:
    method = getattr(Controls, name)

    @functools.wraps(method)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self._hotfuse, *args, **kwargs)

    return forward
