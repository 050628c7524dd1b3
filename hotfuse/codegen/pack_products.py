"""Before native code: every matrix product that has native code takes its second operand packed in panels."""

from __future__ import annotations

from hotfuse.codegen.lower_gemm import tiling_for
from hotfuse.hardware.spec import Spec
from hotfuse.ir.graph import Graph, Node, Value
from hotfuse.ir.types import F32, F64, TensorType
from hotfuse.passes.nested import Pass
from hotfuse.passes.rewrite import Draft, rewrite


def pack_products(spec: Spec) -> Pass:
    """The pass for a machine."""

    def rule(draft: Draft, node: Node) -> Value | None:
        x, y = draft.inputs(node)
        if x is None or y is None:
            return None
        a, b = x.type, y.type
        if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.shape is None or b.shape is None:
            return None
        if a.dtype not in (F32, F64) or len(a.shape) < 2 or len(b.shape) < 2:
            return None
        k, n = b.shape[-2:]
        tiling = tiling_for(spec, k, n, a.dtype)
        lanes = spec.vector_bytes // a.dtype.bytes
        last = tiling.panel
        if isinstance(n, int) and n % tiling.panel:
            last = -(-(n % tiling.panel) // lanes) * lanes
        panels = draft.add("pack", y, panel=tiling.panel, last=last)
        return draft.add("panel_matmul", x, panels, columns=(n,), panel=tiling.panel, last=last)

    return lambda graph: rewrite(graph, {"matmul": [rule]})


def native_graph(graph: Graph, spec: Spec) -> Graph:
    """The graph in the form that native code is made from."""
    return pack_products(spec)(graph)
