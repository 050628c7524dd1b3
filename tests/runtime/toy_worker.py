"""A child's program for tests: a request is a deed, and what to do it with: b"echo hello"."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotfuse.runtime.child_main import HEADER, AskBack, run

Deed = Callable[[str, AskBack], bytes]


def answer(request: bytes, ask_back: AskBack) -> bytes:
    deed, _, rest = request.decode().partition(" ")
    return DEEDS[deed](rest, ask_back)


def fail(rest: str, ask_back: AskBack) -> bytes:
    raise ValueError(rest)


def leave(rest: str, ask_back: AskBack) -> bytes:
    sys.exit(rest)


def crash(rest: str, ask_back: AskBack) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def sleep(rest: str, ask_back: AskBack) -> bytes:
    time.sleep(float(rest or 1000))
    return rest.encode()


def eat(rest: str, ask_back: AskBack) -> bytes:
    kept = []
    while True:
        kept.append(os.urandom(1 << 20))


def eat_asking(rest: str, ask_back: AskBack) -> bytes:
    """Grows while it asks: the parent never waits for long."""
    kept = []
    while True:
        kept.append(os.urandom(1 << 20))
        ask_back(b"more")


def spin(rest: str, ask_back: AskBack) -> bytes:
    """Works for so long; without a number, until it is stopped."""
    end = time.process_time() + float(rest or 1000)
    while time.process_time() < end:
        pass
    return rest.encode()


def nag(rest: str, ask_back: AskBack) -> bytes:
    """Asks, and asks."""
    while True:
        ask_back(b"more")


def trickle(rest: str, ask_back: AskBack) -> bytes:
    """Answers a letter at a time."""
    connection = pipe()
    connection.sendall(HEADER.pack(b"A", 1 << 20))
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def pipe() -> socket.socket:
    """The socket that frames go through."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return socket.socket(fileno=os.dup(descriptor))
    raise AssertionError("there is no socket")


def noise(rest: str, ask_back: AskBack) -> bytes:
    pipe().sendall(b"this is no frame, whoever reads it")
    return b""


def huge(rest: str, ask_back: AskBack) -> bytes:
    pipe().sendall(HEADER.pack(b"A", 1 << 62))
    return b""


def chatter(rest: str, ask_back: AskBack) -> bytes:
    print("noise" * 1000, flush=True)
    os.write(1, b"noise")
    os.write(2, b"noise")
    return b"quiet"


def facts(rest: str, ask_back: AskBack) -> bytes:
    known: dict[str, Any] = {
        "pid": os.getpid(),
        "nice": os.nice(0),
        "group": os.getpgid(0),
        "argv": sys.argv[1:],
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    }
    return str(known[rest]).encode()


def breed(rest: str, ask_back: AskBack) -> bytes:
    """Starts a process of its own, tells the parent of it, and hangs."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    ask_back(str(started.pid).encode())
    return sleep("", ask_back)


DEEDS: dict[str, Deed] = {
    "echo": lambda rest, ask_back: rest.encode(),
    "long": lambda rest, ask_back: b"x" * int(rest),
    "kind": lambda rest, ask_back: type(ask_back(rest.encode())).__name__.encode(),
    "ask": lambda rest, ask_back: b"+".join(ask_back(name.encode()) for name in rest.split(",")),
    "fail": fail,
    "leave": leave,
    "crash": crash,
    "sleep": sleep,
    "eat": eat,
    "eat-asking": eat_asking,
    "spin": spin,
    "nag": nag,
    "trickle": trickle,
    "noise": noise,
    "huge": huge,
    "chatter": chatter,
    "facts": facts,
    "breed": breed,
}


def prepare(greeting: bytes) -> None:
    if b"broken" in greeting or "--broken" in sys.argv:
        raise ImportError("planted")


if __name__ == "__main__":
    run(answer, prepare)
