"""Traffic: what units of a model took while it served, held against what the performance model says, in a worker process.

TrafficRequest: a graph, what units of it took, at which sizes  ->  TrafficReply: what they were predicted to take; and, if that
                                                                    is wanted, whether a forest that knows them is better

A forest is trained of all that calibration found and of what traffic shows, which counts more (`hardware/moving`). One unit in
some is held out: only if the new forest is better on those it replaces the one in use. Samples of traffic join the window of
calibration, and are a bounded part of it (`hardware/samples`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.fusion.analyzer import analyse
from hotfuse.fusion.tuning import computing
from hotfuse.hardware.features import FEATURES, rows_of
from hotfuse.hardware.forest import Forest, read_forest, write_forest
from hotfuse.hardware.moving import move
from hotfuse.hardware.samples import HELD_OUT, Samples, make_samples, write_samples
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.training import Quality, quality
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.records import dataclass
from hotfuse.runtime.build import Sizes, baked
from hotfuse.runtime.building import make_planned
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import TIMES, Calibration, forget_machine
from hotfuse.runtime.planning import known_model, team_of

LEAST = 10  # units, to train of and to judge by
SPREAD = 0.05  # of what units take in traffic, as a median of some traces
RANK_LOST = 0.02  # at most, on what calibration holds out: who learns of one model may not forget the others
SOURCE = -2  # of traffic: no specimen's, no calibrated model's, and none that is held out for good


@dataclass(frozen=True, eq=False)
class TrafficRequest:
    """`units` are the nodes of each, `seconds` what it took. With `is_baked` its kernels are for these sizes only. `trains`: a
    new forest is wanted."""

    graph: Graph
    config: Config
    sizes: Sizes
    is_baked: bool
    units: tuple[tuple[str, ...], ...]
    seconds: tuple[float, ...]
    trains: bool = False


@dataclass(frozen=True, eq=False)
class TrafficReply:
    """Of the units that are groups of the plan still: measured and predicted seconds. Errors are medians over units held out;
    None where nothing was trained. Not `is_known`: nobody calibrated this machine, and there is nothing to drift from."""

    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    before: float | None = None
    after: float | None = None
    is_replaced: bool = False
    cpu_s: float = 0.0
    is_known: bool = True


def weigh_here(asked: TrafficRequest) -> TrafficReply:
    """In the process that calls; it imports scikit-learn where it trains."""
    begun = time.process_time()
    config, sizes = asked.config, dict(asked.sizes)
    spec = host_spec(config.isa)
    model = known_model(config, spec)
    if model.forest is None:
        return TrafficReply((), (), is_known=False)
    graph = baked(asked.graph, sizes) if asked.is_baked else asked.graph
    places = layouts(graph, graph.values)
    groups = make_planned(graph, spec, config, asked.sizes if asked.is_baked else ()).groups
    taken = {computing(nodes, places): seconds for nodes, seconds in zip(asked.units, asked.seconds, strict=True)}
    works, measured = [], []
    for group, work in zip(groups, analyse(groups, graph, graph.values, places, sizes), strict=True):
        seconds = taken.get(computing((node.id for node in group.nodes), places), 0.0)
        if seconds > 0 and not group.fetches:  # the time of a woven product is also that of the other group
            works.append(work)
            measured.append(seconds)
    threads = team_of(graph, sizes, model.threads)
    rows, prior = rows_of(works, model.rates, threads)
    logs, _ = model.forest.ask(rows)
    reply = TrafficReply(tuple(measured), tuple((prior * np.exp(logs)).tolist()))
    if asked.trains and len(works) >= LEAST:
        samples = make_samples(rows, prior, measured, [SPREAD] * len(measured), SOURCE)
        reply = _trained(reply, samples, Calibration(spec, model.rates, open_cache(config)))
    return replace(reply, cpu_s=time.process_time() - begun)


def _trained(reply: TrafficReply, samples: Samples, calibration: Calibration) -> TrafficReply:
    known, data = calibration.samples(), calibration.forest()
    if not data:  # somebody emptied the cache meanwhile
        return reply
    kinds = kinds_of(samples)
    is_held = kinds % HELD_OUT == HELD_OUT - 1
    if not is_held.any():  # few kinds of units: what is learned of them cannot be judged by others
        return reply
    held, rest = samples.where(is_held), samples.where(~is_held)
    forest, other = move(known.where(~known.is_held_out), rest, FEATURES), read_forest(data)
    before, after = _quality(other, held).median_error, _quality(forest, held).median_error
    aside = known.where(known.is_held_out)
    ranks = [_quality(each, aside).rank_correlation for each in (other, forest)] if len(aside) > 1 else [0.0, 0.0]
    is_narrow = ranks[1] < ranks[0] - RANK_LOST
    if after >= before or is_narrow:
        return replace(reply, before=before, after=after)
    calibration.keep(TIMES.samples, TIMES, write_samples(known + rest))
    is_kept = calibration.keep(TIMES.forest, TIMES, write_forest(forest))
    if is_kept:
        forget_machine()
    return replace(reply, before=before, after=after, is_replaced=is_kept)


def kinds_of(samples: Samples) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for each sample, the same for those alike: layers are the same units again and again, and whoever was trained of
    one knows the others."""
    found: np.ndarray[Any, np.dtype[np.int64]] = np.unique(np.round(samples.rows, 6), axis=0, return_inverse=True)[1]
    return found.reshape(-1)


def _quality(forest: Forest, samples: Samples) -> Quality:
    return quality(samples.prior_s * np.exp(forest.ask(samples.rows)[0]), samples.seconds)
