"""Single operators: each takes some time, functions that do more take more, and rows of folds have a price of their own."""

from __future__ import annotations

import pytest

from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import operator_probes
from hotfuse.runtime.operator_probes import FOLDS, FUNCTIONS, measure_operators

CONFIG = Config(cache="off", tier=1, wait=True)


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[float, float]]:
    return measure_operators(host_spec(), CONFIG)


def test_what_takes_time_is_known(found: dict[str, tuple[float, float]]) -> None:
    assert set(FOLDS) <= set(found) <= {*FOLDS, *FUNCTIONS}
    assert {"exp", "gelu", "pow", "tanh"} <= set(found)
    assert all(0 < element_s < 1e-7 and 0 <= row_s < 1e-5 for element_s, row_s in found.values())


def test_functions_that_do_more_take_more(found: dict[str, tuple[float, float]]) -> None:
    assert found["pow"][0] > found["exp"][0]
    assert found["gelu"][0] > found["sqrt"][0]


def test_what_cannot_be_told_from_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_probes, "MOVED", 1e6)
    assert set(measure_operators(host_spec(), CONFIG)) == set(FOLDS)
