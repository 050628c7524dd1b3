"""Edits that the fusion engine is not sure of: the most hopeful is tried on traffic, what pays stays, what does not goes again,
and the policy learns from both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import hotfuse
from hotfuse.adaptive import contests, learning
from hotfuse.adaptive.learning import Learning
from hotfuse.adaptive.target import Baked, Generic, Revised, Target
from hotfuse.config import Config
from hotfuse.events import EventLog, plain
from hotfuse.fusion.criteria import Score
from hotfuse.fusion.engine import Step
from hotfuse.fusion.strategies import context_of, new_policy
from hotfuse.hardware.achieved import Achieved
from hotfuse.hardware.forest import Forest, write_forest
from hotfuse.hardware.pairs import GRAIN, PAIR_FEATURES
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import RATIOS, Calibration, keep_rates
from hotfuse.runtime.planning import keep_policy, known_policy
from hotfuse.runtime.session import Session
from hotfuse.runtime.threads import team_size
from hotfuse.runtime.turns import Judged, Times
from tests.adaptive.test_defusion import plant
from tests.adaptive.test_session_subject import is_fused, lineup, rules
from tests.adaptive.waiting import in_background, in_vain
from tests.hardware.test_model import RATES

ROWS, WIDTH = 512, 256
TORN = (0.3, 1.2)  # what two trees say that any edit but those of grain makes of the time: nobody can be sure


def two_readers(rows: int | str) -> bytes:
    """One value that two reductions read: rules leave three groups, and any two of them could be one."""
    float32 = onnx.TensorProto.FLOAT
    graph = oh.make_graph(
        [
            oh.make_node("Exp", ["x"], ["e"], name="exp"),
            oh.make_node("ReduceMax", ["e"], ["most"], name="most", axes=[1], keepdims=0),
            oh.make_node("ReduceMean", ["e"], ["mean"], name="mean", axes=[1], keepdims=0),
        ],
        "two_readers",
        [oh.make_tensor_value_info("x", float32, [rows, WIDTH])],
        [oh.make_tensor_value_info(name, float32, [rows]) for name in ("most", "mean")],
    )
    made = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def torn_forest() -> bytes:
    """Trees that ask one question each: whether the edit is one of grain, which all agree never pays."""
    count = len(TORN)
    left, right = [[0] * 3 * count for _ in range(2)]
    value = []
    for tree, ratio in enumerate(TORN):
        root = 3 * tree
        left[root : root + 3], right[root : root + 3] = [root + 1, root + 1, root + 2], [root + 2, root + 1, root + 2]
        value += [0.0, float(np.log(ratio)), float(np.log(3.0))]
    feature = np.full(3 * count, PAIR_FEATURES.index(f"by {GRAIN}"), np.int32)
    roots = np.arange(0, 3 * count, 3, dtype=np.int32)
    threshold = np.full(3 * count, 0.5, np.float32)
    arrays = [np.array(side, np.int32) for side in (left, right)]
    return write_forest(Forest(PAIR_FEATURES, roots, feature, threshold, *arrays, np.array(value, np.float32), 1))


def calibrated(folder: Path) -> Config:
    """A cache that says of this machine that nobody can be sure of any edit."""
    config = Config(cache=str(folder), threads=1)
    spec, cache = host_spec(config.isa), open_cache(config)
    rates = replace(RATES, threads=team_size(spec, 1))
    assert keep_rates(rates, spec, cache)
    assert Calibration(spec, rates, cache).keep(RATIOS.forest, RATIOS, torn_forest())
    return config


@pytest.fixture(params=[ROWS, "n"], ids=["all sizes", "one form"])
def session(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    config = calibrated(tmp_path / "cache")
    monkeypatch.setattr(learning, "REST_S", 60.0)  # one trial
    ask = contests.Contests.ask  # whether kernels that are slow on purpose pay is not the question
    monkeypatch.setattr(contests.Contests, "ask", lambda self, m: ask(self, m) if isinstance(m.target, Revised) else None)
    if request.param != ROWS:  # those of the form are what is looked at, not those for all sizes that come before it
        find = learning.Learning.find
        monkeypatch.setattr(
            learning.Learning, "find", lambda self, unsure, *more: find(self, {f: u for f, u in unsure.items() if f}, *more)
        )
    with hotfuse.load(two_readers(request.param), cache=config.cache, threads=1) as opened:
        rules(opened, baked_gain=5.0, build_share=0.0, keep_share=0.0, budget_s=0.001)
        yield opened


def serve(session: Session, until: Any, limit_s: float = 120.0) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    e, deadline = np.exp(x.astype(np.float64)), time.monotonic() + limit_s
    while not until():
        assert time.monotonic() < deadline, in_vain(session.events)
        most, mean = session.run(None, {"x": x})
        np.testing.assert_allclose(most, e.max(1), rtol=1e-5)
        np.testing.assert_allclose(mean, e.mean(1), rtol=1e-5)
        time.sleep(0.002)


def revised(session: Session) -> list[Revised]:
    return [target for target in lineup(session) if isinstance(target, Revised)]


def base(session: Session) -> Target:
    return Generic() if isinstance(session.inputs[0].shape[0], int) else Baked(f"(({ROWS}, {WIDTH}),)")


def told(session: Session, kind: str, target: Target) -> list[Any]:
    return [event for event in session.events.of(kind) if event.subject == str(target)]


def test_an_edit_that_pays_stays(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda target, program: not isinstance(target, Revised))
    serve(session, lambda: is_fused(session) and base(session) in lineup(session))
    serve(session, lambda: session.events.of("policy.learned"))
    (edit,) = revised(session)
    assert edit.form == getattr(base(session), "form", "")
    spotted, measured = told(session, "tier.spotted", edit)[0], told(session, "tier.measured", edit)[0]
    assert "not sure" in spotted.reason
    assert measured.data["base_seconds"] > measured.data["seconds"]
    (learned,) = told(session, "policy.learned", edit)
    assert learned.data["reward"] > 0
    policy = known_policy(session.config, host_spec(session.config.isa))
    assert (policy.seen, len(policy.edits), policy.regret) == (1, 1, 0.0)
    report = session.report()
    story = report.story(next(s.id for s in report.subgraphs if any(c.target == str(edit) for c in s.chapters)))
    assert story.state == "serves"
    kinds = [chapter.kind for chapter in story.chapters if chapter.target == str(edit)]
    assert [k for k in kinds if k in ("tier.spotted", "plan.step", "tier.publish", "tier.measured")] == [
        "tier.spotted", "plan.step", "tier.publish", "tier.measured",
    ]  # fmt: skip
    step = next(chapter for chapter in story.chapters if chapter.kind == "plan.step" and chapter.target == str(edit))
    assert "locality" in step.reason
    assert step.figures["before_s"] > 0
    assert story.achieved is not None
    assert story.achieved.seconds > 0
    assert story.achieved.by in ("arithmetic", "memory", "overhead")
    assert story.achieved.bytes_moved == 4 * ROWS * (WIDTH + 2) or len(story.subgraph.nodes) < 3
    assert "bound by" in told(session, "plan.profiled", edit)[0].reason
    assert plain(story.json())["achieved"]["by"] == story.achieved.by


def test_an_edit_that_does_not_pay_is_taken_out_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda target, program: isinstance(target, Revised))
    serve(session, lambda: revised(session))
    (edit,) = revised(session)
    serve(session, lambda: edit not in lineup(session))
    assert base(session) in lineup(session)
    assert "does not pay" in told(session, "tier.retire", edit)[0].reason
    policy = known_policy(session.config, host_spec(session.config.isa))
    assert policy.regret > 0
    ends = [s for s in session.report().subgraphs if any(c.target == str(edit) for c in s.chapters)]
    assert {story.state for story in ends} == {"retired"}
    serve(session, lambda: session.calls > 50 + learned_at(session))
    assert not revised(session)  # it rests


def test_an_audit_blames_the_edit_before_what_it_edits(session: Session) -> None:
    serve(session, lambda: revised(session))
    (edit,) = revised(session)
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    in_background(lambda: controller._audited(lineup(session), ((ROWS, WIDTH),), Judged("row 3 differs")))
    memory = controller.state.memory
    assert memory.of(edit).barred
    assert not memory.of(base(session)).barred
    assert not revised(session)
    serve(session, lambda: base(session) in lineup(session))


def learned_at(session: Session) -> int:
    return session.events.of("policy.learned")[0].calls


# ---- what is tried, and when


class Subject:
    """Of a subject, what learning looks at."""

    def __init__(self, folder: Path) -> None:
        self.config, self.events = Config(cache=str(folder)), EventLog()


def step(groups: tuple[str, ...], gain: float, before_s: float = 1e-4, digest: str = "1" * 16, **changes: Any) -> Step:
    scores = (Score("locality", 0.5, "less moves"),)
    return Step("registers", groups, (), before_s, (1 - gain) * before_s, 0.2 * before_s, scores, digest=digest, **changes)


def find(subject: Learning, *steps: Step, form: str = "", now_s: float = 0.0, traces: int = 0, **more: Any) -> list[Any]:
    found = subject.find({form: steps}, lambda: more.get("seconds", {}), traces, more.get("closed", ()), now_s)
    return [each.edit for each in found]


@pytest.fixture
def subject(tmp_path: Path) -> Learning:
    return Learning(Subject(tmp_path / "cache"))  # type: ignore[arg-type]


def test_what_may_save_most_comes_first_and_nothing_twice(subject: Learning) -> None:
    steps = step(("a", "b"), 0.1), step(("b", "c"), 0.3), step(("d", "e"), 0.2)
    assert [edit.units for edit in find(subject, *steps)] == [("b", "c"), ("d", "e")]
    slow = {"d": 1e-2, "e": 1e-2}  # by traces
    assert [edit.units for edit in find(subject, *steps, traces=1, seconds=slow)] == [("d", "e"), ("b", "c")]


def test_of_many_a_few_are_tried_and_none_that_rests(subject: Learning) -> None:
    steps = [step((name,), 0.1 + 0.01 * place, digest=f"{place:016x}") for place, name in enumerate("abcdefgh")]
    found = find(subject, *steps)
    assert len(found) == learning.MOST
    assert found[0].units == ("h",)
    assert find(subject, *steps, closed={found[0]})[0].units == ("g",)


def test_there_is_no_hope_of_what_was_measured_to_lose(subject: Learning, tmp_path: Path) -> None:
    lost = step(("a", "b"), 0.3, digest="2" * 16)
    config = Config(cache=str(tmp_path / "cache"))
    policy = new_policy().learned(context_of(lost)[None], np.array([-0.5]), edits=[lost.digest])
    assert keep_policy(config, host_spec(config.isa), policy)
    assert [edit.units for edit in find(subject, lost, step(("c", "d"), 0.6))] == [("c", "d")]


def test_a_trial_that_does_not_pay_makes_the_next_wait(subject: Learning) -> None:
    steps = step(("a", "b"), 0.7, digest="3" * 16), step(("c", "d"), 0.6)
    first, second = find(subject, *steps)
    subject.measured(first, Times(1.01e-3, 1.0e-3, 1e-5), 10.0)
    assert find(subject, *steps, now_s=10.0 + 0.9 * learning.REST_S) == []
    assert second in find(subject, *steps, now_s=10.0 + 1.1 * learning.REST_S)
    subject.measured(second, Times(0.9e-3, 1.0e-3, 1e-5), 20.0)
    assert second in find(subject, *steps, now_s=20.0)  # what paid makes nobody wait


def test_after_many_trials_in_vain_there_are_none(subject: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_TRIALS", 2)
    wanted = step(("a", "b"), 0.9)
    (edit,) = find(subject, wanted)
    for _ in range(2):
        subject.measured(edit, Times(1.001e-3, 1.0e-3, 1e-3), 0.0)
    assert find(subject, wanted, now_s=1e9) == []


def test_the_reward_is_of_the_groups_and_not_of_the_call(subject: Learning) -> None:
    wanted = step(("a", "b"), 0.3)
    (edit,) = find(subject, wanted, seconds={"a": 1e-4, "b": 1e-4})
    subject.measured(edit, Times(0.9e-3, 1.0e-3, 1e-5), 0.0)  # a tenth of the call is half of the groups
    (event,) = subject._subject.events.of("policy.learned")
    assert event.data["reward"] == pytest.approx(np.log(2))
    assert event.data["noise"] == pytest.approx(0.05)
    subject.measured(edit, Times(0.1e-3, 1.0e-3, 1e-5), 0.0)  # more than all of it: as much as there is
    assert subject._subject.events.of("policy.learned")[1].data["reward"] == 1.0


def achieved(by: str, seconds: float = 1e-4) -> Achieved:
    return Achieved(seconds, 1e6, 1e6, 10.0, 10.0, by, 0.5)


@pytest.mark.parametrize(("by", "first"), [("memory", "registers"), ("arithmetic", "grain"), ("overhead", "registers")])
def test_what_binds_says_what_comes_first(subject: Learning, by: str, first: str) -> None:
    """Hope is about the same; what moves less is for what waits for memory, finer tasks are for what computes."""
    fusing = step(("a", "b"), 0.31)
    finer = replace(step(("b",), 0.5, before_s=5e-5, digest="4" * 16), strategy="grain")
    profiled = {"": {"a": achieved("overhead", 1e-6), "b": achieved(by)}}
    found = subject.find({"": (fusing, finer)}, dict, 0, (), 0.0, profiled)
    assert [each.edit.strategy for each in found if isinstance(each.edit, Revised)] == [first]  # they share a unit
    assert f"bound by {by}" in found[0].reason


def test_what_was_not_profiled_is_bound_by_nothing() -> None:
    edit = Revised("grain", ("a",))
    assert learning.binding(edit, {}) == ""
    assert learning.binding(edit, {"a": achieved("memory")}) == "memory"
    assert not learning.helps("grain", "memory")
    assert learning.helps("tiles", "memory")
    assert not learning.helps("tiles", "arithmetic")
    assert learning.helps("grain", "overhead")
    assert learning.helps("tiles", "overhead")


def test_nobody_learns_from_what_was_not_asked_for(subject: Learning) -> None:
    subject.measured(Generic(), Times(1.0, 2.0, 0.1), 0.0)
    subject.measured(Revised("registers", ("a", "b")), Times(1.0, 2.0, 0.1), 0.0)
    assert not subject._subject.events.of("policy.learned")
