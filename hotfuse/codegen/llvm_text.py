"""Writes LLVM IR as text: typed operands, one method per instruction. Knows nothing of tiles.

bf16 is kept as its 16 bits: LLVM would call a library to round to it where the processor has no instruction.

State: a `Writer` holds the lines of one function, the number of the next register, and what the module must declare.
"""

from __future__ import annotations

import math
import struct

from hotfuse.records import dataclass

_ELEMENTS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "bool": "i1"}
_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "bool": 1}


@dataclass(frozen=True, slots=True)
class LType:
    """An LLVM type: an element type by its IR name (`f32`, `i64`, `u8`, `bool`) or `ptr`, and lanes (0 is a scalar)."""

    element: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.text}>" if self.lanes else self.text

    @property
    def text(self) -> str:
        if self.element == "ptr":
            return "ptr"
        return _ELEMENTS.get(self.element) or f"i{self.bits}"

    @property
    def bits(self) -> int:
        return _BITS.get(self.element) or int(self.element[1:])

    @property
    def is_float(self) -> bool:
        return self.element in ("f64", "f32", "f16", "bf16")

    @property
    def is_signed(self) -> bool:
        return self.element[0] == "i"

    @property
    def suffix(self) -> str:
        """How intrinsics are named after it: v16f32, i64."""
        name = self.element if self.is_float and self.element != "bf16" else f"i{self.bits}"
        return f"v{self.lanes}{name}" if self.lanes else name

    def of(self, element: str) -> LType:
        """The same lanes with another element type."""
        return LType(element, self.lanes)


PTR = LType("ptr")
I64 = LType("i64")
I1 = LType("bool")


@dataclass(frozen=True, slots=True)
class Operand:
    """A register or a literal, with its type."""

    type: LType
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def literal(type: LType, value: float | int | bool) -> Operand:
    """A constant; vectors get it in every lane."""
    if type.is_float:
        text = _float_text(type.element, float(value))
    elif type.element == "bool":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return Operand(type, f"splat ({type.text} {text})" if type.lanes else text)


def _float_text(element: str, value: float) -> str:
    if element == "bf16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return str(0x7FC0 if math.isnan(value) else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    if element == "f16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if element == "f32":
        value = rounded_f32(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def rounded_f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


class Writer:
    """The instructions of one function, in order; see the module docstring."""

    def __init__(self, isa: str = "other") -> None:
        self.isa = isa  # as in `Spec`: code may use what it has, and what every processor has
        self.lines: list[str] = []
        self.declared: dict[str, None] = {}
        self._next = 0
        self._reserved: dict[str, int] = {}
        self.block = "entry"  # the label we are in, for phi nodes

    # plumbing

    def register(self) -> str:
        self._next += 1
        return f"%r{self._next}"

    def label(self, hint: str) -> str:
        self._next += 1
        return f"{hint}{self._next}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def place(self, label: str) -> None:
        """Begin the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: Operand, yes: str, no: str) -> None:
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def make(self, type: LType, text: str) -> Operand:
        name = self.register()
        self.line(f"{name} = {text}")
        return Operand(type, name)

    def reserve(self, type: LType) -> Operand:
        """A register whose instruction is not known yet; `fill_in` writes it at this place."""
        name = self.register()
        self._reserved[name] = len(self.lines)
        self.lines.append("")
        return Operand(type, name)

    def fill_in(self, reserved: Operand, text: str) -> None:
        self.lines[self._reserved.pop(reserved.text)] = f"  {reserved.text} = {text}"

    def call(self, name: str, result: LType, *args: Operand, flags: str = "") -> Operand:
        """Call an intrinsic; the flags are what LLVM may take for granted or give up."""
        self.declared.setdefault(f"declare {result} @{name}({', '.join(str(a.type) for a in args)})")
        return self.make(result, f"call {flags}{' ' if flags else ''}{result} @{name}({', '.join(map(str, args))})")

    def const(self, like: Operand | LType, value: float | int | bool) -> Operand:
        return literal(like if isinstance(like, LType) else like.type, value)

    def _two(self, op: str, x: Operand, y: Operand) -> Operand:
        return self.make(x.type, f"{op} {x}, {y.text}")

    # arithmetic: floats where the operands are, else integers

    def add(self, x: Operand, y: Operand) -> Operand:
        return self._two("fadd" if x.type.is_float else "add", x, y)

    def sub(self, x: Operand, y: Operand) -> Operand:
        return self._two("fsub" if x.type.is_float else "sub", x, y)

    def mul(self, x: Operand, y: Operand) -> Operand:
        return self._two("fmul" if x.type.is_float else "mul", x, y)

    def div(self, x: Operand, y: Operand) -> Operand:
        """Integers toward zero; a divisor of 0 is the caller's concern."""
        return self._two("fdiv" if x.type.is_float else "sdiv" if x.type.is_signed else "udiv", x, y)

    def rem(self, x: Operand, y: Operand) -> Operand:
        """Of integers, with the sign of x."""
        return self._two("srem" if x.type.is_signed else "urem", x, y)

    def neg(self, x: Operand) -> Operand:
        return self.make(x.type, f"fneg {x}") if x.type.is_float else self.sub(self.const(x, 0), x)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Operand:
        """x * y + z with one rounding."""
        return self.call(f"llvm.fma.{x.type.suffix}", x.type, x, y, z)

    def unary(self, name: str, x: Operand) -> Operand:
        """An intrinsic that every target has as instructions: sqrt, fabs, floor, ceil, trunc, roundeven."""
        return self.call(f"llvm.{name}.{x.type.suffix}", x.type, x)

    def binary(self, name: str, x: Operand, y: Operand) -> Operand:
        """maximum and minimum (NaN wins), maxnum and minnum (NaN loses), copysign, smax, smin, umax, umin."""
        return self.call(f"llvm.{name}.{x.type.suffix}", x.type, x, y)

    # bits

    def and_(self, x: Operand, y: Operand) -> Operand:
        return self._two("and", x, y)

    def or_(self, x: Operand, y: Operand) -> Operand:
        return self._two("or", x, y)

    def xor(self, x: Operand, y: Operand) -> Operand:
        return self._two("xor", x, y)

    def not_(self, x: Operand) -> Operand:
        return self.xor(x, self.const(x, True) if x.type.element == "bool" else self.const(x, -1))

    def shl(self, x: Operand, y: Operand) -> Operand:
        return self._two("shl", x, y)

    def shr(self, x: Operand, y: Operand) -> Operand:
        """Keeps the sign of signed integers."""
        return self._two("ashr" if x.type.is_signed else "lshr", x, y)

    def bitcast(self, x: Operand, element: str) -> Operand:
        type = x.type.of(element)
        return self.make(type, f"bitcast {x} to {type}") if str(type) != str(x.type) else Operand(type, x.text)

    # comparison and choice

    def compare(self, how: str, x: Operand, y: Operand) -> Operand:
        """`how` is eq, ne, lt, le, gt or ge; floats compare as Python does (NaN is unequal to all)."""
        if x.type.is_float:
            word = f"fcmp {'une' if how == 'ne' else 'o' + how}"
        else:
            signed = "" if how in ("eq", "ne") else "s" if x.type.is_signed else "u"
            word = f"icmp {signed}{how}"
        return self.make(x.type.of("bool"), f"{word} {x}, {y.text}")

    def select(self, condition: Operand, x: Operand, y: Operand) -> Operand:
        return self.make(x.type, f"select {condition}, {x}, {y}")

    # lanes

    def splat(self, x: Operand, lanes: int) -> Operand:
        if not lanes or x.type.lanes:
            return x
        type = LType(x.type.element, lanes)
        if x.text.startswith("%"):
            one = self.make(type, f"insertelement {type} poison, {x}, i64 0")
            return self.make(type, f"shufflevector {one}, {type} poison, <{lanes} x i32> zeroinitializer")
        return Operand(type, f"splat ({x})")

    def lane(self, x: Operand, place: int) -> Operand:
        return self.make(LType(x.type.element), f"extractelement {x}, i64 {place}")

    def numbers(self, element: str, lanes: int, start: int = 0, step: int = 1) -> Operand:
        """The constant vector start, start + step, ..."""
        type = LType(element, lanes)
        return Operand(type, "<" + ", ".join(f"{type.text} {start + step * i}" for i in range(lanes)) + ">")

    # conversion

    def convert(self, x: Operand, element: str) -> Operand:
        """To another element type as numpy's astype does; bool from numbers is `!= 0`."""
        source, type = x.type, x.type.of(element)
        if source.element == element:
            return x
        if source.element == "bf16":
            bits = self.shl(self.convert(Operand(source.of("u16"), x.text), "u32"), literal(source.of("u32"), 16))
            return self.convert(self.bitcast(bits, "f32"), element)
        if source.element == "f64" and element == "f16":
            return self.convert(self._odd_f32(x), element)
        if element == "bf16":
            return self._rounded_bf16(self.convert(x, "f32"))
        if element == "bool":
            return self.compare("ne", x, self.const(x, 0))
        if source.is_float and type.is_float:
            return self.make(type, f"{'fpext' if type.bits > source.bits else 'fptrunc'} {x} to {type}")
        if source.is_float:
            return self.make(type, f"{'fptosi' if type.is_signed else 'fptoui'} {x} to {type}")
        if type.is_float:
            return self.make(type, f"{'sitofp' if source.is_signed else 'uitofp'} {x} to {type}")
        if source.bits == type.bits:
            return Operand(type, x.text)
        word = "trunc" if type.bits < source.bits else "sext" if source.is_signed else "zext"
        return self.make(type, f"{word} {x} to {type}")

    def _odd_f32(self, x: Operand) -> Operand:
        """An f64 as the f32 next to it toward zero, its last bit set where they differ: what is rounded from that to fewer bits
        is rounded as if from x itself, for which there is no one instruction."""
        near = self.make(x.type.of("f32"), f"fptrunc {x} to {x.type.of('f32')}")
        back, bits = self.convert(near, "f64"), self.bitcast(near, "u32")
        above = self.compare("gt", self.unary("fabs", back), self.unary("fabs", x))
        bits = self.select(above, self.sub(bits, self.const(bits, 1)), bits)
        odd = self.or_(bits, self.const(bits, 1))
        return self.bitcast(self.select(self.compare("ne", back, x), odd, bits), "f32")

    def _rounded_bf16(self, x: Operand) -> Operand:
        """The upper half of an f32, rounded to even."""
        bits = self.bitcast(x, "u32")
        odd = self.and_(self.shr(bits, self.const(bits, 16)), self.const(bits, 1))
        rounded = self.shr(self.add(self.add(bits, self.const(bits, 0x7FFF)), odd), self.const(bits, 16))
        chosen = self.convert(self.select(self.compare("ne", x, x), self.const(bits, 0x7FC0), rounded), "u16")
        return Operand(x.type.of("bf16"), chosen.text)

    # memory

    def address(self, base: Operand, element: str, index: Operand) -> Operand:
        size = "i8" if element == "bool" else LType(element).text
        return self.make(PTR, f"getelementptr {size}, ptr {base.text}, i64 {index.text}")

    def load(self, type: LType, address: Operand, align: int) -> Operand:
        if type.element == "bool":
            byte = self.load(type.of("u8"), address, align)
            return self.compare("ne", byte, self.const(byte, 0))
        return self.make(type, f"load {type}, ptr {address.text}, align {align}")

    def store(self, x: Operand, address: Operand, align: int, stream: bool = False) -> None:
        if x.type.element == "bool":
            x = self.convert(x, "u8")
        tail = ", !nontemporal !0" if stream else ""
        self.line(f"store {x}, ptr {address.text}, align {align}{tail}")

    def masked_load(self, type: LType, address: Operand, mask: Operand, other: Operand, align: int) -> Operand:
        name = f"llvm.masked.load.{type.suffix}.p0"
        self.declared.setdefault(f"declare {type} @{name}(ptr, <{type.lanes} x i1>, {type})")
        return self.make(type, f"call {type} @{name}(ptr align {align} {address.text}, {mask}, {other})")

    def masked_store(self, x: Operand, address: Operand, mask: Operand, align: int) -> None:
        name = f"llvm.masked.store.{x.type.suffix}.p0"
        self.declared.setdefault(f"declare void @{name}({x.type}, ptr, <{x.type.lanes} x i1>)")
        self.line(f"call void @{name}({x}, ptr align {align} {address.text}, {mask})")
