"""Writes the body of a tile program: an instruction for each call, whose result is the name of the block it makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hotfuse.codegen.tile import Access, Block, Carry, Cast, Dot, Fill, For, Instruction, Iota, Load, Map, Store
from hotfuse.ir.dim import Dim
from hotfuse.ir.types import I32, DType


class TileWriter:
    """State: the number of the next name, and the instructions of the body that is written now. `dtype` is that of numbers."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.body: list[Instruction] = []
        self._numbers = itertools.count()

    def fresh(self) -> str:
        return f"v{next(self._numbers)}"

    def number(self, value: float, shape: Block = (1, 1)) -> str:
        return self._add(Fill(self.fresh(), self.dtype, shape, value))

    def counted(self, shape: Block, start: Dim, rows: int, cols: int) -> str:
        return self._add(Iota(self.fresh(), I32, shape, start, rows, cols))

    def map(self, op: str, *args: str) -> str:
        return self._add(Map(self.fresh(), op, args))

    def larger(self, a: str, b: str) -> str:
        """The larger one, and b where one of them is NaN: a single instruction, unlike the max in which NaN wins."""
        return self.map("where", self.map("gt", a, b), a, b)

    def cast(self, block: str, source: DType, target: DType) -> str:
        return block if source == target else self._add(Cast(self.fresh(), target, block))

    def dot(self, a: str, b: str, acc: str) -> str:
        return self._add(Dot(self.fresh(), a, b, acc))

    def load(self, at: Access, fill: float = 0.0) -> str:
        return self._add(Load(self.fresh(), at, fill))

    def store(self, at: Access, value: str) -> None:
        self.body.append(Store(at, value))

    def loop(self, var: str, start: Dim, stop: Dim, step: int, make: Callable[[], None]) -> None:
        """A loop whose body `make` writes; nothing where it surely has no turn."""
        if start != stop:
            outside, self.body = self.body, []
            make()
            inside, self.body = self.body, outside
            self.body.append(For(var, start, stop, step, tuple(inside)))

    def carry(self, var: str, start: Dim, stop: Dim, step: int, first: str, make: Callable[[str], str]) -> str:
        """A loop that carries a block, which is `first` in the first turn: `make` writes the body and says what the block is in
        the next turn. The result is what it is after the loop."""
        if start == stop:
            return first
        name = self.fresh()
        outside, self.body = self.body, []
        following = make(name)
        inside, self.body = self.body, outside
        self.body.append(For(var, start, stop, step, tuple(inside), (Carry(name, first, following),)))
        return name

    def _add(self, it: Load | Fill | Map | Cast | Iota | Dot) -> str:
        self.body.append(it)
        return it.name
