"""Plans that chance makes of legal edits: what calibration times, so that the model knows more than what somebody chose."""

from __future__ import annotations

import numpy as np

from hotfuse.fusion.candidates import Candidate, find
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.legality import Legality
from hotfuse.fusion.rules import Fused, fuse
from hotfuse.hardware.pairs import GRAIN
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts

ROUNDS = 6
GRAINED = 0.15  # of the edits of grain, which are legal nearly everywhere


def random_plan(graph: Graph, rng: np.random.Generator) -> list[Fused]:
    """From single nodes, or from what the rules make of them, to anything between."""
    places = layouts(graph, graph.values)
    apart = {node.id for node in graph.nodes} if rng.random() < 0.4 else set()
    legality = Legality(graph, graph.values, places)
    draft = Draft(graph, places, fuse(graph, graph.values, places, apart))
    wanted = rng.random() ** 2  # few edits more often than many: what is left to be fused can be fused and timed both ways
    for _ in range(ROUNDS):
        found = [c for c in find(draft, legality, list(draft)) if rng.random() < _share(c, wanted)]
        for place in rng.permutation(len(found)):
            apply(draft, found[place])
        draft.close_gaps()
    return draft.groups


def _share(candidate: Candidate, wanted: float) -> float:
    return wanted * GRAINED if candidate.strategy == GRAIN else wanted
