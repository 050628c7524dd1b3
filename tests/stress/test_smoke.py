"""A small model of each front end under every mode: no call fails, every answer is the original's, and the mode shows."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hotfuse.stress import MODES, parse
from tests.stress import smoke
from tests.stress.smoke import Outcome, serve

PUBLISHED, FAILED = "tier.publish", "tier.retire"

# what must happen under each, so that no mode goes by unnoticed; "" is nothing of the kind
EVIDENCE = {
    "tier0-only": "",
    "always-top": PUBLISHED,
    "tier-up-random(1)": PUBLISHED,
    "deopt-every-3": PUBLISHED,
    "fail-compile-every-1": FAILED,
    "fail-compile-every-2": FAILED,
    "swap-every-3": PUBLISHED,
    "evict-every-2": PUBLISHED,
    "slow-compile(100)": PUBLISHED,
    "tiny-code-cache": PUBLISHED,
    "workers-2": PUBLISHED,
    # all at once
    "always-top,swap-every-7,evict-every-5,deopt-every-4,tiny-code-cache,workers-2,slow-compile(20)": PUBLISHED,
}


ALL_AT_ONCE = list(EVIDENCE)[-1:]
NEVER_PUBLISHED = ("tier0-only", "fail-compile-every-1")  # of two jobs one comes through, the second time at the latest


def test_every_mode_is_tried() -> None:
    tried = {name for text in EVIDENCE for name, value in vars(parse(text)).items() if value not in (0, None)}
    assert tried == {mode.removesuffix("-N").replace("-", "_") for mode in MODES}


def check(found: Outcome, stress: str) -> None:
    wanted, events = EVIDENCE[stress], found.events
    assert found.wrong == []
    assert found.calls >= 60
    if wanted:
        assert events.get(wanted), events
    if stress in NEVER_PUBLISHED:
        assert not events.get(PUBLISHED), events


@pytest.mark.parametrize("stress", EVIDENCE)
def test_an_onnx_model(stress: str) -> None:
    check(serve("onnx", EVIDENCE[stress], stress=stress), stress)


@pytest.mark.parametrize(
    "stress", [*ALL_AT_ONCE, *(pytest.param(s, marks=pytest.mark.long) for s in EVIDENCE if s not in ALL_AT_ONCE)]
)
def test_a_torch_module(stress: str) -> None:
    check(serve("torch", EVIDENCE[stress], stress=stress), stress)


@pytest.mark.parametrize("stress", ALL_AT_ONCE)
def test_the_environment_puts_a_whole_process_under_stress(stress: str) -> None:
    command = [sys.executable, "-m", "tests.stress.smoke", "onnx", EVIDENCE[stress]]
    environment = {**os.environ, "HOTFUSE_STRESS": stress, "HOTFUSE_CACHE": "off"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    check(Outcome(**json.loads(done.stdout.splitlines()[-1])), stress)


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = smoke.from_onnx
    monkeypatch.setattr(smoke, "from_onnx", lambda **_: _planted(original()))
    found = serve("onnx", "")
    assert len(found.wrong) == 1
    assert found.wrong[0].startswith("call 50: ")


def _planted(served: smoke.Served) -> smoke.Served:
    numbers = itertools.count(1)
    return replace(served, answer=lambda rows: served.answer(rows) + 0.01 * (next(numbers) == 50))
