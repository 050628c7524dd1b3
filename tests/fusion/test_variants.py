"""Which groups may go in other loops, every reason why one may not, and what is predicted of those that may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hotfuse.fusion.analyzer import Analyzer
from hotfuse.fusion.candidates import find
from hotfuse.fusion.draft import Draft
from hotfuse.fusion.edits import apply
from hotfuse.fusion.engine import Engine, Planner
from hotfuse.fusion.legality import Refusal
from hotfuse.fusion.rules import Fused
from hotfuse.fusion.why import why
from hotfuse.hardware.model import Model
from hotfuse.hardware.pairs import ABREAST, ACROSS, HEIGHTS, STRIPS, SWEEP, VARIANTS, Edit, pair_rows
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Value
from tests.fusion.graphs import case, rows, weight
from tests.hardware.test_model import RATES

Make = Callable[[GraphBuilder], Value | list[Value]]


def verdict(make: Make, variant: str) -> Fused | Refusal:
    """Of the last group of a graph."""
    found = case(make)
    return found.legality.vary(found.groups()[-1], variant)


def softmax(*shape: object, axis: int = -1) -> Make:
    return lambda b: b.add("softmax", rows(b, *shape), axis=axis)


def product(*shape: object, columns: int = 96) -> Make:
    return lambda b: b.add("matmul", rows(b, *shape, 40), weight(b, 40, columns))


def shifted(b: GraphBuilder) -> Value:
    return b.add("add", rows(b, 700, 10), rows(b, 10, name="y"))


def looked_up(b: GraphBuilder) -> Value:
    return b.add("trilu", rows(b, 64, 8), upper=True)


@pytest.mark.parametrize(
    ("make", "variant"),
    [
        (softmax(64, 8), ACROSS),
        (softmax(symbol("n"), 8), ACROSS),
        (shifted, ACROSS),
        (softmax(64, 8), ABREAST),
        (softmax(symbol("n"), 384), ABREAST),
        (softmax(23, 65, axis=0), STRIPS),
        (softmax(23, symbol("n"), axis=0), STRIPS),
        (product(3), HEIGHTS),
        (product(130), SWEEP),
        (product(symbol("n")), SWEEP),
    ],
)
def test_what_may_go_in_other_loops(make: Make, variant: str) -> None:
    found = verdict(make, variant)
    assert isinstance(found, Fused), found
    assert (found.variant, found.parts) == (variant, (replace(found, variant="", parts=()),))


@pytest.mark.parametrize(
    ("make", "variant", "words"),
    [
        (softmax(64, 8), STRIPS, "folds no columns"),
        (softmax(64, 8), HEIGHTS, "kind rows has no tiles"),
        (softmax(64, 8), SWEEP, "kind rows has no tiles"),
        (product(3), ACROSS, "kind product goes over no rows"),
        (softmax(64, 8, axis=0), ACROSS, "not its last axis"),
        (lambda b: b.add("cumsum", rows(b, 64, 8), axis=1), ACROSS, "in a way of its own"),
        (looked_up, ACROSS, "in a way of its own"),
        (softmax(64, 33), ACROSS, "fill vectors by themselves"),
        (softmax(64, symbol("n")), ACROSS, "fill vectors by themselves"),
        (softmax(31, 8), ACROSS, "31 rows fill no vectors"),
        (lambda b: b.add("exp", rows(b, 700, 10)), ACROSS, "all its rows are one"),
        (product(3), ABREAST, "kind product goes over no rows"),
        (softmax(64, 8, axis=0), ABREAST, "folds no rows of its last axis"),
        (shifted, ABREAST, "folds no rows of its last axis"),
        (lambda b: b.add("cumsum", rows(b, 64, 8), axis=1), ABREAST, "in a way of its own"),
        (softmax(64, 385), ABREAST, "rows of 385 elements are not one block each"),
        (softmax(64, symbol("n")), ABREAST, "are not one block each"),
        (softmax(7, 64), ABREAST, "7 rows are too few"),
        (softmax(64, 31, axis=0), STRIPS, "31 columns are one strip"),
        (product(65), HEIGHTS, "a small part"),
        (product(symbol("n")), HEIGHTS, "a small part"),
        (product(48), HEIGHTS, "of equal heights"),
        (product(1), HEIGHTS, "of equal heights"),
        (product(64), SWEEP, "one order"),
        (product(130, columns=48), SWEEP, "one order"),
        (product(130), "sideways", "no loops sideways"),
    ],
)
def test_every_reason_why_not(make: Make, variant: str, words: str) -> None:
    found = verdict(make, variant)
    assert isinstance(found, Refusal)
    assert words in found.reason


def test_loops_are_changed_once_and_not_behind_a_copy() -> None:
    found = case(softmax(64, 8))
    (group,) = found.groups()
    varied = found.legality.vary(group, ACROSS)
    assert isinstance(varied, Fused)
    assert found.legality.vary(varied, ACROSS) == Refusal("its loops are not the plain ones any more")
    assert found.legality.vary(varied, ABREAST) == Refusal("its loops are not the plain ones any more")
    assert found.legality.vary(replace(group, placed=1), ACROSS) == Refusal("its result is written in another order")


def test_loops_may_be_changed_for_those_named_before_them() -> None:
    found = case(softmax(64, 8))
    (group,) = found.groups()
    abreast = found.legality.vary(group, ABREAST)
    assert isinstance(abreast, Fused)
    across = found.legality.vary(replace(abreast, grain=1), ACROSS)
    assert across == replace(group, variant=ACROSS, grain=1, parts=(group,))
    assert found.legality.vary(abreast, "sideways") == Refusal("its loops are not the plain ones any more")


def test_what_is_fused_keeps_its_loops() -> None:
    found = case(lambda b: [b.add("softmax", y := b.add("exp", rows(b, 64, 8)), axis=-1), y])
    first, second = found.groups()
    varied = found.legality.vary(second, ACROSS)
    assert isinstance(varied, Fused)
    both = found.legality.join(first, replace(varied, team=1))
    assert isinstance(both, Fused)
    assert (both.variant, both.team) == (ACROSS, 1)
    (plain,) = both.parts  # where no code can be made of these loops
    assert (plain.variant, plain.parts) == ("", (first, second))


def test_what_is_fused_goes_in_plain_loops_where_it_cannot_go_in_its_own() -> None:
    found = case(lambda b: [b.add("softmax", b.add("exp", x := rows(b, 64, 8)), axis=-1), b.add("trilu", x, upper=True)])
    varied = found.legality.vary(found.groups()[0], ACROSS)
    assert isinstance(varied, Fused)
    both = found.legality.join(varied, found.groups()[1])
    assert isinstance(both, Fused)
    assert both.variant == ""


def test_other_loops_are_candidates_and_edits() -> None:
    found = case(softmax(64, 8))
    draft = Draft(found.graph, found.layouts, found.groups())
    candidate, other = [c for c in find(draft, found.legality, list(draft)) if c.strategy in VARIANTS]
    assert other.strategy == ABREAST
    (item,) = apply(draft, candidate)
    assert item.group is not None
    assert item.group.variant == ACROSS
    assert not any(c.strategy in VARIANTS for c in find(draft, found.legality, list(draft)))


def test_other_loops_are_predicted_and_told() -> None:
    found = case(lambda b: b.add("softmax", b.add("exp", rows(b, 4096, 8)), axis=-1))
    planner = Planner(Model(RATES, 1), host_spec(), {})
    engine = Engine(found.graph, found.graph.values, found.layouts, planner)
    planned = engine.run()
    assert [group.variant for group in planned.groups] == [ACROSS]
    told = why(engine, planned, "exp_0", "softmax_0")
    assert told.together
    assert told.lines[0].startswith("the rules make one of them")
    assert told.lines[1].startswith("across: predicted")


def test_narrow_rows_are_predicted_to_gain_where_their_arithmetic_is_worth_being_turned() -> None:
    def ratio(make: Make) -> float:
        found = case(make)
        (group,) = found.groups()
        varied = found.legality.vary(group, ACROSS)
        assert isinstance(varied, Fused)
        analyzer = Analyzer(found.graph, found.graph.values, found.layouts, {})
        return float(pair_rows([Edit(ACROSS, (analyzer.work(group),), (analyzer.work(varied),))], RATES, 1)[1][0])

    assert ratio(softmax(4096, 8)) < 0.9
    assert ratio(shifted) > 1.0  # one addition
    assert ratio(softmax(4096, 16)) > 1.0  # a vector each
