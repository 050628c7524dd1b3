"""Serving one PyTorch module: whether a captured class or the module itself answers a call.

A call that finds nothing fitting is answered by the module; nothing here ever makes an answer wait, except `wait=True`.

    call -> bypass? -> read_call -> class whose guard holds -> plan        (only if `takes_over`; at first the module, too,
                                                                            and both must agree: `torch_trial`)
                                 -> none: the module answers, and the class of the call is captured in the background

A module that is no longer what was captured is captured again, where nobody waits once it has stayed as it is for some calls.
`strict` raises where a capture or a plan fails. Calls that are none of our business (gradients wanted, hooks, autocast, a call
that is being traced) are answered by the module there, too. An error of the model's own comes as it is, never as ours.

State of a `Member`: counts of calls, and the members for submodules, which it makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hotfuse.config import Config
from hotfuse.errors import CaptureError, ExecutionError, HotfuseError
from hotfuse.locks import make_lock
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.torch_captures import Captures
from hotfuse.runtime.torch_classes import ClassTable
from hotfuse.runtime.torch_count import note_answer
from hotfuse.runtime.torch_family import Family
from hotfuse.runtime.torch_guard import Call, Miss, bypass, read_call
from hotfuse.runtime.torch_parts import Parts
from hotfuse.runtime.turns import Shadow
from hotfuse.stress import parse

if TYPE_CHECKING:
    from hotfuse.runtime.torch_class import ServedClass
    from hotfuse.runtime.torch_parts import Worth
    from hotfuse.runtime.torch_trial import Trial

FOREVER_S = 1e9
LOOK_EVERY = 16  # answers of a captured class; of the others nobody hears how long they took

Eager = Callable[..., Any]


def takes_over(config: Config, served: ServedClass) -> bool:
    """Whether a captured class answers in place of the module: when it has something better than tier 0, or is waited for."""
    return config.wait or served.tier > 0


class Member:
    """Decides who answers the calls of one module."""

    def __init__(self, module: torch.nn.Module, name: str, family: Family, worth: Worth | None = None) -> None:
        """`worth` judges whether a submodule's calls are worth a capture; without one they are."""
        self.module = module
        self.name = name or type(module).__name__
        self.family = family
        self.config = family.config
        self.table = ClassTable()
        self.calls = self.answered = 0
        self._told = 0  # answers that whoever watches their class has heard of
        self._lock = make_lock()
        self._stress = parse(self.config.stress)
        self.worth = worth
        self.is_root = not family.members
        self.parts = Parts(module, self.name, family) if self.is_root else None
        self.captures = Captures(module, self.name, family, self.table, self.is_root)
        family.members[id(module)] = self

    @property
    def classes(self) -> tuple[ServedClass, ...]:
        return self.table.all

    @property
    def failed(self) -> Mapping[Any, str]:
        """Why calls of a frame are not captured."""
        return self.table.failed

    @property
    def last_miss(self) -> str:
        return self.table.last_miss

    def call(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The answer to one call; `eager` is the module itself."""
        if RIGHT_OF_WAY.active:
            with RIGHT_OF_WAY.call():
                return self._call(eager, args, kwargs)
        return self._call(eager, args, kwargs)

    def _call(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._lock:
            self.calls += 1
            number = self.calls
        if self._stress.touches_calls:
            if self._stress.forgets(number):
                for served in self.classes:
                    served.runner.forget_shapes()
            if self._stress.original_answers(number):
                return eager(*args, **kwargs)
        if not self.family.open or self.config.tier == 0:
            return eager(*args, **kwargs)
        why = bypass()
        if why:
            self._miss(why)
            return eager(*args, **kwargs)
        call = read_call(args, kwargs)
        if call.refusal:
            self._miss(call.refusal)
            return self._in_parts(eager, args, kwargs, number)
        seen, started = self.classes, time.perf_counter()
        answer = self._answer(call, lambda: eager(*args, **kwargs))
        mendable = self.config.wait and isinstance(answer, Miss) and answer.mendable
        if mendable and self.captures.begin(call, args, kwargs, seen, self.calls):
            answer = self._answer(call, lambda: eager(*args, **kwargs))
        if isinstance(answer, _Own):
            with self._lock:
                self.answered += answer.agreed
            return answer.value
        if not isinstance(answer, Miss):
            with self._lock:
                self.answered += 1
                is_looked_at = answer.watched or self.answered - self._told >= LOOK_EVERY
                stands_for = self.answered - self._told
                self._told = self.answered if is_looked_at else self._told
            if is_looked_at:
                self._tell(answer.served, call, time.perf_counter() - started, stands_for)
            return answer.value
        if call.frame in self.failed:
            result = self._in_parts(eager, args, kwargs, number)
            if self.config.strict:  # now, because an error of the model's own would have come first
                raise CaptureError(f"{self.name}: {self.failed.get(call.frame)}")
            return result
        result, seconds = self._whole(eager, args, kwargs)
        if answer.waiting is not None:
            self._tell(answer.waiting, call, seconds)
        if answer.failed is not None:  # were the caller at fault, eager would have raised as well
            self.table.drop(answer.failed, "the captured program failed while serving")
            if self.config.strict:
                raise ExecutionError(f"{self.name}: {answer.reason}")
            return result
        if not self.config.wait and answer.mendable and (self.worth is None or self.worth.is_enough):
            self.captures.begin(call, args, kwargs, seen, self.calls)
        return result

    def _in_parts(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> Any:
        """The module itself answers call `number`, its submodules by members of their own. (Below a submodule calls are routed
        already.)"""
        return eager(*args, **kwargs) if self.parts is None else self.parts.answer(eager, args, kwargs, number)

    def _whole(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, float]:
        """The module's own answer, and how long it took. What may be captured as a whole is not captured in parts as well."""
        started = time.perf_counter()
        if self.worth is None:
            return eager(*args, **kwargs), time.perf_counter() - started
        from hotfuse.runtime.torch_route import unrouted  # there already

        with unrouted():
            result = eager(*args, **kwargs)
        seconds = time.perf_counter() - started
        self.worth.note(seconds)
        return result, seconds

    def redeemed(self) -> None:
        """A call was answered by a chain that the module is part of."""
        with self._lock:
            self.calls += 1
            self.answered += 1
            self._told += 1  # whoever watches the chain hears of it

    def _tell(self, served: ServedClass, call: Call, seconds: float, count: int = 1) -> None:
        """Let whoever watches the class of a call know who answered it, and so many before it. What fails there must not fail
        the call."""
        if served.watcher is not None:
            watcher = served.watcher
            self._guarded(lambda: watcher.called(call, served, seconds, count))

    def _guarded(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:
            self.family.events.emit("observer.failed", self.name, f"{type(error).__name__}: {error}")
            if self.config.strict:
                raise

    # finding and running a class

    def _answer(self, call: Call, eager: Callable[[], Any]) -> _Answer | _Own | Miss:
        """The answer of the first class whose guard holds, or a Miss; that of the module itself, if it was asked as well."""
        missed = _NOTHING if self.classes else Miss("")
        for found in self.table.fitting(call):
            special = found.special(call.shapes)
            if isinstance(special, Shadow):
                return self._shadow(special, call, eager)
            served = found if special is None else special.turn()
            if not takes_over(self.config, served):
                return Miss("", waiting=served)
            proven = served.proven  # as it is now: another thread may be at its first call, too
            try:
                answer = served.answer(call) if proven else _begin_trial(served, call)
            except HotfuseError as error:
                self.family.events.emit("serve.failed", self.name, str(error))
                return Miss(str(error), found)
            if served.runner.renewed:
                self._renewed(served)
            if not isinstance(answer, Miss):
                note_answer(served.program)
                watched, found.curious = bool(found.specials) or found.curious, False
                return _Answer(answer, served, watched) if proven else self._judge(served, answer, eager)
            missed = answer
        self._miss(missed.reason)
        return missed

    def _renewed(self, served: ServedClass) -> None:
        reason = served.runner.take_renewed()
        self.family.events.emit("weights.changed", self.name, reason)
        if served.watcher is not None:
            watcher = served.watcher
            self._guarded(lambda: watcher.changed(reason))

    def _judge(self, served: ServedClass, trial: Trial, eager: Callable[[], Any]) -> _Own:
        """The module's own answer to the first call of a class, which serves from now on or never again."""
        from hotfuse.runtime.torch_trial import own_answer

        own = own_answer(eager)
        difference = trial.judge(own)
        served.proven = not difference
        if difference:
            self.captures.kept.disown(served.runner.captured)
            reason = f"the captured program answers otherwise than the module: {difference}"
            self.family.events.emit("capture.differs", self.name, difference)
            self.table.drop(served, reason)
            if self.config.strict:
                raise ExecutionError(f"{self.name}: {reason}")
        return _Own(own, agreed=not difference)

    def _shadow(self, shadow: Shadow, call: Call, eager: Callable[[], Any]) -> _Own | Miss:
        """The module's own answer to a call that a candidate answers, too."""
        from hotfuse.runtime.torch_shadow import shadow_call

        own = shadow_call(shadow, call, eager, self.captures.kept.disown)
        return own if isinstance(own, Miss) else _Own(own, agreed=False)

    def _miss(self, why: str) -> None:
        if why:
            self.table.last_miss = why
            self.family.events.emit("guard.miss", self.name, why)

    # what users ask for

    @property
    def pending(self) -> int:
        return len(self.captures.pending)

    def settled(self, timeout_s: float | None) -> bool:
        """Wait until no capture is pending and no weights are being prepared; False if that takes longer than `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.table.lock:
            waits: list[Callable[[float | None], bool]] = [e.wait for e in self.captures.pending.values()]
        waits += [c.runner.settled for c in self.classes]

        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        if not all(wait(left_s()) for wait in waits):
            return False
        watchers = [c.watcher for c in self.classes if c.watcher is not None]
        return all(watcher.settled(FOREVER_S if (left := left_s()) is None else left) for watcher in watchers)

    def refresh(self) -> None:
        """Look at the module anew: prepared values are computed again, failed captures may be tried again."""
        self.captures.refresh()
        for served in self.classes:
            served.runner.refresh()

    def close(self) -> None:
        """Drop what was captured; the family is closed already, so nothing comes after it."""
        self.table.clear()


_NOTHING = Miss("nothing captured fits this call")


class _Answer(NamedTuple):
    """A class's answer; `watched` if how long it took is wanted."""

    value: Any
    served: ServedClass
    watched: bool


class _Own(NamedTuple):
    """The module's answer to a call that a captured program answered as well; `agreed` if it was the first, and alike."""

    value: Any
    agreed: bool


def _begin_trial(served: ServedClass, call: Call) -> Trial | Miss:
    from hotfuse.runtime.torch_trial import begin_trial  # brings the IR, which the first calls go without

    return begin_trial(served, call)
