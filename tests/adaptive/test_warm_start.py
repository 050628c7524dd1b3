"""A second process with a warm cache: nothing is lowered, compiled or proved again, and no worker is started for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, sys, time
import hotfuse, psutil
from tests.adaptive import test_session_subject as test
with hotfuse.load(test.model().SerializeToString()) as session:
    while os.environ["WAIT_FOR"] and not session.events.of(os.environ["WAIT_FOR"]):
        time.sleep(0.01)
    calls = test.serve(session, lambda: test.is_fused(session))
    heavy = [name for name in ("llvmlite", "hotfuse.codegen.lower", "hotfuse.runtime.proof") if name in sys.modules]
    workers, events = len(psutil.Process().children()), [e.kind for e in session.events.of("tier")]
    from hotfuse.runtime.cache import open_cache
    while "proof" not in open_cache(session.config).stats().kinds:  # it is written when nobody waits for anything
        time.sleep(0.01)
print(json.dumps({"heavy": heavy, "workers": workers, "events": events, "calls": calls}))
"""


def run(cache: Path, wait_for: str = "") -> dict[str, Any]:
    """Serve until kernels do, from the moment on that an event was told."""
    environment = {**os.environ, "HOTFUSE_CACHE": str(cache), "WAIT_FOR": wait_for}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_process_makes_nothing_again(tmp_path: Path) -> None:
    first, second = run(tmp_path / "cache"), run(tmp_path / "cache")
    assert first["workers"] > 0
    assert first["heavy"] == []  # the worker has LLVM; what belongs to no model is in the cache, too
    assert (second["workers"], second["heavy"]) == (0, [])
    steps = ["build", "units", "built", "prove", "proved", "shadow", "shadowed", "publish"]
    assert first["events"][:8] == [f"tier.{step}" for step in steps]
    assert second["events"][:9] == ["tier.kept", *first["events"][:8]]


def test_what_was_made_before_serves_as_soon_as_one_call_was_compared(tmp_path: Path) -> None:
    assert run(tmp_path / "cache")["calls"] > 5
    assert run(tmp_path / "cache", wait_for="tier.shadow")["calls"] <= 5


EARLY = """
import sys, time
import hotfuse
from hotfuse.adaptive import maker
from hotfuse.adaptive.background import BACKGROUND
from hotfuse.runtime import build_pool
maker.LARGE_BYTES = int(sys.argv[2])
from tests.adaptive import test_session_subject as test
woken = []
build_pool.wake_workers = lambda config: woken.append("hotfuse.frontends.onnx_model" in sys.modules)
with hotfuse.load(test.model().SerializeToString(), tier=sys.argv[1] if sys.argv[1] == "auto" else int(sys.argv[1])):
    BACKGROUND.post(lambda: woken.append("done"))
    while sys.argv[1] == "auto" and "done" not in woken:
        time.sleep(0.01)
print(len(woken) - woken.count("done"))
"""


def wakes(cache: Path, tier: str = "auto", large_bytes: int = 4 << 20) -> int:
    """How many workers are woken when a model is loaded, before it is called."""
    environment = {**os.environ, "HOTFUSE_CACHE": str(cache)}
    command = [sys.executable, "-c", EARLY, tier, str(large_bytes)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout)


def test_a_worker_starts_while_a_large_model_is_loaded_where_nothing_was_kept(tmp_path: Path) -> None:
    assert wakes(tmp_path / "cache") == 1
    assert wakes(tmp_path / "cache", tier="0") == 0
    assert wakes(tmp_path / "cache", large_bytes=(4 << 20) + 1) == 0  # it may never be hot
    (tmp_path / "cache").mkdir(mode=0o700, exist_ok=True)
    run(tmp_path / "cache")
    assert wakes(tmp_path / "cache") == 0


ASKED = """
import sys
import hotfuse
from hotfuse.runtime import build_cache
from hotfuse.runtime.cache import open_cache
from hotfuse.config import Config
from tests.adaptive import test_session_subject as test
if sys.argv[1] == "others":
    open_cache(Config()).put("object", "another model's", b"code")
asked, ask = [], build_cache.cached_build
build_cache.cached_build = lambda request, pace: asked.append(1) or ask(request, pace)
with hotfuse.load(test.model().SerializeToString(), tier=1) as session:
    test.serve(session, lambda: test.is_fused(session))
print(len(asked))
"""


@pytest.mark.parametrize(("cache", "times"), [("empty", 0), ("others", 1)])
def test_the_cache_is_asked_for_a_build_once_and_not_where_it_is_empty(tmp_path: Path, cache: str, times: int) -> None:
    environment = {**os.environ, "HOTFUSE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ASKED, cache]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == times
