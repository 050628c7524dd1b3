"""What the tier machine is told and what it decides: two closed sets of frozen records.

Every Build and every Prove begins an attempt and gives it a number. What comes of it quotes the number: an answer that quotes
another is late (the target was retired, or what was proved is void) and changes nothing. The one exception is a wrong answer
in a shadowed call: it speaks against the target whatever became of that attempt, unless the model has changed since.

Times (`now_s`) are seconds of any one clock. A clock that is set back stands still here.
"""

from __future__ import annotations

from hotfuse.adaptive.memory import Memory
from hotfuse.adaptive.target import Edit, Target
from hotfuse.records import dataclass

# ---- what happened


@dataclass(frozen=True)
class Called:
    """`count` calls of one form were answered by a tier, in `seconds` together, since this was last told."""

    now_s: float
    form: str
    tier: int
    seconds: float
    count: int


@dataclass(frozen=True)
class Spotted:
    """The profile shows that an edit, had it been in service since this was last told, would have saved so much time.
    An edit in service is spotted on, or it counts as rare."""

    now_s: float
    target: Edit
    saves_s: float
    reason: str = ""


@dataclass(frozen=True)
class Built:
    """`code_bytes` is the object code of what is new in it."""

    now_s: float
    target: Target
    attempt: int
    kernels: int
    cpu_s: float
    code_bytes: int = 0


@dataclass(frozen=True)
class BuildFailed:
    """A build, or what comes after it up to publication, came to nothing, for no fault of its answers: a compiler refused or
    hung, a worker died, memory ran out. `lasting`: it would fail again, so it is not tried again."""

    now_s: float
    target: Target
    attempt: int
    reason: str
    lasting: bool


@dataclass(frozen=True)
class Proved:
    """Every unit that was not left out answers as the original operators do, on inputs of a real call."""

    now_s: float
    target: Target
    attempt: int


@dataclass(frozen=True)
class Disproved:
    """These units do not; with none named, the target as a whole does not."""

    now_s: float
    target: Target
    attempt: int
    units: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Shadowed:
    """One call that the original answered and the target answered, too: before it is published, or as an audit later on."""

    now_s: float
    target: Target
    attempt: int
    ok: bool
    reason: str


@dataclass(frozen=True)
class Measured:
    """Seconds of a call with the target and without it, interleaved on traffic; `spread_s` is what noise would explain."""

    now_s: float
    target: Target
    attempt: int
    form: str
    seconds: float
    base_seconds: float
    spread_s: float


@dataclass(frozen=True)
class Queue:
    """Jobs that wait before ours in the pool."""

    now_s: float
    length: int


@dataclass(frozen=True)
class Spent:
    """Of the fuel that a machine has in common with others, for other parts of the same model, these spent so much by now."""

    now_s: float
    elsewhere: int


@dataclass(frozen=True)
class Changed:
    """Weights, module or machine changed: what was proved is not any more. What was built still is; where the graph or the
    instruction set changed it is another model, with a state of its own."""

    now_s: float
    reason: str


@dataclass(frozen=True)
class Recalled:
    """What earlier processes learned about the model's targets."""

    now_s: float
    memory: Memory


@dataclass(frozen=True)
class Kept:
    """An earlier process made a target: it lies in the cache, and need not be worth a build."""

    now_s: float
    target: Target


@dataclass(frozen=True)
class Tick:
    now_s: float


Event = (
    Called
    | Spotted
    | Built
    | BuildFailed
    | Proved
    | Disproved
    | Shadowed
    | Measured
    | Queue
    | Spent
    | Changed
    | Recalled
    | Kept
    | Tick
)

# ---- what to do about it; `reason` is a sentence


@dataclass(frozen=True)
class Build:
    """Make kernels; units in `without` are left to tier 0. Answered by Built or BuildFailed, always: the machine waits."""

    target: Target
    attempt: int
    without: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Prove:
    """Hold each unit but those in `without` against the original operators. Answered by Proved, Disproved
    or BuildFailed."""

    target: Target
    attempt: int
    without: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Shadow:
    """Answer so many calls by the original and compare. Answered by a Shadowed for each, or BuildFailed."""

    target: Target
    attempt: int
    calls: int
    reason: str


@dataclass(frozen=True)
class Publish:
    """From now on the target answers. Audits of it are told as Shadowed."""

    target: Target
    attempt: int
    reason: str


@dataclass(frozen=True)
class Withdraw:
    """It does not answer any more, but is kept: it may be proved again."""

    target: Target
    reason: str


@dataclass(frozen=True)
class Measure:
    """Time it on traffic of a form, against what would answer without it. Answered by Measured."""

    target: Target
    attempt: int
    form: str
    reason: str


@dataclass(frozen=True)
class Retire:
    """It does not answer any more, if it did, and is let go."""

    target: Target
    reason: str


@dataclass(frozen=True)
class Quarantine:
    """These units of the target, or with none named all of it, are wrong and never serve again."""

    target: Target
    units: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Rest:
    """Something waits for this time: a Tick then lets it go on where no other event does."""

    until_s: float
    reason: str


Decision = Build | Prove | Shadow | Publish | Withdraw | Measure | Retire | Quarantine | Rest
