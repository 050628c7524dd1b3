"""Counting: of the operators that one call of a model ran, how many a captured plan ran and our IR knows.

A model that is captured in parts has no graph to count in. So the first call after something was captured is counted while it
runs: what captured parts answer by their programs, what the module itself does by what torch dispatches. Torch takes more
operators apart than our graphs do (a linear layer is two or three), so the share comes out too small rather than too large.

State: the count that a thread's call is under.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from hotfuse.runtime.torch_route import Route

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import CapturedProgram


class _Thread(threading.local):
    count: OperatorCount | None = None


_thread = _Thread()


class OperatorCount(TorchDispatchMode):  # type: ignore[misc]
    """Operators of one call: `known` ones of captured plans, and all. While entered it counts what torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.known = self.all = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.all += 1
        return operator(*args, **(kwargs or {}))

    @property
    def share(self) -> float:
        return self.known / self.all if self.all else 0.0


def note_answer(program: CapturedProgram) -> None:
    """A captured plan answered a call of this thread."""
    count = _thread.count
    if count is not None:
        count.all += program.operators
        count.known += program.operators - len(program.opaque)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """What this thread runs meanwhile is not part of the call that is counted."""
    count = _thread.count
    before = (count.known, count.all) if count is not None else (0, 0)
    try:
        yield
    finally:
        if count is not None:
            count.known, count.all = before


def counted(route: Route, count: OperatorCount) -> Route:
    """A route that counts by `count`, within a call that has entered it. Whoever answers does not see the mode."""

    def through(module: torch.nn.Module, own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            with _counting(None), count:
                return own(*args, **kwargs)

        with _left(count), _counting(count):
            return route(module, counting, args, kwargs)

    return through


@contextlib.contextmanager
def _left(count: OperatorCount) -> Iterator[None]:
    """Outside of the count's mode, unless the model has entered another one within."""
    if _get_current_dispatch_mode() is not count:
        yield
        return
    with _pop_mode_temporarily():
        yield


@contextlib.contextmanager
def _counting(count: OperatorCount | None) -> Iterator[None]:
    before, _thread.count = _thread.count, count
    try:
        yield
    finally:
        _thread.count = before
