"""A child process, one request at a time: what it may do to its parent (nothing), and what becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotfuse.errors import WorkerError
from hotfuse.file_map import FilePart, map_file, part_of
from hotfuse.rank import NICE
from hotfuse.runtime import child, child_time
from hotfuse.runtime.child import ChildProcess, own_bytes, resident_bytes
from hotfuse.runtime.child_start import spawned

TOY = "tests.runtime.toy_worker"
LIMITS = (100.0, 1 << 40)


@pytest.fixture(name="toy")
def _toy() -> Iterator[ChildProcess]:
    process = ChildProcess(spawned(TOY))
    yield process
    process.kill()
    process.forget()


def gone(pid: int, timeout_s: float = 100.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def fails(
    process: ChildProcess, request: bytes, timeout_s: float = 100.0, memory_bytes: int = 1 << 40, **more: Any
) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        process.ask(request, timeout_s, memory_bytes, **more)
    return caught.value


def test_it_answers_again_and_again(toy: ChildProcess) -> None:
    assert toy.ask(b"echo a b", *LIMITS) == b"a b"
    assert toy.ask(b"echo", *LIMITS) == b""
    assert len(toy.ask(b"long 30000000", *LIMITS)) == 30_000_000
    assert toy.ask(b"echo " + b"y" * 10_000_000, *LIMITS) == b"y" * 10_000_000
    assert toy.alive


def test_nothing_that_it_prints_is_taken_for_an_answer(toy: ChildProcess) -> None:
    assert toy.ask(b"chatter", *LIMITS) == b"quiet"
    assert toy.ask(b"echo x", *LIMITS) == b"x"


@pytest.mark.parametrize(("deed", "text"), [(b"fail why", "ValueError: why"), (b"leave now", "SystemExit: now")])
def test_an_error_of_its_program_is_told_and_it_lives_on(toy: ChildProcess, deed: bytes, text: str) -> None:
    error = fails(toy, deed)
    assert (error.cause, str(error)) == ("raised", text)
    assert toy.ask(b"echo x", *LIMITS) == b"x"


def test_a_crash_is_told(toy: ChildProcess) -> None:
    error = fails(toy, b"crash")
    assert error.cause == "died"
    assert str(error) == "the worker process died (Segmentation fault)"
    assert not toy.alive


def test_one_that_died_between_requests_is_told(toy: ChildProcess) -> None:
    toy.ask(b"echo x", *LIMITS)
    psutil.Process(toy.pid).kill()
    assert gone(toy.pid)
    assert fails(toy, b"echo " + b"y" * 10_000_000).cause == "died"


def test_a_hang_ends_at_the_deadline(toy: ChildProcess) -> None:
    toy.ask(b"echo x", *LIMITS)
    begun = time.monotonic()
    error = fails(toy, b"sleep", timeout_s=0.3)
    assert (error.cause, str(error)) == ("timeout", "the worker process took longer than 0.3 s and was stopped")
    assert time.monotonic() - begun < 100  # it would sleep for 1000
    assert gone(toy.pid)


@pytest.mark.parametrize("deed", [b"spin", b"nag", b"trickle"])
def test_one_that_is_busy_for_ever_is_stopped(toy: ChildProcess, deed: bytes) -> None:
    toy.ask(b"echo x", *LIMITS)
    assert fails(toy, deed, timeout_s=0.5, serve=lambda question: b"fine").cause == "timeout"


def test_time_in_which_it_is_stopped_does_not_count(toy: ChildProcess) -> None:
    toy.ask(b"echo x", *LIMITS)
    for seconds in (0.1, 1.6):
        threading.Timer(seconds, os.kill, (toy.pid, signal.SIGSTOP)).start()
        threading.Timer(seconds + 1.2, os.kill, (toy.pid, signal.SIGCONT)).start()
    begun = time.monotonic()
    assert toy.ask(b"spin 0.6", 1.2, 1 << 40) == b"0.6"
    assert time.monotonic() - begun > 1.2


def test_time_in_which_its_question_is_served_does_not_count(toy: ChildProcess) -> None:
    toy.ask(b"echo x", *LIMITS)
    assert toy.ask(b"ask a,b", 0.8, 1 << 40, serve=lambda question: time.sleep(0.6) or question) == b"a+b"


def test_one_that_is_never_let_go_on_is_stopped_for_good(toy: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE", 4)
    toy.ask(b"echo x", *LIMITS)
    threading.Timer(0.1, os.kill, (toy.pid, signal.SIGSTOP)).start()
    error = fails(toy, b"spin", timeout_s=0.4)
    assert (error.cause, str(error)) == (
        "timeout",
        "the worker process came to no end in 1.6 s, with too little time on a core, and was stopped",
    )


@pytest.mark.parametrize(
    ("state", "asks", "used_s", "had_s", "idle_s"),
    [
        ("S", False, 0.0, 2.0, 2.0),  # it sleeps
        ("R", False, 0.5, 0.5, 0.0),  # it has a core for a quarter of the time,
        ("R", False, 0.0, 0.0, 0.0),  # or never
        ("T", False, 0.0, 0.0, 0.0),
        ("S", True, 0.25, 0.25, 0.0),  # it has worked, and waits for us now
        ("S", False, 4.0, 2.0, 0.0),  # on two cores
        ("S", False, 0.03, 2.0, 2.0),  # to be stopped and to go on takes a little
        ("", False, 0.0, 2.0, 0.0),
    ],
)
def test_the_time_that_it_has_had(
    state: str, asks: bool, used_s: float, had_s: float, idle_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([child_time._Look(10.0, "S", 1.0, 1.0), child_time._Look(12.0, state, 1.0 + used_s, 1.0 + used_s)])
    monkeypatch.setattr(child_time, "_look", lambda pid: next(looks))
    time_ = child_time.ChildTime(1)
    time_.look(asks)
    assert (time_.had_s, time_.idle_s) == (had_s, idle_s)


def test_where_nobody_can_tell_all_time_counts(toy: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_time, "_of", lambda path: ("", 0.0))
    toy.ask(b"echo x", *LIMITS)
    os.kill(toy.pid, signal.SIGSTOP)
    error = fails(toy, b"spin", timeout_s=0.5)
    assert str(error) == "the worker process took longer than 0.5 s and was stopped"


@pytest.mark.parametrize("deed", [b"eat", b"eat-asking"])
def test_one_that_eats_memory_is_stopped(toy: ChildProcess, deed: bytes) -> None:
    toy.ask(b"echo x", *LIMITS)
    limit = resident_bytes(toy.pid) + (50 << 20)
    error = fails(toy, deed, memory_bytes=limit, serve=lambda question: b"fine")
    assert error.cause == "memory"
    assert f"{limit:,}" in str(error)
    assert gone(toy.pid)


@pytest.mark.parametrize("deed", [b"noise", b"huge"])
def test_nonsense_costs_it_its_life(toy: ChildProcess, deed: bytes) -> None:
    assert fails(toy, deed).cause == "nonsense"
    assert gone(toy.pid)


def test_it_asks_back(toy: ChildProcess) -> None:
    table = {b"a": b"1", b"b": memoryview(b"22"), b"c": b"3" * 5_000_000}
    assert toy.ask(b"ask a,b,c", *LIMITS, serve=table.__getitem__) == b"1+22+" + b"3" * 5_000_000


def test_bytes_of_a_mapped_file_are_mapped_and_not_sent(toy: ChildProcess, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 1000)
    with path.open("rb") as file:
        view = map_file(file.fileno(), 256_000)
    table = {b"large": view[7:200_007], b"small": view[7:1007], b"copy": memoryview(bytes(view))}
    served: list[bytes] = []

    def serve(name: bytes) -> memoryview:
        served.append(name)
        return table[name]

    def where(name: bytes) -> FilePart | None:
        return part_of(table[name])

    kinds = [toy.ask(b"kind " + name, *LIMITS, serve=serve, where=where) for name in table]
    assert kinds == [b"memoryview", b"bytes", b"bytes"]
    assert served == [b"small", b"copy"]
    assert toy.ask(b"ask large,copy,large", *LIMITS, serve=serve, where=where) == b"+".join(
        bytes(table[name]) for name in (b"large", b"copy", b"large")
    )
    before = len(os.listdir(f"/proc/{toy.pid}/fd"))
    toy.ask(b"ask " + b",".join([b"large"] * 50), *LIMITS, serve=serve, where=where)
    assert len(os.listdir(f"/proc/{toy.pid}/fd")) <= before + 1


def test_memory_of_mapped_files_is_nobodys_own(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * (64 << 20))
    own, all_of_it = own_bytes(os.getpid()), resident_bytes(os.getpid())
    with path.open("rb") as file:
        view = map_file(file.fileno(), 64 << 20)
    assert view[:: 1 << 12].tobytes()
    assert resident_bytes(os.getpid()) >= all_of_it + (60 << 20)
    assert own_bytes(os.getpid()) < own + (30 << 20)


def test_a_file_that_was_replaced_meanwhile_is_sent(toy: ChildProcess, tmp_path: Path) -> None:
    path, other = tmp_path / "weights", tmp_path / "other"
    path.write_bytes(b"old" * 100_000)
    with path.open("rb") as file:
        view = map_file(file.fileno(), 300_000)
    other.write_bytes(b"new" * 100_000)
    other.replace(path)
    there = part_of(view)
    assert toy.ask(b"kind x", *LIMITS, serve=lambda _: view, where=lambda _: there) == b"bytes"
    assert toy.ask(b"ask x", *LIMITS, serve=lambda _: view, where=lambda _: there) == b"old" * 100_000


def test_a_question_that_nobody_answers_is_an_error_of_its_program(toy: ChildProcess) -> None:
    assert "nobody serves" in str(fails(toy, b"ask a"))
    error = fails(toy, b"ask a", serve={}.__getitem__)
    assert (error.cause, str(error)) == ("raised", "WorkerError: KeyError: b'a'")
    assert toy.ask(b"echo x", *LIMITS) == b"x"


def test_a_program_that_cannot_begin_says_why() -> None:
    for process in (ChildProcess(spawned(TOY, ("--broken",))), ChildProcess(spawned(TOY), greeting=b"broken", name="toy")):
        error = fails(process, b"echo x")
        assert error.cause == "died"
        assert str(error).endswith("cannot begin: ImportError: planted")
        assert gone(process.pid)
    assert fails(ChildProcess(spawned("tests.runtime.no_such_module")), b"").cause == "died"


def test_where_no_process_can_be_started_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(WorkerError, match=r"no worker process can be started: .*temporarily unavailable") as caught:
        ChildProcess(spawned(TOY))
    assert caught.value.cause == "start"


def test_its_priority_group_and_limits(toy: ChildProcess) -> None:
    mine = os.nice(0)
    assert toy.ask(b"facts group", *LIMITS) == str(toy.pid).encode()
    assert toy.ask(b"facts nice", *LIMITS) == str(min(mine + NICE, 19)).encode()
    assert toy.ask(b"facts oom", *LIMITS) == b"1000"
    assert toy.ask(b"facts core", *LIMITS) == b"0"
    urgent = ChildProcess(spawned(TOY, ("one", "more")), behind=False)
    assert urgent.ask(b"facts nice", *LIMITS) == str(mine).encode()
    assert urgent.ask(b"facts argv", *LIMITS) == b"['one', 'more']"
    urgent.kill()
    urgent.forget()


def test_it_is_nice_before_it_is_up() -> None:
    made = ChildProcess(spawned(TOY))
    assert os.getpriority(os.PRIO_PROCESS, made.pid) == min(os.nice(0) + NICE, 19)
    assert os.sched_getscheduler(made.pid) == os.SCHED_BATCH  # when it goes on it displaces nobody
    made.kill()
    made.forget()


def test_what_it_started_goes_with_it(toy: ChildProcess) -> None:
    bred: list[int] = []
    assert fails(toy, b"breed", timeout_s=1.0, serve=lambda pid: bred.append(int(pid)) or b"").cause == "timeout"
    assert len(bred) == 1
    assert gone(bred[0])


def test_descriptors_past_1023_are_fine() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        process = ChildProcess(spawned(TOY))
        assert process.ask(b"echo x", *LIMITS) == b"x"
        process.kill()
        process.forget()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_that_dies_sends_no_signal_to_a_program_that_would_die_of_it() -> None:
    script = f"""
        import signal
        from hotfuse.errors import WorkerError
        from hotfuse.runtime.child import ChildProcess
        from hotfuse.runtime.child_start import spawned
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        process = ChildProcess(spawned("{TOY}"))
        process.ask(b"echo x", 100.0, 1 << 40)
        process.kill()
        try:
            process.ask(b"x" * (1 << 24), 100.0, 1 << 40)
        except WorkerError as error:
            print(error.cause)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "died\n"), done.stderr


def test_memory_of_a_process_that_is_gone_is_nothing() -> None:
    assert resident_bytes(1 << 30) == 0
    assert resident_bytes(os.getpid()) > 1 << 20


def test_a_look_at_memory_is_due_while_nothing_comes(toy: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(child, "own_bytes", lambda pid: looks.append(pid) or 0)
    toy.ask(b"sleep 0.7", *LIMITS)
    assert len(looks) >= 2
