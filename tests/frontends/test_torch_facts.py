"""Facts that two processes compare: the environment counts, but for what changes by itself."""

from __future__ import annotations

import os
import types

import pytest

from hotfuse.frontends.torch_facts import conflict, make_facts
from hotfuse.frontends.torch_reach import Table


def facts() -> dict[str, object]:
    module = types.ModuleType("model")
    module.environ = os.environ  # type: ignore[attr-defined]
    return make_facts([Table("model", module.__dict__, {"environ": None}, True)])


@pytest.mark.parametrize(("variable", "counts"), [("MODEL_MODE", True), ("PYTHONPATH", False), ("PYTEST_CURRENT_TEST", False)])
def test_a_changed_variable(variable: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts()
    monkeypatch.setenv(variable, "another")
    assert bool(conflict(before, facts())) == counts
