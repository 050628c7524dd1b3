"""Edits: a candidate made part of a draft, if what it is about is still there."""

from __future__ import annotations

from hotfuse.fusion.candidates import Candidate
from hotfuse.fusion.draft import Draft, Item
from hotfuse.hardware.pairs import RECOMPUTE, SAME, SPLIT


def apply(draft: Draft, candidate: Candidate) -> list[Item]:
    """The items that are new; none where other edits were made since that keep this one from being made."""
    if not all(item in draft for item in candidate.gone):
        return []
    if candidate.strategy == RECOMPUTE:
        cheap, *readers = candidate.gone
        (root,) = cheap.writes
        if set(draft.readers.get(root, ())) != set(readers):
            return []
        return draft.dissolve(cheap, dict(zip(readers, candidate.made, strict=True)))
    if candidate.strategy == SPLIT:
        return draft.split(candidate.gone[0], candidate.made)
    if candidate.strategy in SAME:
        return [draft.swap(candidate.gone[0], candidate.made[0])]
    first, second = draft.in_order(candidate.gone)
    if (first, second) != candidate.gone or draft.between(first, second):
        return []
    return [draft.fuse(first, second, candidate.made[0])]
