"""Planning: which groups a build has. The engine decides by what is known of this machine, or the rules if asked to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotfuse.config import Config
from hotfuse.errors import ParseError
from hotfuse.fusion.analyzer import numbers
from hotfuse.fusion.engine import Engine, Planner
from hotfuse.fusion.grouping import make_plan
from hotfuse.fusion.strategies import CONTEXT, Policy, new_policy, read_policy, write_policy
from hotfuse.fusion.why import Stage, Why, fate_of, find_node, why, why_by_rules
from hotfuse.hardware.model import Model
from hotfuse.hardware.rates import rates_key
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.ir.metadata import cost_of
from hotfuse.passes.hoist import hoist
from hotfuse.runtime.build import baked, skeleton
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import known_machine
from hotfuse.runtime.native_binding import ALONE
from hotfuse.runtime.objects import generator_version
from hotfuse.runtime.partition import with_share
from hotfuse.runtime.threads import team_size

POLICY = "policy"  # the kind in the cache
AHEAD = "is computed once, when weights are bound: it reads weights and constants alone"
SPELLED = "has no operator of its own in native code: it follows from constants, or is a part of one that is spelled otherwise"
SIMPLER = "is gone since the model was loaded: it followed from constants, did what another node does, or is a part of one now"


def planner_of(config: Config, spec: Spec, graph: Graph, sizes: Mapping[str, int]) -> Planner | None:
    """What plans calls of a graph at these sizes; None where the rules do."""
    if config.fusion == "rules":
        return None
    model = known_model(config, spec)
    share = with_share(spec, team_size(spec, config.threads))
    return Planner(replace(model, threads=team_of(graph, sizes, model.threads)), share, sizes)


def team_of(graph: Graph, sizes: Mapping[str, int], threads: int) -> int:
    """How many threads calls of a graph run on: one, where all is done before a second is awake (`runtime/native_binding`)."""
    number = numbers(sizes)
    return threads if sum(number(cost_of(graph, node).flops) for node in graph.nodes) > ALONE else 1


def explain_pair(
    graph: Graph, config: Config, pair: tuple[str, str], sizes: Mapping[str, int], imported: Graph | None = None
) -> Why:
    """Why two nodes of a model are one kernel, or are not, by what is known of this machine: in kernels for all sizes, or in
    those that are made for `sizes`. `imported` is the graph as the model's file has it."""
    from hotfuse.runtime.building import native_form  # which asks us for plans

    spec = host_spec(config.isa)
    hoisted = hoist(native_form(skeleton(graph), spec), ())
    main = baked(hoisted.main, sizes) if sizes else hoisted.main
    before = [Stage(graph, SPELLED)]
    if hoisted.prepare is not None:
        before.insert(0, Stage(hoisted.prepare, AHEAD))
    if imported is not None:
        before.append(Stage(imported, SIMPLER))
    fates = tuple(fate for name in pair if (fate := fate_of(name, main, before)))
    if fates:
        return Why(pair, False, fates)
    planner = planner_of(replace(config, fusion="engine"), spec, main, sizes)
    assert planner is not None
    places = layouts(main, main.values)
    engine = Engine(main, main.values, places, planner)
    planned = engine.run()
    found = why(engine, planned, find_node(main, pair[0]), find_node(main, pair[1]))
    if config.fusion == "rules":
        share = with_share(spec, team_size(spec, config.threads))
        return why_by_rules(make_plan(main, main.values, places, share.l2_bytes).groups, found)
    return found


def known_model(config: Config, spec: Spec) -> Model:
    return known_machine(config.cache, spec, team_size(spec, config.threads)).model


def known_policy(config: Config, spec: Spec) -> Policy:
    """What earlier tuning on this machine taught."""
    cache = open_cache(config)
    data = None if cache is None else cache.get(POLICY, _policy_key(config, spec))
    try:
        return new_policy() if data is None else read_policy(data)
    except ParseError:
        return new_policy()


def keep_policy(config: Config, spec: Spec, policy: Policy) -> bool:
    cache = open_cache(config)
    return cache is not None and cache.put(POLICY, _policy_key(config, spec), write_policy(policy))


def _policy_key(config: Config, spec: Spec) -> str:
    return "\n".join((rates_key(spec, team_size(spec, config.threads)), generator_version(), *CONTEXT))
