"""What measures waits for idle cores, but not for ever, and takes a back seat."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hotfuse.config import Config
from hotfuse.errors import NoIdleCores
from hotfuse.hardware.load import Look, available_memory_bytes, cores_of_others, look
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import quiet as module
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibrating import gather
from hotfuse.runtime.calibration import Calibration
from hotfuse.runtime.probes import measure_rates
from hotfuse.runtime.quiet import WINDOW_S, Quiet, in_back_seat, look_here
from tests.hardware.test_model import RATES


class Machine:
    """Two cores and a clock: others have as many of them as `others` says, for each window; the last for good."""

    def __init__(self, *others: float) -> None:
        self.others, self.now_s, self.used_s = list(others), 0.0, 0.0
        self.slept: list[float] = []

    def look(self) -> Look:
        return Look(self.now_s, self.used_s, 0.0)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.work(seconds)

    def work(self, seconds: float) -> None:
        others = self.others.pop(0) if len(self.others) > 1 else self.others[0]
        self.now_s += seconds
        self.used_s += others * seconds

    def quiet(self, patience_s: float = math.inf) -> Quiet:
        return Quiet(patience_s, self.look, self.sleep, cores=2)


def test_on_an_idle_machine_nobody_waits() -> None:
    machine = Machine(0.05)
    quiet = machine.quiet()
    machine.work(WINDOW_S)
    assert quiet.wait()
    assert quiet.wait()  # just looked
    assert machine.slept == []
    assert quiet.waited_s == 0


def test_a_verdict_needs_a_window() -> None:
    machine = Machine(0.0)
    quiet = machine.quiet()
    machine.work(WINDOW_S / 4)
    assert quiet.wait()
    assert machine.slept == [pytest.approx(WINDOW_S * 3 / 4)]


def test_it_waits_until_others_leave_and_tells() -> None:
    machine, told = Machine(1.0, 1.0, 0.5, 0.0), list[float]()
    quiet = machine.quiet()
    machine.work(WINDOW_S)
    assert quiet.wait(told.append)
    assert told == [pytest.approx(1.0), pytest.approx(1.0), pytest.approx(0.5)]
    assert quiet.waited_s == pytest.approx(3 * WINDOW_S)


def test_patience_ends_and_does_not_come_back() -> None:
    machine = Machine(1.0)
    quiet = machine.quiet(3.0)
    assert not quiet.wait()
    assert quiet.waited_s == pytest.approx(3.0, abs=WINDOW_S)
    slept = len(machine.slept)
    machine.work(1.0)
    assert not quiet.wait()
    assert len(machine.slept) == slept


def test_where_nobody_can_tell_it_is_quiet() -> None:
    quiet = Quiet(0.0, lambda: Look(time.monotonic(), None, 0.0), lambda seconds: None, cores=2)
    time.sleep(0.001)
    quiet._last = Look(quiet._last.at_s - WINDOW_S, None, 0.0)
    assert quiet.wait()


# looks


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="cores are counted in /proc")
def test_what_workers_have_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as worker:
        try:
            monkeypatch.setattr(module, "worker_pids", lambda: (worker.pid,))
            before = look_here(), look()
            time.sleep(1.0)
            after = look_here(), look()
        finally:
            worker.kill()
    without, with_it = (cores_of_others(a, b) for a, b in zip(before, after, strict=True))
    assert without is not None
    assert with_it is not None
    assert without < with_it - 0.1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="cores are counted in /proc")
def test_ones_own_work_is_not_others() -> None:
    before = look()
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    after = look()
    assert before.used_s is not None
    assert after.used_s is not None
    assert after.own_s - before.own_s >= 0.5
    assert after.used_s - before.used_s > 0.3  # it is among what all had
    others = cores_of_others(before, after)
    assert others is not None
    assert others < (after.used_s - before.used_s) / (after.at_s - before.at_s)


def test_memory_is_what_the_machine_or_a_control_group_leaves(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert available_memory_bytes(tmp_path) == 64 * 1024
    (tmp_path / "proc/self/cgroup").write_text("0::/inner\n")
    folder = tmp_path / "sys/fs/cgroup/inner"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("40000\n")
    (folder / "memory.current").write_text("30000\n")
    (folder / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert available_memory_bytes(tmp_path) == 15000  # files leave when memory is needed
    (folder / "memory.current").write_text("90000\n")
    assert available_memory_bytes(tmp_path) == 0


# the seat


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has classes of threads")
def test_a_back_seat_is_of_one_thread() -> None:
    def facts() -> tuple[int, int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), threading.get_ident()

    before = facts()
    assert in_back_seat(facts)[0] == os.SCHED_IDLE
    assert facts() == before


def test_errors_come_back() -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        in_back_seat(fail)


def test_an_interrupt_is_the_works(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def work() -> None:
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            ended.set()
            raise

    join, calls = threading.Thread.join, list[int]()

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        join(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(module.threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            in_back_seat(work)
    assert ended.is_set()


# those who wait


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Config:
    return Config(cache=str(tmp_path / "cache"), tier=1, wait=True)


def test_calibrating_pauses_tells_and_ends(config: Config) -> None:
    calibration = Calibration(host_spec(), RATES, open_cache(config))
    told: list[str] = []
    times, _ = gather(calibration, config, 60.0, lambda *progress: told.append(progress[2]), quiet=Machine(1.2).quiet(2.0))
    assert len(times) == 0
    assert set(told) == {"waiting: others have 1.2 cores"}


def test_what_is_waited_is_no_time_of_measuring(config: Config) -> None:
    calibration = Calibration(host_spec(), RATES, open_cache(config))
    machine, passed = Machine(1.0, 1.0, 1.0, 0.0), list[float]()

    def progress(seconds: float, count: int, what: str) -> None:
        passed.append(seconds)
        if what.startswith("specimen"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(calibration, config, 60.0, progress, quiet=machine.quiet())
    assert passed[-1] < 0.1 - WINDOW_S  # no second of it passed here: the machine's clock is its own


def test_rates_are_not_measured_beside_others() -> None:
    told: list[str] = []
    with pytest.raises(NoIdleCores, match="calibrate --now"):
        measure_rates(host_spec(), 1, None, lambda what, number, of: told.append(what), Machine(2.0).quiet(1.0))
    assert set(told) == {"waiting: others have 2.0 cores"}


def test_plans_are_predicted_where_they_cannot_be_measured(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    import hotfuse.runtime.tuned as tuned
    from hotfuse.runtime.specimens import specimen

    def refuse(*_: object) -> None:
        raise AssertionError("measured beside others")

    told: list[str] = []
    monkeypatch.setattr(tuned, "Quiet", lambda seconds: Machine(1.0).quiet(1.0))
    monkeypatch.setattr(tuned.Track, "race", refuse)
    subject = specimen(3)
    given = [subject.inputs[name] for name in subject.graph.inputs]
    executor, planned = tuned.tuned_executor(subject.graph, given, config, 5.0, told.append)
    assert len(told) == 1
    assert not any(step.is_measured for step in planned.steps)
    assert len(executor.run(given)) == len(subject.graph.outputs)


def test_what_was_learned_until_others_came_is_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    import hotfuse.runtime.tuned as tuned
    from hotfuse.runtime.planning import known_policy
    from hotfuse.runtime.specimens import specimen

    class Turns:
        """Quiet for a few looks, and then no more."""

        left, waited_s = 3, 7.0

        def wait(self) -> bool:
            self.left -= 1
            return self.left >= 0

    told: list[str] = []
    monkeypatch.setattr(tuned, "Quiet", lambda seconds: Turns())
    subject = specimen(3)
    given = [subject.inputs[name] for name in subject.graph.inputs]
    executor, _ = tuned.tuned_executor(subject.graph, given, config, 60.0, told.append)
    assert told == ["others used the cores for 7.0 s, in which no more plans could be measured than in 3 races"]
    assert known_policy(config, host_spec(config.isa)).seen > 0
    assert len(executor.run(given)) == len(subject.graph.outputs)
