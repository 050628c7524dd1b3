"""Recipes: what a graph's kernels are applied to."""

from __future__ import annotations

from functools import cached_property

from hotfuse.codegen.tile import TileProgram
from hotfuse.ir.dim import Dim
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Recipe:
    """A program, and what it is applied to: the graph's values for its arguments and the graph's dims for its sizes."""

    program: TileProgram
    arguments: tuple[str, ...]
    sizes: tuple[Dim, ...]

    @cached_property
    def writes(self) -> tuple[str, ...]:
        kinds = [b.kind for b in self.program.arguments]
        return tuple(a for a, kind in zip(self.arguments, kinds, strict=True) if kind == "output")

    @cached_property
    def reads(self) -> tuple[str, ...]:
        kinds = [b.kind for b in self.program.arguments]
        return tuple(a for a, kind in zip(self.arguments, kinds, strict=True) if kind == "input")
