"""ServedClass: one captured program, all it needs to answer calls, and the checks of the module's state before it does.

State: prepared weights (`Runner`'s) and stamps of tensors that the program took for constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError, ExecutionError
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_record import make_builder
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.pace import Pace, hurry
from hotfuse.runtime.torch_call import has_form
from hotfuse.runtime.torch_guard import Call, CallGuard, Miss
from hotfuse.runtime.torch_runner import Runner, Unready
from hotfuse.runtime.turns import Duel, Shadow
from hotfuse.runtime.weight_stamps import Stamps, mark, versions
from hotfuse.runtime.weights import LiveWeights, needs_gradient

if TYPE_CHECKING:
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.torch_runner import Kernels


class Watcher(Protocol):
    """Is told of calls, who answered and how long that took, how many a call stands for, and of weights that changed; returns
    at once. Tells what units of what serves take, how many calls of some sizes had code of their own, and why there is none."""

    def called(self, call: Call, served: ServedClass, seconds: float, count: int) -> None: ...
    def changed(self, reason: str) -> None: ...
    def unit_seconds(self) -> Mapping[str, float]: ...
    def baked_calls(self) -> Mapping[str, int]: ...
    def why(self) -> str: ...
    def settled(self, timeout_s: float) -> bool: ...


class ServedClass:
    """Answers the calls of one class with a captured program."""

    def __init__(self, guard: CallGuard, runner: Runner, live: LiveWeights) -> None:
        self.guard = guard
        self.runner = runner
        self.program = runner.program
        self.tier = 1 if runner.native else 0
        self.kept = False  # whether an earlier process captured it
        self.proven = not runner.config.trial  # whether it has answered a call as the module itself did
        self.watcher: Watcher | None = None
        self.specials: tuple[Shadow | Duel, ...] = ()  # how some of its next calls are answered
        self.curious = False  # whether the watcher wants to hear of the next one
        self._outdated = False
        self._live = live
        self._constants = Stamps(guard.watch.tensors) if guard.watch.tensors else None
        self._build = make_builder(self.program.output_form)

    @property
    def held(self) -> str:
        """What keeps fused kernels from answering, where somebody sees to it."""
        with contextlib.suppress(ReferenceError):  # nobody does any more
            return "" if self.watcher is None else self.watcher.why()
        return ""

    def special(self, form: Hashable) -> Shadow | Duel | None:
        """What a call of this form is for."""
        return next((special for special in self.specials if special.takes(form)), None) if self.specials else None

    @property
    def prepared(self) -> tuple[str, ...]:
        return self.runner.hoisted.prepared

    def weights(self) -> dict[str, torch.Tensor] | str:
        """The module's tensors by the names that the captured graph has for them, or why they are not those."""
        tensors = self._live.read()
        return tensors if isinstance(tensors, str) else dict(zip(self._live.names, tensors, strict=True))

    def inputs(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """What the captured graph takes of a call's leaves, by name, in the same memory."""
        program = self.runner.captured
        given = [_as_array(leaves[place]) for place in program.input_leaves]
        return dict(zip(program.graph.inputs, given, strict=True))

    def with_kernels(self, build: Build, kernels: Kernels, like: ServedClass) -> ServedClass:
        """The same class, answered by the kernels of a build. What was prepared for another one of the same form is shared."""
        runner = Runner(self.runner.captured, self.runner.config, (build, kernels), like.runner)
        return ServedClass(self.guard, runner, self._live.renamed(runner.names))

    def prepare(self, pace: Pace) -> None:
        """Prepare weights, before a call comes."""
        self.runner.prepare(self._tensors(), pace)

    def make_ready(self, leaves: Sequence[Any], pace: Pace) -> None:
        """Prepare weights, and bind to the shapes of a call, before one comes."""
        self.runner.make_ready(leaves, self._tensors(), pace)

    def _tensors(self) -> Sequence[torch.Tensor]:
        tensors = self._live.read()
        if isinstance(tensors, str):
            raise ExecutionError(tensors)
        return tensors

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
        lost = self._lost(tensors)
        if lost:
            return Miss(lost)
        try:
            leaves = self.runner.run(call.leaves, tensors, call.shapes)
        except Unready:
            return Miss("the weights changed; what is prepared from them is made anew in the background", hopeless=True)
        except (BadIndex, DimError) as error:  # native code writes nothing that anybody sees before it is done
            return Miss(str(error))
        return self._build(leaves)

    def state_of_weights(self) -> Hashable:
        """What tells the weights as they are from others, as far as changes leave a trace."""
        tensors = self._live.read()
        return tensors if isinstance(tensors, str) else mark(tensors)

    def outdated(self) -> str:
        """Why answers are not those of the weights as they are now, whether that left a trace or not; "" if they are."""
        tensors = self._live.read()
        return tensors if isinstance(tensors, str) else self.runner.outdated(tensors)

    def writes(self, call: Call) -> list[torch.Tensor]:
        """The tensors, of the call and of the module, that the program changes in place."""
        if not self.program.mutations:
            return []
        tensors = self._live.read()
        weights = {} if isinstance(tensors, str) else dict(zip(self._live.names, tensors, strict=True))
        found = [weights.get(m.name) if m.name else call.leaves[m.leaf] for m in self.program.mutations]
        return [tensor for tensor in found if tensor is not None]

    def departure(self) -> str:
        """Why the module is no longer what was captured (it may come back to that); "" if it is."""
        live = self.guard.watch.changed() or self._live.read()
        if isinstance(live, str):
            return live
        return self._lost(live)

    def state(self) -> list[Any]:
        """Where the module is now, as far as `departure` looks; equal to nothing where that cannot be told."""
        watch = self.guard.watch
        try:
            return [*watch.state(), *self._live.properties(), *versions(watch.tensors)]
        except Exception:  # it changes while it is read, or answers as it likes
            return [object()]

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

    def _lost(self, tensors: Sequence[torch.Tensor]) -> str:
        """Which tensor is no longer as the program takes it for granted; "" if all are. A program that holds its values is then
        of no use any more."""
        if self._constants is not None and not self._outdated:
            self._outdated = bool(self._constants.change(self.guard.watch.tensors, self.runner.config.audit_every))
        if self._outdated:
            return "a tensor held in a Python object changed"
        forms = self.program.returned_weights
        if forms and not all(has_form(tensors[self._live.names.index(form.name)], form) for form in forms):
            return "a weight that is returned has other strides or wants gradients now"
        return ""


def _as_array(leaf: Any) -> Any:
    """A leaf as the graph's input: sizes stay numbers."""
    if isinstance(leaf, torch.Tensor):
        return to_numpy(leaf)
    return leaf if isinstance(leaf, int) and not isinstance(leaf, bool) else np.asarray(leaf)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def _tensors(call: Call) -> list[torch.Tensor]:
    return [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]


def serve(
    module: torch.nn.Module, guard: CallGuard, program: CapturedProgram, config: Config, pace: Pace = hurry
) -> ServedClass:
    """Make a captured program ready to answer, with weights read from `module`."""
    if program.ran is not None:
        guard = replace(guard, watch=guard.watch.narrowed(program.ran, program.facts, pace))
    runner = Runner(program, config)
    return ServedClass(guard, runner, LiveWeights(module, program.graph, runner.names))
