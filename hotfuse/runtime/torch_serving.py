"""Serving one PyTorch module: when it is captured, and whether the capture or the module itself answers.

State of a `Controller`, all replaced under its lock and read without: the captured classes, captures under way, frames that
failed, and the controllers of submodules. A call that finds nothing fitting is answered by the module; nothing here ever makes
an answer wait, except `wait=True`.

    call -> bypass? -> read_call -> class whose guard holds -> plan        (only if `takes_over`)
                                 -> none: the module answers, and the class of the call is captured in the background
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config
from hotfuse.errors import CaptureError, HotfuseError
from hotfuse.events import EventLog
from hotfuse.frontends.torch_capture import capture_here, make_job, submit
from hotfuse.frontends.torch_request import TraceRequest
from hotfuse.frontends.torch_skeleton import SMALL_BYTES, make_skeleton
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.runtime.torch_guard import Call, CallGuard, Miss, bypass, call_structure, describe_leaves, read_call
from hotfuse.runtime.torch_twin import make_twin

if TYPE_CHECKING:
    from hotfuse.frontends.torch_trace import Trace
    from hotfuse.runtime.torch_class import ServedClass

Eager = Callable[..., Any]
SUBMODULE_CAPTURES = 64  # under one model, over all its submodules
MEMO_LIMIT = 4096


def takes_over(config: Config, served: ServedClass) -> bool:
    """Whether a captured class answers in place of the module: when it has something better than tier 0, or is waited for."""
    return config.wait or served.tier > 0


class Postponed(CaptureError):
    """A capture that did not come about because of how the module is now; the next call may ask again."""


@dataclass
class Family:
    """What the controllers of one model share. `budget` is how many captures its submodules may still ask for."""

    config: Config
    events: EventLog
    budget: int = SUBMODULE_CAPTURES
    members: dict[int, Controller] = field(default_factory=dict)
    open: bool = True


class Controller:
    """Decides who answers the calls of one module."""

    def __init__(self, module: torch.nn.Module, name: str, family: Family) -> None:
        self.module = module
        self.name = name or type(module).__name__
        self.family = family
        self.config = family.config
        self.classes: tuple[ServedClass, ...] = ()
        self.failed: dict[Hashable, str] = {}
        self.calls = self.answered = 0
        self.last_miss = ""
        self._pending: dict[Hashable, threading.Event] = {}
        self._memo: dict[Hashable, ServedClass] = {}
        self._watch: ModuleWatch | None = None
        self._lock = threading.Lock()
        self._twin: torch.nn.Module | None = None
        self._is_root = not family.members
        family.members[id(module)] = self

    def call(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The answer to one call; `eager` is the module itself."""
        self.calls += 1
        if not self.family.open or self.config.tier == 0:
            return eager(*args, **kwargs)
        why = bypass()
        if why:
            self._miss(why)
            return eager(*args, **kwargs)
        call = read_call(args, kwargs)
        if call.refusal:
            self._miss(call.refusal)
            return self._through_submodules(eager, args, kwargs)
        answer = self._answer(call)
        if self.config.wait and isinstance(answer, Miss) and self._capture(call, args, kwargs, wait=True):
            answer = self._answer(call)
        if not isinstance(answer, Miss):
            self.answered += 1
            return answer
        if call.frame in self.failed:
            return self._through_submodules(eager, args, kwargs)
        result = eager(*args, **kwargs)
        if not self.config.wait:
            self._capture(call, args, kwargs, wait=False)
        return result

    # finding and running a class

    def _answer(self, call: Call) -> Any:
        """The answer of the first class whose guard holds, or a Miss."""
        missed = Miss("nothing captured fits this call" if self.classes else "")
        for served in self._candidates(call):
            if not takes_over(self.config, served):
                return Miss("")
            try:
                answer = served.answer(call)
            except HotfuseError as error:
                if self.config.strict:
                    raise
                self.family.events.emit("serve.failed", self.name, str(error))
                self._drop(served)
                return Miss(str(error))
            if served.renewed:
                self.family.events.emit("weights.changed", self.name, served.take_renewed())
            if not isinstance(answer, Miss):
                return answer
            missed = answer
        self._miss(missed.reason)
        return missed

    def _candidates(self, call: Call) -> Iterator[ServedClass]:
        key = (call.frame, call.shapes)
        known = self._memo.get(key)
        if known is not None:
            yield known
        for served in self.classes:
            if served is not known and not served.guard.check(call):
                if len(self._memo) >= MEMO_LIMIT:
                    self._memo.clear()
                self._memo[key] = served
                yield served

    def _drop(self, served: ServedClass) -> None:
        with self._lock:
            self.classes = tuple(c for c in self.classes if c is not served)
            self._memo.clear()
            self.failed[served.guard.frame] = "the captured program failed while serving"

    def _miss(self, why: str) -> None:
        if why:
            self.last_miss = why
            self.family.events.emit("guard.miss", self.name, why)

    # capturing

    def _capture(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], wait: bool) -> bool:
        """Have the class of a call captured, unless something speaks against it. True if there may be something new to try."""
        if any(not takes_over(self.config, c) for c in self._candidates(call)) or call.frame in self.failed:
            return False
        if self._watch is not None and self._watch.hooked():
            self.last_miss = "a hook is registered"
            return False
        if torch.is_grad_enabled() and self._wants_gradient(call):
            self.last_miss = "gradients are enabled; call it under torch.no_grad() or freeze the parameters"
            return False
        with self._lock:
            done = self._pending.get(call.frame)
            mine = done is None
            if done is None:
                if len(self.classes) + len(self._pending) >= self.config.max_captures or not self._afford():
                    self.last_miss = "max_captures classes of calls are captured already"
                    return False
                done = self._pending[call.frame] = threading.Event()
        if mine:
            request = _Request(describe_leaves(call.leaves), call_structure(args, kwargs), call.frame)
            job = make_job(lambda: self._skeleton(request), lambda found: self._finish(request, found), self.config)
            if self.config.capture == "blocking":
                capture_here(job)
            else:
                submit(job, urgent=wait)
        if wait:
            done.wait()
        if self.config.strict and call.frame in self.failed:
            raise CaptureError(f"{self.name}: {self.failed[call.frame]}")
        return wait

    def _afford(self) -> bool:
        if self._is_root:
            return True
        self.family.budget -= 1
        return self.family.budget >= 0

    def _wants_gradient(self, call: Call) -> bool:
        leaves = (leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor))
        return any(t.requires_grad for t in leaves) or any(p.requires_grad for p in self.module.parameters())

    def _skeleton(self, request: _Request) -> bytes:
        """The request as bytes. Runs in the capture thread, while the module may be serving."""
        watch = self._watch
        if watch is None or watch.changed():
            watch = self._watch = ModuleWatch(self.module)
        request.watch = watch
        if watch.hooked():
            raise Postponed("a hook is registered")
        if not watch.complete:
            raise CaptureError("its attributes hold too many objects to watch")
        grad, _, default_dtype, *_ = request.frame[2]
        data, tensors = make_skeleton(TraceRequest(self.module, request.leaves, request.structure, grad, default_dtype))
        _check_tensors(self.module, watch, tensors)
        changed = watch.changed()
        if changed:
            raise Postponed(changed)
        return data

    def _finish(self, request: _Request, found: Trace | CaptureError) -> None:
        events = self.family.events
        try:
            if isinstance(found, CaptureError):
                raise found
            from hotfuse.runtime.torch_class import serve  # brings the engine and all operators: not while a caller waits

            assert request.watch is not None
            served = serve(self.module, CallGuard(request.frame, found.shapes, request.watch), found.program, self.config)
            with self._lock:
                self.classes = (*self.classes, served)
            events.emit("capture.done", self.name, str(found.shapes), share=found.program.share, note=found.note)
        except Postponed as error:
            self.last_miss = str(error)
            events.emit("capture.postponed", self.name, str(error))
        except Exception as error:
            reason = str(error) if isinstance(error, HotfuseError) else f"{type(error).__name__}: {error}"
            self.failed[request.frame] = reason
            events.emit("capture.failed", self.name, reason)
        finally:
            with self._lock:
                done = self._pending.pop(request.frame)
            done.set()

    # submodules, where the whole cannot be captured

    def _through_submodules(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The module itself answers, its submodules through controllers of their own. Without `wait` that is done once: it
        shows the submodules' calls, so that they can be captured."""
        first = self._twin is None
        if not (first or self.config.wait) or not self.module._modules or torch.is_grad_enabled():
            return eager(*args, **kwargs)
        if first:
            self._twin = make_twin(self.module, self._submodule_call)
        return type(self._twin).__call__(self._twin, *args, **kwargs)

    def _submodule_call(self, module: torch.nn.Module, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if module is self.module:
            return eager(*args, **kwargs)
        controller = self.family.members.get(id(module))
        if controller is None:
            name = next((n for n, m in self.module.named_modules() if m is module), "")
            controller = Controller(module, f"{self.name}.{name}", self.family)
        return controller.call(eager, args, kwargs)

    # what users ask for

    @property
    def pending(self) -> int:
        return len(self._pending)

    def settled(self, timeout_s: float | None) -> bool:
        return all(event.wait(timeout_s) for event in list(self._pending.values()))

    def refresh(self) -> None:
        """Look at the module anew: prepared values are computed again, failed captures may be tried again."""
        self.failed.clear()
        for served in self.classes:
            served.refresh()


@dataclass
class _Request:
    leaves: tuple[Any, ...]
    structure: Any
    frame: Any
    watch: ModuleWatch | None = None


def _check_tensors(module: torch.nn.Module, watch: ModuleWatch, tensors: list[torch.Tensor]) -> None:
    """Refuse tensors that a graph would take for constants although nobody watches them or knows their values."""
    own = {id(t) for t in (*module.parameters(), *module.buffers())}
    own |= {id(v) for part in module.modules() for v in part.__dict__.values() if isinstance(v, torch.Tensor)}
    watched = {id(t) for t in watch.tensors}
    for tensor in tensors:
        if id(tensor) in own:
            continue
        shape = tuple(tensor.shape)
        if id(tensor) not in watched:
            raise CaptureError(f"it reads a tensor of shape {shape} from a closure or a global; make it a buffer")
        if tensor.numel() * tensor.element_size() >= SMALL_BYTES:
            raise CaptureError(f"a tensor of shape {shape} is held in a Python object or container; make it a buffer")
