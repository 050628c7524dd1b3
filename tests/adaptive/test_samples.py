"""Samples: which call's inputs are copied to be proved on."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hotfuse.adaptive.samples import LONG_S, Sample


def copies(what: str) -> Callable[[], str | None]:
    return lambda: what


def test_the_first_call_is_taken_and_kept() -> None:
    sample: Sample[str] = Sample()
    assert sample.taken is None
    sample.offer("a", LONG_S / 2, copies("a"))
    sample.offer("b", LONG_S / 4, copies("b"))
    assert (sample.taken, sample.get(None), sample.get("a")) == ("a", "a", "a")


def test_what_is_too_large_is_not_taken() -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 0.01, lambda: None)
    assert sample.taken is None
    sample.offer("b", 0.01, copies("b"))
    assert sample.taken == "b"


@pytest.mark.parametrize(("seconds", "taken"), [(0.9, "long"), (0.6, "long"), (0.5, "other"), (0.25, "other"), (0.2, "long")])
def test_a_shorter_call_takes_the_place_of_a_long_one_but_none_that_is_too_short(seconds: float, taken: str) -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 1.0, copies("long"))
    sample.offer("b", seconds, copies("other"))
    assert sample.taken == taken


def test_it_becomes_shorter_until_it_is_short_enough() -> None:
    sample: Sample[str] = Sample()
    for seconds in (4.0, 1.5, 0.6, 0.29, 0.09, 0.04):
        sample.offer(seconds, seconds, copies(str(seconds)))
    assert sample.taken == "0.09"


def test_the_sample_of_a_form_that_somebody_asked_for_stays() -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 1.0, copies("a"))
    assert sample.get("b") is None
    sample.offer("c", 0.4, copies("c"))
    assert sample.taken == "a"
    sample.offer("b", 1.0, copies("b"))
    sample.offer("c", 0.4, copies("c"))
    assert sample.get("b") == "b"


def test_one_that_is_there_and_asked_for_by_its_form_stays_too() -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 1.0, copies("a"))
    assert sample.get("a") == "a"
    sample.offer("b", 0.4, copies("b"))
    assert sample.taken == "a"


def test_what_another_than_the_original_answered_replaces_nothing() -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 1.0, copies("a"))
    sample.offer("b", math.inf, copies("b"))
    assert sample.taken == "a"


def test_nothing_is_taken_after_it_was_let_go() -> None:
    sample: Sample[str] = Sample()
    sample.offer("a", 1.0, copies("a"))
    sample.forget()
    sample.offer("b", 0.4, copies("b"))
    assert sample.taken is None
