"""Wrong kernels on purpose, and the reproductions that are written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph, Origin
from hotfuse.ir.types import F32, tensor
from hotfuse.runtime.replay import _code_of
from hotfuse.runtime.reproduce import ReproduceRequest, make_reproduction
from hotfuse.runtime.reproduction import Reproduction
from hotfuse.runtime.reproduction_folder import write_reproduction
from tests.runtime.mutants import planted
from tests.runtime.proof_models import CONFIG, SIZES, Built

THREADS = Config(threads=2)


def edited(program: TileProgram, old: str, new: str) -> TileProgram:
    """The program with a text of it replaced, once."""
    text = print_program(program)
    assert old in text, text
    return parse_program(text.replace(old, new, 1))


def request(model: Built, unit: int | None, config: Config = CONFIG, **options: Any) -> ReproduceRequest:
    spec = host_spec(config.isa)
    objects = tuple(_code_of(program, spec) for program in model.build.programs)
    return ReproduceRequest(model.build, objects, model.feeds(1, **SIZES), config, unit, "it was wrong", **options)


def reproduction_of(model: Built, unit: int | None, **options: Any) -> Reproduction:
    return make_reproduction(request(model, unit, **options), model.weight)


def wrong(model: Built, unit: int, old: str, new: str) -> Built:
    """The model with a text replaced in the first program of a unit."""
    return planted(model, unit, 0, edited(model.build.units[unit].recipes[0].program, old, new))


def unit_of(model: Built, *ops: str) -> int:
    """The place of the unit of these operators."""
    found = [[model.build.main.by_id[id].op for id in unit.nodes] for unit in model.build.units]
    return found.index(list(ops))


def written(folder: Path, reproduction: Reproduction) -> Path:
    found = write_reproduction(str(folder), reproduction)
    assert found.path is not None, found.reason
    return found.path


def rows(*ops: str, source: str = "") -> Graph:
    """Operators one after the other, on the rows of a tensor whose two first axes are one."""
    builder = GraphBuilder()
    batch, length = symbol("b", 1), symbol("s", 1)
    x = builder.input("x", tensor(F32, batch, length, 5))
    x = builder.add("reshape", x, builder.dims((batch * length, 5)))
    builder.origin = Origin("layer", "", source)
    for op in ops:
        x = builder.add(op, x)
    return builder.build([x])


def feeds(seed: int, **sizes: int) -> dict[str, Any]:
    shape = (sizes["b"], sizes["s"], 5)
    return {"x": np.random.default_rng(seed).uniform(1, 2, shape).astype(np.float32)}
