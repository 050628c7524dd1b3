"""Reads the text form of tile programs (see `tile_text` for the form). Errors name the line and what was expected.

The text may come from anywhere: its size, its lines and its nesting are bounded, and nothing in it is run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

from hotfuse.codegen.tile import (
    Access,
    Axis,
    Block,
    Bound,
    Buffer,
    Carry,
    Cast,
    Dot,
    Fill,
    For,
    Index,
    Instruction,
    Iota,
    Load,
    Map,
    Prefetch,
    Reduce,
    Store,
    TileProgram,
)
from hotfuse.codegen.tile_text import NAME
from hotfuse.errors import HotfuseError, ParseError
from hotfuse.ir.dim import Dim, is_simple
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.types import DTYPES, DType

MAX_CHARACTERS = 1 << 20
MAX_LINE = 4096
MAX_NESTING = 32
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])")
_INTEGER = re.compile(r"-?\d+(?![\w.])")
_BLOCK = re.compile(r"(\d{1,9})x(\d{1,9})(?!\w)")

T = TypeVar("T")


def parse_program(text: str) -> TileProgram:
    """The program that `text` is. Reading does not check it: see `tile_check`."""
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"a tile program of {len(text)} characters is refused; at most {MAX_CHARACTERS} are read")
    return _Reader(text).program()


class _Line:
    """A cursor over one line, without its comment."""

    def __init__(self, number: int, text: str, minimums: dict[str, int]) -> None:
        self.number = number
        self.text = text
        self.place = 0
        self.minimums = minimums

    def fail(self, expected: str) -> ParseError:
        found = self.text[self.place :].strip()[:40]
        return ParseError(f"line {self.number}: expected {expected}, found {repr(found) if found else 'the end of the line'}")

    def skip(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        self.skip()
        found = pattern.match(self.text, self.place)
        if not found:
            raise self.fail(expected)
        self.place = found.end()
        return found

    def accept(self, mark: str) -> bool:
        """Whether `mark` comes next; a word must end there."""
        self.skip()
        end = self.place + len(mark)
        if not self.text.startswith(mark, self.place) or (mark[-1].isalpha() and re.match(r"[\w.?]", self.text[end : end + 1])):
            return False
        self.place = end
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise self.fail(repr(mark))

    def at_end(self) -> bool:
        self.skip()
        return self.place == len(self.text)

    def end(self) -> None:
        if not self.at_end():
            raise self.fail("the end of the line")

    def name(self, what: str = "a name") -> str:
        return self.match(NAME, what).group()

    def integer(self) -> int:
        return int(self.match(_INTEGER, "a whole number").group())

    def number_value(self) -> float:
        text = self.match(_NUMBER, "a number").group()
        if text.endswith("nan"):
            return math.nan
        return int(text) if _INTEGER.fullmatch(text) else float(text)

    def string(self) -> str:
        self.skip()
        try:
            value, self.place = json.JSONDecoder().raw_decode(self.text, self.place)
        except (ValueError, RecursionError) as error:
            raise self.fail("a quoted string") from error
        if not isinstance(value, str):
            raise self.fail("a quoted string")
        return value

    def dtype(self) -> DType:
        word = self.match(NAME, "an element type").group()
        if word not in DTYPES:
            raise ParseError(f"line {self.number}: {word!r} is no element type; they are {', '.join(DTYPES)}")
        return DTYPES[word]

    def block(self) -> Block:
        found = self.match(_BLOCK, "a block shape such as 8x16")
        return int(found[1]), int(found[2])

    def dim(self, stop: str) -> Dim:
        """A dim up to one of the characters of `stop`, outside of brackets."""
        depth, start = 0, self.place
        while self.place < len(self.text) and (depth or self.text[self.place] not in stop):
            depth += (self.text[self.place] == "(") - (self.text[self.place] == ")")
            self.place += 1
        text = self.text[start : self.place].strip()
        if not text:
            raise self.fail("a size")
        try:
            found = parse(text, self.minimums)
        except (HotfuseError, RecursionError) as error:
            reason = str(error) if isinstance(error, HotfuseError) else "it is nested too deep"
            raise ParseError(f"line {self.number}: {reason}") from error
        if not is_simple(found):
            raise ParseError(f"line {self.number}: the size {text[:40]!r} is too large to be of use")
        return found

    def several(self, read: Callable[[], T], close: str) -> tuple[T, ...]:
        """One or more, with commas between, up to the closing mark."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        self.expect(close)
        return tuple(found)

    # parts of instructions

    def access(self) -> Access:
        buffer = self.name("a buffer")
        self.expect("[")
        offset = self.dim(";]")
        self.expect(";")
        rows = self.dim(",]")
        self.expect(",")
        cols = self.dim("]")
        self.expect("]")
        shape = self.block()
        if not self.accept("if"):
            return Access(buffer, offset, rows, cols, shape)
        self.expect("(")
        return Access(buffer, offset, rows, cols, shape, self.several(self.bound, ")"))

    def bound(self) -> Bound:
        start, rows, cols = self.place_map()
        self.expect("<")
        return Bound(start, rows, cols, self.dim(",)"))

    def place_map(self) -> tuple[Dim, int, int]:
        self.expect("[")
        start = self.dim(";]")
        self.expect(";")
        rows = self.integer()
        self.expect(",")
        cols = self.integer()
        self.expect("]")
        return start, rows, cols

    def carry(self) -> Carry:
        name = self.name()
        self.expect("=")
        init = self.name()
        self.expect("->")
        return Carry(name, init, self.name())


class _Reader:
    """A cursor over the lines. State: the next line, and the least values of symbols from `where` lines."""

    def __init__(self, text: str) -> None:
        self.minimums: dict[str, int] = {}
        self.lines: list[_Line] = []
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_LINE:
                raise ParseError(f"line {number}: {len(line)} characters; a line has at most {MAX_LINE}")
            code = _without_comment(line).strip()
            if code:
                self.lines.append(_Line(number, code, self.minimums))
        self.next = 0
        self.last = text.count("\n") + 1

    def line(self, expected: str) -> _Line:
        if self.next == len(self.lines):
            raise ParseError(f"line {self.last}: expected {expected}, found the end of the text")
        self.next += 1
        return self.lines[self.next - 1]

    def program(self) -> TileProgram:
        line = self.line("'program'")
        line.expect("program")
        name = line.name("the program's name")
        line.expect("{")
        line.end()
        sizes: list[str] = []
        buffers: list[Buffer] = []
        grid: list[Axis] = []
        notes: list[str] = []
        while self._declaration(sizes, buffers, grid, notes):
            pass
        body = self.body(0)
        if self.next < len(self.lines):
            raise self.lines[self.next].fail("the end of the text")
        return TileProgram(name, tuple(sizes), tuple(buffers), tuple(grid), body, tuple(notes))

    def _declaration(self, sizes: list[str], buffers: list[Buffer], grid: list[Axis], notes: list[str]) -> bool:
        """Read one line of the head; False, and nothing is read, at the first line of the body."""
        line = self.line("'}'")
        word = NAME.match(line.text)
        kind = word.group() if word else ""
        place = line.place = len(kind)
        if kind not in ("size", "where", "input", "output", "scratch", "grid", "shared", "note") or line.accept("="):
            line.place = 0
            self.next -= 1
            return False
        line.place = place
        if kind == "size":
            while not line.at_end():
                sizes.append(line.name("the name of a size"))
        elif kind == "where":
            name = line.name("the name of a size")
            line.expect(">=")
            self.minimums[name] = line.integer()
        elif kind in ("grid", "shared"):
            grid.append(Axis(line.name("a grid variable"), line.dim(""), kind == "shared"))
        elif kind == "note":
            notes.append(line.string())
        else:
            name, dtype = line.name("a buffer"), line.dtype()
            line.expect("[")
            buffers.append(Buffer(name, dtype, line.dim("]"), kind))
            line.expect("]")
        line.end()
        return True

    def body(self, depth: int) -> tuple[Instruction, ...]:
        found: list[Instruction] = []
        while True:
            line = self.line("an instruction or '}'")
            if line.accept("}"):
                line.end()
                return tuple(found)
            found.append(self.instruction(line, depth))

    def instruction(self, line: _Line, depth: int) -> Instruction:
        start = line.place
        word = line.name("an instruction or '}'")
        if line.accept("="):
            made = _made(line, word)
        elif word == "store":
            value = line.name("a block")
            line.expect("to")
            made = Store(line.access(), value, line.accept("stream"))
        elif word == "prefetch":
            at = line.access()
            line.expect("level")
            made = Prefetch(at, line.integer())
        elif word == "for":
            return self.loop(line, depth + 1)
        else:
            line.place = start
            raise line.fail("an instruction")
        line.end()
        return made

    def loop(self, line: _Line, depth: int) -> For:
        if depth > MAX_NESTING:
            raise ParseError(f"line {line.number}: loops are nested deeper than {MAX_NESTING}")
        var = line.name("a loop variable")
        line.expect("in")
        line.expect("[")
        start = line.dim(":]")
        line.expect(":")
        stop = line.dim(":]")
        line.expect(":")
        step = line.integer()
        line.expect("]")
        carry: tuple[Carry, ...] = ()
        if line.accept("carry"):
            line.expect("(")
            carry = line.several(line.carry, ")")
        unroll = line.integer() if line.accept("unroll") else 1
        free = line.accept("free")
        line.expect("{")
        line.end()
        return For(var, start, stop, step, self.body(depth), carry, unroll, free)


def _without_comment(line: str) -> str:
    """Up to the first `#` that is in no string; only notes have strings."""
    place, quoted = 0, False
    while place < len(line):
        if line[place] == "#" and not quoted:
            return line[:place]
        if line[place] == '"':
            quoted = not quoted
        place += 2 if quoted and line[place] == "\\" else 1
    return line


def _made(line: _Line, name: str) -> Instruction:
    """The instruction that makes `name`; the cursor is behind the `=`."""
    word = line.name("an instruction such as load or map")
    if word == "load":
        at = line.access()
        return Load(name, at, line.number_value() if line.accept("fill") else 0.0)
    if word == "index":
        at = line.access()
        line.expect("limit")
        return Index(name, at, line.dim(""))
    if word == "fill":
        return Fill(name, line.dtype(), line.block(), line.number_value())
    if word == "iota":
        return Iota(name, line.dtype(), line.block(), *line.place_map())
    if word == "map":
        op, args = line.name("an operation"), []
        while not line.at_end():
            args.append(line.name("a block"))
        return Map(name, op, tuple(args))
    if word == "cast":
        return Cast(name, line.dtype(), line.name("a block"))
    if word == "dot":
        return Dot(name, line.name("a block"), line.name("a block"), line.name("a block"))
    if word == "reduce":
        return Reduce(name, line.name("sum, prod, max, min, any or all"), line.integer(), line.name("a block"))
    line.place -= len(word)
    raise line.fail("one of load, index, fill, iota, map, cast, dot and reduce")
