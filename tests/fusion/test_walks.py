"""How often kernels that fold rows compute what they compute: as the plain nests of `codegen/nest` do."""

from __future__ import annotations

from hotfuse.fusion.walks import Walks, walks_of
from hotfuse.ir.graph import Node

ROWS = {"row"}


def nodes(*lines: str) -> list[Node]:
    """Each line is "result op inputs"; the op of a row's own number is `row`."""
    made = []
    for line in lines:
        result, op, *inputs = line.split()
        made.append(Node(op, tuple(inputs), (result,)))
    return made


def walked(results: str, *lines: str, keeps: bool = False) -> Walks:
    return walks_of(nodes(*lines), results.split(), lambda node: node.op in ROWS, lambda name: name, keeps)


def test_what_is_folded_and_needed_again_is_computed_twice() -> None:
    found = walked("z", "a abs x", "s reduce_sum a", "z sub a s")
    assert found == Walks(2, {"a": 2, "s": 1, "z": 1}, {"x": 2})


def test_a_fold_alone_is_one_walk() -> None:
    assert walked("s", "a abs x", "s reduce_sum a") == Walks(1, {"a": 1, "s": 1}, {"x": 1})


def test_norms_walk_as_often_as_they_fold_and_once_more() -> None:
    assert walked("n", "a abs x", "n layer_norm a") == Walks(3, {"a": 3, "n": 1}, {"x": 3})
    assert walked("n", "a abs x", "n rms_norm a").times == {"a": 2, "n": 1}
    behind = walked("m", "n layer_norm x", "m layer_norm n")
    assert behind.count == 5
    assert behind.times["n"] == 3  # by the two folds of the next, and by what is written


def test_what_is_dear_is_kept() -> None:
    lines = "a abs x", "e exp a", "s reduce_sum e", "z div e s"
    assert walked("z", *lines).times["e"] == 2
    kept = walked("z", *lines, keeps=True)
    assert kept.times["e"] == 1
    assert kept.times["a"] == 1  # nobody else needs it


def test_a_number_of_each_row_is_computed_once() -> None:
    found = walked("z", "s reduce_sum x", "r row s", "z mul x r")
    assert found.times["r"] == 1
    assert found.reads == {"x": 2}
