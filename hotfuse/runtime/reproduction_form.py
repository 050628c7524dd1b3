"""Reproductions as files, by name, and back.

    reproduction.json    kind, reason, circumstances; of each unit its nodes, programs and what these are applied to
    graph.txt            the graph in its text form
    program-N.tile       each program in its text form
    tensors.safetensors  values of inputs, weights and larger constants; numbers that the format does not know as integers

Reading trusts nothing: files are bounded, every field has the type that it must have, the graph and the programs keep the rules
of their forms, and what belongs together fits together. No operator that other libraries run is taken from a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from hotfuse.codegen.recipe import Recipe
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.errors import HotfuseError, ParseError
from hotfuse.ir.dim import Dim, symbols_of
from hotfuse.ir.dim_reader import parse
from hotfuse.ir.graph import Constant, Graph
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.text import INLINE_ELEMENTS, parse_graph, print_graph
from hotfuse.ir.types import DTYPES, TensorType, dtype_of, type_of
from hotfuse.ir.verify import verify
from hotfuse.runtime.build import Unit
from hotfuse.runtime.reproduction import CALL, UNIT, Circumstances, Reproduction

Array = np.ndarray[Any, Any]
Files = Mapping[str, bytes]

FORMAT = 1
RECORD, GRAPH, TENSORS = "reproduction.json", "graph.txt", "tensors.safetensors"
TEXT_BYTES = 1 << 24  # of any one text
MOST_PROGRAMS = 10_000
_CARRIERS = {1: np.uint8, 2: np.uint16, 8: np.uint64}


def program_name(number: int) -> str:
    return f"program-{number}.tile"


# writing


def to_files(reproduction: Reproduction) -> dict[str, bytes]:
    """A reproduction as the contents of its files. HotfuseError or TypeError where something of it has no such form."""
    programs, graph = reproduction.programs, reproduction.graph
    large = {name: c.numpy() for name, c in graph.constants.items() if math.prod(c.type.sizes) > INLINE_ELEMENTS}
    tensors = {**large, **reproduction.tensors}
    number = {program: place for place, program in enumerate(programs)}
    record = {
        "format": FORMAT,
        "kind": reproduction.kind,
        "reason": reproduction.reason,
        "what": reproduction.what,
        "shrunk": reproduction.shrunk,
        "circumstances": asdict(reproduction.circumstances),
        "units": [
            {"kind": unit.kind, "nodes": list(unit.nodes), "recipes": [_recipe(r, number) for r in unit.recipes]}
            for unit in reproduction.units
        ],
        "carried": {name: str(dtype_of(array)) for name, array in tensors.items() if array.dtype.name not in _PLAIN},
    }
    return {
        RECORD: (json.dumps(record, indent=1) + "\n").encode(),
        GRAPH: (print_graph(graph) + "\n").encode(),
        **{program_name(i): print_program(program).encode() for i, program in enumerate(programs)},
        TENSORS: _write_tensors(tensors),
    }


def _recipe(recipe: Recipe, number: Mapping[TileProgram, int]) -> dict[str, Any]:
    least = {s.name: s.minimum for s in symbols_of(recipe.sizes)}
    sizes = [str(dim) for dim in recipe.sizes]
    return {"program": number[recipe.program], "arguments": list(recipe.arguments), "sizes": sizes, "least": least}


def _write_tensors(tensors: Mapping[str, Array]) -> bytes:
    from safetensors.numpy import save

    found: bytes = save({name: _carried(array) for name, array in tensors.items()})
    return found


def _carried(array: Array) -> Array:
    """The array as numbers that the format knows: what it does not know, as integers of the same width."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name in _PLAIN:
        return array
    if array.dtype.itemsize not in _CARRIERS or array.dtype == object:
        raise ParseError(f"a tensor of type {array.dtype} cannot be kept in a file of tensors")
    return array.view(_CARRIERS[array.dtype.itemsize])


_PLAIN = frozenset((
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
))  # fmt: skip


# reading


def from_files(files: Files) -> Reproduction:
    """The reproduction that files are. ParseError, naming the file, where they are none."""
    record = _checked(RECORD, lambda: _read_record(files))
    arrays = _checked(TENSORS, lambda: _read_tensors(files, record["carried"]))
    graph = _checked(GRAPH, lambda: _read_graph(files, arrays))
    count = 1 + max((recipe["program"] for unit in record["units"] for recipe in unit["recipes"]), default=-1)
    programs = [_checked(program_name(i), lambda i=i: _read_program(files, i)) for i in range(count)]  # type: ignore[misc]
    units = _checked(RECORD, lambda: tuple(_read_unit(unit, graph, programs) for unit in record["units"]))
    names = [*graph.inputs, *graph.weights]
    tensors = _checked(TENSORS, lambda: {name: _fitting(name, graph, arrays) for name in names})
    circumstances = _checked(RECORD, lambda: _read_circumstances(record["circumstances"]))
    said = {name: record[name] for name in ("kind", "reason", "what", "shrunk")}
    made = Reproduction(graph=graph, units=units, tensors=tensors, circumstances=circumstances, **said)
    _checked(TENSORS, lambda: made.sizes)
    return made


def _checked(file: str, read: Any) -> Any:
    """What a file is read as; every way in which that can fail is an error of the file."""
    try:
        return read()
    except (HotfuseError, ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ParseError(f"{file} is not of a reproduction: {said}; take another copy of it") from error


def _text(files: Files, name: str) -> str:
    if name not in files:
        raise ParseError("it is missing")
    if len(files[name]) > TEXT_BYTES:
        raise ParseError(f"{len(files[name]):,} bytes are refused, at most {TEXT_BYTES:,} are read")
    return files[name].decode()


def _read_record(files: Files) -> dict[str, Any]:
    data = json.loads(_text(files, RECORD))
    texts, tables = dict.fromkeys(("kind", "reason", "what"), str), dict.fromkeys(("circumstances", "carried"), dict)
    record: dict[str, Any] = _fields(data, format=int, shrunk=bool, units=list, **texts, **tables)
    if record["format"] != FORMAT:
        raise ParseError(f"its format is {record['format']}, and {FORMAT} is known here")
    if record["kind"] not in (UNIT, CALL):
        raise ParseError(f"its kind is {record['kind']!r}, not {UNIT!r} or {CALL!r}")
    _all_of(str, *record["carried"].values())
    for unit in record["units"]:
        _fields(unit, kind=str, nodes=list, recipes=list)
        _all_of(str, *unit["nodes"])
        for recipe in unit["recipes"]:
            _fields(recipe, program=int, arguments=list, sizes=list, least=dict)
            _all_of(str, *recipe["arguments"], *recipe["sizes"])
            _all_of(int, *recipe["least"].values())
            if not 0 <= recipe["program"] < MOST_PROGRAMS:
                raise ParseError(f"a program has the number {recipe['program']}")
    return record


def _fields(data: Any, **kinds: type) -> dict[str, Any]:
    """A JSON object with exactly these fields, each of its type."""
    if not isinstance(data, dict) or {name: type(value) for name, value in data.items()} != kinds:
        raise ParseError(f"an object with the fields {', '.join(kinds)}, each of its type, was expected")
    return data


def _all_of(kind: type, *values: Any) -> None:
    strange = [value for value in values if type(value) is not kind]
    if strange:
        raise ParseError(f"{strange[0]!r:.60} is not of type {kind.__name__}")


def _read_circumstances(data: Any) -> Circumstances:
    blank = Circumstances()
    kinds = {f.name: list if f.name == "objects" else type(getattr(blank, f.name)) for f in fields(Circumstances)}
    found = _fields(data, **kinds)
    _all_of(str, *found["objects"])
    return Circumstances(**{**found, "objects": tuple(found["objects"])})


def _read_tensors(files: Files, carried: Mapping[str, Any]) -> dict[str, Array]:
    if TENSORS not in files:
        raise ParseError("it is missing")
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found: dict[str, Array] = load(files[TENSORS])
    except SafetensorError as error:
        raise ParseError(str(error)) from error
    return {**found, **{name: found[name].view(DTYPES[dtype].numpy) for name, dtype in carried.items()}}


def _read_graph(files: Files, arrays: Mapping[str, Array]) -> Graph:
    graph = parse_graph(_text(files, GRAPH), {name: Constant.of(array) for name, array in arrays.items()})
    for inner in graph.walk():
        for node in inner.nodes:
            if node.op in OPS and OPS[node.op].pattern is Pattern.OPAQUE:
                raise ParseError(f"{node.id} is run by another library ({node.op}), which is not done on a file's word")
    return verify(graph)


def _read_program(files: Files, number: int) -> TileProgram:
    program = parse_program(_text(files, program_name(number)))
    check(program)
    return program


def _read_unit(data: Mapping[str, Any], graph: Graph, programs: list[TileProgram]) -> Unit:
    strangers = [name for name in data["nodes"] if name not in graph.by_id]
    if strangers or not data["nodes"]:
        raise ParseError(f"a unit has nodes that the graph does not have: {strangers}")
    return Unit(data["kind"], tuple(data["nodes"]), tuple(_read_recipe(r, graph, programs) for r in data["recipes"]))


def _read_recipe(data: Mapping[str, Any], graph: Graph, programs: list[TileProgram]) -> Recipe:
    program, arguments = programs[data["program"]], tuple(data["arguments"])
    sizes: tuple[Dim, ...] = tuple(parse(text, data["least"]) for text in data["sizes"])
    if len(arguments) != len(program.arguments) or len(sizes) != len(program.sizes):
        raise ParseError(f"{program.name} takes {len(program.arguments)} arguments and {len(program.sizes)} sizes")
    for name, buffer in zip(arguments, program.arguments, strict=True):
        type = graph.type(name) if name in graph.values else None
        if not isinstance(type, TensorType) or type.dtype != buffer.dtype:
            raise ParseError(f"{name} is no argument for {buffer.name} of {program.name}, which is of {buffer.dtype}")
    return Recipe(program, arguments, sizes)


def _fitting(name: str, graph: Graph, arrays: Mapping[str, Array]) -> Array:
    """The array of an input or weight, in the type that the graph says."""
    type, array = graph.type(name), arrays.get(name)
    if array is None or not isinstance(type, TensorType):
        raise ParseError(f"there is no tensor for {name}")
    fits = array.dtype == type.dtype.numpy and (type.shape is None or len(type.shape) == array.ndim)
    if not fits or any(isinstance(d, int) and d != n for d, n in zip(type.shape or array.shape, array.shape, strict=True)):
        raise ParseError(f"{name} is {type_of(array)}, the graph says {type}")
    return array
