"""Chain: parts of a model that are called one after the other, each with what those before it made, as one module.

    head(x) -> y      next(y) -> z          chain(x) -> (y, z): y is answered at once, z is promised to the call of next(y)

A promise is kept only for a call with the very tensors that it was made from, unchanged, of a part that has not changed either;
any other call is answered by the part itself. So the code between the calls may do what it likes.

`wire` tells from calls that were seen how the arguments of each follow from what came before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from hotfuse.runtime.torch_guard import Call, bypass, read_call

if TYPE_CHECKING:
    from hotfuse.runtime.torch_serving import Member

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
    known = {id(leaf): (0, i) for i, leaf in reversed(list(enumerate(trail[0].call.leaves)))}
    before = dict(trail[0].before)
    found: list[Link] = []
    for number, seen in enumerate(trail):
        if number:
            wires, why = _wires(seen, known, before, number)
            if why:
                return tuple(found), why
            found.append(Link(seen.tree, wires, seen.call.frame))
        for i, leaf in enumerate(seen.results):
            known.setdefault(id(leaf), (number + 1, i))
        before.update({place: copy for place, copy in seen.before.items() if place not in before})
    return tuple(found), ""


def _wires(
    seen: Seen, known: Mapping[int, tuple[int, int]], before: Mapping[int, torch.Tensor], number: int
) -> tuple[tuple[tuple[int, Any], ...], str]:
    if not seen.tree:
        return (), "it takes records, which only its own code takes apart"
    wires: list[tuple[int, Any]] = []
    for place, leaf in enumerate(seen.call.leaves):
        if not isinstance(leaf, torch.Tensor):
            wires.append((VALUE, leaf))
        elif leaf.is_inference():
            return (), "tensors of inference mode do not tell when they are changed"
        elif id(leaf) not in known:
            return (), f"argument {place} is not known when the first of them is called"
        elif not torch.equal(leaf, before[id(leaf)]):
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
    """What a chain answered to the call of its first part. `weights` are the states of the parts' weights before it did;
    `copies` those of its tensors, by identity, if it is looked whether they change without a trace."""

    links: Sequence[Link]
    members: Sequence[Member]
    made: Sequence[Sequence[Any]]  # the leaves of the first call, and of each answer
    versions: Mapping[int, int]
    answers: Sequence[Any]
    weights: Sequence[Hashable]
    copies: Mapping[int, torch.Tensor]

    def redeem(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """The answer to the call of a part, or why it must answer for itself."""
        link, call = self.links[number - 1], read_call(args, kwargs)
        if call.frame != link.frame:
            return None, "it is called otherwise"
        for leaf, (source, i) in zip(call.leaves, link.wires, strict=True):
            if source == VALUE:
                continue
            if leaf is not self.made[source][i] or leaf._version != self.versions[id(leaf)]:
                return None, "it is called with something else"
            if self.copies and not torch.equal(leaf, self.copies[id(leaf)]):
                return None, UNTRACED
        member = self.members[number]
        served = next(iter(member.table.fitting(call)), None)
        if served is None or served.guard.watch.changed() or state_of(member) != self.weights[number]:
            return None, "it has changed"
        why = bypass()
        return (None, why) if why else (self.answers[number], "")


def promise(
    links: Sequence[Link],
    members: Sequence[Member],
    call: Call,
    answers: Sequence[Any],
    weights: Sequence[Hashable],
    audited: bool = False,
) -> Promise | None:
    """What the answers of a chain are good for; None where tensors do not tell when they are changed."""
    made = [call.leaves, *map(pytree.tree_leaves, answers)]
    tensors = [leaf for leaves in made for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return Promise(
        links, members, made, {id(t): t._version for t in tensors}, answers, weights, _copied(tensors) if audited else {}
    )


def state_of(member: Member) -> Hashable:
    """The weights of a part as they are, as far as changes leave a trace, and by whom it is answered."""
    return tuple((id(served), served.state_of_weights()) for served in member.classes)


def _copied(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    return {id(tensor): tensor.detach().clone() for tensor in tensors}


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    return pytree.tree_flatten((args, {name: kwargs[name] for name in sorted(kwargs)}))  # type: ignore[no-any-return]
