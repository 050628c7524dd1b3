"""What inference keeps of sizes is bounded: expressions that grow are given names, numbers stay what their type holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotfuse.errors import DimError
from hotfuse.ir.builder import GraphBuilder, infer_node
from hotfuse.ir.dim import MAX_SIZE, MAX_TERMS, Dim, Expr, floordiv, is_simple, minimum, symbol
from hotfuse.ir.graph import NO_ATTRS, Value
from hotfuse.ir.op import OPS, FreshSymbols
from hotfuse.ir.types import F32, I32, I64, TensorType, tensor


def test_simple_dims() -> None:
    a, b = symbol("a"), symbol("b")
    for dim in (0, 7, -3, a, a + b, 2 * a * b + 3, floordiv(a + 1, 2), minimum(a, b)):
        assert is_simple(dim)
    grown: Dim = a
    for _ in range(8):
        grown = minimum(grown, floordiv(grown, 2) + b)  # doubles, text and all
    assert not is_simple(grown)
    assert not is_simple(1 << 70)
    assert not is_simple((1 << 70) * a)


def test_products_of_many_terms_are_refused() -> None:
    total: Dim = sum((symbol(f"s{i}") for i in range(65)), start=symbol("s"))
    assert isinstance(total, Expr)
    assert len(total.terms) ** 2 > MAX_TERMS
    with pytest.raises(DimError, match="more than 4096 terms"):
        total * total


def test_a_size_that_has_grown_gets_a_name_of_its_own() -> None:
    grown = sum((symbol(f"g{i}") for i in range(MAX_SIZE)), start=symbol("g"))
    (value,) = infer_node("neg", [Value("x", tensor(F32, grown, 3))], NO_ATTRS, (), FreshSymbols("new"), 1)
    assert isinstance(value.type, TensorType)
    assert value.type.shape == (symbol("new0"), 3)


@pytest.mark.parametrize(("kind", "number"), [(np.int32, 1 << 20), (np.int64, 1 << 40), (np.int64, (1 << 62) + 1)])
def test_contents_wrap_as_numpy_does_or_are_not_tracked(kind: type, number: int) -> None:
    builder = GraphBuilder()
    array = np.array([number], kind)
    large = builder.constant(array)
    found = builder.add("mul", large, large).contents
    assert found is None or found == tuple((array * array).tolist())


def test_contents_past_their_type_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an operator's own tracking answers."""
    for answer, kept in (((1 << 31) - 1, True), (1 << 31, False), (-1 << 31, True), ((-1 << 31) - 1, False)):
        loose = replace(OPS["neg"], contents=lambda call, answer=answer: ((answer,),))
        monkeypatch.setitem(OPS, "neg", loose)
        (value,) = infer_node("neg", [Value("x", tensor(I32, 1))], NO_ATTRS, (), FreshSymbols(), 1)
        assert (value.contents is not None) is kept


def test_long_integer_tensors_are_data() -> None:
    """Contents are not even computed where the result is too long for them: it may be as long as a bomb."""
    builder = GraphBuilder()
    one = builder.constant(np.array([1]))
    long = builder.add("expand", one, builder.constant(np.array([10**12])))
    assert long.type == tensor(I64, 10**12)
    assert long.contents is None
