"""Tile programs as files in a folder, so that one can be looked at, edited, and used in place of the original.

A file's name has the original's digest: whoever finds a program's file in the folder takes what is in it, if it takes the same
arguments and sizes. Nothing else ties them together, so an edited program may compute anything; `hotfuse asm diff` tells.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.errors import HotfuseError, TileError


def file_name(program: TileProgram) -> str:
    return f"{program.name}-{hashlib.sha256(print_program(program).encode()).hexdigest()[:12]}.tile"


def edited(program: TileProgram, folder: str) -> TileProgram:
    """What the folder has in place of a program; the program itself if it has nothing."""
    if not folder:
        return program
    path = Path(folder) / file_name(program)
    if not path.is_file():
        return program
    try:
        found = parse_program(path.read_text())
        check(found)
    except (HotfuseError, OSError, UnicodeDecodeError) as error:
        raise TileError(f"{path.name}: {error}") from error
    if (found.name, found.arguments, found.sizes) != (program.name, program.arguments, program.sizes):
        raise TileError(f"{path.name}: an edited program keeps its name, arguments and sizes; write them as they were")
    return found
