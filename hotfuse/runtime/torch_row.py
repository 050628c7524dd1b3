"""Row: parts of a model that always follow each other, and what became of joining them.

State of a row, under its lock: how its parts are wired, the chain that stands for them, and how that fares.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from hotfuse.locks import make_lock
from hotfuse.records import dataclass
from hotfuse.runtime.backoff import FRESH, Backoff
from hotfuse.runtime.torch_chain import Link
from hotfuse.runtime.turns import Duel

if TYPE_CHECKING:
    from hotfuse.runtime.torch_serving import Member


@dataclass
class Row:
    """Parts that always follow each other. `links` say how once they are wired, for calls of the first part of one `frame`;
    then `chain` answers for them, unless it rests. `over`: they cannot be joined."""

    members: tuple[Member, ...]
    frequency: str
    frame: Hashable = None
    links: tuple[Link, ...] = ()
    over: bool = False
    gone: bool = False  # a longer one has taken its place
    alike: int = 0  # calls in a row that were wired so
    chain: Member | None = None
    duel: Duel | None = None
    pays: bool = False
    calls: int = 0
    kept: int = 0
    broken: int = 0
    rest: Backoff = FRESH
    why: str = ""
    lock: threading.Lock = field(default_factory=make_lock)

    @property
    def name(self) -> str:
        return " + ".join(member.name for member in self.members)

    @property
    def is_wired(self) -> bool:
        return self.over or self.gone or self.chain is not None


def serves(member: Member) -> bool:
    """Whether kernels answer calls of a part."""
    return any(served.tier > 0 for served in member.classes)


def is_coming(member: Member) -> bool:
    """Whether a part has no kernels yet, but may get some."""
    return bool(member.pending) or (bool(member.classes) and not serves(member))


def fit_rows(
    members: Sequence[Member | None], apart: Collection[tuple[Member, Member]], max_nodes: int
) -> list[tuple[Member, ...]]:
    """Of parts in a row those stretches that may be joined."""
    rows: list[list[Member]] = [[]]
    nodes = 0
    for member in members:
        size = _joinable_nodes(member)
        if member is None or not size or nodes + size > max_nodes or (rows[-1] and (rows[-1][-1], member) in apart):
            rows.append([])
            nodes = 0
        if member is not None and size:
            rows[-1].append(member)
            nodes += size
    return [tuple(row) for row in rows if len(row) > 1]


def _joinable_nodes(member: Member | None) -> int:
    """How many nodes a part has; 0 if it cannot be joined to others."""
    classes = [] if member is None else [served for served in member.classes if served.tier > 0]
    if not classes or any(c.program.mutations or c.program.has_effects for c in classes):
        return 0
    return max(len(c.runner.captured.graph.nodes) for c in classes)
