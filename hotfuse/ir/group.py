"""Group: a subgraph that becomes one kernel on one device."""

from __future__ import annotations

from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """`nodes` are node ids in the order they run; `lineage` the ids of the groups it was made from."""

    id: str
    nodes: tuple[str, ...]
    device: str = "cpu"
    lineage: tuple[str, ...] = ()
