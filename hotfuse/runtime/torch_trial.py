"""The trial of a captured program: its first call is answered by the module itself, and both answers must be alike.

A trace cannot see all that Python code may look at: whether a tensor is a view, what the process is called, whether somebody is
exporting. Where that made it take another branch the program's answer differs, and it never answers anybody.

The plan goes first. What it writes in place is put back, random numbers are drawn again from the state it began with, and then
the module does all of it itself: what the caller sees of the call is the module's work alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_record import Form, take_apart
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.numerics import alike
from hotfuse.records import dataclass
from hotfuse.runtime.torch_count import uncounted
from hotfuse.runtime.torch_guard import Call, Miss
from hotfuse.runtime.torch_route import unrouted
from hotfuse.runtime.turns import SAMPLE_BYTES

if TYPE_CHECKING:
    from hotfuse.runtime.torch_class import ServedClass


@dataclass(frozen=True)
class Trial:
    """What the plan made of a call: copies of its answer's leaves, their form, and what it wrote into which tensors."""

    leaves: Sequence[Any]
    form: Form
    places: Sequence[torch.Tensor]
    written: Sequence[torch.Tensor]

    def judge(self, own: Any) -> str:
        """In what the plan's answer differs from the module's own; "" if it does not."""
        try:
            return self.differs(*take_apart(own))
        except CaptureError as error:
            return str(error)

    def differs(self, leaves: Sequence[Any], form: Form) -> str:
        """In what the plan's answer differs from the module's, which has these leaves; "" if it does not."""
        if form != self.form:
            return f"the answer has the structure {_short(self.form)}, the module's has {_short(form)}"
        pairs = [(f"output {i}", *pair) for i, pair in enumerate(zip(self.leaves, leaves, strict=True))]
        pairs += [("what it writes in place", *pair) for pair in zip(self.written, self.places, strict=True)]
        found = (f"{what}: {why}" for what, a, b in pairs if (why := _difference(a, b)))
        return next(found, "")


@dataclass(frozen=True)
class Witnessed:
    """A call that the module answered: its leaves and its answer's, and what state weights were in. They are copies where that
    `is_kept`; otherwise it is judged before its caller goes on."""

    call: Call
    leaves: Sequence[Any]
    form: Form
    weights: Hashable
    is_kept: bool = True

    def judge(self, served: ServedClass) -> str | None:
        """In what a plan's answer to the same call differs; "" if it does not, None where it cannot be told any more."""
        with torch.no_grad():
            answer = served.answer(self.call)
        if isinstance(answer, Miss) or served.state_of_weights() != self.weights:
            return None
        return told(served, Trial(*take_apart(answer), (), ()).differs(self.leaves, self.form))


def told(served: ServedClass, difference: str) -> str | None:
    """What a difference says of a plan: nothing, where it answered by what weights were before they changed without a trace."""
    return None if difference and served.outdated() else difference


def can_wait(served: ServedClass) -> bool:
    """Whether a plan's answer to a call is the same later on: it changes nothing in place, and draws no random numbers."""
    return not served.program.mutations and not served.program.has_effects


def witness(served: ServedClass, call: Call, own: Any) -> Witnessed:
    """Keep a call and the module's answer, while nobody else changes them: not where they are too large. CaptureError if they
    cannot be kept at all."""
    leaves, form = take_apart(own)
    weights = served.state_of_weights()
    if _bytes((*call.leaves, *leaves)) > SAMPLE_BYTES:
        return Witnessed(call, leaves, form, weights, is_kept=False)
    return Witnessed(call._replace(leaves=list(map(_copy, call.leaves))), list(map(_copy, leaves)), form, weights)


def keep_leaves(call: Call) -> list[Any] | None:
    """Copies of a call's leaves, before anybody changes them; None where they are too large."""
    return None if _bytes(call.leaves) > SAMPLE_BYTES else list(map(_copy, call.leaves))


def own_answer(eager: Callable[[], Any]) -> Any:
    """The module's answer, by nobody but itself."""
    with unrouted(), uncounted():
        return eager()


def begin_trial(served: ServedClass, call: Call) -> Trial | Miss:
    """Let the plan answer a call, and leave no trace of that."""
    places = served.writes(call)
    before = [place.detach().clone() for place in places]
    state = torch.get_rng_state() if served.program.has_effects else None
    try:
        answer = served.answer(call)
        if isinstance(answer, Miss):
            return answer
        leaves, form = take_apart(answer)
        return Trial(list(map(_copy, leaves)), form, places, list(map(_copy, places)))
    finally:
        if state is not None:
            torch.set_rng_state(state)
        with torch.no_grad():
            for place, content in zip(places, before, strict=True):
                place.copy_(content)


def _bytes(leaves: Sequence[Any]) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _copy(leaf: Any) -> Any:
    """The values of a leaf, safe from what the module does next."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _difference(ours: Any, theirs: Any) -> str:
    """In what two leaves differ; "" if they do not."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.device != theirs.device:
            return f"{_form(ours)}, the module's is {_form(theirs)}"
        if ours.device.type != "cpu" or torch.equal(ours, theirs):
            return ""
        return alike(to_numpy(ours), to_numpy(theirs)).reason
    if type(ours) is not type(theirs):
        return f"a {type(ours).__name__}, the module's is a {type(theirs).__name__}"
    same = repr(ours) == repr(theirs) if isinstance(ours, (bool, int, float, complex, str)) else True
    return "" if same else f"{_short(ours)}, the module's is {_short(theirs)}"


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else text[:77] + "..."
