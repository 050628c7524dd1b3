"""Rates: curves between the points that were measured, the text form, and what is refused of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hotfuse.errors import ParseError
from hotfuse.hardware.rates import (
    MIB,
    Closeness,
    Curve,
    Pair,
    Rates,
    print_rates,
    rates_key,
    rates_now,
    read_rates,
    typical_rates,
)
from hotfuse.hardware.spec import host_spec

CURVE = Curve((1 << 14, 1 << 16, 1 << 20), (100.0, 64.0, 4.0), (200.0, 128.0, 8.0))
RATES = Rates(2, CURVE, CURVE, Pair(50.0, 90.0), Pair(0.0, 0.0), 1e-8, 2e-6, 2e-7, 1.5, 1 << 34, 0.02)


@pytest.mark.parametrize(
    ("working_set", "threads", "rate"),
    [
        (1, 1, 100.0),
        (1 << 14, 1, 100.0),
        (1 << 15, 1, 80.0),  # half way, as powers go
        (1 << 18, 2, 32.0),
        (1 << 20, 2, 8.0),
        (1 << 40, 1, 4.0),
    ],
)
def test_a_curve_between_its_points(working_set: int, threads: int, rate: float) -> None:
    assert CURVE.at(working_set, threads, 2) == pytest.approx(rate)


def test_the_text_form_says_all() -> None:
    assert read_rates(print_rates(RATES)) == RATES


def test_rates_of_cores_that_were_moved() -> None:
    near = rates_now(RATES, Closeness(70.0, 1.75))
    assert near == replace(RATES, handed=70.0)
    halves = rates_now(RATES, Closeness(120.0, 0.9))  # both threads on one core: half of what two do
    assert halves.fma == Pair(50.0, 45.0)
    assert halves.read.team == (100.0, 64.0, 4.0)
    assert halves.read.one == RATES.read.one
    assert rates_now(RATES, None) == RATES
    assert rates_now(replace(RATES, threads=1), Closeness(1.0, 1.0)) == replace(RATES, threads=1)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("form",), 0),
        (("threads",), "two"),
        (("threads",), None),
        (("fma", "one"), -1.0),
        (("fma", "one"), float("inf")),
        (("amx",), [1.0, 2.0]),
        (("read", "one"), [1.0]),
        (("read", "one"), [1.0, 0.0, 1.0]),
        (("read", "bytes"), [1, 3, 2]),
        (("read", "bytes"), []),
        (("barrier_s",), float("nan")),
        (("handed",), 0.0),
        (("strange",), 1.0),
    ],
)
def test_what_is_no_rate_is_refused(path: tuple[str, ...], value: Any) -> None:
    found = json.loads(print_rates(RATES))
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ParseError, match="rates"):
        read_rates(json.dumps(found))


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "{", '{"form": 1}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        read_rates(text)


def test_another_machine_or_share_of_it_has_another_key() -> None:
    spec = host_spec()
    others = [
        replace(spec, l3_bytes=spec.l3_bytes + 1),
        replace(spec, flags="others"),
        replace(spec, cpu_quota=1.5),
        replace(spec, physical_cores=spec.physical_cores + 1),
    ]
    keys = {rates_key(spec, 2), rates_key(spec, 1), *(rates_key(other, 2) for other in others)}
    assert len(keys) == len(others) + 2


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_typical_rates_fall_from_level_to_level_whatever_is_told_of_caches(threads: int) -> None:
    spec = host_spec()
    for l2, l3 in ((spec.l2_bytes, spec.l3_bytes), (2 * MIB, 2 * MIB), (spec.l1_bytes, spec.l1_bytes)):
        curve = typical_rates(replace(spec, l2_bytes=l2, l3_bytes=l3), threads).read
        assert len(curve.bytes) == len(curve.one) == len(curve.team)
        assert list(curve.bytes) == sorted(set(curve.bytes))
        assert list(curve.one) == sorted(curve.one, reverse=True)
        assert curve.at(1.0, threads, threads) == curve.team[0]
