"""What a machine was measured to do: bandwidth by working set, arithmetic, and what it costs to start threads and to meet.

    Spec (what the machine says of itself)  --`runtime/probes`-->  Rates (what it does)

Every rate is given for one thread and for a team together: cores of one machine share caches, memory and power. The text form
is JSON, which the cache keeps by `rates_key`: another machine, or another share of this one, is measured anew.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from hotfuse.errors import ParseError
from hotfuse.hardware.spec import Spec
from hotfuse.records import dataclass

FORM = 4  # of the text, and of what was measured how
KIB, MIB = 1 << 10, 1 << 20
ALIKE = 1.3  # times: rates of one arrangement of cores differ by a tenth, of two by two to four times
OWN_BYTES = MIB  # in the caches that a core has for itself


@dataclass(frozen=True)
class Pair:
    """A rate of one thread, and that of a team together."""

    one: float
    team: float

    def of(self, threads: int, team: int) -> float:
        """That of some threads of a team."""
        return between(self.one, self.team, threads, team)


def between(one: float, whole: float, threads: int, team: int) -> float:
    """What some threads of a team do, where one does `one` and all of them do `whole`: each further one adds the same."""
    return one if team == 1 else one + (whole - one) * (min(threads, team) - 1) / (team - 1)


@dataclass(frozen=True)
class Curve:
    """GB/s by the bytes that each thread goes over again and again."""

    bytes: tuple[int, ...]
    one: tuple[float, ...]
    team: tuple[float, ...]

    def at(self, working_set: float, threads: int, team: int) -> float:
        """That of some threads of a team, for a working set between those measured, or for the nearest."""
        one = self._of(self.one, working_set)
        return one if threads == 1 else between(one, self._of(self.team, working_set), threads, team)

    def _of(self, rates: Sequence[float], working_set: float) -> float:
        place = bisect.bisect_left(self.bytes, working_set)
        if place == 0:
            return rates[0]
        if place == len(self.bytes):
            return rates[-1]
        low = self.bytes[place - 1]
        share = math.log(working_set / low) / self._widths[place - 1]
        logs = self._one if rates is self.one else self._team
        return math.exp((1 - share) * logs[place - 1] + share * logs[place])

    # logarithms of what was measured, which a plan asks for some hundred thousand times

    @functools.cached_property
    def _widths(self) -> list[float]:
        return [math.log(high / low) for low, high in itertools.pairwise(self.bytes)]

    @functools.cached_property
    def _one(self) -> list[float]:
        return list(map(math.log, self.one))

    @functools.cached_property
    def _team(self) -> list[float]:
        return list(map(math.log, self.team))


@dataclass(frozen=True)
class Rates:
    """`fma` and `amx` are in GFLOP/s of f32 and of bf16 (0 without tiles); times are in seconds."""

    threads: int  # of the team
    read: Curve
    write: Curve
    fma: Pair
    amx: Pair
    call_s: float  # of a step that does nothing, on one thread
    start_s: float  # of a team, for a call of one such step
    barrier_s: float  # where threads wait for each other
    touch: float  # GB/s of memory that nobody used before
    memory_bytes: int
    spread: float  # of repeated measurements: half of them lie within this part of their median
    vector_bytes: int = 64  # of those that code was generated with
    handed: float = 30.0  # GB/s at which a thread takes over what another one's cache has
    operators: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # seconds of an element and of a row, one thread


@dataclass(frozen=True)
class Closeness:
    """How near the cores of a team are to each other just now: GB/s at which a thread takes over what another one's cache has,
    and how many times as much as one thread all of them compute."""

    handed: float
    together: float

    def is_like(self, other: Closeness) -> bool:
        """Whether cores lie as they lay then: on the same chip, on different ones, or on one core."""
        pairs = (self.handed, other.handed), (self.together, other.together)
        return all(max(pair) <= ALIKE * min(pair) for pair in pairs)


def rates_now(rates: Rates, close: Closeness | None) -> Rates:
    """Those of a machine whose cores are as near to each other as they were just felt to be. Halves of one core share its
    arithmetic and its own caches."""
    if close is None or rates.threads == 1:
        return rates
    known = rates.fma.team / max(rates.fma.one, 1e-9)
    share = min(1.0, close.together / known)
    if share * ALIKE > 1:
        return replace(rates, handed=close.handed)
    own = tuple(size <= OWN_BYTES for size in rates.read.bytes)
    read, write = (
        replace(curve, team=tuple(rate * share if is_own else rate for rate, is_own in zip(curve.team, own, strict=True)))
        for curve in (rates.read, rates.write)
    )
    return replace(rates, read=read, write=write, fma=Pair(rates.fma.one, rates.fma.team * share), handed=close.handed)


def typical_rates(spec: Spec, threads: int) -> Rates:
    """Those of a machine that nobody measured: what such caches, vectors and cores commonly do. Ratios between plans need
    little more."""
    near, own, shared = 2.0 * spec.vector_bytes, float(threads), max(1.0, threads * 0.7)
    # levels of one size are one: of a machine that does not tell all of them
    levels = {
        4 * spec.l3_bytes: (15.0, shared),
        spec.l3_bytes // 2: (near * 0.3, shared),
        spec.l2_bytes // 2: (near * 0.7, own),
        spec.l1_bytes // 2: (near, own),
    }
    sizes = tuple(sorted(levels))
    one = tuple(levels[size][0] for size in sizes)
    team = tuple(rate * times for rate, times in (levels[size] for size in sizes))
    curve = Curve(sizes, one, team)
    fma = 1.75 * spec.vector_bytes
    written = Curve(curve.bytes, tuple(r * 0.6 for r in one), tuple(r * 0.6 for r in team))
    costs = (2e-9, 2e-6, 3e-7, 1.0, 0, 0.05)
    return Rates(threads, curve, written, Pair(fma, fma * threads), Pair(0.0, 0.0), *costs, spec.vector_bytes)


def rates_key(spec: Spec, threads: int) -> str:
    """Another text for whatever may be faster or slower."""
    return (
        f"rates {FORM}, {spec.key}, {threads} of {spec.physical_cores} and {spec.logical_cores} cores, quota {spec.cpu_quota}"
    )


def print_rates(rates: Rates) -> str:
    return json.dumps({"form": FORM, **asdict(rates)})


def read_rates(text: str) -> Rates:
    """Raises ParseError where the text is none of ours, or says something that no machine does."""
    try:
        found = json.loads(text)
        if found.pop("form") != FORM:
            raise ParseError("these rates were written by another version; `hotfuse calibrate` measures them again")
        parts: dict[str, Any] = {name: _curve(found.pop(name)) for name in ("read", "write")}
        parts |= {name: Pair(**_numbers(found.pop(name), 0.0)) for name in ("fma", "amx")}
        parts["operators"] = {str(op): _operator(costs) for op, costs in found.pop("operators").items()}
        _check(found["handed"], 1e-9)
        return Rates(**parts, **_numbers(found, 0.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError(f"these are no rates: {type(error).__name__}: {error}") from None


def _curve(found: Mapping[str, Any]) -> Curve:
    curve = Curve(*(tuple(found[name]) for name in ("bytes", "one", "team")))
    sizes = curve.bytes
    if not sizes or len({len(sizes), len(curve.one), len(curve.team)}) != 1 or list(sizes) != sorted(set(sizes)):
        raise ValueError("a curve has sizes in order, and a rate for each")
    for number in (*sizes, *curve.one, *curve.team):
        _check(number, 1e-9)
    return curve


def _operator(found: Any) -> tuple[float, float]:
    element_s, row_s = found
    for number in (element_s, row_s):
        _check(number, 0.0)
    return element_s, row_s


def _numbers(found: Mapping[str, Any], least: float) -> dict[str, Any]:
    for number in found.values():
        _check(number, least)
    return dict(found)


def _check(number: Any, least: float) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < math.inf:
        raise ValueError(f"{number!r} is no rate")
