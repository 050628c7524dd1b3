"""Plans that were tuned: measured on inputs of a real call, in this process, for the sizes of that call.

What others want of the cores comes first (`quiet`), for as long as plans may be tuned: where that leaves nothing more to
measure in, the plan is what was confirmed until then, or else the predicted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError, NoIdleCores
from hotfuse.fusion.engine import Planned
from hotfuse.fusion.rules import Fused
from hotfuse.fusion.tuning import Race, tune
from hotfuse.hardware.spec import Spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime.build import attached, baked, sizes_of, skeleton
from hotfuse.runtime.build_jobs import with_help
from hotfuse.runtime.build_pool import build_pool
from hotfuse.runtime.building import build_groups, make_build
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.native import Workshop, build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.planning import keep_policy, known_policy, planner_of
from hotfuse.runtime.quiet import Quiet
from hotfuse.runtime.racing import Track


def tuned_executor(
    graph: Graph, given: Sequence[Any], config: Config, seconds: float, busy: Callable[[str], None] | None = None
) -> tuple[Executor, Planned]:
    """An executor of a graph whose constants never change: calls with inputs of such sizes run by a plan that was measured to
    be fastest, others by the one that serves all. And that plan. `busy` is told why nothing, or no more, could be measured."""
    shop = Workshop(config)
    build = make_build(skeleton(graph), shop.spec, config, shop)
    main = attached(build.hoisted, graph.constants)
    types = {name: NUMPY.type_of(value) for name, value in zip(main.inputs, given, strict=True)}
    sizes = sizes_of(main, types)
    at_sizes = baked(build.main, dict(sizes)) if sizes else build.main
    try:
        planned = tuned_plan(build.hoisted, at_sizes, main, given, dict(sizes), shop.spec, config, seconds, busy)
    except (BadIndex, DimError):  # a call that kernels do not answer tells nothing of their speed
        return build_executor(main, build, shop.kernels, NUMPY, config), Planned(())
    special = build_groups(build.hoisted, at_sizes, planned.groups, shop.spec, config, shop).units
    return build_executor(main, replace(build, special={sizes: special}), shop.kernels, NUMPY, config), planned


def tuned_plan(
    hoisted: Hoisted,
    graph: Graph,
    main: Graph,
    given: Sequence[Any],
    sizes: Mapping[str, int],
    spec: Spec,
    config: Config,
    seconds: float,
    busy: Callable[[str], None] | None = None,
) -> Planned:
    """The plan of `graph`, a main graph maybe with numbers for its sizes, for calls with such inputs. `main` has constants."""
    quiet = Quiet(seconds)
    planner = planner_of(config, spec, graph, sizes)
    assert planner is not None, "rules measure nothing"
    track = Track(hoisted, graph, main, given, config, help=with_help("tuning", config, build_pool(config).submit))
    places, policy = layouts(graph, graph.values), known_policy(config, spec)
    races, refused = 0, ""

    def race(first: Sequence[Fused], second: Sequence[Fused]) -> Race:
        nonlocal races, refused
        if not quiet.wait():
            more = f"no more plans could be measured than in {races} races" if races else "plans could not be measured"
            refused = f"others used the cores for {quiet.waited_s:.1f} s, in which {more}"
            raise NoIdleCores(refused)
        races += 1
        return track.race(first, second)

    # on the thread that calls: what is faster on another one, with a team of its own, may be slower here
    planned, learned = tune(graph, graph.values, places, planner, race, seconds, policy)
    if refused and busy is not None:
        busy(refused)
    keep_policy(config, spec, learned)
    return planned
