"""Loops of tile programs: found by their variable, and put back changed. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hotfuse.codegen.tile import (
    For,
    Instruction,
    TileProgram,
    walk,
)
from hotfuse.errors import TileError


def find_loop(program: TileProgram, var: str) -> For:
    found = [it for it in walk(program.body) if isinstance(it, For) and it.var == var]
    if len(found) != 1:
        raise TileError(f"{len(found)} loops run over {var}; a rewrite needs one")
    return found[0]


def has_loop(program: TileProgram, var: str) -> bool:
    return any(isinstance(it, For) and it.var == var for it in walk(program.body))


def put(program: TileProgram, loop: For, made: tuple[Instruction, ...]) -> TileProgram:
    """The program with other instructions in the place of a loop."""
    return replace(program, body=replaced(program.body, loop, made))


def replaced(body: tuple[Instruction, ...], old: Instruction, made: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    for it in body:
        if it is old:
            found += made
        elif isinstance(it, For):
            inner = replaced(it.body, old, made)
            found.append(it if inner is it.body else replace(it, body=inner))
        else:
            found.append(it)
    unchanged = len(found) == len(body) and all(a is b for a, b in zip(found, body, strict=True))
    return body if unchanged else tuple(found)


def mapped(body: tuple[Instruction, ...], change: Callable[[Instruction], Instruction]) -> tuple[Instruction, ...]:
    return tuple(replace(it, body=mapped(it.body, change)) if isinstance(it, For) else change(it) for it in body)
