"""Stress: how modes are spelled, what each one asks for, and that what is asked for happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotfuse
from hotfuse.adaptive.state import Rules
from hotfuse.config import Config
from hotfuse.errors import ConfigError, WorkerError
from hotfuse.runtime import build_work, faults, native, objects
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_jobs import build_job
from hotfuse.runtime.build_pool import MODULE
from hotfuse.runtime.build_request import BuildReply, BuildRequest
from hotfuse.runtime.native import native_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.recent_code import LIMIT_BYTES, RecentCode
from hotfuse.runtime.session import Session
from hotfuse.runtime.stressed import StressedSession, session_class
from hotfuse.runtime.workers import Job, Pool
from hotfuse.stress import CALM, FAULTS, MODES, Stress, parse
from tests.stress.models import feeds, onnx_model


@pytest.mark.parametrize("spelled", ["{}-7", "{}=7", "{}(7)"])
@pytest.mark.parametrize(
    "name", ["tier-up-random", "deopt-every", "fail-compile-every", "swap-every", "evict-every", "slow-compile", "workers"]
)
def test_numbers_have_three_spellings(name: str, spelled: str) -> None:
    assert parse(f" tiny-code-cache , {spelled.format(name)}") == Stress(tiny_code_cache=True, **{name.replace("-", "_"): 7})


def test_no_mode_is_calm() -> None:
    assert parse("") == parse(" , ") == CALM
    assert (CALM.options, CALM.rules("model"), CALM.touches_calls) == ({}, {}, False)
    assert not any(CALM.fault(n) or CALM.forgets(n) or CALM.original_answers(n) for n in range(1, 99))


@pytest.mark.parametrize(
    "text",
    ["fast", "swap-every", "swap-every-0", "swap-every(x)", "swap-every(3", "tier0-only-3", "tier0-only,,always-top-1", "-"],
)
def test_other_words_are_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hotfuse.load(b"", stress=text)
    assert all(mode in str(caught.value) for mode in MODES)


@pytest.mark.parametrize("text", ["workers-2,workers=3", "always-top,tier-up-random-1"])
def test_contradictions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"twice|contradict"):
        parse(text)


def test_options_under_stress_are_those_of_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(stress="tier0-only", tier=1).tier == 0
    assert Config(stress="workers-5").workers == 5
    tiny = Config(stress="tiny-code-cache", max_bound_shapes=64)
    assert (tiny.max_bound_shapes, tiny.max_arena_bytes, tiny.max_cache_bytes) == (1, 0, 65536)
    monkeypatch.setenv("HOTFUSE_STRESS", "workers-3")
    monkeypatch.setenv("HOTFUSE_FUEL", "2")
    assert (Config().workers, Config().fuel, Config.from_environment({}).fuel) == (3, 2, -1)
    for wrong in ({"stress": 3}, {"fuel": -2}):
        with pytest.raises(ConfigError, match=r"stress must be text|fuel must be at least -1"):
            Config(**wrong)  # type: ignore[arg-type]


def test_a_tiny_cache_is_tiny_in_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = RecentCode()
    for module in (objects, native, build_work):
        monkeypatch.setattr(module, "RECENT", recent)
    graph = skeleton(hotfuse.load(onnx_model(), tier=0).graph)
    for stress, fewest, most in (("", 40_000, LIMIT_BYTES), ("tiny-code-cache", 1, 1 << 16)):
        config = Config(stress=stress, cache="off")
        for number in range(20):
            recent.put(f"{stress}{number}", bytes(4000))
        build_work.build_here(BuildRequest(graph, config))
        assert fewest <= recent.bytes <= most
    native_executor(hotfuse.load(onnx_model(), tier=0).graph, NUMPY, Config(cache="off"))
    assert recent.limit_bytes == LIMIT_BYTES


def test_rules_under_stress_are_rules() -> None:
    assert Rules(**parse("always-top").rules("a")).budget_s == 0
    drawn = [Rules(**parse(f"tier-up-random-{seed}").rules(model)) for seed in range(20) for model in "ab"]
    assert len({rules.budget_s for rules in drawn}) == 40
    assert all(0 < rules.budget_s < 0.2 and rules.shadow_calls >= 1 for rules in drawn)
    again = parse("tier-up-random-3").rules("a")
    assert again == parse("tier-up-random-3").rules("a")


def test_which_calls_are_touched() -> None:
    found = parse("deopt-every-3,evict-every-4")
    assert [n for n in range(1, 10) if found.original_answers(n)] == [3, 6, 9]
    assert [n for n in range(1, 10) if found.forgets(n)] == [4, 8]
    assert [n for n in range(1, 10) if parse("swap-every-2").original_answers(n)] == [2, 3, 6, 7]
    assert [parse("fail-compile-every-2").fault(n) for n in range(1, 11)] == [
        "",
        "raise",
        "",
        "hang",
        "",
        "crash",
        "",
        "memory",
        "",
        "raise",
    ]


# what happens


class Ends:
    """State: what jobs ended with, in order."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._more = threading.Condition()

    def __call__(self, result: Any) -> None:
        with self._more:
            self.found.append(result)
            self._more.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.found) >= count, 300)
        return self.found


def test_every_fault_is_committed_in_a_child_and_costs_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "HANG_S", 1.0)
    pool, ends, jobs = Pool("tests.stress.fault_worker", 1, first_rest_s=0.01), Ends(), 2 * len(FAULTS)
    try:
        for _ in range(jobs):
            pool.submit(Job("", lambda: b"work", ends, 300.0, 1 << 40, stress=Stress(fail_compile_every=2)))
        found = ends.wait(jobs)
    finally:
        pool.close()
    assert found[::2] == [b"work"] * len(FAULTS)
    assert [result.cause for result in found[1::2]] == ["raised", "timeout", "died", "memory"]


def test_a_build_worker_commits_faults() -> None:
    config = Config(stress="fail-compile-every-2", cache="off")
    graph = skeleton(hotfuse.load(onnx_model(), tier=0).graph)
    pool, ends = Pool(MODULE, 1), Ends()
    try:
        for _ in range(2):
            pool.submit(build_job("", lambda: BuildRequest(graph, config), ends, config))
        good, bad = ends.wait(2)
    finally:
        pool.close()
    assert isinstance(good, BuildReply)
    assert isinstance(bad, WorkerError)
    assert "on purpose" in str(bad)


def test_a_slow_compile_takes_longer() -> None:
    """The time is a worker's: nothing else waits."""
    pool, ends, took = Pool("tests.stress.fault_worker", 1), Ends(), list[float]()
    try:
        for turn, slow in enumerate((0, 300)):
            begun = time.perf_counter()
            pool.submit(Job("", lambda: b"work", ends, 300.0, 1 << 40, stress=Stress(slow_compile=slow)))
            ends.wait(turn + 1)
            took.append(time.perf_counter() - begun)
    finally:
        pool.close()
    assert took[1] >= 0.3


def stressed(text: str) -> Session:
    config = Config(stress=text, tier=0, cache="off")
    calm = hotfuse.load(onnx_model(), tier=0)
    made = session_class(config)(calm.graph, [o.name for o in calm.outputs], config)
    made.publish(made.serving(native_executor(made.graph, NUMPY, config), 1, "tier 1"))
    return made


@pytest.mark.parametrize("text", ["deopt-every-3", "swap-every-2", "evict-every-2", "swap-every-3,evict-every-2,deopt-every-5"])
def test_a_session_under_stress_does_as_it_is_told_and_answers_as_ever(text: str) -> None:
    plan, session = parse(text), stressed(text)
    (want,) = hotfuse.load(onnx_model(), tier=0).run(None, feeds(3))
    for number in range(1, 31):
        bound = session._best.executor.bound_shapes
        (y,) = session.run(None, feeds(3))
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
        assert (session.kernels == 0) == plan.original_answers(number)
        if plan.forgets(number) and bound:
            assert session._best.executor.bound_shapes <= 1
    assert session_class(Config(stress="workers-2")) is Session


def test_what_is_published_while_the_original_answers_comes_after_it() -> None:
    session = stressed("swap-every-1")
    native = session._best
    session.run(None, feeds(3))
    assert session.kernels == 0
    session.publish(None)
    session.run(None, feeds(3))
    assert session.kernels == 0  # it was withdrawn meanwhile, and must not come back
    session.run(None, feeds(3))
    session.publish(native)
    assert session.kernels == 0
    session.run(None, feeds(3))
    assert session.kernels > 0
    assert isinstance(session, StressedSession)


def test_a_stressed_session_under_many_callers() -> None:
    session = stressed("swap-every-3,evict-every-7,deopt-every-5")
    native = session._best
    (want,) = hotfuse.load(onnx_model(), tier=0).run(None, feeds(3))
    seen: Counter[str] = Counter()

    def call() -> None:
        for _ in range(200):
            (y,) = session.run(None, feeds(3))
            seen["right" if np.allclose(y, want, rtol=1e-5, atol=1e-6) else "wrong"] += 1

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(200):
        session.publish(native if turn % 2 else None)
        time.sleep(0.0005)
    for thread in threads:
        thread.join()
    assert set(seen) == {"right"}


def test_the_words_are_documented() -> None:
    text = (Path(hotfuse.__file__).parents[1] / "docs/stress.md").read_text()
    assert all(mode.removesuffix("-N") in text for mode in MODES)
