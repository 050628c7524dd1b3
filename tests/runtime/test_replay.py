"""Replays: what is wrong is found so in the ways that it is, and where it is, whatever dies of it; and it is made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.verify import verify
from hotfuse.passes.hoist import Hoisted
from hotfuse.runtime import replay
from hotfuse.runtime.build import Build, Unit
from hotfuse.runtime.building import build_hoisted
from hotfuse.runtime.replay import (
    COMPILED,
    INTERPRETED,
    RIGHT,
    TODAY,
    TOGETHER,
    UNJUDGED,
    WRONG,
    Finding,
    ReplayRequest,
    meaning,
    replay_here,
    reproduces,
)
from hotfuse.runtime.replayer import Replayer, config_for
from hotfuse.runtime.reproduction import Reproduction
from hotfuse.runtime.reproduction_form import from_files, to_files
from hotfuse.runtime.shrink import MOST_TRIES, shrink
from tests.runtime.proof_models import CONFIG, Built, built
from tests.runtime.reproductions import reproduction_of, unit_of, wrong

STORE, FAR = "store v12 to a1[35*c2 +", "store v12 to a1[99999999999*c2 + 99999999999 +"


@pytest.fixture(name="norms", scope="module")
def _norms() -> Built:
    return built("norms")


@pytest.fixture(name="replayer", scope="module")
def _replayer() -> Iterator[Replayer]:
    with Replayer(Config(threads=2)) as made:
        yield made


def by_way(findings: tuple[Finding, ...]) -> dict[str, str]:
    return {finding.way: finding.verdict for finding in findings}


def judge(reproduction: Reproduction, way: str, units: tuple[int, ...] | None = None) -> tuple[Finding, ...]:
    return replay_here(ReplayRequest(reproduction, way, CONFIG, units))


# findings


def test_a_wrong_program_is_wrong_interpreted_and_compiled_and_not_today(norms: Built) -> None:
    """One column of every block is twice as large as it should be."""
    model = wrong(norms, 1, "v12 = map mul v13 v10", "v12 = map add v13 v10")
    found = {way: judge(reproduction_of(model, 1), way)[0] for way in (INTERPRETED, COMPILED, TODAY)}
    assert [found[way].verdict for way in found] == [WRONG, WRONG, RIGHT]
    assert (found[COMPILED].same, found[TODAY].same) == (True, False)
    for way in (INTERPRETED, COMPILED):
        place = found[way].place
        assert place is not None
        assert (place.name, place.first, place.row) == ("softmax_0", (0, 0, 0), 0)
        assert place.wrong == place.elements == 3 * 6 * 35
        assert abs(place.original - place.exact) < 1e-6 < abs(place.ours - place.exact) <= place.largest_error
    assert "another one that is right" in meaning(list(found.values()))


def test_the_first_wrong_element_and_its_row_are_named(norms: Built) -> None:
    model = wrong(norms, 1, "a1[35*c2 + 210*i0; 0, 1] 1x35", "a1[35*c2 + 210*i0; 0, 1] 1x35 if ([0; 0, 1] < 34)")
    for way in (INTERPRETED, COMPILED):
        (found,) = judge(reproduction_of(model, 1), way)
        assert found.place is not None
        assert (found.place.first, found.place.row, found.place.wrong) == ((0, 0, 34), 0, 18)


def test_what_shows_only_on_other_inputs_is_found_with_these() -> None:
    """A maximum that begins with zero is right as long as all numbers are above."""
    model = built("reductions")
    unit = unit_of(model, "reduce_max")
    found = reproduction_of(wrong(model, unit, "-inf", "0.0"), unit)
    saved = replace(found, tensors={"x": np.abs(found.tensors["x"]) + 1})
    (finding,) = judge(saved, COMPILED)
    assert finding.verdict == WRONG
    assert finding.place is not None
    assert finding.place.exact < 0 == finding.place.ours
    assert (finding.reads["x"] <= 0).all()


def test_a_kernel_that_kills_its_process_is_wrong_and_the_next_is_judged(norms: Built, replayer: Replayer) -> None:
    findings = replayer.replay(reproduction_of_dead(norms))
    assert by_way(findings) == {INTERPRETED: WRONG, COMPILED: WRONG, TODAY: RIGHT}
    said = {finding.way: finding for finding in findings}
    assert "died (Segmentation fault)" in said[COMPILED].reason
    assert said[COMPILED].unit == "softmax_0"
    assert "elements" in said[INTERPRETED].reason  # by the letter: outside of its memory


def reproduction_of_dead(norms: Built) -> Reproduction:
    """A unit that dies, cut out of the model by its honest twin."""
    honest, dead = reproduction_of(norms, 1), wrong(norms, 1, STORE, FAR)
    return replace(honest, units=(dead.build.units[1],))


def test_of_several_units_the_one_that_kills_the_process_is_named(norms: Built, replayer: Replayer) -> None:
    dead = wrong(norms, 1, STORE, FAR)
    whole = replace(reproduction_of(norms, None), units=dead.build.units)
    found = replayer.judge(whole, COMPILED)
    assert [(finding.unit, finding.verdict) for finding in found if finding.verdict != RIGHT] == [("softmax_0", WRONG)]
    assert [finding.verdict for finding in replayer.judge(whole, TOGETHER)] == [WRONG]


def test_a_kernel_that_does_not_end_is_wrong(norms: Built) -> None:
    model = wrong(norms, 1, "for c0 in [0 : 6 : 1]", "for c0 in [-999999999999 : 6 : 1]")
    endless = replace(reproduction_of(norms, 1), units=(model.build.units[1],))
    endless = replace(endless, units=(edit_load(endless.units[0]),))
    with Replayer(Config(threads=2), timeout_s=3) as impatient:
        (found,) = impatient.judge(endless, COMPILED)
        assert found.verdict == WRONG
        assert "took longer than 3 s" in found.reason
        (found,) = impatient.judge(endless, INTERPRETED)
        assert found.verdict == UNJUDGED


def edit_load(unit: Unit) -> Unit:
    """The same with a load that stays where it is."""
    from tests.runtime.reproductions import edited

    program = edited(unit.recipes[0].program, "v0 = load a0[35*c0 + 210*i0;", "v0 = load a0[210*i0;")
    return replace(unit, recipes=(replace(unit.recipes[0], program=program),))


def test_what_today_makes_no_kernel_of_is_not_judged(norms: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(hoisted: Hoisted, *_: Any) -> Build:
        return Build(hoisted, (), {"softmax_0": "its sizes depend on data"})

    monkeypatch.setattr(replay, "build_hoisted", nothing)
    (found,) = judge(reproduction_of(norms, 1), TODAY)
    assert (found.verdict, "its sizes depend on data" in found.reason) == (UNJUDGED, True)


def test_other_code_than_then_is_told(norms: Built) -> None:
    honest = reproduction_of(norms, 1)
    damaged = replace(honest, circumstances=replace(honest.circumstances, objects=("0" * 64,)))
    findings = [finding for way in (INTERPRETED, COMPILED, TODAY) for finding in judge(damaged, way)]
    assert "is not what the saved program compiles to" in meaning(findings)


def test_options_are_those_of_then_as_far_as_the_machine_has_them(norms: Built) -> None:
    found = reproduction_of(norms, 1)
    for isa, expected in (("sse", "sse"), ("vector9", "native")):
        then = replace(found, circumstances=replace(found.circumstances, isa=isa, threads=1))
        config = config_for(then, Config(threads=2, cache=""))
        assert (config.isa, config.threads, config.cache) == (expected, 1, "off")


@pytest.mark.parametrize(
    ("interpreted", "compiled", "today", "says"),
    [
        (RIGHT, RIGHT, RIGHT, "nothing is wrong any more"),
        (RIGHT, WRONG, RIGHT, "its code is wrong"),
        (RIGHT, WRONG, WRONG, "its code is wrong"),
        (WRONG, RIGHT, RIGHT, "reads or writes what it must not"),
        (WRONG, WRONG, RIGHT, "another one that is right"),
        (WRONG, WRONG, WRONG, "another one that is wrong"),
        (UNJUDGED, WRONG, RIGHT, "another one that is right"),
        (UNJUDGED, WRONG, WRONG, "another one that is wrong"),
        (WRONG, WRONG, UNJUDGED, "nothing is known"),
        (RIGHT, RIGHT, WRONG, "the saved program is right, and today's"),
        (UNJUDGED, RIGHT, RIGHT, "not all of it could be judged"),
        (UNJUDGED, UNJUDGED, UNJUDGED, "not all of it could be judged"),
    ],
)
def test_what_findings_mean(interpreted: str, compiled: str, today: str, says: str) -> None:
    verdicts = {INTERPRETED: interpreted, COMPILED: compiled, TODAY: today}
    findings = [Finding(way, "u", verdict, same=False if way == TODAY else None) for way, verdict in verdicts.items()]
    assert says in meaning(findings)
    assert reproduces(findings) == (WRONG in verdicts.values())


def test_a_whole_that_is_wrong_while_its_parts_are_right_is_the_runtimes_fault() -> None:
    findings = [Finding(way, "u", RIGHT) for way in (INTERPRETED, COMPILED, TODAY)]
    assert "put together" in meaning([*findings, Finding(TOGETHER, "all of it", WRONG)])


# shrinking


def lowered(graph: Graph) -> tuple[Unit, ...]:
    return build_hoisted(Hoisted(graph), host_spec(), CONFIG, lambda program: None).units


@pytest.mark.parametrize(("name", "op"), [("reductions", "mul"), ("mlp", "tanh"), ("block", "gelu"), ("types", "cast")])
def test_a_fault_that_follows_one_operator_shrinks_to_it(name: str, op: str) -> None:
    """Whatever is tried is a reproduction: its graph keeps the rules, its files read back."""
    model = built(name)
    unit = max(
        (i for i, u in enumerate(model.build.units) if op in [model.build.main.by_id[id].op for id in u.nodes]),
        key=lambda i: len(model.build.units[i].nodes),
    )
    begun = reproduction_of(model, unit)
    tried: list[str] = []

    def still(candidate: Reproduction) -> Finding | None:
        verify(candidate.graph)
        assert to_files(from_files(to_files(candidate))) == to_files(candidate)
        return Finding(COMPILED, "u", WRONG, "still") if op in [node.op for node in candidate.graph.nodes] else None

    def tell(text: str, tries: int) -> None:
        tried.append(text)

    found = shrink(begun, Finding(COMPILED, "u", WRONG), still, lowered, CONFIG, tell)
    small = found.reproduction
    assert [node.op for node in small.graph.nodes if node.op not in ("reshape", "dims")] == [op]
    assert all(size == 1 for size in small.sizes.values())
    assert all(not array.any() for n, array in small.tensors.items() if not n.startswith("size"))
    assert (small.shrunk, small.reason, found.tries) == (True, "still", len(tried))
    assert small.elements < begun.elements
    assert judge(small, COMPILED)[0].verdict == RIGHT


def test_nodes_stay_where_their_program_is_at_fault(norms: Built, replayer: Replayer) -> None:
    model = wrong(norms, 3, "fill f32 1x1 ", "fill f32 1x1 1.5 #")
    begun = reproduction_of(model, 3)

    def still(candidate: Reproduction) -> Finding | None:
        return next((f for f in replayer.judge(candidate, COMPILED) if f.verdict == WRONG), None)

    first = still(begun)
    assert first is not None
    small = shrink(begun, first, still).reproduction
    assert small.graph.nodes == begun.graph.nodes
    assert small.sizes == {"b": 1}
    assert still(small) is not None


def test_a_whole_call_shrinks_to_the_wrong_unit(replayer: Replayer) -> None:
    model = built("reductions")
    place = unit_of(model, "exp", "mul", "sub")
    model = wrong(model, place, "map sub", "map add")
    begun = reproduction_of(model, None, run=False)
    findings = replayer.replay(begun)
    assert by_way(findings)[TOGETHER] == WRONG
    (first,) = [f for f in findings if f.way == COMPILED and f.verdict == WRONG]

    def still(candidate: Reproduction) -> Finding | None:
        return next((f for f in replayer.judge(candidate, COMPILED) if f.verdict == WRONG), None)

    small = shrink(begun, first, still, config=CONFIG).reproduction
    assert [node.op for node in small.graph.nodes] == ["exp", "mul", "sub"]
    assert (len(small.units), small.kind) == (1, "unit")
    assert len(small.circumstances.objects) == 1


def test_shrinking_ends(norms: Built) -> None:
    """A fault that always shows elsewhere."""
    begun, count = reproduction_of(norms, 1), iter(range(10**9))

    def still(candidate: Reproduction) -> Finding:
        return Finding(COMPILED, "u", WRONG, reads={"x": np.full_like(candidate.tensors["x"], next(count))})

    assert shrink(begun, still(begun), still).tries < MOST_TRIES
