"""The executor: bound plans per shape, bounded; arenas; ownership of results; many threads; errors that name the layer."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.errors import ExecutionError, InvalidModel, LimitExceeded
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph, Origin
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import F32, I64, tensor
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.numpy_engine import NUMPY


def chain(length: int = 6) -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("N"), 16))
    y = x
    for _ in range(length):
        y = builder.add("tanh", builder.add("add", y, x))
    return builder.build([y])


def run_chain(x: np.ndarray, length: int = 6) -> np.ndarray:  # type: ignore[type-arg]
    y = x
    for _ in range(length):
        y = np.tanh(y + x)
    return y


def executor(graph: Graph, **options: object) -> Executor:
    return Executor(trivial_plan(graph), NUMPY, Config(**options))  # type: ignore[arg-type]


def test_one_plan_serves_all_shapes_and_keeps_a_bounded_number() -> None:
    runs = executor(chain(), max_bound_shapes=3)
    for n in (1, 5, 2, 8, 0, 5, 3):
        x = np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)
        np.testing.assert_array_equal(runs.run([x])[0], run_chain(x))
    assert runs.bound_shapes == 3


def test_intermediates_share_an_arena() -> None:
    runs = executor(chain(20))
    x = np.ones((4, 16), np.float32)
    runs.run([x])
    (size,) = runs.arena_bytes().values()
    assert size == 2 * x.nbytes  # forty intermediates, two alive at a time


def test_results_are_the_callers_own() -> None:
    runs = executor(chain())
    x = np.ones((2, 16), np.float32)
    first = runs.run([x])[0]
    kept = first.copy()
    runs.run([x * 2])
    np.testing.assert_array_equal(first, kept)
    first[:] = 7
    np.testing.assert_array_equal(runs.run([x])[0], kept)


@pytest.mark.parametrize("kind", ["identity", "view", "constant", "twice"])
def test_results_never_alias_inputs_constants_or_each_other(kind: str) -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, 4, 4))
    c = builder.constant(np.ones((4, 4), np.float32), "c")
    y = builder.add("exp", x)
    outputs = {
        "identity": [x],
        "view": [builder.add("transpose", x, perm=(1, 0))],
        "constant": [c],
        "twice": [y, builder.add("transpose", y, perm=(1, 0))],
    }[kind]
    given = np.ones((4, 4), np.float32)
    results = executor(builder.build(outputs)).run([given])
    for i, result in enumerate(results):
        assert result.flags.writeable
        assert result.flags.c_contiguous
        assert not np.shares_memory(result, given)
        assert not any(np.shares_memory(result, other) for other in results[:i])
    for result in results:
        result[:] = 5
    np.testing.assert_array_equal(given, np.ones((4, 4)))
    assert executor(builder.build([c])).run([given])[0].max() == 1


def test_many_threads_call_one_executor() -> None:
    runs = executor(chain(), max_bound_shapes=4)
    failures: list[str] = []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.standard_normal((int(rng.integers(1, 9)), 16)).astype(np.float32)
            if not np.array_equal(runs.run([x])[0], run_chain(x)):
                failures.append(f"seed {seed}")

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_failing_operator_names_the_layer() -> None:
    builder = GraphBuilder()
    builder.origin = Origin("encoder.3.gather", "Gather")
    x = builder.input("x", tensor(F32, 4))
    i = builder.input("i", tensor(I64, 1))
    runs = executor(builder.build([builder.add("gather", x, i, axis=0)]))
    with pytest.raises(ExecutionError, match=r"encoder\.3\.gather Gather"):
        runs.run([np.ones(4, np.float32), np.array([9])])
    runs.run([np.ones(4, np.float32), np.array([3])])  # the executor serves on


def test_sizes_that_do_not_fit_are_refused_when_bound() -> None:
    builder = GraphBuilder()
    a = builder.input("a", tensor(F32, symbol("N")))
    b = builder.input("b", tensor(F32, symbol("M")))
    runs = executor(builder.build([builder.add("add", a, b)]))
    with pytest.raises(InvalidModel, match="do not broadcast"):
        runs.run([np.ones(3, np.float32), np.ones(4, np.float32)])


def test_a_value_over_the_limit_is_refused_before_it_is_made() -> None:
    builder = GraphBuilder()
    x = builder.input("x", tensor(F32, symbol("N"), 1))
    y = builder.input("y", tensor(F32, 1, symbol("M")))
    runs = executor(builder.build([builder.add("add", x, y)]), max_value_bytes=1 << 20)
    runs.run([np.ones((10, 1), np.float32), np.ones((1, 10), np.float32)])
    with pytest.raises(LimitExceeded, match="max_value_bytes"):
        runs.run([np.ones((1000, 1), np.float32), np.ones((1, 1000), np.float32)])


def test_a_size_that_depends_on_data_is_checked_when_it_is_known() -> None:
    builder = GraphBuilder()
    one = builder.constant(np.array(1))
    zero = builder.constant(np.array(0))
    n = builder.input("n", tensor(I64))
    runs = executor(builder.build([builder.add("arange", zero, n, one)]), max_value_bytes=1 << 20)
    assert runs.run([np.array(5)])[0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(LimitExceeded, match="arange would make"):
        runs.run([np.array(10**9)])
