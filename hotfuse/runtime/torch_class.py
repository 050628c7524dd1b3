"""ServedClass: one captured program, all it needs to answer calls, and the checks of the module's state before it does.

State: prepared weights (their own module says how they change) and stamps of tensors that the program took for constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from hotfuse.config import Config
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.ir.plan import trivial_plan
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.torch_call import run_program
from hotfuse.runtime.torch_engine import TorchEngine
from hotfuse.runtime.torch_guard import Call, CallGuard, Miss
from hotfuse.runtime.weights import LiveWeights, PreparedWeights, needs_gradient

ENGINE = TorchEngine()


class ServedClass:
    """Answers the calls of one class with a captured program."""

    def __init__(
        self,
        guard: CallGuard,
        program: CapturedProgram,
        hoisted: Hoisted,
        live: LiveWeights,
        prepared: PreparedWeights | None,
        config: Config,
    ) -> None:
        self.guard = guard
        self.captured = program
        self.program = replace(program, graph=hoisted.main)
        self.hoisted = hoisted
        self.tier = 0
        self.executor = Executor(trivial_plan(hoisted.main), ENGINE, config)
        self.renewed = ""
        self._outdated = False
        self._live = live
        self._prepared = prepared
        self._constants = PreparedWeights(lambda _: (), config.audit_every) if guard.watch.tensors else None
        if self._constants is not None:
            self._constants.values(guard.watch.tensors)
        self._tree = pytree.treespec_loads(program.output_tree)

    @property
    def prepared(self) -> tuple[str, ...]:
        return self.hoisted.prepared

    def answer(self, call: Call) -> Any:
        """The model's answer, or a Miss when the module is not what was captured."""
        changed = self.guard.watch.changed()
        if changed:
            return Miss(changed)
        tensors = self._live.read()
        if isinstance(tensors, str):
            return Miss(tensors)
        if torch.is_grad_enabled() and (needs_gradient(tensors) or needs_gradient(_tensors(call))):
            return Miss("gradients are enabled")
        if self.program.mutations and self._overwrites(call, tensors):
            return Miss("what the call changes in place shares memory with something else it reads", hopeless=True)
        if self._constants is not None and self._constants_changed():
            return Miss("a tensor held in a Python object changed")
        weights = dict(zip(self._live.names, tensors, strict=True))
        if self._prepared is not None:
            values, why = self._prepared.values([weights[name] for name in self.hoisted.sources])
            weights |= zip(self.hoisted.prepared, values, strict=True)
            if why and why != "first use":
                self.renewed = why
        return pytree.tree_unflatten(run_program(self.program, self.executor, call.leaves, weights), self._tree)

    def is_stale(self) -> bool:
        """Whether the module is no longer what was captured (it may come back to that)."""
        return self._outdated or bool(self.guard.watch.changed())

    def _overwrites(self, call: Call, weights: Sequence[torch.Tensor]) -> bool:
        """Whether memory that the program writes to is that of another tensor, too: its graph knows them as separate values.
        (Arguments that share memory with each other are the frame's matter.)"""
        arguments = {_memory(t) for t in _tensors(call)}
        places = list(map(_memory, weights))
        changed = {m.name for m in self.program.mutations if m.name}
        for name, place in zip(self._live.names, places, strict=True):
            if name in changed and (place in arguments or places.count(place) > 1):
                return True
        return any(_memory(call.leaves[m.leaf]) in places for m in self.program.mutations if not m.name)

    def _constants_changed(self) -> bool:
        """Whether a tensor whose values are part of the program is no longer what it was; the program is then of no use."""
        assert self._constants is not None
        self._outdated = self._outdated or bool(self._constants.values(self.guard.watch.tensors)[1])
        return self._outdated

    def take_renewed(self) -> str:
        """Why prepared weights were last computed anew; asked once."""
        why, self.renewed = self.renewed, ""
        return why

    def refresh(self) -> None:
        if self._prepared is not None:
            self._prepared.refresh()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def _tensors(call: Call) -> list[torch.Tensor]:
    return [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]


def serve(module: torch.nn.Module, guard: CallGuard, program: CapturedProgram, config: Config) -> ServedClass:
    """Make a captured program ready to answer, with weights read from `module`."""
    if program.ran is not None:
        guard = replace(guard, watch=guard.watch.narrowed(program.ran, program.facts))
    hoisted = hoist(program.graph, {m.name for m in program.mutations if m.name})
    names = [n for n in dict.fromkeys((*hoisted.main.weights, *hoisted.sources)) if n not in hoisted.prepared]
    live = LiveWeights(module, program.graph, names)
    prepared = None
    if hoisted.prepare is not None:
        prepare = Executor(trivial_plan(hoisted.prepare), ENGINE, config)
        prepared = PreparedWeights(lambda sources: prepare.run(list(sources)), config.audit_every)
    return ServedClass(guard, program, hoisted, live, prepared, config)
