"""A session with no option set: tier 0 answers, kernels are built and proved behind it, and nothing wrong ever serves."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx.parser
import psutil
import pytest

import hotfuse
from hotfuse.adaptive import contests, session_subject, spare
from hotfuse.adaptive.background import BACKGROUND
from hotfuse.adaptive.controller import LOOK_S
from hotfuse.adaptive.lineup import composed
from hotfuse.adaptive.maker import ASKED, Maker
from hotfuse.adaptive.making import Making
from hotfuse.adaptive.message import Measured, Spotted
from hotfuse.adaptive.promotion import objection
from hotfuse.adaptive.session_subject import SessionSubject
from hotfuse.adaptive.target import Baked, Generic, Merged, Split, Target
from hotfuse.errors import DimError, OutOfMemory, WorkerError
from hotfuse.frontends.onnx_tensor import MappedArray
from hotfuse.runtime import build_cache
from hotfuse.runtime.build_request import BuildReply, ProveReply, ProveRequest
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.driver import Job, get_driver
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.session import Session
from hotfuse.runtime.turns import Duel, Judged, Shadow
from tests.adaptive.waiting import in_background, in_vain

Array = np.ndarray[Any, Any]
WIDTH = 512
RNG = np.random.default_rng(0)
WEIGHTS = [(RNG.standard_normal((WIDTH, WIDTH)) / 22).astype(np.float32) for _ in range(4)]


def model() -> onnx.ModelProto:
    """Large enough that tier 0 has spent its budget after some calls."""
    nodes, name = [], "x"
    for i in range(len(WEIGHTS)):
        nodes += [oh.make_node("MatMul", [name, f"w{i}"], [f"m{i}"]), oh.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        name = f"t{i}"
    nodes.append(oh.make_node("Softmax", [name], ["y"]))
    float32 = onnx.TensorProto.FLOAT
    graph = oh.make_graph(
        nodes,
        "net",
        [oh.make_tensor_value_info("x", float32, ["n", WIDTH])],
        [oh.make_tensor_value_info("y", float32, ["n", WIDTH])],
        [onh.from_array(w, f"w{i}") for i, w in enumerate(WEIGHTS)],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


def want(x: Array) -> Array:
    for w in WEIGHTS:
        x = np.tanh(x.astype(np.float64) @ w)
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def feed(rows: int = 96) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache")) as opened:
        yield opened


def serve(session: Session, until: Any, limit_s: float = 180.0) -> int:
    """Call, and check every answer, until something is so; how many calls that took."""
    x, calls, deadline = feed(), 0, time.monotonic() + limit_s
    exact = want(x)
    while not until():
        assert time.monotonic() < deadline, in_vain(session.events)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-7)
        calls += 1
        time.sleep(0.005)  # where callers leave no room, what works behind them takes long
    return calls


def is_fused(session: Session) -> bool:
    return session.kernels > 0


def test_kernels_come_by_themselves(session: Session) -> None:
    (y,) = session.run(None, {"x": feed()})
    np.testing.assert_allclose(y, want(feed()), rtol=1e-4, atol=1e-7)
    assert not is_fused(session)
    serve(session, lambda: is_fused(session))
    kinds = [e.kind.removeprefix("tier.") for e in session.events.of("tier") if e.kind != "tier.units"]
    assert kinds[:7] == ["build", "built", "prove", "proved", "shadow", "shadowed", "publish"]
    for rows in (1, 7, 96, 200):
        np.testing.assert_allclose(session.run(None, {"x": feed(rows)})[0], want(feed(rows)), rtol=1e-4, atol=1e-7)
    assert "generated kernels" in session.report().why


def test_memory_of_un_fused_calls_is_given_back_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(spare, "give_back", lambda: given.append(is_fused(session)))
    monkeypatch.setattr(spare, "SOON_S", 0.1)
    serve(session, lambda: given)
    end_s = time.monotonic() + 1.0
    serve(session, lambda: time.monotonic() > end_s)
    assert given == [True]


def test_settle_waits_for_what_can_be_done_without_a_call(session: Session) -> None:
    serve(session, lambda: session.events.of("tier.build"))
    assert session.settle(60)
    assert session.events.of("tier.shadow")
    serve(session, lambda: is_fused(session), 10)


def test_a_settled_model_is_in_the_cache(session: Session) -> None:
    """What a proof did not look at is read afterwards, a weight at a time."""
    serve(session, lambda: session.events.of("tier.shadow"))
    assert session.settle(60)
    assert not session.observer.controller._making.keeps  # type: ignore[union-attr]
    cache = open_cache(session.config)
    assert cache is not None
    deadline = time.monotonic() + 30
    while "proof" not in cache.stats().kinds:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_proof_of_weights_that_changed_meanwhile_is_not_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.runtime.build_work import build_here  # (a process that imports this module is to have none of it)

    kept: list[Any] = []
    monkeypatch.setattr(build_cache, "keep_proof", lambda *told: kept.append(told))
    maker = session.observer.controller._making._maker  # type: ignore[union-attr]
    reply = build_here(session.observer.request())  # type: ignore[union-attr]
    asked = ProveRequest(reply.build, reply.objects, {}, session.config)
    names = {f"w{i}" for i in range(len(WEIGHTS))}
    for digests in ({}, dict.fromkeys(names, "of what they were")):
        for steady, era in ((False, maker.era), (True, maker.era - 1)):
            assert list(maker.keep(era, asked, ProveReply((), 0.0, digests, steady))) == []
            assert (kept, maker._digests) == ([], {})
    steps = maker.keep(maker.era, asked, ProveReply((), 0.0))
    next(steps)
    maker.forget()
    assert list(steps) == []
    assert (kept, maker._digests) == ([], {})
    assert len(list(maker.keep(maker.era, asked, ProveReply((), 0.0)))) >= len(WEIGHTS)
    assert len(kept) == 1
    assert set(kept[0][0].digests) == set(maker._digests) == names


def test_a_proof_that_cannot_be_kept_is_not_waited_for(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*told: Any) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(build_cache, "keep_proof", fail)
    serve(session, lambda: session.events.of("tier.shadow"))
    assert session.settle(60)
    serve(session, lambda: is_fused(session), 10)


def test_nobody_goes_on_with_a_proof_that_was_on_its_way_at_a_fork(session: Session) -> None:
    """The queue of the background is new in a child, what it was to do is not."""
    making = session.observer.controller._making  # type: ignore[union-attr]
    making._keeping.append(iter([None]))
    assert making.keeps
    making._kept_s = time.monotonic() - 60
    assert session.settle(60)
    making._keeping.append(iter([None]))
    session.close()
    deadline = time.monotonic() + 30
    while making.keeps:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_model_that_is_hardly_called_is_left_alone(session: Session) -> None:
    session.run(None, {"x": feed(1)})
    assert session.settle(10)
    assert not session.events.of("tier")


@pytest.mark.parametrize("options", [{"tier": 0}, {"disable": True}])
def test_nothing_is_built_where_that_is_not_wanted(options: dict[str, Any]) -> None:
    with hotfuse.load(model().SerializeToString(), **options) as session:
        assert session.observer is None


def test_a_model_that_draws_random_numbers_stays_at_tier_0() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { r = RandomNormalLike(x)  y = Add(x, r) }'
    with hotfuse.load(onnx.parser.parse_model(text)) as session:
        assert session.observer is None
        assert len(session.run(None, {"x": np.zeros(3, np.float32)})[0]) == 3


def wrong(reply: BuildReply, which: str) -> BuildReply:
    """A reply whose programs of one kind have the code of a program with another constant: a miscompile."""
    from hotfuse.codegen.llvm_compile import compile_ir
    from hotfuse.codegen.llvm_cpu import emit
    from hotfuse.codegen.tile_reader import parse_program
    from hotfuse.codegen.tile_text import print_program
    from hotfuse.hardware.spec import host_spec

    spec, objects = host_spec(), list(reply.objects)
    for place, program in enumerate(reply.build.programs):
        if program.name == which:
            text = print_program(program)
            broken = text.replace("map exp ", "map sin ")
            assert broken != text
            objects[place] = compile_ir(emit(parse_program(broken), spec.vector_bytes // 4, spec.isa), spec)
    return replace(reply, objects=tuple(objects))


def test_a_wrong_kernel_never_serves_and_the_rest_does(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Making._built

    def built(self: Any, decision: Any, sizes: Any, result: Any) -> None:
        original(self, decision, sizes, wrong(result, "rows"))

    monkeypatch.setattr(Making, "_built", built)
    serve(session, lambda: is_fused(session))
    (event,) = session.events.of("tier.quarantine")
    assert "wrong" in event.reason
    assert "operators run one by one" in session.report().why
    serve(session, lambda: True)


@pytest.mark.parametrize("fault", ["raise", "refuse"])
def test_a_build_that_fails_costs_an_event(session: Session, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def fail(self: Any, decision: Any, sizes: Any, result: Any) -> None:
        error: Any = WorkerError("the build worker died (Segmentation fault)", "died")
        original(self, decision, sizes, error if fault == "raise" else 3)

    original = Making._built
    monkeypatch.setattr(Making, "_built", fail)
    serve(session, lambda: session.events.of("tier.retire"))
    assert not is_fused(session)
    assert session.settle(10)


def test_swaps_under_many_callers(session: Session) -> None:
    """Eight threads call while kernels are published and withdrawn; every answer is one implementation's or the other's."""
    serve(session, lambda: is_fused(session))
    x = feed()
    fused, plain = session._best, session._base
    answers = []
    for serving in (fused, plain):
        session.publish(serving)
        answers.append(session.run(None, {"x": x})[0].tobytes())
    seen: list[bytes] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            seen.append(session.run(None, {"x": x})[0].tobytes())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(400):
        session.publish((fused, plain)[turn % 2])
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(seen) <= set(answers)
    assert len(seen) > 16


def test_a_closed_session_lets_go(session: Session) -> None:
    serve(session, lambda: session.events.of("tier.build"))
    session.close()
    time.sleep(0.1)
    assert not is_fused(session)


def test_a_session_that_nobody_holds_goes_at_once(tmp_path: Path) -> None:
    def serve_for_a_while() -> weakref.ref[Session]:
        session = hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache"))
        serve(session, lambda: is_fused(session))
        return weakref.ref(session)

    gc.disable()
    try:
        held = serve_for_a_while()
        deadline = time.monotonic() + 5
        while held() is not None and time.monotonic() < deadline:  # the background may be looking at it
            time.sleep(0.01)
        assert held() is None
    finally:
        gc.enable()


def test_a_defect_of_the_observer_fails_no_call(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.observer is not None

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(session.observer, "called", broken)
    np.testing.assert_allclose(session.run(None, {"x": feed()})[0], want(feed()), rtol=1e-4, atol=1e-7)
    (event,) = session.events.of("observer.failed")
    assert "planted" in event.reason


def test_inputs_that_a_candidate_was_not_made_for_prove_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Judged] = []
    subject: Any = session.observer
    candidate = session.serving(Executor(session.plan, NUMPY, session.config), 1, "candidate")

    def told(answer: Any) -> list[Judged]:
        reports.clear()
        monkeypatch.setattr(candidate.executor, "run", answer)
        subject.shadow(candidate, None, reports.append)
        session.run(None, {"x": feed()})
        in_background(lambda: None)  # what was posted before it is done
        return reports

    def fail(error: Exception) -> Any:
        def run(_: Any) -> Any:
            raise error

        return run

    original = session.base.executor.run
    (right,) = told(original)
    assert (right.reason, right.inputs) == ("", None)
    assert told(fail(DimError("other sizes"))) == []
    assert subject._shadow.candidate is candidate  # the next call may do
    late, subject._shadow = subject._shadow, "another"
    subject._judge(late, [feed()], [feed()])
    assert subject._shadow == "another"  # what was asked for meanwhile stays
    (failed,) = told(fail(ValueError("broken")))
    assert failed.reason == "ValueError: broken"
    (short,) = told(fail(OutOfMemory("full")))
    assert (short.reason, short.untold) == ("", "OutOfMemory: full")
    (differs,) = told(lambda given: [original(given)[0] + 1])
    assert "elements differ" in differs.reason
    for judged in (failed, differs):
        assert judged.inputs is not None
        assert np.array_equal(judged.inputs["x"], feed())


@pytest.mark.parametrize("where", ["the candidate", "copies"])
def test_memory_that_runs_out_in_a_shadowed_call_speaks_against_no_kernel(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    rules(session, back_off_s=0.1)
    lost: list[bool] = []

    def once(original: Any) -> Any:
        def call(*given: Any) -> Any:
            if not lost and session.events.of("tier.shadow"):
                lost.append(True)
                raise MemoryError("planted")
            return original(*given)

        return call

    if where == "copies":
        monkeypatch.setattr(SessionSubject, "keep_call", lambda self: None)  # or nothing is copied then
        monkeypatch.setattr(session_subject, "copied_call", once(session_subject.copied_call))
    else:
        monkeypatch.setattr(session_subject, "difference", once(session_subject.difference))
    serve(session, lambda: is_fused(session), 60)
    (failed,) = session.events.of("tier.buildfailed")
    assert "planted" in failed.reason
    assert not session.events.of("tier.quarantine")


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_call_amid_the_proof_is_the_one_that_is_shadowed(
    session: Session, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    """Nobody calls after it."""
    if is_wrong:
        monkeypatch.setattr(session_subject, "difference", lambda *_: "planted")
    prove, proofs = Maker.prove, []
    monkeypatch.setattr(Maker, "prove", lambda *given: proofs.append(given) or ASKED)  # it takes as long as we like
    serve(session, lambda: bool(proofs))
    x = feed(41)
    session.run(None, {"x": x})
    in_background(lambda: prove(*proofs[0]))
    deadline = time.monotonic() + 60
    while not session.events.of("tier.quarantine" if is_wrong else "tier.publish"):
        assert time.monotonic() < deadline, in_vain(session.events)
        time.sleep(0.01)
    assert is_fused(session) != is_wrong


@pytest.mark.parametrize("large", [False, True])
def test_one_call_is_kept_if_it_is_not_too_large(session: Session, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    subject: Any = session.observer
    if large:
        monkeypatch.setattr(session_subject, "SAMPLE_BYTES", feed(41).nbytes)
    in_background(subject.keep_call)
    for rows in (41, 42):
        session.run(None, {"x": feed(rows)})
    assert (subject._kept is None) == large
    if not large:
        assert subject._kept.form == ((41, 512),)
    session.close()
    assert subject._kept is None


def test_a_duel_does_not_push_out_a_shadow_that_waits(session: Session) -> None:
    """Nor the other way round: whoever asked would wait for ever."""
    subject: Any = session.observer
    form = (feed().shape,)
    subject.shadow(session.base, form, lambda judged: None)
    subject.duel(form, None, lambda times: None)
    assert isinstance(subject._special(form), Shadow)
    assert subject._special("another form") is None
    subject._shadow = None
    assert isinstance(subject._special(form), Duel)
    subject.shadow(session.base, form, lambda judged: None)
    assert subject._duel is not None
    subject.publish(None)
    assert subject._special(form) is None


def test_a_duel_that_waits_for_a_form_in_vain_ends(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is looked at until then: those that go the short way would be known by one in many."""
    monkeypatch.setattr(contests, "ELSEWHERE", 64)
    monkeypatch.setattr(contests, "CLEAR", 1e9)
    subject: Any = session.observer
    rules(session, tier=1)
    serve(session, lambda: is_fused(session) and subject.controller._contests._under_way is not None, 30)
    assert subject._duel is not None
    assert subject._duel.form == (feed().shape,)
    calls = 0
    while subject._duel is not None and calls < 200:
        session.run(None, {"x": feed(1)})
        in_background(subject.controller._look)
        calls += 1
    assert calls == contests.ELSEWHERE + 1
    serve(session, lambda: session.events.of("tier.measured"), 30)


def test_no_team_is_left_where_the_background_led_one() -> None:
    job, counts = Job([], 2), []

    def lead() -> None:
        get_driver().run(job)
        counts.append(psutil.Process().num_threads())

    in_background(lead)
    until_s = time.monotonic() + 5
    while psutil.Process().num_threads() != counts[0] - 1 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert psutil.Process().num_threads() == counts[0] - 1


def test_looks_are_rare_where_something_serves_and_nothing_is_under_way(session: Session) -> None:
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    rules(session, tier=1)
    serve(session, lambda: session.events.of("tier.build"), 30)
    assert is_fused(session) or controller._look_after_s == LOOK_S
    serve(session, lambda: is_fused(session) and controller._look_after_s > LOOK_S, 30)
    assert controller._is_quiet()
    in_background(lambda: controller.changed("the test says so"))
    in_background(controller._look)
    assert controller._look_after_s == LOOK_S  # until it serves again


def rules(session: Session, **changes: Any) -> None:
    """Other numbers for a session's tier machine."""
    controller: Any = session.observer.controller  # type: ignore[union-attr]

    def change() -> None:
        controller._state = replace(controller._state, rules=replace(controller._state.rules, **changes))

    in_background(change)


def lineup(session: Session) -> tuple[Target, ...]:
    return session.observer.controller._lineup.serving  # type: ignore[union-attr, no-any-return]


def test_a_hot_shape_gets_kernels_of_its_own(session: Session) -> None:
    rules(session, baked_gain=10.0, judge_s=1e9)
    serve(session, lambda: len(lineup(session)) > 1)
    assert lineup(session) == (Generic(), Baked("((96, 512),)"))
    binder: Any = session.best.executor._binder
    assert list(binder.special) == [(("n", 96),)]
    for rows in (1, 95, 96, 97):
        np.testing.assert_allclose(session.run(None, {"x": feed(rows)})[0], want(feed(rows)), rtol=1e-4, atol=1e-7)

    def baked() -> list[Any]:
        return [story for story in session.report().subgraphs if story.subgraph.kind == "baked"]

    serve(session, lambda: any(story.executions for story in baked()))  # counted with the next tick
    assert all(story.state == "serves" and 0 < (story.executions or 0) <= session.calls for story in baked())


def unit_names(session: Session) -> list[str]:
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    return [unit.name for unit in composed([controller._lineup.made[t] for t in lineup(session)]).units]


@pytest.mark.parametrize("kind", [Merged, Split])
def test_units_are_edited_and_an_edit_that_does_not_pay_goes_again(session: Session, kind: Any) -> None:
    serve(session, lambda: is_fused(session))
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    before = unit_names(session)
    build = controller._lineup.made[Generic()].build
    edit = Merged(build.joints[0].groups) if kind is Merged else Split((build.joints[0].groups[0],))
    rules(session, build_share=0.0, keep_share=0.0)

    def spot() -> None:
        controller._tell(Spotted(time.monotonic(), edit, 10.0))

    BACKGROUND.post(spot)
    serve(session, lambda: edit in lineup(session) or session.events.of("tier.measured"))
    deadline = time.monotonic() + 180
    while not any(e.subject == str(edit) for e in session.events.of("tier.measured")) and time.monotonic() < deadline:
        session.run(None, {"x": feed()})
        time.sleep(0.005)
    (measured,) = [e for e in session.events.of("tier.measured") if e.subject == str(edit)]
    pays = measured.data["base_seconds"] - measured.data["seconds"] > measured.data["spread_s"]
    deadline = time.monotonic() + 5
    while (edit in lineup(session)) != pays and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (edit in lineup(session)) == pays
    assert (unit_names(session) == before) == (not pays)
    serve(session, lambda: True)


def test_what_is_shadowed_when_something_else_leaves_is_shadowed_beside_the_rest(session: Session) -> None:
    serve(session, lambda: is_fused(session))
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    rules(session, build_share=0.0, keep_share=0.0)
    one, other = (Split((group,)) for group in controller._lineup.made[Generic()].build.joints[0].groups)

    def stage(target: Target) -> str:
        live = controller.state.find(target)
        return "" if live is None else str(live.stage)

    def call_until(target: Target, wanted: str) -> None:
        """A call at a time: what comes of each is waited for."""
        BACKGROUND.post(lambda: controller._tell(Spotted(time.monotonic(), target, 10.0)))
        deadline = time.monotonic() + 60
        while stage(target) != wanted:
            assert time.monotonic() < deadline, in_vain(session.events)
            session.run(None, {"x": feed()})
            assert session.settle(60)

    call_until(one, "serving")
    call_until(other, "shadowing")
    attempt = controller.state.find(one).attempt
    slower = Measured(time.monotonic(), one, attempt, f"({feed().shape},)", 2.0, 1.0, 0.0)
    in_background(lambda: controller._tell(slower))
    assert stage(one) == ""
    serve(session, lambda: other in lineup(session), 10)


def test_as_many_calls_are_shadowed_as_must_agree(session: Session) -> None:
    rules(session, shadow_calls=3)
    serve(session, lambda: is_fused(session), 30)
    assert len(session.events.of("tier.shadowed")) == 3
    assert "3 shadowed calls agreed" in session.events.of("tier.publish")[0].reason


def test_an_edit_that_cannot_be_had_is_never_asked_for_again(session: Session) -> None:
    serve(session, lambda: is_fused(session))
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    rules(session, build_share=0.0, keep_share=0.0)
    nobody = Split(("nobody",))
    BACKGROUND.post(lambda: controller._tell(Spotted(time.monotonic(), nobody, 10.0)))
    serve(session, lambda: session.events.of("tier.buildfailed"))
    serve(session, lambda: controller.state.memory.of(nobody).barred)


def test_the_death_of_a_worker_is_told(tmp_path: Path) -> None:
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path), stress="fail-compile-every-1") as session:
        serve(session, lambda: session.events.of("worker.died"))


@pytest.mark.parametrize("fuel", [0, 1])
def test_fuel_ends_what_is_published(tmp_path: Path, fuel: int) -> None:
    """Whoever looks for the first bad decision halves the number of those that are made."""
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache"), fuel=fuel) as session:
        rules(session, tier=2, baked_gain=5.0, budget_s=0.01)
        enough = time.monotonic() + 4
        serve(session, lambda: time.monotonic() > enough and (not fuel or is_fused(session)))
        assert [e.subject for e in session.events.of("tier.publish")] == ["generic kernels"][:fuel]
        controller: Any = session.observer.controller  # type: ignore[union-attr]
        assert "fuel" in objection(controller.state, Generic() if not fuel else Baked(f"({feed().shape},)"))


def test_an_audit_is_of_what_serves_and_not_of_who_takes_turns_with_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(session, lambda: is_fused(session))
    subject: Any = session.observer
    posted: list[Any] = []
    monkeypatch.setattr(subject.controller, "later", posted.append)
    monkeypatch.setattr(subject, "_special", lambda form: None)
    best, given = session.best, [feed(2)]
    other = session.serving(best.executor, 1, "the other side")
    subject.audit(lambda job: None, lambda form, judged: None)
    subject.called(other, 1e-3, given, [feed(2)])
    assert not posted
    subject.called(best, 1e-3, given, [feed(2)])
    assert len(posted) == 1


def test_weights_in_a_file_are_read_by_calls_until_kernels_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then are their pages given back: what is prepared of them is prepared beside calls."""
    released: list[bool] = []
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    with hotfuse.load(path, cache="off", fuel=1, tier=1) as session:
        monkeypatch.setattr(MappedArray, "release", lambda self: released.append(is_fused(session)))
        serve(session, lambda: is_fused(session))
        in_background(lambda: None)
    assert len(released) >= len(WEIGHTS)
    assert all(released)
