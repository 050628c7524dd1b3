"""Records as bytes and back: `write_record(Baked("8x128"))`, `read_record(Target, data)`.

    CRC | lengths | JSON: names of classes, scalars | numbers: cells, the root's number | block: bytes of code and of arrays

Every value that is no scalar is a cell: what it is (a container, or a class) and the numbers of its parts, which come before
it. Equal values are one cell, so that a model of equal layers is small, and what is written depends on values alone: a digest
of it is a digest of the record.

Reading trusts nothing. Classes are those that the hints of the record's own class lead to, and no others; each value is checked
against the hint of its field; nothing is run but constructors of these classes. What is too deep, or would be too large once
taken apart, is refused on either side. Nothing here is fit to keep secrets or to tell who wrote a record.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from hotfuse.errors import HotfuseError, ParseError
from hotfuse.ir.record_kinds import ANYWHERE, CONTAINERS, SCALARS, check_of, classes_in, form_of, said_of
from hotfuse.pace import Pace, hurry

MAX_DEPTH = 200  # of parts within parts; a build has 30
MAX_PARTS = 1 << 27  # of a record with no two parts shared; a build of BERT-base has 71,000

_HEAD = struct.Struct("<IIIQ")  # the CRC of all that follows; bytes of the JSON, of the cells, of the block
_CELL = 1 << 31  # while writing: the number of a cell, not of a scalar

Kind = TypeVar("Kind")
Reader = Callable[[list[Any]], Any]


def write_record(record: Any, pace: Pace = hurry) -> bytes:
    """A record as bytes, which are the same for every equal record. TypeError where a part has no record form."""
    writer = _Writer(pace)
    root = writer.number(record, 0)
    text = json.dumps([writer.classes, writer.scalars], separators=(",", ":")).encode()
    numbers = np.array([*writer.cells, root], np.uint32)
    is_cell = numbers & _CELL != 0
    numbers[is_cell] += np.uint32((len(writer.scalars) - _CELL) % (1 << 32))
    cells, block = numbers.tobytes(), b"".join(writer.block)
    rest = _HEAD.pack(0, len(text), len(cells), len(block))[4:] + text + cells + block
    return struct.pack("<I", zlib.crc32(rest)) + rest


def read_record(kind: type[Kind], data: bytes, pace: Pace = hurry) -> Kind:
    """The record of a class, or of a union of classes, that `write_record` made bytes of. Raises ParseError if it did not."""
    hint: Any = kind
    language, check = _language(hint), check_of(hint)  # raise TypeError where a class has no form: that is no damage
    try:
        found = _read(language, data, pace)
        if not check(found):
            raise ParseError(f"damaged record: {found!r:.80} is not {said_of(kind)}; delete it")
        return cast(Kind, found)
    except ParseError:
        raise
    except (HotfuseError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise ParseError(f"damaged record: {type(error).__name__}: {error!s:.200}; delete it") from None


# ---- writing


class _Writer:
    """State: what was written so far, and the numbers of what was met, by identity and by contents."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.scalars: list[Any] = []
        self.cells: list[int] = []  # of each: what it is, how many parts, their numbers
        self.block: list[bytes] = []
        self._filled = 0
        self._classes: dict[str, int] = {}
        self._known: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no identity is used twice
        self._weights: list[int] = []  # of cells

    @property
    def classes(self) -> list[str]:
        """Their names, in the order of their numbers."""
        return list(self._classes)

    def number(self, value: Any, depth: int) -> int:
        kind = type(value)
        if kind in SCALARS:
            exact = (kind, repr(value) if kind is float else value)  # 0.0 is not -0.0
            if exact not in self._known:
                self._known[exact] = len(self.scalars)
                self.scalars.append(value)
            return self._known[exact]
        found = self._by_id.get(id(value))
        if found is not None:
            return found
        if depth > MAX_DEPTH:
            raise TypeError(f"a record with more than {MAX_DEPTH} parts within parts has no record form")
        tag, parts = self._apart(kind, value)
        numbers = [self.number(part, depth + 1) for part in parts]
        cell = (tag, len(numbers), *numbers)
        if cell not in self._known:
            weight = 1 + sum([self._weights[part ^ _CELL] if part & _CELL else 1 for part in numbers])
            if weight > MAX_PARTS:
                raise TypeError(f"a record of more than {MAX_PARTS} parts has no record form")
            self._known[cell] = _CELL | len(self._weights)
            self._weights.append(weight)
            self.cells += cell
            self._pace()
        self._by_id[id(value)] = self._known[cell]
        self._kept.append(value)
        return self._known[cell]

    def _apart(self, kind: type, value: Any) -> tuple[int, Any]:
        if kind is bytes:
            if (bytes, value) not in self._known:
                self._known[bytes, value] = self._filled
                self.block.append(value)
                self._filled += len(value)
            return CONTAINERS.index(bytes), (self._known[bytes, value], len(value))
        if kind is tuple or kind is list:
            return CONTAINERS.index(kind), value
        if kind is dict:
            return CONTAINERS.index(dict), [part for item in value.items() for part in item]
        if kind is set or kind is frozenset:
            return CONTAINERS.index(kind), sorted(value, key=repr)
        base = next((b for b in (np.ndarray, np.generic) if issubclass(kind, b)), kind)
        form = form_of(base)
        return len(CONTAINERS) + self._classes.setdefault(base.__name__, len(self._classes)), form.parts(value)


# ---- reading


def _read(language: Mapping[str, Reader], data: bytes, pace: Pace) -> Any:
    crc, of_text, of_cells, of_block = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + of_text + of_cells + of_block or zlib.crc32(memoryview(data)[4:]) != crc:
        raise ParseError("damaged record: its length or checksum is wrong; delete it")
    after_text = _HEAD.size + of_text
    classes, scalars = json.loads(data[_HEAD.size : after_text])
    if not set(map(type, scalars)) <= set(SCALARS):
        raise ParseError("damaged record: a scalar that is none; delete it")
    block = memoryview(data)[after_text + of_cells :]
    readers: list[Reader] = [*_CONTAINER_READERS, functools.partial(_read_bytes, block), *(language[n] for n in classes)]
    numbers = np.frombuffer(data, np.uint32, of_cells // 4, after_text).tolist()
    root = numbers.pop()
    return _read_cells(readers, scalars, numbers, pace)[root]


def _read_cells(readers: list[Reader], made: list[Any], numbers: list[int], pace: Pace) -> list[Any]:
    """The scalars `made`, and what the cells are. A part that is not there yet is an IndexError."""
    weights, depths = [1] * len(made), [0] * len(made)
    end = 0
    while end < len(numbers):
        pace()
        tag, count = numbers[end : end + 2]
        parts = numbers[end + 2 : end + 2 + count]
        end += 2 + count
        weights.append(1 + sum([weights[part] for part in parts]))
        depths.append(1 + max([depths[part] for part in parts], default=0))
        if weights[-1] > MAX_PARTS or depths[-1] > MAX_DEPTH or end > len(numbers):
            raise ParseError("damaged record: too many parts, too deep, or cut off; delete it")
        made.append(readers[tag]([made[part] for part in parts]))
    return made


def _read_bytes(block: memoryview, parts: list[Any]) -> bytes:
    start, length = parts
    if type(start) is not int or type(length) is not int or not 0 <= start <= start + length <= len(block):
        raise ParseError("damaged record: bytes outside of it; delete it")
    return bytes(block[start : start + length])


def _read_dict(parts: list[Any]) -> dict[Any, Any]:
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    if 2 * len(found) != len(parts):
        raise ParseError("damaged record: a key twice; delete it")
    return found


_CONTAINER_READERS: tuple[Reader, ...] = (tuple, list, _read_dict, set, frozenset)


@functools.cache
def _language(kind: Any) -> dict[str, Reader]:
    """A reader for each class that may occur in a record, by name."""
    waiting, found = [kind, *ANYWHERE], dict[str, Any]()
    while waiting:
        for part in classes_in(waiting.pop()):
            if found.get(part.__name__, part) is not part:
                raise TypeError(f"two classes {part.__name__} in records of {said_of(kind)}; rename one")
            if part.__name__ not in found:
                found[part.__name__] = part
                waiting.extend(form_of(part).hints)
    return {name: _reader(part) for name, part in found.items()}


def _reader(kind: type) -> Reader:
    form = form_of(kind)
    checks = [check_of(hint) for hint in form.hints]
    make, count = form.make, len(checks)

    def read(parts: list[Any]) -> Any:
        if len(parts) != count:
            raise ParseError(f"damaged record: a {kind.__name__} has {count} parts, not {len(parts)}; delete it")
        for check, part in zip(checks, parts, strict=True):
            if not check(part):
                said = f"{part!r:.80} is not {said_of(form.hints[checks.index(check)])}"
                raise ParseError(f"damaged record: in a {kind.__name__}: {said}; delete it")
        return make(*parts)

    return read
