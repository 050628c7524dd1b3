"""Shape classes: what is in, what is out, and why."""

from __future__ import annotations

from hotfuse.ir.dim import symbol
from hotfuse.ir.guard import Relation, ShapeClass, SizeRange, exact_class

S, T = symbol("s"), symbol("t")
CLASS = ShapeClass(
    ((S, 4), (S, 2 * T), (T,)),
    (SizeRange("s", 1), SizeRange("t", 2, 8)),
    (Relation(T % 2, "==", 0), Relation(S, "!=", 5)),
)


def test_a_class_says_why_shapes_are_outside() -> None:
    cases = {
        ((1, 4), (1, 8), (4,)): "",
        ((7, 4), (7, 16), (8,)): "",
        ((1, 4), (1, 8)): "2 tensors instead of 3",
        ((1, 4), (1, 8, 1), (4,)): "tensor 1 has rank 3, not 2",
        ((1, 5), (1, 8), (4,)): "tensor 0 has size 5 at axis 1, not 4",
        ((1, 4), (2, 8), (4,)): "size s is both 1 and 2",
        ((1, 4), (1, 9), (4,)): "tensor 1 has size 9 at axis 1, not 2*t",
        ((0, 4), (0, 8), (4,)): "size s=0 is outside 1 <= s",
        ((1, 4), (1, 20), (10,)): "size t=10 is outside 2 <= t <= 8",
        ((5, 4), (5, 8), (4,)): "s != 5 does not hold for s=5, t=4",
    }
    assert {shapes: CLASS.check(shapes) for shapes in cases} == cases
    assert CLASS.check(((1, 4), (1, 6), (3,))).endswith("== 0 does not hold for s=1, t=3")


def test_a_size_that_no_tensor_shows_is_named() -> None:
    assert "t" in ShapeClass(((T * T,),)).check(((4,),))


def test_text_and_exact_classes() -> None:
    assert str(ShapeClass(((S, 4),), (SizeRange("s", 1, 9),))) == "[s, 4] where 1 <= s <= 9"
    exact = exact_class([(2, 3)])
    assert (exact.check([(2, 3)]), bool(exact.check([(2, 4)]))) == ("", True)


def test_a_size_is_solved_for_where_only_a_multiple_of_it_shows() -> None:
    pairs = ShapeClass(((2 * T + 1,),), (SizeRange("t", 2),))
    assert pairs.check(((5,),)) == ""
    assert pairs.check(((6,),)) == "tensor 0 has size 6 at axis 0, not 2*t + 1"
    assert pairs.check(((3,),)) == "size t=1 is outside 2 <= t"
