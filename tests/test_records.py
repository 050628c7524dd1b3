"""Records: `hotfuse.records.dataclass` against the standard library's, which it stands in for."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from hotfuse import records


class Plain:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)
    hidden: float = field(default=0.5, compare=False, repr=False)
    later: int = field(init=False, default=7)

    def double(self) -> int:
        return 2 * self.a


class Lone:
    only: tuple[int, ...]


class Empty: ...


class Derived(Plain):
    d: int = 4


class Checked:
    a: int
    b: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "b", self.a + 1)


class Own:
    """Has methods of its own, which stay."""

    a: int

    def __init__(self) -> None:
        object.__setattr__(self, "a", 3)

    def __repr__(self) -> str:
        return "mine"

    def __hash__(self) -> int:
        return 11


HOW: list[dict[str, Any]] = [{}, {"frozen": True}, {"frozen": True, "eq": False}]
CASES: list[tuple[type, tuple[Any, ...]]] = [
    (Plain, (1,)), (Plain, (1, "x", [2], 0.25)), (Lone, ((1, 2),)), (Empty, ()), (Derived, (1, "x", [3], 0.5, 9)),
    (Checked, (5,)), (Own, ()),
]  # fmt: skip


def both(kind: type, **how: Any) -> tuple[Any, Any]:
    """The same class made by each; of one that derives, its base, too."""

    def made(maker: Callable[..., Any]) -> Any:
        bases = tuple(made_base(maker, base) for base in kind.__bases__)
        return maker(**how)(type(kind.__name__, bases, body(kind)))

    def made_base(maker: Callable[..., Any], base: type) -> Any:
        return base if base is object else maker(**how)(type(base.__name__, base.__bases__, body(base)))

    return made(dataclasses.dataclass), made(records.dataclass)


def body(kind: type) -> dict[str, Any]:
    return {name: value for name, value in kind.__dict__.items() if name not in ("__dict__", "__weakref__")}


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize(("kind", "arguments"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_record_is_what_the_standard_library_makes(kind: type, arguments: tuple[Any, ...], how: dict[str, Any]) -> None:
    theirs, ours = both(kind, **how)
    (a, b), (x, y) = [theirs(*arguments), theirs(*arguments)], [ours(*arguments), ours(*arguments)]
    assert repr(x) == repr(a).replace("both.<locals>.", "")
    assert (x == y, x != y, x == 3) == (a == b, a != b, a == 3)
    assert dataclasses.asdict(x) == dataclasses.asdict(a)
    assert [f.name for f in dataclasses.fields(x)] == [f.name for f in dataclasses.fields(a)]
    assert ours.__match_args__ == theirs.__match_args__
    assert _hash(x) == _hash(a) if how.get("eq", True) else hash(x) == hash(x)
    for record in (a, x):
        if how.get("frozen"):
            with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
                record.a = 1
            with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
                del record.a
        else:
            record.a = 1
            assert record.a == 1


def _hash(record: Any) -> Any:
    try:
        return hash(record)
    except TypeError as error:
        return str(error)


def test_factories_make_a_new_value_for_each_and_defaults_are_those_of_the_class() -> None:
    _, plain = both(Plain)
    one, other = plain(1), plain(1)
    one.c.append(5)
    assert (other.c, one.later, plain.b) == ([], 7, "b")
    with pytest.raises(TypeError, match=r"Plain.__init__\(\) missing 1 required positional argument: 'a'"):
        plain()
    with pytest.raises(TypeError, match="unexpected keyword argument 'later'"):
        plain(1, later=3)


def test_records_are_replaced_by_their_fields() -> None:
    _, plain = both(Plain, frozen=True)
    assert dataclasses.replace(plain(1), a=4, c=[1]) == plain(4, "b", [1])


@records.dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: str = "b"


@records.dataclass(frozen=True, slots=True)
class Single:
    a: tuple[int, ...]


@pytest.mark.parametrize("record", [Slotted(1, "x"), Single((1, 2))])
def test_slots_are_kept_and_travel(record: Any) -> None:
    assert not hasattr(record, "__dict__")
    for other in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record), dataclasses.replace(record)):
        assert (other, type(other), hash(other)) == (record, type(record), hash(record))
    with pytest.raises(FrozenInstanceError):
        record.a = 2


def test_what_is_not_made_here_is_refused() -> None:
    with pytest.raises(TypeError, match="keywords only are not made here"):

        @records.dataclass(frozen=True)
        class Keywords:
            a: int = field(kw_only=True)


def test_a_class_takes_less_than_half_as_long_as_the_standard_librarys() -> None:
    def seconds(maker: Callable[..., Any]) -> float:
        begun = time.thread_time()
        for _ in range(30):
            maker(frozen=True)(type("Plain", (), body(Plain)))
        return time.thread_time() - begun

    ratios = sorted(seconds(records.dataclass) / seconds(dataclasses.dataclass) for _ in range(5))
    assert ratios[0] < 0.5
