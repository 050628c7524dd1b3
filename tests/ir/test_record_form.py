"""The record form: what is written reads back as it was, equal records are equal bytes, and nothing damaged is read."""

from __future__ import annotations

import enum
import math
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotfuse.ir.ops  # noqa: F401  (fills OPS)
from hotfuse.errors import ParseError
from hotfuse.ir import record_form
from hotfuse.ir.dim import Dim, ceildiv, maximum, minimum, symbol
from hotfuse.ir.graph import Attrs, Constant, Graph
from hotfuse.ir.op import OPS
from hotfuse.ir.record_form import MAX_DEPTH, read_record, write_record
from hotfuse.ir.text import parse_graph, print_graph
from hotfuse.ir.types import ANY, F32, DType, MapType, OptionalType, TensorType, Type


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: Dim


@dataclass(frozen=True)
class Leaf:
    name: str
    size: Dim = 0


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf | Tree, ...] = ()
    pair: tuple[int, str] | None = None
    by_name: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    mode: Literal["a", "b"] = "a"
    dtype: DType = F32
    type: Type = ANY
    share: float = 0.0
    colour: Colour = Colour.RED
    point: Point | None = None
    code: bytes = b""
    attrs: Any = None


N, M = symbol("n", 1), symbol("m")
SIZES: tuple[Dim, ...] = (7, N, 3 * N * M - 2, ceildiv(N, 8), maximum(N, 2 * M), minimum(ceildiv(M, N), 5) * N)
sizes = st.sampled_from(SIZES)
plain = st.deferred(
    lambda: st.one_of(
        st.none(), st.booleans(), st.text(), st.binary(), st.integers(), st.floats(), st.complex_numbers(), sizes,
        st.sampled_from((F32, slice(1, None))), st.lists(plain, max_size=2), st.lists(plain, max_size=2).map(tuple),
        st.dictionaries(st.text(), plain, max_size=2).map(Attrs),
    )
)  # fmt: skip
trees = st.deferred(
    lambda: st.builds(
        Tree,
        st.lists(trees | st.builds(Leaf, st.text(), sizes), max_size=2).map(tuple),
        st.none() | st.tuples(st.integers(), st.text()),
        st.dictionaries(st.text(), st.lists(sizes).map(tuple), max_size=2),
        st.frozensets(st.text(), max_size=1),  # of more, the order shows in their repr
        st.sampled_from(("a", "b")),
        share=st.floats() | st.integers(),
        type=st.sampled_from((TensorType(F32, SIZES), TensorType(F32, None), MapType(F32, OptionalType(TensorType(F32, ()))))),
        colour=st.sampled_from(Colour),
        point=st.builds(Point, st.integers(), sizes),
        code=st.binary(),
        attrs=plain,
    )
)


@given(trees)
@settings(max_examples=60, deadline=None)
def test_a_record_reads_back_as_it_was(tree: Tree) -> None:
    data = write_record(tree)
    found = read_record(Tree, data)
    assert repr(found) == repr(tree)  # which tells 1 from 1.0 and True, 0.0 from -0.0, and takes NaN for itself
    assert write_record(found) == data


def test_minimums_of_sizes_are_kept() -> None:
    """They take no part in comparisons."""
    found = read_record(Leaf, write_record(Leaf("a", N)))
    assert found.size.terms[0][0][0][0].minimum == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([math.nan, -0.0, math.inf]),
        np.array(3, np.int64),
        np.zeros((0, 4), np.uint8),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([[True], [False]]),
        np.array(["a", "\ud800", ""], object),
        np.float32(1.5),
        ml_dtypes.bfloat16(2),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_keep_every_bit_and_are_for_looking(array: Any) -> None:
    found = read_record(Tree, write_record(Tree(attrs=array))).attrs
    assert type(found) is type(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes() if array.dtype != object else found.tolist() == array.tolist()
    assert not found.flags.writeable


TEXT = """graph "main" {
  where B >= 1
  fact S == 2*B
  input %x: f32[B, 4]
  weight %w: f32[4, 3]
  const %eps: f32[] = 1e-05
  %n: i64[2] <B, 4> = shape_of(%x)
  %h: f32[B, 3] = matmul(%x, %w)
  %s: f32[B, 3] = add(%h, %eps) at "layer" "Add" "model.py:7"
  %y: f32[B, 3] = softmax(%s) {axis = -1}
  return %y, %n
}"""


def test_a_graph_reads_back() -> None:
    graph = parse_graph(TEXT)
    found = read_record(Graph, write_record(graph))
    assert print_graph(found) == print_graph(graph)
    assert found.constants["eps"].numpy() == graph.constants["eps"].numpy()


def test_a_constant_is_of_the_type_it_says() -> None:
    graph = parse_graph(TEXT)
    wrong = Constant(np.zeros(2, np.float32), TensorType(F32, (3,)))
    with pytest.raises(ParseError, match="a constant of type"):
        read_record(Graph, write_record(replace(graph, constants={"eps": wrong})))


def test_attributes_of_all_operators_read_back() -> None:
    samples = [s for op in OPS.values() if op.samples is not None for s in op.samples()]
    tree = Tree(attrs=tuple((Attrs(s.attrs), s.inputs) for s in samples))
    data = write_record(tree)
    found = read_record(Tree, data)
    assert write_record(found) == data
    assert [str(attrs) for attrs, _ in found.attrs] == [str(Attrs(s.attrs)) for s in samples]


def test_equal_parts_are_written_once_and_read_as_one() -> None:
    leaf = Leaf("x" * 1000, N)
    found = read_record(Tree, write_record(Tree((leaf, Leaf("x" * 1000, N), leaf))))
    assert len(write_record(found)) < 1500
    assert found.leaves[0] is found.leaves[1] is found.leaves[2]


def test_the_bytes_are_the_same_in_every_process() -> None:
    """Whatever the seed of hashes is: a digest of a record is a key."""
    script = "import sys; from tests.ir.test_record_form import *; sys.stdout.buffer.write(write_record(many_names()))"
    made = [
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] == write_record(many_names())


def many_names() -> Tree:
    return Tree(names=frozenset("abcdefgh"), attrs={frozenset((N, 3, "x")): {1, 2}})


# ---- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        Leaf("a", 1.0),  # type: ignore[arg-type]
        Leaf("a", True),
        Leaf(None),  # type: ignore[arg-type]
        Tree((Leaf("a"), "b")),  # type: ignore[arg-type]
        Tree([Leaf("a")]),  # type: ignore[arg-type]
        Tree(pair=(1, "a", 2)),  # type: ignore[arg-type]
        Tree(by_name={"a": ("b",)}),  # type: ignore[dict-item]
        Tree(by_name={1: ()}),  # type: ignore[dict-item]
        Tree(names=frozenset((1,))),  # type: ignore[arg-type]
        Tree(mode="c"),  # type: ignore[arg-type]
        Tree(colour=Point(0, 1)),  # type: ignore[arg-type]
        Tree(type=F32),  # type: ignore[arg-type]
        Tree(attrs=Constant),
        Tree(attrs=lambda: 0),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises((ParseError, TypeError), match=r"damaged record: in a|has no record form"):
        read_record(Leaf | Tree, write_record(wrong))  # type: ignore[arg-type]


def test_classes_are_those_of_the_record_alone() -> None:
    @dataclass(frozen=True)
    class Secret:
        path: str

    data = write_record(Tree(attrs=Secret("x")))
    with pytest.raises(ParseError, match="Secret"):
        read_record(Tree, data)
    with pytest.raises(ParseError, match="Tree"):
        read_record(Leaf, write_record(Tree()))
    with pytest.raises(ParseError, match="is not Leaf"):
        read_record(Leaf, write_record("leaf"))


def test_what_is_too_deep_or_too_large_is_not_written_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    deep, wide = Tree(), Tree()
    for _ in range(MAX_DEPTH):
        deep = Tree((deep,))
    for _ in range(24):
        wide = Tree((wide,) * 8)  # 8 ** 24 parts in all
    monkeypatch.setattr(record_form, "MAX_PARTS", 1 << 20)
    for record in (deep, wide):
        with pytest.raises(TypeError, match="more than"):
            write_record(record)
    with monkeypatch.context() as lenient:
        lenient.setattr(record_form, "MAX_PARTS", 1 << 200)
        lenient.setattr(record_form, "MAX_DEPTH", 3 * MAX_DEPTH)
        written = [write_record(deep), write_record(wide)]
    for data in written:
        with pytest.raises(ParseError, match="too many parts, too deep"):
            read_record(Tree, data)


def sample() -> bytes:
    leaves = (Leaf("a", SIZES[2]), Leaf("b", SIZES[3]), Leaf("c"))
    by_name: dict[str, tuple[Dim, ...]] = {"x": SIZES, "y": ()}
    tree = Tree(leaves, (3, "c"), by_name, frozenset(("p", "q")), share=math.inf, code=b"\x90\xc3")
    return write_record(replace(tree, attrs=Attrs(array=np.arange(5.0), texts=np.array(["s"], object), part=slice(1, 2))))


def test_a_flipped_byte_or_a_cut_is_damage() -> None:
    data = sample()
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ (1 + place % 255)]) + data[place + 1 :]
        for damaged in (flipped, data[:place]):
            with pytest.raises(ParseError, match="damaged"):
                read_record(Tree, damaged)
    with pytest.raises(ParseError, match="damaged"):
        read_record(Tree, data + b"\0")


def test_damage_that_the_checksum_hides_is_a_record_or_refused() -> None:
    """Numbers, names and lengths changed at random under a checksum that fits: it is read as some tree, or it is damage."""
    source, good, read = random.Random(0), sample(), 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(source.choice((1, 1, 2, 5))):
            data[source.randrange(4, len(data))] = source.choice((0, 1, 2, 255, source.randrange(256)))
        data[:4] = struct.pack("<I", zlib.crc32(memoryview(data)[4:]))
        try:
            found = read_record(Tree, bytes(data))
        except ParseError:
            continue
        read += 1
        assert type(found) is Tree
        repr(found), write_record(found)
    assert 100 < read < 3900


def test_two_classes_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Leaf:
        other: int

    with pytest.raises(TypeError, match="two classes Leaf"):
        read_record(Tree | Leaf, b"")  # type: ignore[arg-type]
