"""The performance model: the roofline by hand, what binds a kernel, and what a forest adds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotfuse.hardware.features import FEATURES, rows_of
from hotfuse.hardware.model import OPTIMISM, UNTRAINED, Model
from hotfuse.hardware.prior import KERNEL_S, issued, roofline
from hotfuse.hardware.rates import Curve, Pair, Rates
from hotfuse.hardware.training import train
from hotfuse.hardware.work import GATHERED, STRIDED, Touch, Use, Work

CURVE = Curve((1 << 14, 1 << 18, 1 << 27), (100.0, 50.0, 10.0), (200.0, 100.0, 12.0))
RATES = Rates(2, CURVE, CURVE, Pair(50.0, 100.0), Pair(0.0, 0.0), 1e-7, 2e-6, 5e-7, 1.0, 1 << 34, 0.02)
FAR = float(1 << 30)


def work(products: float = 0.0, steps: float = 0.0, bytes: float = 0.0, distance: float = FAR, **changes: object) -> Work:
    made = Work("rows", 1e6, 1.0, 1024.0, products, steps, (Touch("x", bytes, distance),), (), 1e3)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_roofline_by_hand() -> None:
    assert roofline(work(products=25e9), RATES, 1).seconds == pytest.approx(1.0)
    assert roofline(work(products=25e9), RATES, 2).seconds == pytest.approx(0.5, rel=1e-5)
    assert roofline(work(steps=25e9), RATES, 1).arithmetic_s == pytest.approx(1.0)
    assert roofline(work(bytes=10e9), RATES, 1).memory_s == pytest.approx(1.0)
    assert roofline(work(bytes=10e9, distance=1.0), RATES, 1).memory_s == pytest.approx(0.1)
    assert roofline(work(), RATES, 2).seconds == pytest.approx(5e-7 + KERNEL_S)
    assert roofline(work(), RATES, 1).seconds == pytest.approx(1e-7 + KERNEL_S)


def test_what_binds() -> None:
    assert roofline(work(products=1e9, bytes=1e6), RATES, 1).by == "arithmetic"
    assert roofline(work(products=1e6, bytes=1e9), RATES, 1).by == "memory"
    assert roofline(work(), RATES, 1).by == "overhead"


def test_one_task_is_done_by_one_thread() -> None:
    alone = work(products=25e9, tasks=1.0)
    assert roofline(alone, RATES, 2).arithmetic_s == roofline(alone, RATES, 1).arithmetic_s


def test_a_part_of_a_team_does_a_part_of_what_all_do() -> None:
    """Eight cores that share their memory: two tasks are done twice as fast as one, and not eight times."""
    curve = Curve((1 << 14, 1 << 27), (100.0, 10.0), (800.0, 24.0))
    eight = replace(RATES, threads=8, read=curve, write=curve, fma=Pair(50.0, 400.0))
    products = [roofline(work(products=25e9, tasks=float(tasks)), eight, 8).arithmetic_s for tasks in (1, 2, 5, 8)]
    assert products == pytest.approx([1.0, 0.5, 0.2, 0.125])
    far = [roofline(work(bytes=24e9, tasks=float(tasks)), eight, 8).memory_s for tasks in (1, 2, 8)]
    assert far == pytest.approx([2.4, 2.0, 1.0])


def test_the_last_tasks_are_waited_for() -> None:
    """Five tasks of a second each: of two threads one has three of them, and so has one of three threads two."""
    three = replace(RATES, threads=3, fma=Pair(50.0, 150.0))
    assert roofline(work(products=125e9, tasks=5.0), RATES, 2).arithmetic_s == pytest.approx(3.0)
    assert roofline(work(products=125e9, tasks=5.0), three, 3).arithmetic_s == pytest.approx(2.0)


def test_what_is_read_again_comes_from_as_far_as_its_row_is_long() -> None:
    near, far = work(read_again=10e9, row=16.0), work(read_again=10e9, row=float(1 << 28))
    assert roofline(near, RATES, 1).memory_s == pytest.approx(0.1)
    assert roofline(far, RATES, 1).memory_s == pytest.approx(1.0)


def test_operators_are_shared_by_a_team_as_arithmetic_is() -> None:
    rates = replace(RATES, operators={"exp": (1e-9, 0.0)})
    exp = work(steps=12e6, uses=(Use("exp", 1e6, 12),))
    assert roofline(exp, rates, 2).arithmetic_s == pytest.approx(0.5e-3)


def test_wide_elements_take_twice_as_long_to_compute() -> None:
    wide = work(products=25e9, element=8)
    assert roofline(wide, RATES, 1).arithmetic_s == pytest.approx(2.0)


@pytest.mark.parametrize("access", [STRIDED, GATHERED])
def test_memory_out_of_order_costs_lines(access: int) -> None:
    touch = Touch("x", 1e6, FAR, 4, access)
    scattered = roofline(work(reads=(touch,)), RATES, 1).memory_s
    in_order = roofline(work(bytes=1e6), RATES, 1).memory_s
    assert 8 * in_order < scattered <= 16 * in_order
    near = roofline(work(reads=(replace(touch, distance=1024.0),)), RATES, 1).memory_s
    assert near < 4 * roofline(work(bytes=1e6, distance=1024.0), RATES, 1).memory_s


def test_operators_take_what_they_were_measured_to_take() -> None:
    rates = replace(RATES, operators={"exp": (1e-9, 0.0), "softmax": (2e-9, 1e-7)})
    exp = work(steps=12e6, uses=(Use("exp", 1e6, 12),))
    assert roofline(exp, rates, 1).arithmetic_s == pytest.approx(1e-3)
    assert roofline(exp, RATES, 1).arithmetic_s == pytest.approx(12e6 / 25e9)  # nobody measured it: by what it is worth
    softmax = work(steps=18e6, uses=(Use("softmax", 1e6, 18, rows=1e3),))
    assert roofline(softmax, rates, 1).arithmetic_s == pytest.approx(2e-3 + 1e-4)
    both = work(steps=12e6 + 5e6, uses=(Use("exp", 1e6, 12), Use("add", 5e6, 1)))
    assert roofline(both, rates, 1).arithmetic_s == pytest.approx(1e-3 + 5e6 / 25e9)
    single = work(row_steps=12e3, uses=(Use("exp", 1e3, 12, is_single=True),))
    assert roofline(single, rates, 1).arithmetic_s == pytest.approx(2 * 16 * 1e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (8, 48, 1.0),  # one tile that fills the registers
        (1, 48, 8 / 3),  # three registers wait four cycles for themselves
        (1, 16, 8.0),
        (12, 48, (12 + 6) / 18),  # a tile of 8 and one of 4
        (8, 64, (12 + 4.5) / 16),  # the last panel has one vector: loads are waited for
    ],
)
def test_tiles_that_do_not_fill_the_registers_take_longer(rows: int, columns: int, expected: float) -> None:
    product = work(products=1e6, kind="product", points=float(rows * columns), inner=float(columns))
    assert issued(product, 64) == pytest.approx(expected)
    assert issued(replace(product, kind="rows"), 64) == 1.0


def test_matrices_share_no_rows() -> None:
    product = work(products=1e6, kind="product", points=8.0 * 48, inner=48.0, matrices=8.0)
    assert issued(product, 64) == pytest.approx(8 / 3)


def test_what_threads_take_over_from_each_other() -> None:
    alone, both = (roofline(work(bytes=1e6), RATES, threads).memory_s for threads in (1, 2))
    mine = work(bytes=1e6)
    mine = replace(mine, reads=tuple(replace(touch, handed=1e6) for touch in mine.reads))
    taken_s = mine.handed / (RATES.handed * 1e9 * 2)
    assert roofline(mine, RATES, 2).memory_s == pytest.approx(both + taken_s)
    assert roofline(mine, RATES, 1).memory_s == alone


def test_features_have_names_and_are_finite() -> None:
    rows, prior = rows_of([work(), work(products=1e9, bytes=1e9)], RATES, 2)
    assert rows.shape == (2, len(FEATURES))
    assert np.isfinite(rows).all()
    assert (prior > 0).all()
    assert rows_of([], RATES, 2)[0].shape == (0, len(FEATURES))
    assert len(set(FEATURES)) == len(FEATURES)


def test_without_a_forest_the_roofline_decides_and_is_not_sure() -> None:
    found = Model(RATES, 2).predict([work(products=1e9), work(bytes=1e9)])
    assert found.seconds == pytest.approx(
        [OPTIMISM * roofline(w, RATES, 2).seconds for w in (work(products=1e9), work(bytes=1e9))]
    )
    assert (found.spread == UNTRAINED).all()
    assert len(Model(RATES, 2).predict([]).seconds) == 0


def test_a_forest_learns_how_optimistic_the_roofline_is() -> None:
    rng = np.random.default_rng(0)
    works = [work(products=float(p), bytes=float(b)) for p, b in np.exp(rng.uniform(10, 24, (200, 2)))]
    rows, prior = rows_of(works, RATES, 2)
    seconds = prior * np.where([w.products > w.read for w in works], 3.0, 1.5)
    model = Model(RATES, 2, train(rows, prior, seconds, np.zeros(len(rows))))
    found = model.predict(works)
    assert np.median(np.abs(found.seconds / seconds - 1)) < 0.05
    assert found.by_tree.shape == (200, len(model.forest.roots))  # type: ignore[union-attr]
    np.testing.assert_allclose(np.exp(np.log(found.by_tree).mean(1)), found.seconds, rtol=1e-5)


def test_a_forest_of_other_features_is_not_asked() -> None:
    works = [work(products=float(p)) for p in range(1, 30)]
    rows, prior = rows_of(works, RATES, 2)
    strange = replace(train(rows, prior, prior * 2, np.zeros(len(rows))), names=("others",))
    assert Model(RATES, 2, strange).forest is None
