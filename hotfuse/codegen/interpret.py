"""Runs a tile program in numpy, slowly and by the letter: what a code generator's kernel must agree with.

Beyond the results it finds what a check of the text cannot: an access outside its buffer (memory is never touched there), two
tasks that store one element, a task that reads what another stored, two elements of a block stored at one place. Scratch is
poisoned before each task, and tasks and the turns of free loops run in an order shuffled by a seed, so that a program that
relies on either shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotfuse.codegen.scalar_ops import SCALAR_OPS, fused_multiply_add
from hotfuse.codegen.tile import (
    Access,
    Buffer,
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
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_text import show
from hotfuse.errors import DimError, ExecutionError, InputError
from hotfuse.ir.dim import Dim, Div, Min, Symbol
from hotfuse.ir.types import BOOL, DType

Array = np.ndarray[Any, Any]
_FAR = 1 << 62  # places beyond this are outside of every buffer, and would wrap around
_NOBODY = -1
MOST_TASKS = 1 << 24  # each takes tens of microseconds here


def run(program: TileProgram, buffers: Mapping[str, Array], sizes: Mapping[str, int], seed: int = 0) -> int:
    """Run every task on `buffers`, flat arrays by name, and write the outputs into them. Returns the status: 1 when an index
    was out of range, else 0. The order of tasks follows from `seed`."""
    check(program)
    missing = [name for name in program.sizes if name not in sizes]
    if missing:
        raise InputError(f"tile program {program.name} needs a size for {', '.join(missing)}")
    env = {name: int(sizes[name]) for name in program.sizes}
    for buffer in program.buffers:
        if evaluate(buffer.size, env) < 0:
            raise InputError(
                f"tile program {program.name}: buffer {buffer.name} would have {evaluate(buffer.size, env)} elements"
            )
    memory = {b.name: _checked(b, buffers, env) for b in program.arguments}
    counts = [max(evaluate(axis.count, env), 0) for axis in program.grid]
    tasks = math.prod(counts)
    if tasks > MOST_TASKS:
        raise InputError(
            f"tile program {program.name} has {tasks} tasks at these sizes; the interpreter runs up to {MOST_TASKS}"
        )
    order = np.random.default_rng(seed)
    machine = _Machine(program, memory, env, order)
    for task in order.permutation(tasks).tolist():
        machine.start(task)
        machine.env.update(zip((a.var for a in program.grid), _point(task, counts), strict=True))
        with np.errstate(all="ignore"):
            machine.body(program.body)
    return machine.status


def evaluate(dim: Dim, env: Mapping[str, int]) -> int:
    """The number a dim stands for. `ir.dim.evaluate` does the same by way of dims; in a loop that is too slow."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        product = coefficient
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                value = env[atom.name]
            elif isinstance(atom, Div):
                bottom = evaluate(atom.bottom, env)
                if bottom == 0:
                    raise DimError(f"size {atom} divides by zero at {', '.join(f'{k} = {v}' for k, v in env.items())}")
                value = evaluate(atom.top, env) // bottom
            else:
                pick = min if isinstance(atom, Min) else max
                value = pick(evaluate(atom.a, env), evaluate(atom.b, env))
            product *= value**power
        total += product
    return total


def _point(task: int, counts: Sequence[int]) -> list[int]:
    """The grid variables of a task: tasks are numbered with the last axis fastest."""
    point = []
    for count in reversed(counts):
        task, place = divmod(task, count)
        point.append(place)
    return point[::-1]


def _checked(buffer: Buffer, buffers: Mapping[str, Array], env: Mapping[str, int]) -> Array:
    array = buffers.get(buffer.name)
    elements = evaluate(buffer.size, env)
    if array is None:
        raise InputError(f"no memory was given for the {buffer.kind} {buffer.name}")
    if array.ndim != 1 or array.dtype != buffer.dtype.numpy or array.size != elements:
        raise InputError(
            f"the {buffer.kind} {buffer.name} is flat memory of {elements} elements of {buffer.dtype}, "
            f"not {array.dtype} of shape {array.shape}"
        )
    return array


def poison(dtype: DType, elements: int) -> Array:
    """Memory that nobody should read: NaN, or a byte pattern that is no small number."""
    if dtype.is_float:
        return np.full(elements, np.nan, dtype.numpy)
    if dtype == BOOL:
        return np.asarray(np.arange(elements) % 3 == 0)
    return np.full(elements * dtype.bytes, 0xAB, np.uint8).view(dtype.numpy)


class _Machine:
    """State: memory, the task that stored each output element, and the blocks and numbers of the task that runs."""

    def __init__(
        self, program: TileProgram, memory: dict[str, Array], sizes: Mapping[str, int], order: np.random.Generator
    ) -> None:
        self.program = program
        self.memory = memory
        self.owners = {b.name: np.full(memory[b.name].size, _NOBODY) for b in program.arguments if b.kind == "output"}
        self.sizes = sizes
        self.order = order
        self.env: dict[str, int] = {}
        self.blocks: dict[str, Array] = {}
        self.task = 0
        self.status = 0

    def start(self, task: int) -> None:
        self.task = task
        self.env = dict(self.sizes)
        self.blocks = {}
        for buffer in self.program.scratch:
            self.memory[buffer.name] = poison(buffer.dtype, evaluate(buffer.size, self.env))

    def body(self, body: tuple[Instruction, ...]) -> None:
        for instruction in body:
            self.step(instruction)

    def step(self, it: Instruction) -> None:
        match it:
            case Load(name, at, fill):
                places, mask = self.places(at, it)
                source = self.memory[at.buffer]
                block = np.full(at.shape, fill, source.dtype)
                block[mask] = source[places[mask]]
                self.blocks[name] = block
            case Store():
                self.store(it)
            case Fill(name, dtype, shape, value):
                self.blocks[name] = np.full(shape, value, dtype.numpy)
            case Iota(name, dtype, shape, start, rows, cols):
                self.blocks[name] = self.lattice(start, rows, cols, shape).astype(dtype.numpy)
            case Map(name, op, args):
                self.blocks[name] = SCALAR_OPS[op].reference(*(self.blocks[a] for a in args))
            case Cast(name, dtype, arg):
                self.blocks[name] = self.blocks[arg].astype(dtype.numpy)
            case Dot(name, a, b, acc):
                self.blocks[name] = _dot(self.blocks[a], self.blocks[b], self.blocks[acc])
            case Reduce(name, op, axis, arg):
                self.blocks[name] = _reduce(op, axis, self.blocks[arg])
            case Index(name):
                self.env[name] = self.index(it)
            case For():
                self.loop(it)
            case Prefetch():
                pass

    def loop(self, it: For) -> None:
        turn = {c.name: self.blocks[c.init] for c in it.carry}
        turns = range(evaluate(it.start, self.env), evaluate(it.stop, self.env), it.step)
        for value in self.order.permutation(turns).tolist() if it.free else turns:
            self.env[it.var] = value
            self.blocks.update(turn)
            self.body(it.body)
            turn = {c.name: self.blocks[c.next] for c in it.carry}
        self.blocks.update(turn)

    def index(self, it: Index) -> int:
        """Outside of the bounds it is 0."""
        places, mask = self.places(it.at, it)
        if not mask[0, 0]:
            return 0
        value, limit = int(self.memory[it.at.buffer][places[0, 0]]), evaluate(it.limit, self.env)
        if not -limit <= value < limit:
            self.status = 1
            return 0
        return value + limit if value < 0 else value

    def store(self, it: Store) -> None:
        places, mask = self.places(it.at, it)
        chosen = places[mask]
        if np.unique(chosen).size != chosen.size:
            raise self.wrong(it, "two elements of the block are stored at one place")
        self.memory[it.at.buffer][chosen] = self.blocks[it.value][mask]
        if it.at.buffer in self.owners:
            self.owners[it.at.buffer][chosen] = self.task

    def places(self, at: Access, it: Instruction) -> tuple[Array, Array]:
        """Where each element of the block is in its buffer, and which of them the bounds let through."""
        places = self.lattice(at.offset, evaluate(at.rows, self.env), evaluate(at.cols, self.env), at.shape)
        mask = np.ones(at.shape, bool)
        for bound in at.bounds:
            value = self.lattice(bound.start, bound.rows, bound.cols, at.shape)
            mask &= (value >= 0) & (value < min(evaluate(bound.limit, self.env), _FAR))
        size = self.memory[at.buffer].size
        outside = mask & ((places < 0) | (places >= size))
        if outside.any():
            i, j = (int(x) for x in np.argwhere(outside)[0])
            raise self.wrong(it, f"element ({i}, {j}) is at {int(places[i, j])} of {at.buffer}, which has {size} elements")
        if at.buffer in self.owners:
            owner = self.owners[at.buffer][places[mask]]
            foreign = owner[(owner != _NOBODY) & (owner != self.task)]
            if foreign.size:
                verb = "stores" if isinstance(it, Store) else "reads"
                raise self.wrong(it, f"it {verb} elements of {at.buffer} that task {int(foreign[0])} stored")
        return places, mask

    def lattice(self, start: Dim, rows: int, cols: int, shape: tuple[int, int]) -> Array:
        """start + rows*i + cols*j for every element (i, j), kept within what 64 bits can count."""
        first = evaluate(start, self.env)
        if max(abs(first), abs(rows) * shape[0], abs(cols) * shape[1]) > _FAR // 2:
            first, rows, cols = -_FAR, 0, 0
        return first + rows * np.arange(shape[0])[:, None] + cols * np.arange(shape[1])[None, :]

    def wrong(self, it: Instruction, what: str) -> ExecutionError:
        variables = {k: v for k, v in self.env.items() if k not in self.sizes}
        at = ", ".join(f"{name} = {value}" for name, value in {**self.sizes, **variables}.items())
        return ExecutionError(f"tile program {self.program.name}, task {self.task}, `{show(it)}`: {what} ({at})")


def _dot(a: Array, b: Array, acc: Array) -> Array:
    a, b = a.astype(acc.dtype), b.astype(acc.dtype)
    for k in range(a.shape[1]):
        acc = fused_multiply_add(a[:, k : k + 1], b[k : k + 1, :], acc)
    return acc


_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip


def _reduce(op: str, axis: int, block: Array) -> Array:
    """Half types are folded in float32 and rounded once."""
    half = block.dtype.itemsize == 2 and block.dtype.kind not in "iu"
    wide = block.astype(np.float32) if half else block
    return np.asarray(_REDUCTIONS[op].reduce(wide, axis=axis, keepdims=True, dtype=wide.dtype)).astype(block.dtype)
