"""Copies of a process: they keep nothing of the parent's, and one that is lost costs nothing but time."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import hotfuse
from hotfuse.adaptive.background import BACKGROUND
from hotfuse.errors import WorkerError
from hotfuse.locks import half_imported
from hotfuse.runtime import child_start, torch_capture
from hotfuse.runtime.child import HUNG, ChildProcess
from hotfuse.runtime.child_main import run
from hotfuse.runtime.child_start import Forked, forked, why_not_fork
from hotfuse.runtime.torch_module import controls
from hotfuse.runtime.workers import Job, Pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no copies are made elsewhere")


def toy(request: bytes, ask_back: Any) -> bytes:
    """What a copy can tell of itself."""
    if request == b"sleep":
        time.sleep(1000)
    if request == b"beside":
        threading.Thread(target=_count, daemon=True).start()
        time.sleep(1000)
    if request == b"eat":
        kept = bytearray(os.urandom(1 << 10)) * (300 << 10)
        time.sleep(1000 if kept else 0)
    if request == b"threads":
        return str(threading.active_count()).encode()
    return str(eval(request, {"os": os, "signal": signal})).encode()  # ours: a line of this file


def _count() -> None:
    while True:
        sum(range(1000))


@pytest.fixture(name="make")
def _make() -> Iterator[Callable[..., ChildProcess]]:
    made: list[ChildProcess] = []

    def make(**options: Any) -> ChildProcess:
        made.append(ChildProcess(forked(lambda: run(toy, lambda greeting: None)), "copy", **options))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def ask(process: ChildProcess, request: str, memory_bytes: int = 1 << 40) -> str:
    return process.ask(request.encode(), 60.0, memory_bytes).decode()


def test_a_copy_keeps_nothing_of_its_parent(make: Callable[..., ChildProcess]) -> None:
    read, write = os.pipe()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    try:
        process = make()
        os.close(write)
        assert os.read(read, 1) == b"", "somebody else still holds the other end"
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(read)
    assert ask(process, "os.getpgid(0) == os.getpid()") == "True"
    assert ask(process, "signal.getsignal(signal.SIGTERM) == signal.SIG_DFL") == "True"
    assert ask(process, "threads") == "2"  # the main one, and one that reads
    os.kill(process.pid, signal.SIGTERM)
    with pytest.raises(WorkerError, match="Terminated"):
        ask(process, "1")


def test_memory_that_a_copy_was_born_with_is_not_counted(make: Callable[..., ChildProcess]) -> None:
    held = bytearray(os.urandom(1 << 10)) * (300 << 10)
    process = make()
    assert ask(process, "1 + 1", 200 << 20) == "2"
    with pytest.raises(WorkerError, match="the limit is"):
        ask(process, "eat", 200 << 20)
    assert len(held)


def test_a_copy_that_does_nothing_hangs_and_one_that_is_stopped_does_not(make: Callable[..., ChildProcess]) -> None:
    process = make(idle_s=0.5)
    ask(process, "1")
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGSTOP)).start()
    threading.Timer(2.0, os.kill, (process.pid, signal.SIGCONT)).start()
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"did nothing for 0\.5 s") as caught:
        ask(process, "sleep")
    assert caught.value.cause == HUNG
    assert time.monotonic() - began > 2.0
    assert not process.alive


def test_what_another_thread_is_importing_is_imported_anew(
    make: Callable[..., ChildProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slowly_imported.py").write_text("import time\ntime.sleep(0.5)\nDONE = 5\n", encoding="utf-8")
    thread = threading.Thread(target=importlib.import_module, args=("slowly_imported",))
    thread.start()
    while "slowly_imported" not in sys.modules:
        time.sleep(0.001)
    assert half_imported() == ["slowly_imported"]
    with monkeypatch.context() as patch:
        patch.setattr(child_start, "IMPORTS_S", 0.01)
        with pytest.raises(WorkerError, match="another thread imports slowly_imported") as caught:
            make()
        assert caught.value.cause == "start"
        patch.setattr(child_start, "_await_imports", lambda: None)  # as if it had begun just now
        process = make(idle_s=5)
    assert ask(process, "__import__('slowly_imported').DONE") == "5"
    thread.join()
    assert half_imported() == []
    sys.modules.pop("slowly_imported")


def imported_in_a_child(name: str, amid: Callable[[], bool]) -> int:
    """What a module has in a child that was forked amid its import by another thread."""
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    while not amid():
        time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os._exit(importlib.import_module(name).DONE)
    found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    thread.join()
    return found


def test_a_child_that_a_user_forks_amid_an_import_imports_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cut_off.py").write_text("import time\ntime.sleep(0.5)\nDONE = 5\n", encoding="utf-8")
    assert imported_in_a_child("cut_off", lambda: "cut_off" in sys.modules) == 5
    assert sys.modules.pop("cut_off").DONE == 5


def test_a_package_that_was_cut_off_is_imported_anew_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cut_package").mkdir()
    text = "import cut_package.part\nimport time\ntime.sleep(0.5)\nDONE = cut_package.part.DONE\n"
    (tmp_path / "cut_package" / "__init__.py").write_text(text, encoding="utf-8")
    (tmp_path / "cut_package" / "part.py").write_text("DONE = 7\n", encoding="utf-8")
    assert imported_in_a_child("cut_package", lambda: hasattr(sys.modules.get("cut_package.part"), "DONE")) == 7
    for name in ("cut_package", "cut_package.part"):
        assert sys.modules.pop(name).DONE == 7


def test_a_copy_waits_for_imports(make: Callable[..., ChildProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "soon_imported.py").write_text("import time\ntime.sleep(0.3)\n", encoding="utf-8")
    thread = threading.Thread(target=importlib.import_module, args=("soon_imported",))
    thread.start()
    while not half_imported():
        time.sleep(0.001)
    process = make()
    assert not half_imported()
    assert ask(process, "'soon_imported' in __import__('sys').modules") == "True"
    sys.modules.pop("soon_imported")


def test_a_copy_whose_program_ends_runs_nothing_else() -> None:
    ended = forked(lambda: sys.exit(0))(0)  # unwinds to nobody
    assert ended.wait(20) == 1
    assert ended.poll() == 1


def test_a_copy_that_somebody_else_waited_for() -> None:
    ended = forked(_leave)(0)
    os.waitpid(ended.pid, 0)
    assert ended.poll() == 1


def _leave() -> NoReturn:
    os._exit(0)


def test_a_copy_that_hangs_before_it_has_a_group_is_killed(
    make: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_start, "_leave_the_parent", lambda descriptor: time.sleep(1000))
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    process = make(idle_s=0.5)
    assert os.getpgid(process.pid) != process.pid
    with pytest.raises(WorkerError, match="did nothing"):
        ask(process, "1")
    assert not process.alive


def test_a_copy_that_is_stopped_and_goes_on_all_the_time_cannot_hide_that_it_hangs(make: Callable[..., ChildProcess]) -> None:
    process, done = make(idle_s=2.0), threading.Event()

    def bother() -> None:
        while not done.wait(0.0002):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                os.kill(process.pid, signal.SIGCONT)

    ask(process, "1")
    thread = threading.Thread(target=bother)
    thread.start()
    try:
        with pytest.raises(WorkerError, match="did nothing"):
            process.ask(b"sleep", 30.0, 1 << 40)
    finally:
        done.set()
        thread.join()


def test_other_threads_of_a_copy_do_not_hide_that_it_hangs(make: Callable[..., ChildProcess]) -> None:
    process = make(idle_s=0.5)
    with pytest.raises(WorkerError, match="did nothing"):
        ask(process, "beside")


def test_a_copy_goes_on_with_nothing_of_its_parent_s(make: Callable[..., ChildProcess]) -> None:
    """Jobs of a pool end with an error in a fork that is the user's; in a copy nobody hears of it."""
    pool, heard = Pool("tests.runtime.toy_worker", 1), []
    BACKGROUND.register(Ticking())
    try:
        job = Job("sleep", lambda: b"sleep 100", lambda result: BACKGROUND.post(lambda: heard.append(result)), 100.0, 1 << 40)
        pool.submit(job)
        process = make()
        time.sleep(0.5)
        assert ask(process, "threads") == "2"
    finally:
        pool.close()


class Ticking:
    def tick(self, now_s: float) -> None:
        """Nothing."""


def test_waiting_for_a_copy_ends(make: Callable[..., ChildProcess]) -> None:
    process = make()
    assert isinstance(process._process, Forked)
    with pytest.raises(subprocess.TimeoutExpired):
        process._process.wait(0.05)


def test_where_no_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_fork(1 << 30) == ""
    assert "takes too long" in why_not_fork(1 << 40)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "grpc", sys)
        assert "grpc" in why_not_fork(0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "CUDA" in torch_capture._why_not_copy()
    monkeypatch.setattr(child_start, "_CAN_FORK", False)
    assert "not copied on" in why_not_fork(0)


def _hang() -> NoReturn:
    while True:
        time.sleep(1000)


def _die() -> NoReturn:
    os._exit(3)


def _no_memory() -> int:
    raise OSError(12, "Cannot allocate memory")


def test_a_capture_for_which_no_copy_can_be_made_is_made_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_capture, "_workers", {})
    monkeypatch.setattr(torch_capture, "_lost", [])
    monkeypatch.setattr(os, "fork", _no_memory)
    fast = hotfuse.compile(torch.nn.Linear(3, 3).eval().requires_grad_(False), wait=True, cache="off")
    fast(torch.ones(2, 3))
    assert fast.report().answered == 1
    assert not torch_capture._lost


def test_a_device_that_the_parent_looked_at_is_left_to_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_capture, "_workers", {})
    monkeypatch.setattr(torch_capture, "_lost", [])
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    fast = hotfuse.compile(torch.nn.Linear(3, 3).eval().requires_grad_(False), wait=True, cache="off")
    fast(torch.ones(2, 3))
    assert fast.report().answered == 1
    assert "cannot be used in a copy" in controls(fast).events.of("worker.died")[0].reason


@pytest.mark.parametrize("fault", [_hang, _die])
def test_a_capture_whose_copy_is_lost_is_made_in_a_fresh_process(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_capture, "_workers", {})
    monkeypatch.setattr(torch_capture, "_lost", [])
    monkeypatch.setattr(torch_capture, "HANG_S", 0.5)
    monkeypatch.setattr(torch_capture, "main", fault)
    fast = hotfuse.compile(torch.nn.Linear(3, 3).eval().requires_grad_(False), wait=True, cache="off")
    fast(torch.ones(2, 3))
    assert fast.report().answered == 1
    (event,) = controls(fast).events.of("worker.died")
    assert ("did nothing" if fault is _hang else "exit status 3") in event.reason
    again = hotfuse.compile(torch.nn.Linear(4, 3).eval().requires_grad_(False), wait=True, cache="off")
    again(torch.ones(2, 4))
    assert again.report().answered == 1
    assert not controls(again).events.of("worker.died"), "no copy is made again"
