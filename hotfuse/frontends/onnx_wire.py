"""ONNX files on the wire: checked and made small before the protobuf library sees them.

    message = (tag, payload)*     tag = varint(field number * 8 + wire type)
    wire types: 0 varint, 1 eight bytes, 2 varint length and that many bytes, 5 four bytes (3 and 4, groups, ONNX never has)

`strip` walks a serialized ModelProto once. It refuses too many nodes, too many fields (an empty message of two bytes costs the
library a hundred), and graphs nested too deeply. It leaves out what the import never reads, and replaces large tensor data by a
note of where it lies, in the form of external data whose location is empty: the model's own bytes. What remains is small,
whatever the weights take, and the weights are never read here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from hotfuse.errors import InvalidModel, LimitExceeded
from hotfuse.records import dataclass

MAPPED_BYTES: Final = 4096  # tensor data from this size on stays in the file; below, a mapping costs more than a copy
FIELDS_PER_NODE: Final = 16  # inputs, outputs, names and attributes; exporters write about 13 a node
GRAPH_FIELDS_PER_NODE: Final = 4  # of a graph itself: nodes, constants, inputs, outputs, value infos
MANY: Final = 1 << 21  # strings of one tensor or attribute: vocabularies have up to a million
SOME: Final = 1 << 16  # fields of anything else: inputs of a node, functions of a model
MAX_LEVELS: Final = 100  # messages within messages: the protobuf library's own limit


def _tags(*numbers: int) -> frozenset[int]:
    return frozenset(number << 3 | 2 for number in numbers)


@dataclass(frozen=True)
class Message:
    """What the walk knows of one kind of message: fields to enter, fields to leave out, the field of large data (by tag)."""

    enter: Mapping[int, str] = field(default_factory=dict)
    drop: frozenset[int] = frozenset()
    data: int = -1
    nodes: int = -1
    most: int = SOME  # fields with a length that one message may have; 0: as many as nodes allow

    @staticmethod
    def of(enter: Mapping[int, str], drop: frozenset[int] = frozenset(), nodes: int = -1, most: int = SOME) -> Message:
        entered = {number << 3 | 2: kind for number, kind in enter.items()}
        return Message(entered, drop, nodes=nodes << 3 | 2 if nodes > 0 else -1, most=most)


MESSAGES: Final[Mapping[str, Message]] = {
    "model": Message.of({7: "graph", 25: "function"}, _tags(20)),  # training_info
    "graph": Message.of(
        {1: "node", 5: "tensor", 11: "info", 12: "info", 15: "sparse"},
        _tags(10, 13, 14, 16),  # doc_string, value_info, quantization_annotation, metadata_props
        nodes=1,
        most=0,
    ),
    "function": Message.of({7: "node", 11: "attribute"}, _tags(8, 12, 14), nodes=7, most=0),
    "node": Message.of({5: "attribute"}),
    "attribute": Message.of(
        {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 14: "type", 15: "type", 22: "sparse", 23: "sparse"}, most=MANY
    ),
    "sparse": Message.of({1: "tensor", 2: "tensor"}),
    "tensor": Message(data=9 << 3 | 2, most=MANY),
    "info": Message.of({2: "type"}),
    "type": Message.of({1: "tensor_type", 4: "wrapper", 5: "map", 8: "tensor_type", 9: "wrapper"}),
    "wrapper": Message.of({1: "type"}),
    "map": Message.of({2: "type"}),
    "tensor_type": Message.of({2: "shape"}),
    "shape": Message.of({1: "size"}),
    "size": Message(),
}
NUMBERS: Final = {0: rb"[\x80-\xff]{0,9}[\x00-\x7f]", 1: rb".{8}", 5: rb".{4}"}  # by wire type
Chunks = list[bytes | memoryview]


@functools.cache
def _run_of(tag: int) -> re.Pattern[bytes]:
    """One field of numbers, as often as it comes (possessive: nothing is kept to go back to)."""
    return re.compile(b"(?:" + re.escape(bytes([tag])) + NUMBERS[tag & 7] + b")*+", re.DOTALL)


def strip(data: memoryview, max_nodes: int, max_nesting: int) -> bytes:
    """The model without its large tensors' data, and without what the import never reads."""
    walk = _Walk(data, max_nodes, max_nesting)
    try:
        chunks = walk.message("model", 0, len(data), 0, 0)
    except IndexError:  # a number that runs past the end of the file
        raise _cut(len(data)) from None
    return bytes(data) if chunks is None else b"".join(chunks)


def _cut(place: int) -> InvalidModel:
    return InvalidModel(f"the ONNX data is cut off or damaged near byte {place:,}; get the file again")


class _Walk:
    """One pass over a model's bytes. State: how many nodes and fields were met so far."""

    def __init__(self, data: memoryview, max_nodes: int, max_nesting: int) -> None:
        self.data = data
        self.max_nodes = max_nodes
        self.max_nesting = max_nesting
        self.nodes = 0
        self.fields = 0

    def message(self, kind: str, start: int, end: int, depth: int, level: int) -> Chunks | None:
        """The message rewritten, or None where it stays as it is. `depth` counts graphs around it, `level` messages."""
        if level > MAX_LEVELS:
            raise LimitExceeded(f"messages are nested deeper than {MAX_LEVELS}, which no ONNX reader accepts")
        if kind == "graph":
            depth += 1
            if depth > self.max_nesting + 1:
                raise LimitExceeded(f"graphs are nested deeper than {self.max_nesting}; raise max_nesting if that is right")
        known = MESSAGES[kind]
        most = known.most or GRAPH_FIELDS_PER_NODE * self.max_nodes
        if known.nodes >= 0:
            self._count_nodes(start, end, known.nodes, most)
        data, enter, drop, large = self.data, known.enter, known.drop, known.data
        chunks: Chunks = []
        copied = place = start  # everything before `copied` is in `chunks`
        fields = 0
        while place < end:
            head = place
            tag = data[place]
            place += 1
            if tag >= 0x80:
                tag, place = self._varint(head)
            if tag & 7 != 2:
                place = self._skip(tag, place, end)
                continue
            fields += 1
            if fields > most:
                raise self._crowded(most, kind)
            size = data[place]
            place += 1
            if size >= 0x80:
                size, place = self._varint(place - 1)
            stop = place + size
            if stop > end:
                raise _cut(head)
            new: Chunks | None = None
            if tag in enter:
                inner = self.message(enter[tag], place, stop, depth, level + 1)
                if inner is not None:
                    new = [data[head : head + _varint_bytes(data, head)], _encode(sum(map(len, inner))), *inner]
            elif tag == large and size >= MAPPED_BYTES:
                new = [own_bytes_note(place, size)]
            elif tag in drop:
                new = []
            if new is not None:
                chunks += (data[copied:head], *new)
                copied = stop
            place = stop
        if place > end:
            raise _cut(end)
        self._count_fields(fields)
        if not chunks and copied == start:
            return None
        chunks.append(data[copied:end])
        return chunks

    def _count_nodes(self, start: int, end: int, wanted: int, most: int) -> None:
        """Add this graph's own nodes, before anything is entered or kept for them."""
        data, place, nodes, fields = self.data, start, self.nodes, 0
        while place < end:
            tag = data[place]
            place += 1
            if tag >= 0x80:
                tag, place = self._varint(place - 1)
            if tag & 7 != 2:
                place = self._skip(tag, place, end)
                continue
            size = data[place]
            place += 1
            if size >= 0x80:
                size, place = self._varint(place - 1)
            place += size
            fields += 1
            if fields > most:
                raise self._crowded(most, "graph")
            if tag == wanted:
                nodes += 1
                if nodes > self.max_nodes:
                    raise LimitExceeded(f"the model has more than {self.max_nodes:,} nodes; raise max_nodes if it is right")
        self.nodes = nodes

    def _count_fields(self, fields: int) -> None:
        self.fields += fields
        if self.fields > FIELDS_PER_NODE * self.max_nodes:
            raise self._crowded(FIELDS_PER_NODE * self.max_nodes, "model")

    def _crowded(self, most: int, kind: str) -> LimitExceeded:
        return LimitExceeded(f"a {kind} in it has more than {most:,} fields; raise max_nodes if the model is right")

    def _skip(self, tag: int, place: int, end: int) -> int:
        """The place behind a number, and behind those of the same field that follow (lists of numbers come one by one)."""
        wire = tag & 7
        if tag >> 3 == 0 or wire not in NUMBERS:
            raise InvalidModel(f"byte {place - 1:,} is not part of an ONNX model; the file is damaged, or of another format")
        place = self._varint(place)[1] if wire == 0 else place + (8 if wire == 1 else 4)
        if place < end and tag < 0x80 and self.data[place] == tag:
            run = _run_of(tag).match(self.data, place, end)
            place = place if run is None else run.end()
        return place

    def _varint(self, place: int) -> tuple[int, int]:
        data, value, shift = self.data, 0, 0
        while shift < 70:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place
            shift += 7
        raise InvalidModel(f"the number at byte {place - 10:,} is longer than ONNX allows; the file is damaged")


def _varint_bytes(data: memoryview, place: int) -> int:
    size = 1
    while data[place + size - 1] >= 0x80:
        size += 1
    return size


def _encode(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def own_bytes_note(offset: int, length: int) -> bytes:
    """TensorProto fields that say: the data is external, `length` bytes at `offset` of the model's own bytes."""
    note = bytearray()
    for key, value in ((b"location", b""), (b"offset", b"%d" % offset), (b"length", b"%d" % length)):
        entry = b"\x0a" + _encode(len(key)) + key + b"\x12" + _encode(len(value)) + value
        note += b"\x6a" + _encode(len(entry)) + entry  # external_data = 13
    return bytes(note + b"\x70\x01")  # data_location = EXTERNAL
