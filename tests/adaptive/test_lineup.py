"""What an edit exchanges of what serves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotfuse.adaptive.lineup import Lineup, Made, changed_units
from hotfuse.adaptive.target import Generic, Merged, Revised
from hotfuse.runtime.build import Build, Unit

PRODUCT = Unit("product", ("a", "b"), (), row=1, fetches=True)
ROWS = Unit("rows", ("c",), (), row=1)
OTHER = Unit("rows", ("d",), ())
PLAIN, FINER, JOINED = Unit("product", ("a", "b"), ()), Unit("rows", ("c",), ()), Unit("rows", ("c", "d"), ())


def made(target: Any, *units: Unit) -> Any:
    return SimpleNamespace(target=target, build=SimpleNamespace(units=units))


@pytest.mark.parametrize(
    ("target", "units", "gone", "new"),
    [
        (Revised("grain", ("c",), "", 0), (PLAIN, FINER, OTHER), (PRODUCT, ROWS), (PLAIN, FINER)),
        (Merged(("c", "d")), (PLAIN, JOINED), (PRODUCT, ROWS, OTHER), (PLAIN, JOINED)),
        (Revised("grain", ("d",), "", 0), (PRODUCT, ROWS, OTHER), (OTHER,), (OTHER,)),
    ],
)
def test_who_would_fetch_for_nobody_goes_too(target: Any, units: Any, gone: Any, new: Any) -> None:
    assert changed_units(made(None, PRODUCT, ROWS, OTHER), made(target, *units)) == (gone, new)


def test_a_candidate_is_of_what_was_built_and_is_not_left_out() -> None:
    """Who is found wrong later was part of the one before, and so was another build of the same target."""
    made_of: list[tuple[Unit, ...]] = []

    class Subject:
        def make(self, build: Build, kernels: Any, pace: Any) -> object:
            made_of.append(build.units)
            return object()

    build = Build(hoisted=None, units=(PLAIN, OTHER), reasons={})  # type: ignore[arg-type]
    found = Lineup(Subject())  # type: ignore[arg-type]
    found.made[Generic()] = Made(Generic(), build, {}, {})
    first = found.candidate((Generic(),))
    found.made[Generic()] = replace(found.made[Generic()], achieved={"a": None})  # type: ignore[dict-item]
    assert found.candidate((Generic(),)) is first
    found.made[Generic()] = replace(found.made[Generic()], without=(OTHER.name,))
    assert found.candidate((Generic(),)) is not first
    found.made[Generic()] = Made(Generic(), replace(build, units=(PLAIN,)), {}, {})
    assert found.candidate((Generic(),)) is not first
    assert made_of == [(PLAIN, OTHER), (PLAIN,), (PLAIN,)]
