"""Walks: how often a kernel that folds rows goes along them, and how often it computes each of its nodes.

    softmax:  walk 1: the largest     walk 2: powers and their sum     last: powers / sum

What several walks need is computed in each of them (`codegen/nest`), but for rows that stay in registers as one block, and for
what is dear, which is kept where rows are walked along. So an operator that is taken into a kernel with folds may be computed
two or three times for each element, where it was computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotfuse.ir.graph import Node
from hotfuse.records import dataclass

# folds one behind the other in an operator
LEVELS = {
    "layer_norm": 2, "rms_norm": 1, "softmax": 2, "log_softmax": 2, "logsumexp": 2, "argmax": 2, "argmin": 2, "reduce_sum": 1,
    "reduce_prod": 1, "reduce_max": 1, "reduce_min": 1, "reduce_any": 1, "reduce_all": 1, "reduce_mean": 1,
}  # fmt: skip
NORMS = frozenset({"layer_norm", "rms_norm", "softmax", "log_softmax"})  # whose results are as long as the row
# operators whose functions are kept (`DEAR` of `codegen/nest`)
KEPT = frozenset(
    [
        "exp",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "erf",
        "sigmoid",
        "silu",
        "gelu",
        "pow",
        "sin",
        "cos",
        "softmax",
        "softplus",
        "elu",
    ]
)


@dataclass(frozen=True)
class Walks:
    """`count` walks, the last of which writes; `times` each node is computed for an element, and each value outside read."""

    count: int
    times: dict[str, int]
    reads: dict[str, int]


def walks_of(
    nodes: Sequence[Node],
    results: Sequence[str],
    is_row: Callable[[Node], bool],
    root: Callable[[str], str],
    keeps: bool,
) -> Walks:
    """Of nodes in order. `is_row`: an elementwise one computes one number for each row; `keeps`: what is dear is kept."""

    def is_varying(node: Node) -> bool:
        return node.op in NORMS or not (node.op in LEVELS or is_row(node))

    made = {name: node for node in nodes for name in node.outputs}
    depth: dict[str, int] = {}
    for node in nodes:
        below = max((depth.get(made[root(name)].id, 0) for name in node.uses if root(name) in made), default=0)
        depth[node.id] = below + LEVELS.get(node.op, 0)
    last = max(depth.values(), default=0)
    turns: dict[str, set[int]] = {node.id: set() for node in nodes}
    read: dict[str, set[int]] = {}
    for name in results:
        if (writer := made.get(root(name))) is not None and is_varying(writer):
            turns[writer.id].add(last)
    for node in reversed(nodes):
        mine = turns[node.id]
        needed = {min(mine)} if keeps and mine and node.op in KEPT else set(mine)
        if node.op in LEVELS:
            levels = range(depth[node.id] - LEVELS[node.op], depth[node.id])
            needed = {*levels, *(needed if node.op in NORMS else ())}
        elif is_row(node):
            continue
        for name in node.uses:
            if (maker := made.get(root(name))) is not None:
                turns[maker.id] |= needed
            else:
                read.setdefault(name, set()).update(needed)
    times = {node.id: 1 if keeps and node.op in KEPT else max(1, len(turns[node.id])) for node in nodes}
    writes = any(is_varying(made[root(name)]) for name in results if root(name) in made)
    return Walks(last + writes, times, {name: max(1, len(found)) for name, found in read.items()})
