"""A suite for the tests of the pool: tests that pass, fail, print, crash and hang. Run as a worker by `test_conformance`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Outcome:
    name: str
    passed: bool
    reason: str = ""
    seconds: float = 0.0
    core: bool = False


def tests() -> Mapping[str, bool]:
    names = ("bad", "crash", "exit", "good", "hang", "loud", *(f"more_{i}" for i in range(4)))
    return {name: name.startswith("more") for name in names}


def run_test(name: str) -> Outcome:
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "exit":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "hang":
        time.sleep(60)
    if name == "loud":
        print('{"name": "fake", "passed": true}', flush=True)
    return Outcome(name, name != "bad", "wrong" if name == "bad" else "", core=tests()[name])


if __name__ == "__main__":
    from hotfuse.cli.suite_worker import Suite, serve

    serve(Suite(tests(), run_test), int(sys.argv[2]))
