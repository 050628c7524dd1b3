"""Routing: calls of modules that a thread makes while it is inside `routed` go through a function of ours.

`torch.nn.Module.__call__` is replaced as long as any thread is inside and put back afterwards; modules and their classes stay
as they are, and other threads' calls pass straight on. While the function works no call of its own is routed; the module's own
call, which it is given, is routed again. Modules whose class has a `__call__` of its own are left alone: what they do around
the ordinary call would be lost.

State: how many threads are inside, and each thread's route.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hotfuse.locks import make_lock

Route = Callable[[torch.nn.Module, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


class _Thread(threading.local):
    route: Route | None = None
    paused: bool = False


_thread = _Thread()
_lock = make_lock()
_inside = 0
_original: Callable[..., Any] = torch.nn.Module.__call__


@contextlib.contextmanager
def routed(route: Route) -> Iterator[None]:
    """Send this thread's calls of modules through `route(module, the module's own call, args, kwargs)`."""
    _enter()
    try:
        with _routing(route):
            yield
    finally:
        _leave()


def _call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    route = _thread.route
    if route is None or _thread.paused or type(module).__call__ is not _call or isinstance(module, torch.jit.ScriptModule):
        return _original(module, *args, **kwargs)

    def own(*args: Any, **kwargs: Any) -> Any:
        with _routing(route):
            return _original(module, *args, **kwargs)

    with _routing(None):
        return route(module, own, args, kwargs)


@contextlib.contextmanager
def unrouted() -> Iterator[None]:
    """Let this thread's calls of modules pass straight on, inside of `routed` as well."""
    before, _thread.paused = _thread.paused, True
    try:
        yield
    finally:
        _thread.paused = before


@contextlib.contextmanager
def _routing(route: Route | None) -> Iterator[None]:
    before, _thread.route = _thread.route, route
    try:
        yield
    finally:
        _thread.route = before


def _enter() -> None:
    global _inside, _original
    with _lock:
        _inside += 1
        if torch.nn.Module.__call__ is not _call:
            _original = torch.nn.Module.__call__
            torch.nn.Module.__call__ = _call


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside and torch.nn.Module.__call__ is _call:
            torch.nn.Module.__call__ = _original
