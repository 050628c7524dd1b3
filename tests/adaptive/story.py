"""A story told to the tier machine: traffic, and a controller that does what is asked, well unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hotfuse.adaptive.machine import step
from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.message import (
    Build,
    Built,
    Called,
    Decision,
    Event,
    Measure,
    Measured,
    Prove,
    Proved,
    Publish,
    Retire,
    Shadow,
    Shadowed,
    Spotted,
    Tick,
)
from hotfuse.adaptive.state import Rules, State, start
from hotfuse.adaptive.target import Edit, Generic, Target

D = TypeVar("D", bound=Decision)
Job = Build | Prove | Shadow | Measure
CODE_BYTES = 40  # of every target


def good_answer(job: Job, now_s: float) -> Event:
    """What comes of a job when all goes well."""
    match job:
        case Build():
            return Built(now_s, job.target, job.attempt, 3, 0.2, CODE_BYTES)
        case Prove():
            return Proved(now_s, job.target, job.attempt)
        case Shadow():
            return Shadowed(now_s, job.target, job.attempt, True, "")
        case Measure():
            return Measured(now_s, job.target, job.attempt, job.form, 0.5, 1.0, 0.1)


class Story:
    """State: the machine's state, the clock, all decisions so far, and the jobs that are not answered yet."""

    def __init__(self, rules: Rules | None = None, memory: Memory | None = None, now_s: float = 0.0) -> None:
        self.state: State = start(rules or Rules(), memory)
        self.now_s = now_s
        self.decisions: list[Decision] = []
        self.jobs: list[Job] = []

    def tell(self, event: Event) -> list[Decision]:
        self.state, decided = step(self.state, event)
        self.decisions += decided
        self.jobs += [d for d in decided if isinstance(d, Job)]
        return list(decided)

    def wait(self, seconds: float) -> list[Decision]:
        self.now_s += seconds
        return self.tell(Tick(self.now_s))

    def call(self, form: str = "8", tier: int = 0, seconds: float = 1.0, count: int = 10) -> list[Decision]:
        return self.tell(Called(self.now_s, form, tier, seconds, count))

    def spot(self, target: Edit, saves_s: float = 1.0) -> list[Decision]:
        return self.tell(Spotted(self.now_s, target, saves_s))

    def settle(self) -> Story:
        """Answer all that was asked, well, until nothing more is."""
        for _ in range(100):
            if not self.jobs:
                return self
            self.tell(good_answer(self.jobs.pop(0), self.now_s))
        raise AssertionError("it goes on and on")

    def last(self, kind: type[D]) -> D:
        """The last decision of a kind, taken from the jobs: the story answers it itself."""
        found = next(d for d in reversed(self.decisions) if isinstance(d, kind))
        self.jobs = [job for job in self.jobs if job is not found]
        return found

    def asked(self, kind: type[D]) -> list[D]:
        return [d for d in self.decisions if isinstance(d, kind)]

    @property
    def serving(self) -> set[Target]:
        return {live.target for live in self.state.live if live.stage == "serving"}

    def published(self) -> list[Target]:
        return [d.target for d in self.asked(Publish)]

    def retired(self) -> list[Target]:
        return [d.target for d in self.asked(Retire)]


def kinds(decisions: Sequence[Decision]) -> list[str]:
    return [type(decision).__name__ for decision in decisions]


def serving_generic(rules: Rules | None = None) -> Story:
    """A model whose generic kernels serve, and pay."""
    story = Story(rules)
    story.call()
    story.settle()
    assert story.serving == {Generic()}
    return story
