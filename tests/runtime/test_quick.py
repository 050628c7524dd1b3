"""The short way: forms that were answered before, as long as their plans are there; and how many bytes those hold."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

import hotfuse
from hotfuse.runtime import executor
from hotfuse.runtime.session import Session

WIDTH = 64


def model() -> onnx.ModelProto:
    """Words that are looked up, and waves over their places, which follow from their number."""
    rng = np.random.default_rng(0)
    tables = {"words": rng.standard_normal((512, WIDTH)), "pace": rng.standard_normal((1, WIDTH))}
    nodes = [
        oh.make_node("Gather", ["words", "ids"], ["w"]),
        oh.make_node("Shape", ["ids"], ["count"]),
        oh.make_node("Squeeze", ["count"], ["end"]),
        oh.make_node("Range", ["zero", "end", "one"], ["order"]),
        oh.make_node("Cast", ["order"], ["times"], to=onnx.TensorProto.FLOAT),
        oh.make_node("Unsqueeze", ["times", "one"], ["column"]),
        oh.make_node("Mul", ["column", "pace"], ["angles"]),
        oh.make_node("Cos", ["angles"], ["p"]),
        oh.make_node("Add", ["w", "p"], ["sum"]),
        oh.make_node("Softmax", ["sum"], ["y"]),
    ]
    graph = oh.make_graph(
        nodes,
        "places",
        [oh.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", WIDTH])],
        [onh.from_array(np.int64(0), "zero"), onh.from_array(np.int64(1), "one")]
        + [onh.from_array(table.astype(np.float32), name) for name, table in tables.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def session() -> Session:
    return hotfuse.load(model().SerializeToString(), tier=1, wait=True, cache="off", max_bound_shapes=4)


def ask(session: Session, words: int) -> Any:
    ids = np.arange(words) % 7
    (y,) = session.run(None, {"ids": ids})
    assert y.shape == (words, WIDTH)
    return y


def forms(session: Session) -> list[int]:
    """The numbers of words that have a short way, in the order in which it was learned."""
    short = session.best.short
    assert short is not None
    return [form[1][0] for form in short._table]


def test_forms_that_come_late_have_a_short_way_too(session: Session) -> None:
    first = {words: ask(session, words) for words in range(2, 12)}
    assert forms(session) == [8, 9, 10, 11]
    for words, answer in first.items():
        np.testing.assert_array_equal(ask(session, words), answer)


def test_what_the_executor_drops_is_gone(session: Session) -> None:
    ask(session, 3)
    ((_, (segment, _)), *_) = session.best.short._table.values()  # type: ignore[union-attr]
    gone = weakref.ref(segment)
    del segment
    for words in range(20, 24):
        ask(session, words)
    gc.collect()
    assert gone() is None
    assert forms(session) == [20, 21, 22, 23]


def test_plans_together_hold_so_many_bytes_of_what_follows_from_sizes(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "KEPT_BYTES", 250 * 4)
    monkeypatch.setattr(executor, "KEPT_PLANS", 1)
    for words in (100, 101, 102):
        ask(session, words)
    held = [plan.kept_bytes for plan in session.best.executor._bound.values()]
    assert held == [4 * 101, 4 * 102]
    assert forms(session) == [101, 102]
    ask(session, 400)  # more than all may hold: the last one stays
    assert forms(session) == [400]
    ask(session, 400)


def test_a_few_plans_stay_however_much_they_hold(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "KEPT_BYTES", 1)
    monkeypatch.setattr(executor, "KEPT_PLANS", 2)
    for words in (100, 101, 102):
        ask(session, words)
    assert forms(session) == [101, 102]


def test_a_form_that_is_called_all_the_time_stays(session: Session) -> None:
    ask(session, 100)
    plan = next(iter(session.best.executor._bound.values()))
    for words in range(2, 40):
        ask(session, words)
        ask(session, 100)
    assert any(bound is plan for bound in session.best.executor._bound.values())
    assert 100 in forms(session)
    for words in range(40, 50):  # it is not called any more
        ask(session, words)
    assert 100 not in forms(session)


def test_the_newest_plan_stays_where_all_others_are_called_all_the_time(session: Session) -> None:
    for _ in range(2):
        for words in (10, 11, 12, 13):
            ask(session, words)
    runs, made = session.best.executor, []
    binder = runs._binder
    runs._binder = lambda *asked: made.append(1) or binder(*asked)  # type: ignore[func-returns-value]
    ask(session, 14)
    assert forms(session) == [11, 12, 13, 14]
    assert len(made) == 1


def test_a_closed_short_way_learns_nothing(session: Session) -> None:
    ask(session, 3)
    short, bound = session.best.short, next(iter(session.best.executor._bound.values()))
    assert short is not None
    short.close()
    short.learn([np.arange(3)], bound)
    assert short({"ids": np.arange(3)}) is None
