"""Stress: ways of making rare things common, so that every test can run amid them. `HOTFUSE_STRESS` names them:

    tier0-only              the original answers every call
    always-top              what can be built is built at once, and nothing is retired for being slow or rare
    tier-up-random(seed)    each model is promoted at a time of its own that nobody can foresee
    deopt-every-n           every n-th call is answered by the original, whatever serves
    fail-compile-every-n    every n-th job of a build worker fails: it raises, hangs, crashes or eats memory, in turn
    swap-every-n            what serves and the original change places every n calls
    evict-every-n           bound plans and short ways are forgotten every n calls
    slow-compile(ms)        each job of a build worker takes that much longer
    tiny-code-cache         next to nothing is kept of code, bound plans and scratch memory, on disk or here
    workers-n               so many build workers

Several are joined by commas. A number is written behind the name: `swap-every-100`, `swap-every=100` or `swap-every(100)`.

Nothing here acts: this says what is to happen, and the parts that are put under stress do it. Tests of right answers must hold
under every mode; what a test says of tiers, counts and times need not.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from typing import Any, Literal

from hotfuse.errors import ConfigError
from hotfuse.records import dataclass

Fault = Literal["", "raise", "hang", "crash", "memory"]
FAULTS: tuple[Fault, ...] = ("raise", "hang", "crash", "memory")

_SPELLING = re.compile(r"(?P<name>[a-z][a-z0-9-]*[a-z])(?:[-=](?P<plain>\d+)|\((?P<inner>\d+)\))?")
_TINY = {"max_cache_bytes": 1 << 16, "max_bound_shapes": 1, "max_arena_bytes": 0}
_NEVER_S = 1e9


@dataclass(frozen=True)
class Stress:
    """What is to be made common. 0, and None for the seed, is as it comes."""

    tier0_only: bool = False
    always_top: bool = False
    tier_up_random: int | None = None
    deopt_every: int = 0
    fail_compile_every: int = 0
    swap_every: int = 0
    evict_every: int = 0
    slow_compile: int = 0
    tiny_code_cache: bool = False
    workers: int = 0

    @property
    def options(self) -> Mapping[str, int]:
        """Fields of `Config` that have these values under stress, whatever they were given."""
        found: dict[str, int] = dict(_TINY) if self.tiny_code_cache else {}
        if self.tier0_only:
            found["tier"] = 0
        if self.workers:
            found["workers"] = self.workers
        return found

    def rules(self, model: str) -> Mapping[str, Any]:
        """Numbers of the tier machine's `Rules` that have these values for a model under stress."""
        if self.always_top:
            return {"budget_s": 0.0, "build_share": 0.0, "keep_share": 0.0, "judge_s": _NEVER_S, "review_s": _NEVER_S}
        if self.tier_up_random is not None:
            draw = random.Random(f"{self.tier_up_random} {model}")
            return {"budget_s": 10 ** draw.uniform(-6, -1), "quiet_s": draw.uniform(0, 1), "shadow_calls": draw.randint(1, 5)}
        return {}

    @property
    def touches_calls(self) -> bool:
        """Whether single calls are treated in a way of their own."""
        return bool(self.deopt_every or self.swap_every or self.evict_every)

    def original_answers(self, call: int) -> bool:
        """Whether the original is to answer call number `call`, counted from 1, whatever serves."""
        swapped = bool(self.swap_every) and call // self.swap_every % 2 == 1
        return swapped or _is_due(self.deopt_every, call)

    def forgets(self, call: int) -> bool:
        """Whether bound plans and short ways are to be forgotten before that call."""
        return _is_due(self.evict_every, call)

    def fault(self, job: int) -> Fault:
        """How job number `job` of the build workers, counted from 1, is to fail; "" if it is not."""
        if not _is_due(self.fail_compile_every, job):
            return ""
        return FAULTS[(job // self.fail_compile_every - 1) % len(FAULTS)]


CALM = Stress()
_FLAGS = ("tier0-only", "always-top", "tiny-code-cache")
_NUMBERED = ("tier-up-random", "deopt-every", "fail-compile-every", "swap-every", "evict-every", "slow-compile", "workers")
MODES = tuple(sorted((*_FLAGS, *(f"{name}-N" for name in _NUMBERED))))


def _is_due(every: int, number: int) -> bool:
    return bool(every) and number % every == 0


@functools.cache
def parse(text: str) -> Stress:
    """The modes that a text names; none for ""."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, number = _read(part)
        if name in found:
            raise ConfigError(f"stress {text!r} names {name} twice; name it once")
        found[name] = number
    if "always-top" in found and "tier-up-random" in found:
        raise ConfigError(f"stress {text!r}: always-top and tier-up-random contradict each other; choose one")
    chosen: dict[str, Any] = {name.replace("-", "_"): bool(n) if name in _FLAGS else n for name, n in found.items()}
    return Stress(**chosen)


def _read(part: str) -> tuple[str, int]:
    spelled = _SPELLING.fullmatch(part)
    name = spelled["name"] if spelled else ""
    number = (spelled["plain"] or spelled["inner"]) if spelled else None
    if name in _FLAGS and number is None:
        return name, 1
    if name in _NUMBERED and number is not None and (int(number) > 0 or name == "tier-up-random"):
        return name, int(number)
    raise ConfigError(
        f"stress {part!r} is not known; modes are {', '.join(MODES)}, joined by commas, "
        "with a number above 0 as in swap-every-100, swap-every=100 or swap-every(100)"
    )
