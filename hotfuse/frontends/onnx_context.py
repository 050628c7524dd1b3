"""OnnxImport: what the import of one model knows and finds, passed along from graph to node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import onnx

from hotfuse.config import Config
from hotfuse.frontends.onnx_external import DataFiles
from hotfuse.frontends.onnx_tensor import NOWHERE
from hotfuse.ir.graph import Constant
from hotfuse.ir.op import FreshSymbols
from hotfuse.records import dataclass


@dataclass
class OnnxImport:
    """What an import needs and finds. `opaque` lists (origin, operator, reason) of nodes nobody here knows."""

    opsets: Mapping[str, int]
    config: Config
    files: DataFiles = NOWHERE
    initializers: Mapping[str, Constant] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()  # initializers of the main graph that are inputs of this import instead
    fresh: FreshSymbols = field(default_factory=FreshSymbols)
    opaque: list[tuple[str, str, str]] = field(default_factory=list)
    declared: Mapping[str, onnx.TypeProto] = field(default_factory=dict)  # of the graph at hand: its value_info and outputs
    depth: int = 0
