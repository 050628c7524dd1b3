"""Chain: parts of a model that are called one after the other, each with what those before it made, as one module.

    head(x) -> y      next(y) -> z          chain(x) -> (y, z): y is answered at once, z is promised to the call of next(y)

A promise is kept only for a call with the very tensors that it was made from, unchanged, of a part that has not changed either;
any other call is answered by the part itself. So the code between the calls may do what it likes.

`wire` tells from calls that were seen how the arguments of each follow from what came before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from hotfuse.records import dataclass
from hotfuse.runtime.torch_guard import Call, bypass, read_call
from hotfuse.runtime.weight_stamps import mark

if TYPE_CHECKING:
    from hotfuse.runtime.torch_serving import Member

State = Mapping[int, Hashable]  # by class
RECORDS = "it takes records, which only its own code takes apart"
UNTRACED = "what it is called with was changed without a trace"
VALUE = -1  # where a leaf is a plain value, the same in every call


@dataclass(frozen=True)
class Link:
    """How the call of a part follows from those before it: its structure, as torch's pytree writes it down, and for each of its
    leaves where it comes from: (0, i) is leaf i of the first call, (n, i) leaf i of what part n answered, counted from 1."""

    tree: str
    wires: tuple[tuple[int, Any], ...]
    frame: Hashable  # of the call, as `read_call` describes it


@dataclass(frozen=True, eq=False)
class Seen:
    """A call of a part and its answer, while the next part's is awaited; `before` are copies of its tensors."""

    member: Member
    call: Call
    tree: str
    results: Sequence[Any]
    before: Mapping[int, torch.Tensor]


def see(member: Member, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> Seen:
    """Take note of a call, as `read_call` read it, and of its answer."""
    leaves, tree = _flat(args, kwargs)
    same = len(leaves) == len(call.leaves) and all(a is b for a, b in zip(leaves, call.leaves, strict=True))
    results = pytree.tree_leaves(answer)
    tensors = [leaf for leaf in (*leaves, *results) if isinstance(leaf, torch.Tensor)]
    return Seen(
        member, call, pytree.treespec_dumps(tree) if same else "", results, {id(t): t.detach().clone() for t in tensors}
    )


def wire(trail: Sequence[Seen]) -> tuple[tuple[Link, ...], str]:
    """Links for the calls after the first, as far as they can be told, and why there is none for the next; "" if there is."""
    for seen in trail:
        if seen.call.refusal:
            return (), seen.call.refusal
    modes = trail[0].call.frame[2]  # type: ignore[index]
    if not trail[0].tree or modes[0]:
        return (), "gradients are enabled" if modes[0] else RECORDS
    known = {id(leaf): (0, i) for i, leaf in reversed(list(enumerate(trail[0].call.leaves)))}
    before = dict(trail[0].before)
    found: list[Link] = []
    for number, seen in enumerate(trail):
        if number:
            wires, why = _wires(seen, known, before, number)
            if why or seen.call.frame[2] != modes:  # type: ignore[index]
                return tuple(found), why or "it is called in other modes"
            found.append(Link(seen.tree, wires, seen.call.frame))
        for i, leaf in enumerate(seen.results):
            known.setdefault(id(leaf), (number + 1, i))
        before.update({place: copy for place, copy in seen.before.items() if place not in before})
    return tuple(found), ""


def _wires(
    seen: Seen, known: Mapping[int, tuple[int, int]], before: Mapping[int, torch.Tensor], number: int
) -> tuple[tuple[tuple[int, Any], ...], str]:
    if not seen.tree:
        return (), RECORDS
    wires: list[tuple[int, Any]] = []
    for place, leaf in enumerate(seen.call.leaves):
        if not isinstance(leaf, torch.Tensor):
            wires.append((VALUE, leaf))
        elif leaf.is_inference():
            return (), "tensors of inference mode do not tell when they are changed"
        elif id(leaf) not in known:
            return (), f"argument {place} is not known when the first of them is called"
        elif not _same_bytes(leaf, before[id(leaf)]):
            return (), f"argument {place} is changed in between"
        else:
            wires.append(known[id(leaf)])
    if not any(part == number for part, _ in wires):
        return (), "it takes nothing that the one before it makes"
    return tuple(wires), ""


class ChainModule(torch.nn.Module):  # type: ignore[misc]
    """Calls its parts one after the other, and answers with what each of them does."""

    def __init__(self, parts: Sequence[torch.nn.Module], links: Sequence[Link]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.training = parts[0].training
        self.trees = tuple(link.tree for link in links)
        self.wires = tuple(link.wires for link in links)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made = [pytree.tree_leaves((args, {name: kwargs[name] for name in sorted(kwargs)}))]
        answers: list[Any] = []
        for number, part in enumerate(self.parts):
            if number:
                leaves = [i if source == VALUE else made[source][i] for source, i in self.wires[number - 1]]
                args, kwargs = pytree.tree_unflatten(leaves, pytree.treespec_loads(self.trees[number - 1]))
            answers.append(part(*args, **kwargs))
            made.append(pytree.tree_leaves(answers[-1]))
        return tuple(answers)


@dataclass(frozen=True, eq=False)
class Promise:
    """What a chain answered to the call of its first part. `states` are those that the parts were in before it did; `copies`
    are of its tensors, by identity, if it is looked whether they change without a trace."""

    links: Sequence[Link]
    members: Sequence[Member]
    made: Sequence[Sequence[Any]]  # the leaves of the first call, and of each answer
    stamps: Mapping[int, Hashable]
    answers: Sequence[Any]
    states: Sequence[State]
    copies: Mapping[int, torch.Tensor]

    def redeem(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """The answer to the call of a part, or why it must answer for itself."""
        link, call = self.links[number - 1], read_call(args, kwargs)
        if call.refusal or call.frame != link.frame:
            return None, call.refusal or "it is called otherwise"
        for leaf, (source, i) in zip(call.leaves, link.wires, strict=True):
            if source == VALUE:
                continue
            if leaf is not self.made[source][i] or _stamp(leaf) != self.stamps[id(leaf)]:
                return None, "it is called with something else"
            if self.copies and not _same_bytes(leaf, self.copies[id(leaf)]):
                return None, UNTRACED
        member, before = self.members[number], self.states[number]
        served = next(iter(member.table.fitting(call)), None)
        if served is None or id(served) not in before or before != state_of(member):
            return None, "it has changed"
        why = bypass()
        return (None, why) if why else (self.answers[number], "")


def promise(
    links: Sequence[Link],
    members: Sequence[Member],
    call: Call,
    answers: Sequence[Any],
    states: Sequence[State],
    audited: bool = False,
) -> Promise | None:
    """What the answers of a chain are good for; None where tensors do not tell when they are changed."""
    made = [call.leaves, *map(pytree.tree_leaves, answers)]
    tensors = [leaf for leaves in made for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    stamps = {id(tensor): _stamp(tensor) for tensor in tensors}
    return Promise(links, members, made, stamps, answers, states, _copied(tensors) if audited else {})


def state_of(member: Member) -> State:
    """Of the classes of a part that have no effects those that the part has not moved away from, and their tensors as far as
    changes leave a trace. Where there is none the part may do anything."""
    return {
        id(served): (served.state_of_weights(), mark(served.guard.watch.tensors))
        for served in member.classes
        if served.tier > 0 and not served.program.mutations and not served.program.has_effects and not served.departure()
    }


def _stamp(tensor: torch.Tensor) -> Hashable:
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.requires_grad


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(first, second))


def _copied(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    return {id(tensor): tensor.detach().clone() for tensor in tensors}


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    return pytree.tree_flatten((args, {name: kwargs[name] for name in sorted(kwargs)}))  # type: ignore[no-any-return]
