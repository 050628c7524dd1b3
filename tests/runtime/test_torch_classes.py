"""Which class answers a call, while classes change."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hotfuse.runtime.torch_classes import ClassTable


def served(check: Callable[[Any], str] = lambda call: "") -> Any:
    return SimpleNamespace(guard=SimpleNamespace(check=check, frame="frame"))


def test_who_is_taken_out_amid_a_search_is_not_found_again() -> None:
    table, call, other = ClassTable(), SimpleNamespace(frame="frame", shapes=((2,),)), served()

    def check(call: Any) -> str:
        table.replace(one, other)
        return ""

    one = served(check)
    table.add(one)
    assert list(table.fitting(call)) == [one]  # who began before may end so
    assert list(table.fitting(call)) == [other]
    assert next(table.fitting(call)) is other
