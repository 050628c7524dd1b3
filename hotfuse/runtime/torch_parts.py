"""Parts: a model that cannot be captured as a whole is answered through its submodules, the largest that can be.

    the model's own code runs -> it calls a submodule (routed) -> the submodule's member answers, as it would for a model
                                                                -> it cannot be captured either: its own submodules do

Where nobody waits for captures, a submodule is captured when enough time was spent in it, and its submodules are left alone
until it is known that it cannot be. Those whose calls are short are the model's own for good: finding who answers would take
longer than what could be saved.

State: the members of submodules, which the family holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.runtime.torch_route import routed, unrouted

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Family
    from hotfuse.runtime.torch_joins import Joins
    from hotfuse.runtime.torch_serving import Member

    Eager = Callable[..., Any]


SHORT_S = 2e-4  # a submodule whose calls take less is not worth asking who answers them
ENOUGH_S = 0.1  # spent in a submodule: it is captured
TIMED_CALLS = 8  # of a submodule, before it is said to be short
LOOK_EVERY = 64  # calls of a short one: calls may become longer


class Worth:
    """Whether the calls of a submodule are worth a capture. Callers in several threads may lose a note: that is no harm."""

    def __init__(self) -> None:
        self._calls = self._passed = 0
        self._spent_s = self._usual_s = 0.0

    def note(self, seconds: float) -> None:
        """The submodule itself answered a call."""
        self._calls += 1
        self._spent_s += seconds
        self._usual_s += (seconds - self._usual_s) / min(self._calls, TIMED_CALLS)

    @property
    def is_enough(self) -> bool:
        return self._spent_s >= ENOUGH_S and self._usual_s >= SHORT_S

    def passes(self) -> bool:
        """Whether the next call is the submodule's own, as it was too short before. Now and then one is timed again."""
        if self._calls < TIMED_CALLS or self._usual_s >= SHORT_S:
            return False
        self._passed += 1
        return self._passed % LOOK_EVERY != 0


class Parts:
    """The submodules of one model as members of its family."""

    def __init__(self, module: torch.nn.Module, name: str, family: Family) -> None:
        self._module, self._name, self._family = module, name, family
        self.joins: Joins | None = None

    def answer(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any], calls: int) -> Any:
        """The answer of the model itself to call number `calls`, its submodules' by their members."""
        config = self._family.config
        if not (config.wait or config.adapts) or not self._module._modules or torch.is_grad_enabled():
            return eager(*args, **kwargs)
        if config.wait:
            return self._answer(eager, args, kwargs, calls)
        joins = self.joins or self._join()
        joins.begin()
        try:
            return self._answer(eager, args, kwargs, calls)
        finally:
            joins.end()

    def _answer(self, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any], calls: int) -> Any:
        config, members = self._family.config, self._family.all()
        state = (sum(len(m.classes) for m in members), sum(len(m.failed) for m in members))
        known = self._family.counted is not None and self._family.counted[0] == state
        if known or not (config.wait or calls & (calls - 1) == 0):  # a counted call is slow: where others wait, ever rarer ones
            with routed(self._route):
                return eager(*args, **kwargs)
        from hotfuse.runtime.torch_count import OperatorCount, counted

        count = OperatorCount()
        with routed(counted(self._route, count)), count:
            result = eager(*args, **kwargs)
        self._family.counted = state, count.share
        return result

    def _route(self, module: torch.nn.Module, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        member = self._family.members.get(id(module)) or self._new(module)
        if member is None or member.is_root:
            return eager(*args, **kwargs)
        if member.worth is not None and member.worth.passes():
            with unrouted():
                return eager(*args, **kwargs)
        return member.call(eager, args, kwargs) if self.joins is None else self.joins.call(member, eager, args, kwargs)

    def _join(self) -> Joins:
        from hotfuse.runtime.torch_joins import Joins
        from hotfuse.runtime.torch_serving import Member

        with self._family.lock:
            if self.joins is None:
                self.joins = Joins(self._family, lambda module, name: Member(module, name, self._family))
            return self.joins

    def _new(self, module: torch.nn.Module) -> Member | None:
        """A member for a submodule; None for a module that is none, as one that the model has just made."""
        from hotfuse.runtime.torch_serving import Member

        name = next((n for n, m in self._module.named_modules() if m is module), None)
        if name is None:
            return None
        worth = None if self._family.config.wait else Worth()
        with self._family.lock:
            return self._family.members.get(id(module)) or Member(module, f"{self._name}.{name}", self._family, worth)
