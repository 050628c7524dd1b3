"""Passes: pure functions from graph to graph, run in the order of `PIPELINE`.

    remove_dead              what no result needs
    fold_shapes              known sizes become constants, or `dims` of the input sizes
    fold_constants           nodes over constants are computed now
    simplify                 identities that keep every bit
    merge_subexpressions     equal nodes become one
    recognize_*              spelled-out activations, norms and attention become one operator each
    fold_batch_norm          batch norm goes into the convolution before it

Each pass takes time linear in the graph. Simplification and folding come again after what makes new work for them.
"""

from __future__ import annotations

from collections.abc import Callable

from hotfuse.ir.graph import Graph
from hotfuse.passes.batch_norm import fold_batch_norm
from hotfuse.passes.dead_code import remove_dead
from hotfuse.passes.fold import fold_constants, fold_shapes
from hotfuse.passes.nested import Pass
from hotfuse.passes.recognize_activation import recognize_activations
from hotfuse.passes.recognize_attention import recognize_attention
from hotfuse.passes.recognize_norm import recognize_norms
from hotfuse.passes.simplify import simplify
from hotfuse.passes.subexpressions import merge_subexpressions

PIPELINE: tuple[Pass, ...] = (
    remove_dead,
    fold_shapes,
    fold_constants,
    simplify,
    merge_subexpressions,
    simplify,
    recognize_activations,
    recognize_norms,
    recognize_attention,
    fold_batch_norm,
    fold_constants,
    simplify,
    merge_subexpressions,
)


def optimize(
    graph: Graph, passes: tuple[Pass, ...] = PIPELINE, failed: Callable[[str, Exception], None] | None = None
) -> Graph:
    """The graph after every pass, in order. A pass that raises is left out and told to `failed`; without one it raises."""
    for run in passes:
        try:
            graph = run(graph)
        except Exception as error:
            if failed is None:
                raise
            failed(run.__name__, error)
    return graph
