"""Profiles: all calls counted, what units take and what follows what, all of it bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hotfuse.adaptive.profile import FORMS, TRACE_BYTES, TRACES, Profile, Use
from hotfuse.runtime.order import runs
from hotfuse.runtime.trace import Piece, PieceTime, Trace


def piece(unit: str, flops: int = 1000, moved: int = 100) -> Piece:
    return Piece(unit, "kernels", 1, 4, flops, moved)


def trace(plan: str, form: str, **seconds: float) -> Trace:
    times = tuple(PieceTime(s, 2 * s, s / 4, 2) for s in seconds.values())
    total = sum(seconds.values())
    return Trace(plan, form, total, total, 0.0, tuple(map(piece, seconds)), times)


def uses(profile: Profile, now_s: float = 0.0) -> dict[tuple[str, str], Use]:
    return {(use.plan, use.unit): use for use in profile.uses(now_s)}


def test_all_calls_are_counted_and_traced_ones_say_what_they_take() -> None:
    profile = Profile()
    profile.count("p", "8", 1000, 0.5, 0.0)
    for seconds in (1e-6, 3e-6, 500e-6):  # in the last one somebody else had the core
        profile.add(trace("p", "8", a=seconds, b=1e-6), 0.0)
    found = uses(profile)
    a, b = found["p", "a"], found["p", "b"]
    assert (a.count, a.traced, a.seconds, a.busy_s, a.waiting_s, a.threads) == (1000, 3, 3e-6, 6e-6, 0.75e-6, 2)
    assert (round(a.spent_s, 9), a.share, b.share) == (3e-3, 0.75, 0.25)
    assert (round(a.gflops_per_s, 6), round(a.gbytes_per_s, 6)) == (round(1 / 3, 6), round(0.1 / 3, 6))
    assert [use.unit for use in profile.uses(0.0)] == ["a", "b"]
    assert profile.calls("p") == (1000, 0.5)


def test_forms_are_weighed_by_their_calls() -> None:
    profile = Profile()
    for form, calls, seconds in (("8", 300, 1e-6), ("64", 100, 5e-6)):
        profile.count("p", form, calls, 1.0, 0.0)
        profile.add(trace("p", form, a=seconds), 0.0)
    profile.count("p", "never traced", 100, 1.0, 0.0)  # like the last that was
    a = uses(profile)["p", "a"]
    assert (a.count, round(a.seconds * 1e6, 6)) == (500, 2.6)


def test_what_is_long_ago_counts_less() -> None:
    profile = Profile(half_life_s=10.0)
    profile.count("p", "8", 64, 1.0, 0.0)
    profile.add(trace("p", "8", a=1e-6), 0.0)
    early, late, earlier = (uses(profile, now_s)["p", "a"] for now_s in (0.0, 30.0, 20.0))
    assert (early.recent, late.recent, earlier.recent) == (64, 8, 8)  # a clock that is set back changes nothing
    assert late.spent_s == early.spent_s / 8
    assert late.count == early.count == 64


def test_other_pieces_under_an_id_are_another_plan() -> None:
    profile = Profile()
    profile.add(trace("p", "8", a=1.0, b=1.0), 0.0)
    profile.add(trace("p", "8", ab=1.0), 0.0)
    assert set(uses(profile)) == {("p", "ab")}
    profile.forget("p")
    assert profile.uses(0.0) == ()


calls = st.tuples(st.sampled_from("pq"), st.integers(0, 200), st.integers(1, 1000), st.booleans(), st.floats(0, 50))


@settings(max_examples=30, deadline=None)
@given(st.lists(calls, max_size=400))
def test_nothing_is_lost_and_nothing_grows(told: list[tuple[str, int, int, bool, float]]) -> None:
    profile, counts = Profile(), Counter[str]()
    for plan, form, count, is_traced, now_s in told:
        profile.count(plan, str(form), count, count * 1e-6, now_s)
        counts[plan] += count
        if is_traced:
            profile.add(trace(plan, str(form), **{f"u{i}": 1e-6 for i in range(1 + form)}), now_s)
    assert {plan: profile.calls(plan)[0] for plan in counts} == dict(counts)
    assert len(profile._forms) <= FORMS
    assert len(profile.traces) <= min(TRACES, profile.added)
    assert profile.added == sum(is_traced for *_, is_traced, _ in told)
    assert sum(t.size_bytes for t in profile.traces) == profile.size_bytes <= TRACE_BYTES
    for (plan, unit), use in uses(profile, 60.0).items():
        assert 0 < use.count <= counts[plan]
        if unit == "u0":  # every call of the plan runs it
            assert use.count == counts[plan]


def test_units_follow_each_other_as_often_as_their_plan_is_called() -> None:
    profile = Profile()
    profile.count("p", "8", 90, 1.0, 0.0)
    profile.add(trace("p", "8", a=1e-6, b=1e-6, c=1e-6), 0.0)
    profile.count("p", "64", 10, 1.0, 0.0)
    profile.add(trace("p", "64", a=1e-6, c=1e-6), 0.0)
    found = {(c.first, c.second): (c.recent, c.of_first, c.of_second) for c in profile.chains(0.0)}
    assert found == {("a", "b"): (90, 0.9, 1.0), ("b", "c"): (90, 1.0, 0.9), ("a", "c"): (10, 0.1, 0.1)}
    assert runs(profile.chains(0.0), "p", least=0.9) == (("a", "b", "c"),)
    assert runs(profile.chains(0.0), "p") == ()
