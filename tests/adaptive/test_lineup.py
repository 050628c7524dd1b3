"""What an edit exchanges of what serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hotfuse.adaptive.lineup import changed_units
from hotfuse.adaptive.target import Merged, Revised
from hotfuse.runtime.build import Unit

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
