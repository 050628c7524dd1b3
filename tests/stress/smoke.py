"""A model of one front end, called for a while under stress, every answer held against the original's.

`python -m tests.stress.smoke onnx tier.publish` does so under the stress that the environment names, and prints what happened.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import hotfuse
from hotfuse.numerics import alike
from tests.stress.models import WIDTH, feeds, onnx_model

ROWS = (64, 1, 17, 64, 8, 3)
PAUSE_S = 0.002  # between calls: workers need a core, too
LEAST_CALLS = 60
AFTER_CALLS = 40  # once kernels serve

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    calls: int
    wrong: list[str]
    events: dict[str, int]


@dataclass(frozen=True)
class Served:
    """A model: its answer and the original's, by the number of rows, and what happened to it."""

    answer: Callable[[int], Array]
    original: Callable[[int], Array]
    events: Any


def from_onnx(**options: Any) -> Served:
    model = onnx_model().SerializeToString()
    session, original = hotfuse.load(model, **options), hotfuse.load(model, tier=0, stress="")
    return Served(
        lambda rows: session.run(None, feeds(rows))[0], lambda rows: original.run(None, feeds(rows))[0], session.events
    )


def from_torch(**options: Any) -> Served:
    import torch

    from hotfuse.runtime.torch_module import controls

    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
    module = torch.nn.Sequential(*layers).eval()
    fast = hotfuse.compile(module, trial=True, **options)

    def call(model: Any) -> Callable[[int], Array]:
        def answer(rows: int) -> Array:
            with torch.no_grad():
                return np.asarray(model(torch.from_numpy(feeds(rows)["x"])).numpy())

        return answer

    return Served(call(fast), call(module), controls(fast).family.events)


def calls_until(served: Served, is_over: Callable[[int], bool], limit_s: float) -> Iterator[tuple[int, str]]:
    """The number of each call, and what is wrong with its answer."""
    wanted = {rows: served.original(rows) for rows in ROWS}
    deadline = time.monotonic() + limit_s
    for number in itertools.count(1):
        rows = ROWS[number % len(ROWS)]
        verdict = alike(served.answer(rows), wanted[rows])
        yield number, verdict.reason
        time.sleep(PAUSE_S)
        if is_over(number) or time.monotonic() > deadline:
            return


def serve(front_end: str, wanted_kind: str, limit_s: float = 150.0, **options: Any) -> Outcome:
    """Call until an event of the wanted kind has come, and for some calls more."""
    served = from_onnx(**options) if front_end == "onnx" else from_torch(**options)
    seen: list[int] = []

    def is_over(number: int) -> bool:
        if not seen and (not wanted_kind or served.events.counted().get(wanted_kind)):
            seen.append(number)
        return bool(seen) and number >= max(LEAST_CALLS, seen[0] + AFTER_CALLS)

    wrong, calls = [], 0
    for number, reason in calls_until(served, is_over, limit_s):
        calls = number
        wrong += [f"call {number}: {reason}"] if reason else []
    return Outcome(calls, wrong[:5], dict(served.events.counted()))


if __name__ == "__main__":
    print(json.dumps(asdict(serve(sys.argv[1], sys.argv[2]))))
