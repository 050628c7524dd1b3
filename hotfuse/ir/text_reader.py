"""The parser of the text form of graphs and plans (see `text` for the form). Errors name the line and what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotfuse.errors import HotfuseError, ParseError
from hotfuse.ir.dim import Dim, Expr, substitute, symbol
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.facts import NO_FACTS, Facts
from hotfuse.ir.graph import CPU, NO_ATTRS, NO_ORIGIN, Attrs, Constant, Graph, Node, Origin, Value
from hotfuse.ir.group import Group
from hotfuse.ir.plan import Edit, Plan
from hotfuse.ir.types import ANY, DTYPES, DType, MapType, OptionalType, SequenceType, Shape, TensorType, Type

MAX_NESTING = 64
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>(?:hex)?"(?:[^"\\]|\\.)*")
    |(?P<name>%(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_./$+~?@-]+(?::[A-Za-z0-9_./$+~?@-]+)*))
    |(?P<number>-?(?:inf|nan)\b|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.?]))
    |(?P<word>[A-Za-z_?][\w.?]*)
    |(?P<mark>->|>=|==|//|[-{}()\[\]<>,:=@*+%]))""",
    re.VERBOSE,
)
_DEVICE = re.compile(r"[\w:.-]+")


class Reader:
    """A cursor over the text. State: the place, and the least values of symbols seen in `where` lines."""

    def __init__(self, text: str, constants: Mapping[str, Constant]) -> None:
        self.text = text
        self.constants = constants
        self.place = 0
        self.depth = 0
        self.minimums: dict[str, Dim] = {}

    # tokens

    def fail(self, expected: str) -> ParseError:
        line = self.text.count("\n", 0, self.place) + 1
        near = self.text[self.place : self.place + 30].strip().split("\n")[0]
        return ParseError(f"line {line}: expected {expected}, found {near!r}")

    def match(self) -> re.Match[str] | None:
        return _TOKEN.match(self.text, self.place)

    def peek(self) -> str:
        found = self.match()
        return found.group().strip() if found else ""

    def take(self, kind: str, expected: str) -> str:
        found = self.match()
        if not found or found.group(kind) is None:
            raise self.fail(expected)
        self.place = found.end()
        return found.group(kind)

    def expect(self, text: str) -> None:
        found = self.match()
        if not found or found.group().strip() != text:
            raise self.fail(repr(text))
        self.place = found.end()

    def accept(self, text: str) -> bool:
        found = self.match()
        if found and found.group().strip() == text:
            self.place = found.end()
            return True
        return False

    def end(self) -> None:
        if self.text[self.place :].strip():
            raise self.fail("the end")

    def string(self) -> str:
        return str(json.loads(self.take("string", "a quoted string")))

    def name(self) -> str:
        text = self.take("name", "a value name such as %x")[1:]
        return str(json.loads(text)) if text.startswith('"') else text

    def device(self) -> str:
        if not self.accept("@"):
            return CPU
        found = _DEVICE.match(self.text, self.place)
        if not found:
            raise self.fail("a device name")
        self.place = found.end()
        return found.group()

    # types and dims

    def dim(self, stop: str) -> Dim:
        """A dim up to a comma or the closing mark, outside of brackets."""
        depth, start = 0, self.place
        while self.place < len(self.text):
            char = self.text[self.place]
            if depth == 0 and (char == "," or char in stop):
                break
            depth += (char == "(") - (char == ")")
            self.place += 1
        try:
            return self._with_minimums(parse(self.text[start : self.place]))
        except HotfuseError as error:
            raise ParseError(f"line {self.text.count(chr(10), 0, start) + 1}: {error}") from error

    def _with_minimums(self, dim: Dim) -> Dim:
        return substitute(dim, self.minimums) if self.minimums and isinstance(dim, Expr) else dim

    def dims(self, open: str, close: str) -> Shape:
        self.expect(open)
        if self.accept(close):
            return ()
        found = [self.dim(close)]
        while self.accept(","):
            found.append(self.dim(close))
        self.expect(close)
        return tuple(found)

    def dtype(self) -> DType:
        word = self.take("word", "an element type")
        if word not in DTYPES:
            raise ParseError(f"{word!r} is no element type; they are {', '.join(DTYPES)}")
        return DTYPES[word]

    def read_type(self) -> Type:
        word = self.peek()
        if word == "any":
            self.expect("any")
            return ANY
        if word in ("seq", "opt", "map"):
            self.expect(word)
            self.expect("<")
            result: Type
            if word == "map":
                key = self.dtype()
                self.expect(",")
                result = MapType(key, self.read_type())
            else:
                result = SequenceType(self.read_type()) if word == "seq" else OptionalType(self.read_type())
            self.expect(">")
            return result
        dtype = self.dtype()
        mark = self.place
        self.expect("[")
        if self.accept("*") and self.accept("]"):
            return TensorType(dtype, None)
        self.place = mark
        return TensorType(dtype, self.dims("[", "]"))

    def value(self) -> Value:
        name = self.name()
        self.expect(":")
        type = self.read_type()
        contents = self.dims("<", ">") if self.peek() == "<" else None
        return Value(name, type, self.device(), contents)

    # attributes

    def attr(self) -> Any:
        token = self.peek()
        if token in ("none", "true", "false"):
            self.expect(token)
            return {"none": None, "true": True, "false": False}[token]
        if token == ":":
            self.expect(":")
            return self.dtype()
        if token == "<":
            self.expect("<")
            dim = self.dim(">")
            self.expect(">")
            return dim
        if token == "[":
            return self.attr_list()
        if token == "{":
            return self.attr_dict()
        if token == "array":
            self.expect("array")
            return self.array()
        if token == "type":
            self.expect("type")
            return self.read_type()
        if token == "complex":
            return self.complex_number()
        found = self.match()
        if found and found.group("string"):
            self.place = found.end()
            text = found.group("string")
            return bytes.fromhex(text[4:-1]) if text.startswith("hex") else json.loads(text)
        return self.number()

    def number(self) -> int | float:
        text = self.take("number", "a value")
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def complex_number(self) -> complex:
        self.expect("complex")
        self.expect("(")
        real = self.number()
        self.expect(",")
        imaginary = self.number()
        self.expect(")")
        return complex(real, imaginary)

    def attr_list(self) -> tuple[Any, ...]:
        self.expect("[")
        if self.accept("]"):
            return ()
        found = [self.attr()]
        while self.accept(","):
            found.append(self.attr())
        self.expect("]")
        return tuple(found)

    def attr_dict(self) -> dict[str, Any]:
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            if found:
                self.expect(",")
            key = self.string()
            self.expect("=")
            found[key] = self.attr()
        return found

    def array(self) -> np.ndarray[Any, Any]:
        type = self.read_type()
        if not isinstance(type, TensorType) or not type.is_static:
            raise self.fail("an array type with plain sizes")
        return self.data(type)

    def data(self, type: TensorType) -> np.ndarray[Any, Any]:
        shape = type.sizes
        items = self.attr()
        try:
            if isinstance(items, bytes):
                return np.frombuffer(items, dtype=type.dtype.numpy).reshape(shape)
            return np.array(items, dtype=type.dtype.numpy).reshape(shape)
        except ValueError as error:
            raise ParseError(f"the elements do not fill {type}: {error}") from error

    def attrs(self) -> Attrs:
        if not self.accept("{"):
            return NO_ATTRS
        found: dict[str, Any] = {}
        while not self.accept("}"):
            if found:
                self.expect(",")
            key = self.take("word", "an attribute name")
            self.expect("=")
            found[key] = self.attr()
        return Attrs(found)

    # graphs and plans

    def graph(self) -> Graph:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise ParseError(f"graphs are nested deeper than {MAX_NESTING}")
        self.expect("graph")
        name = self.string()
        self.expect("{")
        inputs: list[str] = []
        weights: list[str] = []
        values: dict[str, Value] = {}
        constants: dict[str, Constant] = {}
        nodes: list[Node] = []
        facts = NO_FACTS
        while not self.accept("return"):
            if self.accept("where"):
                self.where()
            elif self.accept("fact"):
                facts = self.fact(facts)
            elif self.peek() in ("input", "weight"):
                kind = self.take("word", "input")
                self.define(value := self.value(), values)
                (inputs if kind == "input" else weights).append(value.name)
            elif self.accept("const"):
                self.define(value := self.value(), values)
                constants[value.name] = self.constant(value)
            else:
                nodes.append(self.node(values))
        outputs = self.names("}")
        self.expect("}")
        self.depth -= 1
        return Graph(name, tuple(inputs), outputs, tuple(nodes), values, constants, tuple(weights), facts)

    def define(self, value: Value, values: dict[str, Value]) -> None:
        if value.name in values:
            raise self.fail(f"a name that is not yet taken ({value.name!r} is)")
        values[value.name] = value

    def where(self) -> None:
        name = self.take("word", "a symbol")
        self.expect(">=")
        least = self.number()
        self.minimums[name] = symbol(name, int(least))

    def fact(self, facts: Facts) -> Facts:
        a = self.dim("=")
        self.expect("==")
        return facts.assume(a, self.dim("\n"))

    def constant(self, value: Value) -> Constant:
        self.expect("=")
        if not isinstance(value.type, TensorType):
            raise self.fail("a tensor type for a constant")
        if not self.accept("@"):
            return Constant(self.data(value.type), value.type)
        if value.name not in self.constants:
            raise ParseError(f"constant {value.name!r} is not written out and was not supplied; pass it in `constants`")
        found = self.constants[value.name]
        if found.type != value.type:
            raise ParseError(f"constant {value.name!r} is {found.type}, the text says {value.type}")
        return found

    def names(self, stop: str) -> tuple[str, ...]:
        found: list[str] = []
        while self.peek() != stop:
            if found:
                self.expect(",")
            found.append(self.name())
        return tuple(found)

    def node(self, values: dict[str, Value]) -> Node:
        outputs = [self.value()]
        while self.accept(","):
            outputs.append(self.value())
        for value in outputs:
            self.define(value, values)
        self.expect("=")
        op = self.take("word", "an operator")
        self.expect("(")
        inputs: list[str | None] = []
        while not self.accept(")"):
            if inputs:
                self.expect(",")
            inputs.append(None if self.accept("none") else self.name())
        attrs = self.attrs()
        origin = NO_ORIGIN
        if self.accept("at"):
            origin = Origin(self.string(), self.string(), self.string())
        graphs = []
        while self.peek() == "graph":
            graphs.append(self.graph())
        return Node(op, tuple(inputs), tuple(v.name for v in outputs), attrs, tuple(graphs), origin)

    def plan(self) -> Plan:
        graph = self.graph()
        self.expect("plan")
        self.expect("{")
        groups: list[Group] = []
        edits: list[Edit] = []
        while not self.accept("}"):
            if self.accept("group"):
                id, device = self.string(), self.device()
                self.expect("[")
                nodes = self.names("]")
                self.expect("]")
                groups.append(Group(id, nodes, device, self.attr_list() if self.accept("from") else ()))
            else:
                self.expect("edit")
                kind = self.take("word", "fuse, split or reorder")
                before = self.attr_list()
                self.expect("->")
                edits.append(Edit(kind, before, self.attr_list(), self.string()))
        return Plan(graph, tuple(groups), tuple(edits))
