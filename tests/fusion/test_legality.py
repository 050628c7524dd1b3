"""What may be one kernel, and every reason why something may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotfuse.fusion.legality import MOST_NODES, Refusal
from hotfuse.fusion.rules import Fused, results_of
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.graph import Value
from tests.fusion.graphs import Case, case, rows, weight


def made(found: Fused | Refusal) -> Fused:
    assert isinstance(found, Fused), found
    return found


def refused(found: Fused | Refusal) -> str:
    assert isinstance(found, Refusal), found
    return found.reason


def with_two_readers(b: GraphBuilder) -> list[Value]:
    x = rows(b, 8, 64)
    y = b.add("exp", x)
    return [b.add("softmax", y, axis=-1), b.add("layer_norm", y, axis=-1, epsilon=1e-5)]


def test_a_group_with_several_results_takes_in_what_two_read() -> None:
    found = case(with_two_readers)
    exp, softmax, norm = found.groups()
    both = made(found.legality.join(exp, softmax))
    assert results_of(both, found.graph, found.layouts) == [exp.nodes[0].id, softmax.nodes[0].id]
    whole = made(found.legality.join(both, norm))
    assert results_of(whole, found.graph, found.layouts) == [softmax.nodes[0].id, norm.nodes[0].id]
    assert whole.folded == (1,)
    assert whole.parts == (exp, softmax, norm)


def test_siblings_need_not_read_each_other() -> None:
    found = case(lambda b: [b.add("exp", x := rows(b, 8, 64)), b.add("neg", x)])
    assert len(made(found.legality.join(*found.groups())).nodes) == 2


def test_a_product_takes_in_what_comes_before_its_residual_and_keeps_its_own_result() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        product = b.add("matmul", x, weight(b, 64, 64))
        return [b.add("add", product, b.add("exp", x)), product]

    found = case(make)
    product, exp_add = found.groups()
    whole = made(found.legality.join(product, exp_add))
    assert whole.kind == "product"
    assert len(results_of(whole, found.graph, found.layouts)) == 2


def test_a_view_of_a_rows_value_is_seen_through() -> None:
    def make(b: GraphBuilder) -> Value:
        x = rows(b, 8, 64)
        mean = b.add("unsqueeze", b.add("reduce_mean", x, axes=(1,), keepdims=False), axes=(1,))
        return b.add("sub", x, mean)

    found = case(make)
    mean, sub = found.groups()
    whole = made(found.legality.join(mean, sub))
    assert (whole.domain, whole.folded) == ((8, 64), (1,))
    assert results_of(whole, found.graph, found.layouts) == [sub.nodes[-1].id]


def test_values_of_rows_join_their_rows() -> None:
    found = case(lambda b: b.add("tanh", b.add("reduce_max", rows(b, 8, 64), axes=(1,), keepdims=True)))
    assert made(found.legality.join(*found.groups())).domain == (8, 64)


def join_cases() -> dict[str, tuple[Callable[[GraphBuilder], Value | list[Value]], str]]:
    def two(op: Callable[[GraphBuilder, Value], Value]) -> Callable[[GraphBuilder], Value | list[Value]]:
        def make(b: GraphBuilder) -> list[Value]:
            y = b.add("exp", rows(b, 8, 64))
            return [op(b, y), y]

        return make

    def products(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        return [b.add("matmul", x, weight(b, 64, 64)), b.add("matmul", x, weight(b, 64, 64))]

    def axes(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        return [b.add("softmax", x, axis=0), b.add("softmax", x, axis=1)]

    def folded_product(b: GraphBuilder) -> list[Value]:
        y = b.add("matmul", rows(b, 8, 64), weight(b, 64, 64))
        return [b.add("softmax", y, axis=-1), y]

    def gathered_product(b: GraphBuilder) -> list[Value]:
        x = rows(b, 8, 64)
        return [b.add("matmul", x, weight(b, 64, 64)), b.add("trilu", x, b.dims(()), upper=True)]

    def elsewhere(b: GraphBuilder) -> list[Value]:
        x = rows(b, 64, 64)
        return [b.add("matmul", x, weight(b, 64, 32)), b.add("neg", x)]

    def narrow(b: GraphBuilder) -> list[Value]:
        scale = b.add("exp", rows(b, 64, name="s"))
        return [b.add("mul", rows(b, 8, 64), scale), scale]

    def narrow_fold(b: GraphBuilder) -> list[Value]:
        scale = b.add("softmax", rows(b, 64, name="s"), axis=0)
        return [b.add("mul", rows(b, 8, 64), scale)]

    def narrow_read(b: GraphBuilder) -> list[Value]:
        ends = b.add("pad", rows(b, 60, name="s"), b.dims((2, 2)), mode="constant")
        return [b.add("mul", rows(b, 8, 64), ends)]

    return {
        "a copy": (
            two(lambda b, y: b.add("reshape", b.add("transpose", y, perm=(1, 0)), b.dims((8, 64)))),
            "takes nothing else",
        ),
        "two products": (products, "accumulators of their own"),
        "other axes": (axes, "different axes"),
        "rows of a product": (folded_product, "no whole rows"),
        "a product's points": (elsewhere, "different points, 64x32 and 64x64"),
        "other points": (two(lambda b, y: b.add("neg", rows(b, 9, 64, name="z"))), "different points, 8x64 and 9x64"),
        "turned": (
            lambda b: [b.add("neg", b.add("transpose", y := b.add("exp", rows(b, 64, 64)), perm=(1, 0))), y],
            "other elements",
        ),
        "narrow and read": (narrow, "many points would compute"),
        "narrow and folded": (narrow_fold, "different points"),
        "narrow and placed": (narrow_read, "not elementwise"),
    }


@pytest.mark.parametrize("name", join_cases())
def test_what_cannot_be_joined_is_refused(name: str) -> None:
    make, reason = join_cases()[name]
    found = case(make)
    first, second, *_ = found.groups()
    assert reason in refused(found.legality.join(first, second))


def test_what_reads_memory_in_its_own_way_stays_apart() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        y = b.add("exp", rows(b, 8, 64))
        return [b.add("pad", y, b.dims((0, 0, 0, 0)), mode="constant"), y]

    found = case(make)
    assert "in a way of its own" in refused(found.legality.join(*found.groups()))


def test_kernels_do_not_grow_without_end() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        y = rows(b, 8, 64)
        kept = []
        for number in range(MOST_NODES + 2):
            y = b.add("neg", y)
            if number == MOST_NODES // 2:
                kept.append(y)
        return [y, *kept]

    found = case(make)
    assert "too long to compile" in refused(found.legality.join(*found.groups()))


def copied(keep: bool = False) -> Case:
    def make(b: GraphBuilder) -> list[Value]:
        y = b.add("exp", rows(b, 8, 64))
        out = b.add("reshape", b.add("transpose", y, perm=(1, 0)), b.dims((8, 64)))
        return [out, y] if keep else [out]

    return case(make)


def test_a_copy_is_written_at_once() -> None:
    found = copied()
    rows_, copy = found.groups()
    whole = made(found.legality.place(rows_, copy))
    assert whole.placed == 2
    assert [node.op for node in whole.computing] == ["exp"]
    assert results_of(whole, found.graph, found.layouts) == [copy.nodes[0].id]
    assert "written in another order" in refused(found.legality.join(whole, rows_))
    assert "only a copy" in refused(found.legality.place(whole, copy))
    assert "one result, in order" in refused(found.legality.link(whole, rows_))


def test_a_copy_is_not_written_at_once_where_others_read_the_original() -> None:
    found = copied(keep=True)
    assert "in its own order as well" in refused(found.legality.place(*found.groups()))


def test_a_copy_of_something_else_is_not_written_at_once() -> None:
    def make(b: GraphBuilder) -> list[Value]:
        y, z = b.add("exp", rows(b, 8, 64)), rows(b, 8, 64, name="z")
        return [y, b.add("reshape", b.add("transpose", z, perm=(1, 0)), b.dims((8, 64)))]

    found = case(make)
    assert "does not make" in refused(found.legality.place(*found.groups()))


def test_rows_values_are_not_copied_at_once() -> None:
    def make(b: GraphBuilder) -> Value:
        mean = b.add("reduce_mean", rows(b, 4, 6, 64), axes=(2,), keepdims=False)
        return b.add("reshape", b.add("transpose", mean, perm=(1, 0)), b.dims((4, 6)))

    found = case(make)
    assert "not computed at every point" in refused(found.legality.place(*found.groups()))


def test_what_is_cheap_is_computed_again_by_each_reader() -> None:
    found = case(with_two_readers)
    exp, softmax, norm = found.groups()
    for reader in (softmax, norm):
        whole = made(found.legality.repeat(exp, reader))
        assert whole.again == (exp.nodes[0].id,)
        assert results_of(whole, found.graph, found.layouts) == [reader.nodes[0].id]
    assert "only elementwise" in refused(found.legality.repeat(softmax, norm))


def test_what_is_computed_again_reads_what_others_must_write() -> None:
    """The first of two copies of a node is inside its group, the other is not: both need what the node reads."""

    def make(b: GraphBuilder) -> list[Value]:
        top = b.add("tanh", b.add("reduce_max", x := rows(b, 8, 64), axes=(1,), keepdims=True))
        y = b.add("mul", x, top)
        return [b.add("softmax", y, axis=1), b.add("layer_norm", y, axis=1, epsilon=1e-5)]

    found = case(make)
    _, top, mul, softmax, _ = found.groups()
    again = made(found.legality.repeat(mul, softmax))
    whole = made(found.legality.join(top, again))
    assert results_of(whole, found.graph, found.layouts) == [top.nodes[0].id, softmax.nodes[0].id]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b: b.add("softmax", b.add("softmax", rows(b, 8, 64), axis=0), axis=1), "folds no rows"),
        (lambda b: [b.add("softmax", y := b.add("matmul", rows(b, 8, 64), weight(b, 64, 64)), axis=1), y], "read by others"),
    ],
)
def test_what_cannot_be_linked_is_refused(make: Callable[[GraphBuilder], Value], reason: str) -> None:
    found = case(make)
    assert reason in refused(found.legality.link(*found.groups()))


def test_links_follow_each_other() -> None:
    found = case(lambda b: b.add("softmax", b.add("matmul", rows(b, 8, 64), weight(b, 64, 64)), axis=1))
    whole = made(found.legality.link(*found.groups()))
    assert (whole.kind, len(whole.links)) == ("chain", 2)
