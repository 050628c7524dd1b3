"""Captures: those of one module's calls. When one may begin, what the capture process is sent, what becomes of its reply.

Before a process is asked the cache is: what was captured of such a module by another process serves here, too (`torch_kept`).

State, under the lock of the module's `ClassTable`: captures under way, frames whose trace saw the module change itself, and how
many captures were begun. What only captures need is imported by the thread that asks for one.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config
from hotfuse.errors import CaptureError, HotfuseError
from hotfuse.frontends.torch_request import SelfChange, TraceRequest
from hotfuse.locks import make_lock
from hotfuse.pace import Brisk, Pace, Unhurried, hurry, imports
from hotfuse.records import dataclass
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.torch_classes import ClassTable
from hotfuse.runtime.torch_family import SUBMODULE_CAPTURES, Family
from hotfuse.runtime.torch_guard import Call, CallGuard, call_structure, describe_leaves
from hotfuse.runtime.torch_kept import KeptCaptures

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import Trace
    from hotfuse.frontends.torch_watch import ModuleWatch
    from hotfuse.runtime.cache import DiskCache
    from hotfuse.runtime.torch_class import ServedClass
    from hotfuse.runtime.workers import Worker

START_S = 5.0  # in which a capture process is there
LATER_S = 0.01  # the first answer returns to its caller before the work behind it begins to compete for the interpreter


class Captures:
    """Has calls of one module captured."""

    def __init__(self, module: torch.nn.Module, name: str, family: Family, classes: ClassTable, is_root: bool) -> None:
        self.module = module
        self.name = name
        self.family = family
        self.config = family.config
        self.classes = classes
        self.pending: dict[Hashable, threading.Event] = {}
        self._unsettled: set[Hashable] = set()  # frames whose trace saw the module change itself, once
        self.kept = KeptCaptures(module, name, family.events, family.config)
        self._watch: ModuleWatch | None = None
        self._is_root = is_root
        self._started = 0
        self._brisk = False  # what is done now is short, and makes calls much faster
        self._next_at = 0  # calls
        _ALL.add(self)

    def begin(
        self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], seen: tuple[ServedClass, ...], calls: int
    ) -> bool:
        """Have the class of a call, number `calls` of the module, captured, unless something speaks against it. True if there
        may be something new to try, other than the classes `seen`."""
        wait = self.config.wait
        if call.frame in self.classes.failed or not (wait or self.classes.is_homeless(call)):
            return False
        if self._watch is not None and self._watch.hooked():
            self.classes.last_miss = "a hook is registered"
            return False
        if torch.is_grad_enabled() and self._wants_gradient(call):
            self.classes.last_miss = "gradients are enabled; call it under torch.no_grad() or freeze the parameters"
            return False
        with self.classes.lock:
            if any(not c.guard.check(call) for c in self.classes.all if c not in seen):
                return True  # another thread's capture was finished in between
            done = self.pending.get(call.frame)
            mine = done is None
            if done is None:
                if self._is_hopeless(call.frame):
                    return False
                why = self._against_another(calls)
                if why:
                    self.classes.last_miss = why
                    return False
                done = self.pending[call.frame] = threading.Event()
        if mine:
            request = _Request(describe_leaves(call.leaves), call_structure(args, kwargs), call.frame)
            behind = contextlib.ExitStack()
            try:
                if wait or self.config.capture == "blocking":
                    self._ask(request, urgent=wait)
                else:
                    behind.enter_context(RIGHT_OF_WAY.behind())  # now: the next call may begin before the thread does
                    _thread.start_new_thread(self._begin_to_ask, (request, behind))
            except BaseException as error:  # Ctrl-C among them: whoever waits for this capture must not wait for ever
                behind.close()
                if not done.is_set():
                    self._give_up(request, f"{type(error).__name__}: {error}")
                raise
        if wait:
            if mine and not done.is_set():
                _import_what_serves(self.config)
            done.wait()
        return wait

    def _is_hopeless(self, frame: Hashable) -> bool:
        """Whether the capture of a submodule just like this one has failed; then this one's has, too. Called under the lock."""
        if self._is_root or not self.family.hopeless:
            return False
        why = self.family.hopeless.get((_likeness(self.module), frame))
        if why:
            self.classes.fail(frame, why)
        return bool(why)

    def _against_another(self, calls: int) -> str:
        """Why no other capture may begin now; "" if one may, which then counts. The first `max_captures` may begin at once,
        whether they succeed or not; after them each must wait for as many calls as there were before it. Classes that the
        module has moved away from make room for new ones. Called under the lock."""
        limit = self.config.max_captures
        if self._started >= limit and calls < self._next_at:
            return f"max_captures={limit} captures were tried already; the next may be at call {self._next_at}"
        if len(self.classes.all) + len(self.pending) >= limit:
            stale = next((c for c in self.classes.all if c.departure()), None)
            if stale is None:
                return f"max_captures={limit} classes of calls are captured already"
            self.classes.forget(stale)
            self.family.let_go(stale)
        if not self._is_root:
            if self.family.budget <= 0:
                return f"{SUBMODULE_CAPTURES} submodules were tried already"
            self.family.budget -= 1
        self._started += 1
        self._next_at = 2 * calls
        return ""

    def _wants_gradient(self, call: Call) -> bool:
        leaves = (leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor))
        return any(t.requires_grad for t in leaves) or any(p.requires_grad for p in self.module.parameters())

    def _pace(self) -> Pace:
        """Of the work on a capture: behind calls that are answered meanwhile, or while a caller waits."""
        if self.config.wait or self.config.capture == "blocking":
            return hurry
        return Brisk() if self._brisk else Unhurried()

    def _begin_to_ask(self, request: _Request, behind: contextlib.ExitStack) -> None:
        """In a thread of its own: `start` waits until its thread runs, while the model's own still spin on the other cores."""
        try:
            threading.Thread(target=self._ask_later, args=(request, behind), name="hotfuse-ask", daemon=True).start()
        except RuntimeError:  # no more threads: there is this one
            self._ask_later(request, behind)

    def _ask_later(self, request: _Request, behind: contextlib.ExitStack) -> None:
        try:
            with behind:
                time.sleep(LATER_S)
                self._ask(request, urgent=False)
        except BaseException as error:  # whoever settles must not wait for ever
            self._give_up(request, f"no capture can be asked for: {type(error).__name__}: {error}")

    def _give_up(self, request: _Request, why: str) -> None:
        from hotfuse.runtime.torch_capture import Postponed

        self._finish(request, Postponed(why))

    def _ask(self, request: _Request, urgent: bool) -> None:
        if self._recalled(request):
            return
        with imports(self._pace()):
            from hotfuse.runtime.torch_capture import capture_here, make_job, submit

        def lost(why: str) -> None:
            self.family.events.emit("worker.died", self.name, why)

        job = make_job(lambda: self._made(request), lambda found: self._finish(request, found), self.config, lost)
        if self.config.capture == "blocking":
            capture_here(job)
            return
        worker = submit(job, urgent)
        if self.config.adapts:
            with imports(self._pace()):
                from hotfuse.runtime.build_pool import wake_workers

            wake_workers(self.config, most=1)  # the capture needs the cores more than a second one
            if not urgent:
                self._import_ahead(worker)

    def _import_ahead(self, worker: Worker) -> None:
        """Import, while the capture process is at work, what its program will need here. Not before there is one: no copy is
        made amid imports."""
        until_s = time.monotonic() + START_S
        while worker.process is None and time.monotonic() < until_s:
            time.sleep(LATER_S)
        with contextlib.suppress(Exception):  # an error comes again where the program is served
            with imports(self._pace()):
                import hotfuse.runtime.torch_class  # noqa: F401
            if self.family.adapt is not None:
                self.family.adapt.import_ahead(self._pace())

    def _recalled(self, request: _Request) -> bool:
        """Whether the cache has the program of a request, which then serves."""
        with imports(self._pace()):
            from hotfuse.runtime.cache import open_cache

        cache = open_cache(self.config)
        if cache is None:
            return False
        self._brisk = not cache.is_empty
        try:
            return self._recall(cache, request)
        finally:
            self._brisk = False

    def _recall(self, cache: DiskCache, request: _Request) -> bool:
        pace = self._pace()
        # One at a time behind calls: each takes its share of the interpreter's time.
        with contextlib.nullcontext() if pace is hurry else _RECALL:
            found = self.kept.find(cache, self._asked(request), pace)
        if found is None:
            return False
        request.place, request.watch = found.place, found.watch
        if found.trace is None:
            self.kept.missed(found.reason)
            return False
        self.family.events.emit("capture.cached", self.name, str(found.trace.shapes))
        try:
            self._serve(request, found.trace, kept=True)
        except Exception as error:  # what was of use once is not now: the module is captured anew
            self.kept.missed(f"{type(error).__name__}: {error}")
            return False
        self._end(request)
        return True

    def _made(self, request: _Request) -> bytes:
        """The request as bytes. What comes of it is kept if the cache was asked for the same: the module may have changed."""
        data = self._skeleton(request)
        if request.place:
            from hotfuse.frontends.torch_skeleton import skeleton_key

            request.place = request.place if request.place.startswith(skeleton_key(data)) else ""
        return data

    def _asked(self, request: _Request) -> TraceRequest:
        grad, _, default_dtype, *_ = request.frame[2]
        return TraceRequest(self.module, request.leaves, request.structure, grad, default_dtype)

    def _skeleton(self, request: _Request) -> bytes:
        """The request as bytes. Runs in the capture thread, while the module may be serving."""
        with imports(self._pace()):
            from hotfuse.frontends.torch_skeleton import check_tensors, make_skeleton
            from hotfuse.frontends.torch_watch import ModuleWatch
            from hotfuse.runtime.torch_capture import Postponed

        pace = self._pace()
        watch = self._watch
        if watch is None or watch.changed():
            try:
                watch = self._watch = ModuleWatch(self.module, pace=pace)
            except RuntimeError as error:  # a dictionary that another thread adds to cannot be walked through
                raise Postponed(f"the module changed while it was looked at: {error}") from error
        request.watch = watch
        if watch.hooked():
            raise Postponed("a hook is registered")
        try:
            data, tensors = make_skeleton(self._asked(request), pace)
            check_tensors(self.module, watch.tensors, tensors)
        finally:
            changed = watch.changed()
            if changed:  # also where that made it fail
                raise Postponed(changed)
        return data

    def _finish(self, request: _Request, found: Trace | CaptureError) -> None:
        from hotfuse.runtime.torch_capture import Postponed

        events = self.family.events
        try:
            if isinstance(found, SelfChange) and request.frame not in self._unsettled:
                self._unsettled.add(request.frame)
                raise Postponed(f"{found}; it may be settled after the next answer")
            if isinstance(found, CaptureError):
                raise found
            self._serve(request, found)
        except Postponed as error:
            self.classes.last_miss = str(error)
            events.emit("capture.postponed", self.name, str(error))
        except Exception as error:
            reason = str(error) if isinstance(error, HotfuseError) else f"{type(error).__name__}: {error}"
            with self.classes.lock:
                self.classes.fail(request.frame, reason)
            from hotfuse.runtime.workers import is_death

            if is_death(error.__cause__):
                events.emit("worker.died", self.name, reason)
            if not self._is_root:
                self.family.hopeless[_likeness(self.module), request.frame] = f"as {self.name}: {reason}"
            events.emit("capture.failed", self.name, reason, details=getattr(error, "details", ""))
        finally:
            self._end(request)

    def _serve(self, request: _Request, found: Trace, kept: bool = False) -> None:
        """Have calls answered by a program from now on, which may be one that an earlier process kept."""
        with imports(self._pace()):
            from hotfuse.runtime.torch_class import serve  # brings the engine and all operators: not while a caller waits

        assert request.watch is not None
        guard = CallGuard(request.frame, found.shapes, request.watch)
        served = serve(self.module, guard, found.program, self.config, self._pace())
        served.kept = kept
        with self.classes.lock:
            if self.family.open:
                self.classes.add(served)
        if self.config.adapts and self.family.adapt is not None:
            with imports(self._pace()):
                self.family.adapt(self.family, self.name, self.classes, served)
        self.family.events.emit("capture.done", self.name, str(found.shapes), share=found.program.share, note=found.note)
        if request.place:
            self.kept.keep(request.place, request.watch, served, found)

    def _end(self, request: _Request) -> None:
        """Whoever waits for the capture need not any more."""
        with self.classes.lock:
            done = self.pending.pop(request.frame, None)
        if done is not None:
            done.set()

    def refresh(self) -> None:
        """Let failed captures be tried again."""
        with self.classes.lock:
            self.classes.failed = {}
            self._unsettled = set()
            self._started = 0
        self.family.hopeless.clear()


@dataclass
class _Request:
    leaves: tuple[Any, ...]
    structure: Any
    frame: Any
    watch: ModuleWatch | None = None
    place: str = ""  # in the cache


def _likeness(module: torch.nn.Module) -> Hashable:
    """What modules must have in common for a capture to fail alike: their classes, and those of all parts, and every attribute
    that is a flag or a name. (Numbers are sizes or places; weights do not matter.)"""
    parts = ((type(m), *sorted((k, v) for k, v in m.__dict__.items() if isinstance(v, (bool, str)))) for m in module.modules())
    return tuple(parts)


def _import_what_serves(config: Config) -> None:
    """Import, while the capture process is at work and a caller waits for it, what its program will need here."""
    with imports(hurry), contextlib.suppress(Exception):  # an error comes again where the program is made ready
        import hotfuse.runtime.torch_class

        if config.native:
            import hotfuse.runtime.native
            import hotfuse.runtime.torch_short
            import hotfuse.runtime.torch_trial  # noqa: F401


def _after_fork() -> None:
    """In a forked child: the threads that would finish these captures do not exist."""
    for captures in _ALL:
        captures.pending = {}


_RECALL = make_lock()
_ALL: weakref.WeakSet[Captures] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
