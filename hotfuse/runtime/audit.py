"""Audits: an answer that was given, held against tier 0's own to the same inputs, in a worker process.

AuditRequest: a skeleton, the inputs and outputs of a call    ->  AuditReply: whether they agree, or why not
              (weights are asked back, by name)
"""

from __future__ import annotations

import time
from dataclasses import replace

from hotfuse.config import Config
from hotfuse.ir.graph import Graph
from hotfuse.ir.plan import trivial_plan
from hotfuse.records import dataclass
from hotfuse.runtime.build_request import Array, Weight
from hotfuse.runtime.difference import difference
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY


@dataclass(frozen=True, eq=False)
class AuditRequest:
    """`outputs` are what was answered to `inputs`; both are in the graph's order, and nobody's but ours."""

    graph: Graph
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    config: Config


@dataclass(frozen=True, eq=False)
class AuditReply:
    reason: str  # in what they differ; "" if they agree
    cpu_s: float


def audit_here(asked: AuditRequest, weight: Weight) -> AuditReply:
    """Tier 0's answer against the one that was given."""
    begun = time.process_time()
    executor = Executor(trivial_plan(asked.graph), NUMPY, replace(asked.config, tier=0))
    own = executor.run([*asked.inputs, *(weight(name) for name in asked.graph.weights)])
    return AuditReply(difference(asked.graph.outputs, asked.outputs, own), time.process_time() - begun)
