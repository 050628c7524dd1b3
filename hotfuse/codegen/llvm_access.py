"""Access maps as LLVM loads and stores: of one piece of a block, `width` elements of a row from a column on (0: one element).

Neighbours in memory move as one vector, under a mask where bounds cut it. Where the elements of a column are the neighbours,
whole squares of a block move at once, through vectors along columns that are transposed. Anything else goes element by element.
What a bound forbids is never touched: its element is read from and written to a place of nobody's (`%nowhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hotfuse.codegen.llvm_text import I1, I64, PTR, LType, Operand, Writer, literal
from hotfuse.codegen.llvm_transpose import transposed
from hotfuse.codegen.tile import Access, Block, Bound, Buffer
from hotfuse.ir.dim import Dim, lower_bound, substitute, symbols_of

LINE = 64  # bytes of a cache line


class Memory:
    """Writes the memory instructions of one function. State: the writer, the address of each buffer, and by the variable of
    each loop its start + step * turn, from which one can tell what its values are multiples of."""

    def __init__(self, w: Writer, buffers: Mapping[str, Buffer], dim: Callable[[Dim], Operand]) -> None:
        self.w = w
        self.buffers = buffers
        self.dim = dim
        self.bases: dict[str, Operand] = {}
        self.turns: dict[str, Dim] = {}

    def address(self, at: Access, row: int, col: int) -> Operand:
        element = self.buffers[at.buffer].dtype.name
        first = self.w.address(self.bases[at.buffer], element, self.dim(at.offset))
        step = self.dim(at.rows * row + at.cols * col)
        return first if step.text == "0" else self.w.address(first, element, step)

    def load(self, at: Access, fill: float, row: int, col: int, width: int) -> Operand:
        dtype, bounds = self.buffers[at.buffer].dtype, _open(at)
        type = LType(dtype.name, width)
        if not width:
            inside = self._mask(bounds, row, col, 0)
            return self._load_one(type, self.address(at, row, col), inside, fill, self._align(at))
        if at.cols == 0 and not any(b.cols for b in bounds):
            return self.w.splat(self.load(at, fill, row, col, 0), width)
        if at.cols != 1:
            found = Operand(type, "poison")
            for i in range(width):
                one = self.load(at, fill, row, col + i, 0)
                found = self.w.make(type, f"insertelement {found}, {one}, i64 {i}")
            return found
        if type.element == "bool":
            return self.w.convert(self._load_neighbours(type.of("u8"), at, bool(fill), row, col), "bool")
        return self._load_neighbours(type, at, fill, row, col)

    def _load_neighbours(self, type: LType, at: Access, fill: float, row: int, col: int) -> Operand:
        address, mask = self.address(at, row, col), self._mask(_open(at), row, col, type.lanes)
        if mask is None:
            return self.w.load(type, address, self._align(at))
        return self.w.masked_load(type, address, mask, self.w.const(type, fill), self._align(at))

    def load_square(self, at: Access, fill: float, row: int, col: int, width: int) -> dict[int, Operand]:
        """The piece of a transposed access, and those of the rows around it that come with it, by row."""
        first, height = next((r, h) for r, h in squares(at.shape[0], width) if r <= row < r + h)
        if height == 1:
            return {row: self.load(at, fill, row, col, width)}
        dtype, turned = self.buffers[at.buffer].dtype, _turned(at)
        type = LType("u8" if dtype.name == "bool" else dtype.name, height)
        columns = [self._load_neighbours(type, turned, fill, col + i, first) for i in range(width)]
        return {first + i: self.w.convert(x, dtype.name) for i, x in enumerate(transposed(self.w, columns))}

    def _load_one(self, type: LType, address: Operand, inside: Operand | None, fill: float, align: int) -> Operand:
        if inside is None:
            return self.w.load(type, address, align)
        safe = self.w.make(PTR, f"select i1 {inside.text}, ptr {address.text}, ptr %nowhere")
        return self.w.select(inside, self.w.load(type, safe, align), self.w.const(type, fill))

    def _align(self, at: Access) -> int:
        """Inputs may be constants that lie anywhere in a mapped file."""
        buffer = self.buffers[at.buffer]
        return 1 if buffer.kind == "input" else buffer.dtype.bytes

    def store(self, value: Operand, at: Access, row: int, col: int, stream: bool) -> None:
        w, width, bounds = self.w, value.type.lanes, _open(at)
        if not width:
            self._store_one(value, self.address(at, row, col), self._mask(bounds, row, col, 0))
            return
        if at.cols != 1:
            for i in range(width):
                self._store_one(w.lane(value, i), self.address(at, row, col + i), self._mask(bounds, row, col + i, 0))
            return
        mask, size = self._mask(bounds, row, col, width), _bytes(value.type)
        if mask is not None:
            raw = w.convert(value, "u8") if value.type.element == "bool" else value
            w.masked_store(raw, self.address(at, row, col), mask, size)
        else:
            whole = width * size
            aligned = stream and whole & (whole - 1) == 0 and self._on_lines(at, row, col, whole // size)
            w.store(value, self.address(at, row, col), whole if aligned else size, aligned)

    def _on_lines(self, at: Access, row: int, col: int, unit: int) -> bool:
        """Whether a piece surely begins at a multiple of `unit` elements of its buffer, which itself begins on a cache line."""
        place = at.offset + at.rows * row + at.cols * col
        while found := {s.name: self.turns[s.name] for s in symbols_of((place,)) if s.name in self.turns}:
            place = substitute(place, found)
        return place % unit == 0

    def store_square(self, rows: Sequence[Operand], at: Access, row: int, col: int, stream: bool) -> None:
        """Pieces of rows that follow each other, to a transposed access."""
        width = rows[0].type.lanes
        if len(rows) == 1 or width & (width - 1):
            for i, value in enumerate(rows):
                self.store(value, at, row + i, col, stream)
            return
        if rows[0].type.element == "bool":
            rows = [self.w.convert(x, "u8") for x in rows]
        for i, column in enumerate(transposed(self.w, rows)):
            self.store(column, _turned(at), col + i, row, stream)

    def _store_one(self, value: Operand, address: Operand, inside: Operand | None) -> None:
        if inside is not None:
            address = self.w.make(PTR, f"select i1 {inside.text}, ptr {address.text}, ptr %nowhere")
        self.w.store(value, address, _bytes(value.type))

    def prefetch(self, at: Access, level: int) -> None:
        per_line = max(1, LINE // self.buffers[at.buffer].dtype.bytes)
        self.w.declared.setdefault("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for row in range(at.shape[0]):
            for col in range(0, at.shape[1], per_line):
                address = self.address(at, row, col)
                self.w.line(f"call void @llvm.prefetch.p0(ptr {address.text}, i32 0, i32 {4 - level}, i32 1)")

    def _mask(self, bounds: tuple[Bound, ...], row: int, col: int, width: int) -> Operand | None:
        """Where all the bounds hold; None if there are none."""
        found: Operand | None = None
        for bound in bounds:
            one = self._bound(bound, row, col, width)
            found = one if found is None else self.w.and_(found, one)
        return found

    def _bound(self, bound: Bound, row: int, col: int, width: int) -> Operand:
        start = bound.start + bound.rows * row + bound.cols * col
        limit = self.dim(bound.limit)
        if not width or not bound.cols:
            return self.w.splat(self.w.make(I1, f"icmp ult {self.dim(start)}, {limit.text}"), width)
        if bound.cols == 1 and _not_negative(start):  # the first so many lanes
            left = self.w.binary("smax", self.w.sub(limit, self.dim(start)), literal(I64, 0))
            left = self.w.binary("smin", left, literal(I64, width))
            count = self.w.splat(self.w.make(LType("i32"), f"trunc {left} to i32"), width)
            return self.w.make(LType("bool", width), f"icmp ult {self.w.numbers('i32', width)}, {count.text}")
        place = self.w.add(self.w.splat(self.dim(start), width), self.w.numbers("i64", width, 0, bound.cols))
        return self.w.make(LType("bool", width), f"icmp ult {place}, {self.w.splat(limit, width).text}")


def is_transposed(at: Access) -> bool:
    """Whether the elements of a column are neighbours in memory, and those of a row are not."""
    return at.rows == 1 and at.cols not in (0, 1) and min(at.shape) > 1


def squares(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """(row, height) of the parts of `rows` rows that are transposed at once: powers of two, no higher than wide."""
    row = 0
    while row < rows:
        height = 1 << (min(rows - row, max(width, 1)).bit_length() - 1)
        yield row, height
        row += height


def _turned(at: Access) -> Access:
    """The same elements with rows and columns exchanged."""
    bounds = tuple(Bound(b.start, b.cols, b.rows, b.limit) for b in at.bounds)
    return Access(at.buffer, at.offset, at.cols, at.rows, (at.shape[1], at.shape[0]), bounds)


def _bytes(type: LType) -> int:
    return max(1, type.bits // 8)


def _not_negative(dim: Dim) -> bool:
    least = lower_bound(dim)
    return least is not None and least >= 0


def _open(at: Access) -> tuple[Bound, ...]:
    """The bounds that do not hold for every element of the block whatever the sizes are."""
    return tuple(b for b in at.bounds if not _always(b, at.shape))


def _always(bound: Bound, shape: Block) -> bool:
    ends = [bound.start + bound.rows * r + bound.cols * c for r in (0, shape[0] - 1) for c in (0, shape[1] - 1)]
    return all(_not_negative(end) and _not_negative(bound.limit - end - 1) for end in ends)
