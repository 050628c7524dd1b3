"""Races of plans: every group of both is timed, and so are whole calls; and what tier 2 makes of it before the first answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import hotfuse
from hotfuse.config import Config
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.rules import fuse
from hotfuse.fusion.tuning import Lap, sum_of
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.layout import layouts
from hotfuse.passes.hoist import hoist
from hotfuse.runtime import planning
from hotfuse.runtime.build import attached, skeleton
from hotfuse.runtime.building import native_form
from hotfuse.runtime.pile import Pile
from hotfuse.runtime.planning import keep_policy, known_policy
from hotfuse.runtime.racing import Track, _laps, _taken, best_of
from hotfuse.runtime.recent_code import RECENT
from hotfuse.runtime.specimens import specimen
from hotfuse.runtime.trace import Piece, PieceTime, Trace

CONFIG = Config(cache="off", tier=1, wait=True)


def test_every_group_of_both_plans_is_timed() -> None:
    subject = specimen(3)
    hoisted = hoist(native_form(skeleton(subject.graph), host_spec()), ())
    graph, places = hoisted.main, layouts(hoisted.main, hoisted.main.values)
    given = [subject.inputs[name] for name in graph.inputs]
    track = Track(hoisted, graph, attached(hoisted, subject.graph.constants), given, CONFIG)
    ruled = Draft(graph, places, fuse(graph, graph.values, places)).groups
    apart = Draft(graph, places, fuse(graph, graph.values, places, {node.id for node in graph.nodes})).groups
    race = track.race(ruled, apart)
    for groups, laps in zip((ruled, apart), race.laps, strict=True):
        assert {lap.nodes for lap in laps} >= {frozenset(node.id for node in group.nodes) for group in groups}
        assert all(lap.seconds >= 0 and lap.spread_s >= 0 for lap in laps)
    assert all(seconds > 0 for seconds in race.call_s)
    region = frozenset(node.id for node in ruled[0].nodes)
    assert sum_of(race.laps[0], region)[0] == pytest.approx(next(x.seconds for x in race.laps[0] if x.nodes == region))


def test_workers_help_to_make_kernels_before_anything_is_timed() -> None:
    """Here nobody comes to help: what lies on the pile is made by the one who asked."""
    subject = specimen(3)
    hoisted = hoist(native_form(skeleton(subject.graph), host_spec()), ())
    graph, places = hoisted.main, layouts(hoisted.main, hoisted.main.values)
    asked: list[int] = []
    pile = Pile(lambda pile, most: asked.append(most))
    RECENT.clear()
    given = [subject.inputs[name] for name in graph.inputs]
    main = attached(hoisted, subject.graph.constants)
    track = Track(hoisted, graph, main, given, replace(CONFIG, threads=1), help=pile.serve)
    groups = Draft(graph, places, fuse(graph, graph.values, places)).groups
    laps, again = track.laps(groups, groups)
    assert asked
    assert max(asked) > 1
    assert {lap.nodes for lap in laps} == {lap.nodes for lap in again} >= {frozenset(n.id for n in g.nodes) for g in groups}


def test_of_two_times_the_shorter_counts_and_both_say_how_sure_it_is() -> None:
    a, b, c = (frozenset({name}) for name in "abc")
    once = [Lap(a, 2e-6, 1e-8), Lap(b, 1e-6, 5e-8), Lap(c, 3e-6, 1e-8)]
    again = [Lap(b, 1.02e-6, 1e-8), Lap(a, 1e-6, 2e-8)]
    assert best_of(once, again) == [Lap(a, 1e-6, (2e-6 - 1e-6) / 2), Lap(b, 1e-6, 5e-8), Lap(c, 3e-6, 1e-8)]


def test_a_lap_is_the_mean_of_the_shorter_half() -> None:
    """Of a counter that moves ten nanoseconds at a time."""
    piece = Piece("u", "kernels", 1, 1, 1, 1)
    traces = [
        Trace("", "", 0.0, 0.0, 0.0, (piece,), (PieceTime(seconds, seconds, 0.0, 1),))
        for seconds in (1e-8, 1e-8, 1e-8, 2e-8, 2e-8, 9e-6, 9e-6, 9e-6)
    ]
    (lap,) = _laps(_taken(traces), {"u": frozenset({"n"})})
    assert lap.nodes == {"n"}
    assert lap.seconds == pytest.approx(1.4e-8)


def two_results(batch: str = "b") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{batch}, 96] r, float[{batch}, 96] x) => (float[{batch}, 96] z, float[{batch}, 96] y)
        {{ a = Exp(x)  y = Softmax(a)  z = Add(a, r) }}"""
    )


def wanted(x: np.ndarray, r: np.ndarray) -> list[np.ndarray]:
    a = np.exp(x)
    e = np.exp(a - a.max(-1, keepdims=True))
    return [a + r, e / e.sum(-1, keepdims=True)]


@pytest.mark.parametrize("batch", ["b", "200"])
def test_tier_2_is_tuned_before_the_first_answer(batch: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with hotfuse.load(two_results(batch), tier=2, wait=True, tune_s=0.5, cache=str(tmp_path / "cache"), strict=True) as session:
        for rows in (200, 200, 7) if batch == "b" else (200, 200):
            x, r = (rng.standard_normal((rows, 96), np.float32) for _ in range(2))
            for got, want in zip(session.run(None, {"x": x, "r": r}), wanted(x, r), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        kinds = [event.kind for event in session.events]
        assert "native.made" in kinds
        assert session.kernels


def test_who_asks_for_rules_is_not_tuned(tmp_path: Path) -> None:
    session = hotfuse.load(two_results(), tier=2, wait=True, fusion="rules", cache=str(tmp_path / "cache"))
    x = np.ones((3, 96), np.float32)
    session.run(None, {"x": x, "r": x})
    assert "plan.step" not in [event.kind for event in session.events]
    session.close()


def test_what_tuning_taught_is_kept(tmp_path: Path) -> None:
    config, spec = Config(cache=str(tmp_path / "cache")), host_spec()
    policy = known_policy(config, spec)
    assert policy.seen == 0
    learned = policy.learned(np.ones((2, len(policy.shift))), np.array([0.1, 0.2]))
    assert keep_policy(config, spec, learned)
    assert known_policy(config, spec).seen == 2
    assert not keep_policy(Config(cache="off"), spec, learned)


def test_a_policy_that_is_damaged_is_as_good_as_none(tmp_path: Path) -> None:
    config, spec = Config(cache=str(tmp_path / "cache")), host_spec()
    cache = planning.open_cache(config)
    assert cache is not None
    cache.put(planning.POLICY, planning._policy_key(config, spec), b"nothing of ours")
    assert known_policy(config, spec).seen == 0


def test_models_with_several_inputs_and_results_have_the_short_way() -> None:
    """Whatever order kernels meet them in."""
    session = hotfuse.load(two_results(), tier=1, wait=True, cache="off")
    x = np.ones((3, 96), np.float32)
    for _ in range(3):
        session.run(None, {"r": x, "x": x})
    short = session._best.short
    assert short is not None
    assert short({"r": x, "x": x}) is not None
    session.close()
