"""Planning: which groups a build has. The engine decides, with what is known of this machine, or the rules where that is asked.

State: what the cache said of the machine, read once in a process for each folder and share of the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from hotfuse.config import Config
from hotfuse.fusion.analyzer import numbers
from hotfuse.fusion.engine import Planner
from hotfuse.hardware.model import Model
from hotfuse.hardware.rates import typical_rates
from hotfuse.hardware.spec import Spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.metadata import cost_of
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import Calibration
from hotfuse.runtime.native_binding import ALONE
from hotfuse.runtime.probes import kept_rates
from hotfuse.runtime.threads import team_size


def planner_of(config: Config, spec: Spec, graph: Graph, sizes: Mapping[str, int]) -> Planner | None:
    """What plans calls of a graph at these sizes; None where the rules do."""
    if config.fusion == "rules":
        return None
    model = known_model(config, spec)
    number = numbers(sizes)
    flops = sum(number(cost_of(graph, node).flops) for node in graph.nodes)
    return Planner(model if flops > ALONE else replace(model, threads=1), spec, sizes)


def known_model(config: Config, spec: Spec) -> Model:
    return _known(config.cache, spec, team_size(spec, config.threads))


@functools.lru_cache(8)
def _known(folder: str, spec: Spec, threads: int) -> Model:
    cache = open_cache(Config(cache=folder))
    rates = kept_rates(spec, threads, cache)
    if rates is None:
        return Model(typical_rates(spec, threads), threads)
    return Calibration(spec, rates, cache).model()


def forget_models() -> None:
    """The machine was measured again."""
    _known.cache_clear()
