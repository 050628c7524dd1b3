"""Ways: which of them stay."""

from __future__ import annotations

from typing import Any

from hotfuse.runtime.ways import Ways


class Plan:
    """Stands for a bound plan."""


def test_a_form_that_two_callers_learn_costs_no_other_its_place() -> None:
    ways: Ways[str] = Ways(2)
    first, second = plans(2)
    ways.put("a", first, "way a")
    ways.put("b", second, "way b")
    ways.put("b", second, "way b again")
    assert (ways.get("a"), ways.get("b")) == ("way a", "way b again")


def test_forms_that_share_a_plan_leave_the_ways_of_those_that_are_called() -> None:
    ways: Ways[str] = Ways(2)
    hot, other = plans(2)
    ways.put("hot", hot, "way")
    for number in range(5):
        assert ways.get("hot") == "way"
        ways.put(number, other, "other")
    assert ways.get("hot") == "way"
    assert "hot" in ways


def test_a_plan_is_used_as_long_as_one_of_its_forms_is() -> None:
    ways: Ways[str] = Ways(2)
    (plan,) = plans(1)
    ways.put("a", plan, "way a")
    ways.put("b", plan, "way b")
    ways.get("b")
    ways.put("c", plan, "way c")  # in the place of one of the others
    assert ways.used(plan)
    assert not ways.used(plan)
    ways.drop(plan)
    assert not any(form in ways for form in "abc")


def plans(count: int) -> list[Any]:
    return [Plan() for _ in range(count)]
