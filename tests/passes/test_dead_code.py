"""Dead code goes, except what has an effect and what callers supply by place."""

from __future__ import annotations

import numpy as np

from hotfuse.ir.types import F32, TensorType
from hotfuse.ir.verify import verify
from hotfuse.passes.dead_code import remove_dead
from tests.passes.graphs import Spell, keeps_bits, ops, randoms, spell


def test_unread_nodes_and_constants_go() -> None:
    def body(s: Spell, x: object) -> object:
        s.exp(s.mul(x, s(2)))
        return s.neg(x)

    after = keeps_bits(spell(body, (3,)), *randoms((3,)), passes=(remove_dead,))  # type: ignore[arg-type]
    assert ops(after) == {"neg": 1}
    assert not after.constants
    assert set(after.values) == {"x0", after.nodes[0].id}


def test_inputs_and_weights_stay() -> None:
    s = Spell()
    x = s.input("x", (3,))
    s.input("unused", (2,))
    s.weight("w", (2,))
    after = verify(remove_dead(s.builder.build([x])))
    assert after.inputs == ("x", "unused")
    assert after.weights == ("w",)


def test_effects_stay_also_in_nested_graphs() -> None:
    for effect, left in ((True, 1), (False, 0)):
        inner = Spell()
        y = inner.input("y", (3,))
        inner.builder.add_node("torch_op", (y,), {"target": "log", "effect": effect}, types=[TensorType(F32, (3,))])
        branch = inner.builder.build([y])
        s = Spell()
        condition, x = s.input("c", (), "bool"), s.input("x", (3,))
        s.builder.add_node("if", (condition, x), graphs=(branch, branch))
        after = verify(remove_dead(s.builder.build([x])))
        assert ops(after)["if"] == left
        assert ops(after)["torch_op"] == 2 * left


def test_one_wanted_result_keeps_its_node() -> None:
    s = Spell()
    x = s.input("x", (4,))
    _, second = s.builder.add_node("split", (x,), {"axis": 0, "sizes": (2, 2)}, outputs=2)
    after = keeps_bits(s.builder.build([second]), np.arange(4, dtype=np.float32))
    assert ops(after) == {"split": 1}


def test_nested_graphs_are_cleaned() -> None:
    inner = Spell()
    y = inner.input("y", (3,))
    inner.exp(y)
    s = Spell()
    condition, x = s.input("c", (), "bool"), s.input("x", (3,))
    branch = inner.builder.build([y])
    (z,) = s.builder.add_node("if", (condition, x), graphs=(branch, branch))
    assert ops(verify(remove_dead(s.builder.build([z])))) == {"if": 1}
