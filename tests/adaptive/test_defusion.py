"""A slow fusion is taken apart: one that was merged, by the duel that follows; one of the rules', because traces show it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.adaptive.background import BACKGROUND
from hotfuse.adaptive.making import Making
from hotfuse.adaptive.message import Spotted
from hotfuse.adaptive.target import Baked, Generic, Merged, Split, Target
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.codegen.llvm_cpu import emit
from hotfuse.codegen.tile import TileProgram
from hotfuse.events import Event
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.session import Session
from tests.adaptive.test_session_subject import feed, is_fused, lineup, model, rules, want
from tests.adaptive.waiting import in_vain

CALLS = 200
TICKS_PER_MS = 2_500_000  # of the cycle counter, more or less
WASTE = """
declare i64 @llvm.readcyclecounter()
define internal void @waste() noinline optnone {
entry:
  %begin = call i64 @llvm.readcyclecounter()
  br label %turn
turn:
  %now = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %now, %begin
  %more = icmp ult i64 %spent, TICKS
  br i1 %more, label %turn, label %done
done:
  ret void
}
"""


def slow(program: TileProgram, waste_ms: int) -> bytes:
    """Code of a program that does the same, after milliseconds in which every task does nothing."""
    spec = host_spec()
    text = emit(program, spec.vector_bytes // 4, spec.isa)
    spun = re.sub(r"(define [^{]*@body[^{]*\{\nentry:\n)", r"\1  call void @waste()\n", text, count=1)
    assert spun != text
    return compile_ir(spun + WASTE.replace("TICKS", str(waste_ms * TICKS_PER_MS)), spec)


@pytest.fixture(params=[1])
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    with hotfuse.load(model().SerializeToString(), cache=str(tmp_path / "cache"), threads=request.param) as opened:
        rules(opened, tier=1, back_off_s=0.5)
        yield opened


def plant(monkeypatch: pytest.MonkeyPatch, is_slow: Any, waste_ms: int = 1) -> None:
    original = Making._built

    def built(self: Any, decision: Any, sizes: Any, result: Any) -> None:
        if not isinstance(result, BaseException):
            programs = result.build.programs
            objects = [
                slow(p, waste_ms) if is_slow(decision.target, p) else o for p, o in zip(programs, result.objects, strict=True)
            ]
            result = replace(result, objects=tuple(objects))
        original(self, decision, sizes, result)

    monkeypatch.setattr(Making, "_built", built)


def calls_until(session: Session, until: Any, most: int, rows: int = 96, pause_s: float = 0.005) -> int:
    x, exact = feed(rows), want(feed(rows))
    for call in range(most):
        if until():
            return call
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-7)
        time.sleep(pause_s)
    assert until(), in_vain(session.events)
    return most


@pytest.mark.parametrize("session", [2], indirect=True)
def test_a_slow_merge_is_taken_apart_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda target, program: isinstance(target, Merged) and program.name == "chain")
    calls_until(session, lambda: is_fused(session), 100_000)
    controller: Any = session.observer.controller  # type: ignore[union-attr]
    edit = Merged(controller._lineup.made[Generic()].build.joints[0].groups)
    rules(session, build_share=0.0, keep_share=0.0)
    BACKGROUND.post(lambda: controller._tell(Spotted(time.monotonic(), edit, 100.0)))
    calls_until(session, lambda: edit in lineup(session), 100_000)
    assert calls_until(session, lambda: edit not in lineup(session), CALLS) <= CALLS
    assert "does not pay" in controller.state.memory.of(edit).reason


def test_generic_kernels_that_are_slower_than_the_original_go_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch, lambda target, program: isinstance(target, Generic), 20
    )  # five kernels; the original takes 90 on a busy machine
    calls_until(session, lambda: is_fused(session), 100_000)
    rules(session, build_share=1e9)  # no edits, which would mend it
    assert calls_until(session, lambda: not is_fused(session), CALLS) <= CALLS


def test_a_slow_group_is_spotted_in_traces_and_taken_apart(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is slow here but what is taken apart. Whether all of it pays together is measured, too."""
    plant(monkeypatch, lambda target, program: isinstance(target, Generic) and program.name == "product", 20)
    rules(session, back_off_s=60.0)  # each edit is tried once: another lineup begins the duel of all of it anew
    calls_until(session, lambda: is_fused(session), 100_000)
    began = session.calls
    calls_until(session, lambda: any(isinstance(t, Split) for t in lineup(session)), CALLS)
    assert "should take" in session.events.of("tier.spotted")[0].reason
    (edit,) = (t for t in lineup(session) if isinstance(t, Split))
    calls_until(session, lambda: measured(session, edit), 1000)
    calls_until(session, lambda: measured(session, Generic()), 1000)
    print(f"measured {session.calls - began} calls after publication")


def measured(session: Session, target: Target) -> list[Event]:
    return [event for event in session.events.of("tier.measured") if event.subject == str(target)]


def test_another_regime_is_fused_anew(session: Session) -> None:
    rules(session, tier=2, baked_gain=5.0, half_life_s=0.5, judge_s=0.1, review_s=1.0, most_review_s=1.0)
    calls_until(session, lambda: any(isinstance(t, Baked) for t in lineup(session)), 100_000)
    assert Baked("((96, 512),)") in lineup(session)
    began = time.monotonic()
    calls_until(session, lambda: Baked("((200, 512),)") in lineup(session), 100_000, rows=200)
    print("seconds", time.monotonic() - began)
