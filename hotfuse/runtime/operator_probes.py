"""Measures single operators: what an element and a row of each takes, on one thread, with all that it reads nearby.

    functions   one applied to what is nearby, less a part of what it takes to move that
    folds       the same elements in long rows and in short ones: what the short ones take more is that of a row

Both are groups of one graph, which is built and timed as any model is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.fusion.rules import fuse
from hotfuse.fusion.tuning import computing
from hotfuse.hardware.spec import Spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from hotfuse.ir.layout import layouts
from hotfuse.ir.types import F32, TensorType
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.racing import Track

FUNCTIONS = (
    "exp", "log", "log1p", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "reciprocal", "sigmoid", "silu", "gelu", "elu",
    "softplus", "hard_sigmoid", "floor", "div", "pow",
)  # fmt: skip
MOVE = "neg"
OF_TWO = ("div", "pow")
FOLDS = ("layer_norm", "rms_norm", "softmax", "log_softmax", "reduce_sum", "reduce_mean", "reduce_max", "logsumexp")
ELEMENTS = 4096  # of a value: some of them fit the nearest cache
MOVED = 0.5  # of the time of a kernel that only moves elements goes on beside the arithmetic
NARROW, WIDE = 32, 512  # elements of a row

Operators = dict[str, tuple[float, float]]


def measure_operators(spec: Spec, config: Config) -> Operators:
    """Seconds of an element and of a row of each operator, on one thread. What cannot be told from nothing is left out."""
    builder = GraphBuilder("operators")
    rng = np.random.default_rng(0)
    given: dict[str, np.ndarray[Any, Any]] = {}

    def input(width: int) -> Value:
        name = f"x{len(given)}"
        given[name] = rng.uniform(0.3, 1.0, (ELEMENTS // width, width)).astype(np.float32)
        return builder.input(name, TensorType(F32, (ELEMENTS // width, width)))

    sources = {width: input(width) for width in (NARROW, WIDE)}
    other, weight = input(WIDE), builder.constant(np.ones(WIDE, np.float32), "w")
    short_weight = builder.constant(np.ones(NARROW, np.float32), "v")
    ends: dict[tuple[str, int], Value] = {}
    for op in (MOVE, *FUNCTIONS):
        value = sources[WIDE]
        ends[op, 1] = builder.add(op, value, other) if op in OF_TWO else builder.add(op, value)
    for op in FOLDS:
        for width in (NARROW, WIDE):
            ends[op, width] = _folded(builder, op, sources[width], weight if width == WIDE else short_weight)
    graph = builder.build(list(ends.values()))
    hoisted = hoist(native_form(skeleton(graph), spec), ())
    main = hoisted.main
    places = layouts(main, main.values)
    groups = fuse(main, main.values, places)
    inputs = [given[name] for name in main.inputs]
    track = Track(hoisted, main, attached(hoisted, graph.constants), inputs, replace(config, threads=1))
    laps = {lap.nodes: lap.seconds for lap in track.laps(groups, groups)[0]}
    taken = {name: laps.get(computing((node.id for node in group.nodes), places)) for group in groups for node in group.nodes
             for name in node.outputs}  # fmt: skip
    seconds = {key: taken.get(output) for key, output in zip(ends, main.outputs, strict=True)}
    found: Operators = {}
    moves_s = seconds[MOVE, 1] or 0.0
    for op in FUNCTIONS:
        once = seconds[op, 1]
        if once is not None and once > MOVED * moves_s:
            found[op] = ((once - MOVED * moves_s) / ELEMENTS, 0.0)
    for op in FOLDS:
        narrow, wide = seconds[op, NARROW], seconds[op, WIDE]
        if narrow is not None and wide is not None and wide > 0:
            row_s = max(0.0, (narrow - wide) / (ELEMENTS // NARROW - ELEMENTS // WIDE))
            found[op] = (max(wide - ELEMENTS // WIDE * row_s, 0.1 * wide) / ELEMENTS, row_s)
    return found


def _folded(builder: GraphBuilder, op: str, value: Value, weight: Value) -> Value:
    if op == "layer_norm":
        return builder.add(op, value, weight, weight, axis=-1, epsilon=1e-5)
    if op == "rms_norm":
        return builder.add(op, value, weight, axis=-1, epsilon=1e-5)
    if op in ("softmax", "log_softmax"):
        return builder.add(op, value, axis=-1)
    return builder.add(op, value, axes=(1,), keepdims=True)
