"""TileProgram -> the source of a Triton kernel.

One program instance is one task, numbered as on the CPU (last grid axis fastest), so the launch grid is `(tasks,)`. The
kernel's arguments are the status word, the program's arguments in order, one pointer per scratch buffer (each task has its own
part, so the memory holds `tasks * size` elements), and the sizes. Blocks are two-dimensional Triton tensors, so their extents
must be powers of two; sizes are 64-bit. Products of small blocks are written out, since `tl.dot` wants extents of 16 and more;
their order of summation is Triton's.

Nothing here imports triton: the result is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from hotfuse.codegen.scalar_ops import BLOCK_DTYPES
from hotfuse.codegen.tile import (
    Access,
    Block,
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
    walk,
)
from hotfuse.codegen.tile_check import check
from hotfuse.codegen.tile_text import show, show_number
from hotfuse.codegen.tile_types import BlockType, types
from hotfuse.errors import TileError
from hotfuse.ir.dim import Dim, Div, Expr, Min, Symbol, lower_bound
from hotfuse.ir.types import BOOL, F32, F64, DType
from hotfuse.records import dataclass

LEAST_DOT = 16  # extents below this are not for tl.dot

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "int1"}
LIBRARY = {  # operations that Triton itself has not, and their names in the device's library of functions
    "round": "rint", **{name: name for name in (
        "expm1", "log1p", "log10", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        "erfc", "trunc", "pow", "fmod",
    )},
}  # fmt: skip
_FLOATS = {
    "div": "_div({0}, {1})", "floor_div": "tl.floor(_div({0}, {1}))", "abs": "tl.abs({0})", "sqrt": "_sqrt({0})",
    "mod": "{0} - {1} * tl.floor(_div({0}, {1}))", "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
    "rsqrt": "_div(1.0, _sqrt({0}))", "reciprocal": "_div(1.0, {0})", "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "sigmoid": "tl.sigmoid({0})", "gelu_erf": "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))", "floor": "tl.floor({0})",
    "gelu_tanh": "{0} * tl.sigmoid(1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0}))", "ceil": "tl.ceil({0})",
    "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float('inf')", "fma": "tl.fma({0}, {1}, {2})",
    **{name: f"libdevice.{symbol}({{0}}{', {1}' if name in ('atan2', 'pow', 'fmod') else ''})"
       for name, symbol in LIBRARY.items()},
}  # fmt: skip
_WHOLE = {
    "div": "tl.where({1} == 0, 0, {0} // tl.where({1} == 0, 1, {1}))", "abs": "tl.abs({0})", "fma": "{0} * {1} + {2}",
    "sign": "({0} > 0).to({0}.dtype) - ({0} < 0).to({0}.dtype)",
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), "{0}"),
}  # fmt: skip
_ALL = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "max": "_max({0}, {1})", "min": "_min({0}, {1})",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}", "where": "tl.where({0}, {1}, {2})",
    "shl": "{0} << {1}", "shr": "{0} >> {1}",
}  # fmt: skip

_PRELUDE = """\
import triton
import triton.language as tl
{imports}

@triton.jit
def _max(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _min(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _product(x, y):
    return x * y


@triton.jit
def _div(x, y):
    if y.dtype == tl.float64:
        result = x / y
    else:
        result = tl.div_rn(x, y)
    return result


@triton.jit
def _sqrt(x):
    if x.dtype == tl.float64:
        result = tl.sqrt(x)
    else:
        result = tl.sqrt_rn(x)
    return result

"""


def render(program: TileProgram) -> str:
    """The module's text; its kernel has the program's name."""
    check(program)
    writer = _Writer(program, types(program))
    writer.head()
    writer.body(program.body)
    text = "\n".join(writer.lines)
    imports = "from triton.language.extra import libdevice\n" if "libdevice." in text else ""
    return f"{_PRELUDE.format(imports=imports)}\n{text}\n"


def is_offered(op: str, dtype: DType) -> bool:
    """Whether the elementwise operation `op` of `dtype` can be rendered."""
    return _pattern(op, dtype) is not None


def _pattern(op: str, dtype: DType) -> str | None:
    special = _FLOATS if dtype.is_float else _WHOLE if dtype.is_integer else {}
    return special.get(op) or _ALL.get(op)


def _identifier(prefix: str, name: str) -> str:
    return prefix + re.sub(r"[^A-Za-z0-9_]", lambda mark: f"_{ord(mark[0]):x}_", name)


def _number(name: str) -> str:
    return _identifier("n_", name)


def _block(name: str) -> str:
    return _identifier("v_", name)


def _pointer(name: str) -> str:
    return _identifier("p_", name)


def _dtype(dtype: DType) -> str:
    if dtype not in BLOCK_DTYPES:
        raise TileError(f"Triton has no {dtype}")
    return f"tl.{_DTYPES.get(dtype.name) or ('uint' if dtype.kind == 'uint' else 'int') + str(dtype.bits)}"


def _literal(value: float, dtype: DType) -> str:
    if dtype == BOOL:
        return str(bool(value))
    text = show_number(value)
    return f"float('{text}')" if text.lstrip("-") in ("inf", "nan") else text


def dim_text(dim: Dim) -> str:
    """A dim as Triton computes it: its `//` rounds toward zero, so what may be negative is made divisible first."""
    if isinstance(dim, int):
        return str(dim)
    return "(" + " + ".join(_term(monomial, coefficient) for monomial, coefficient in dim.terms) + ")"


def _term(monomial: Iterable[tuple[object, int]], coefficient: int) -> str:
    factors = [_atom(atom) for atom, power in monomial for _ in range(power)]
    return "*".join(factors if coefficient == 1 and factors else [str(coefficient), *factors])


def _atom(atom: object) -> str:
    if isinstance(atom, Symbol):
        return _number(atom.name)
    if isinstance(atom, Div):
        top, bottom = dim_text(atom.top), dim_text(atom.bottom)
        least_top, least_bottom = lower_bound(atom.top), lower_bound(atom.bottom)
        if least_top is not None and least_top >= 0 and least_bottom is not None and least_bottom >= 0:
            return f"({top} // {bottom})"
        return f"(({top} - (({top} % {bottom}) + {bottom}) % {bottom}) // {bottom})"
    assert not isinstance(atom, Expr)
    pick = "minimum" if isinstance(atom, Min) else "maximum"
    return f"tl.{pick}({dim_text(atom.a)}, {dim_text(atom.b)})"  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Writer:
    """State: the lines so far and their depth."""

    program: TileProgram
    blocks: dict[str, BlockType]
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def head(self) -> None:
        program = self.program
        pointers = [_pointer(b.name) for b in (*program.arguments, *program.scratch)]
        sizes = [_number(name) for name in program.sizes]
        listed = ", ".join(f'"{name}"' for name in sizes)
        self.lines.append(f"@triton.jit(do_not_specialize=[{listed}])")
        self.lines.append(f"def {_identifier('', program.name)}({', '.join(['status', *pointers, *sizes])}):")
        for name in sizes:
            self.line(f"{name} = tl.cast({name}, tl.int64)")
        self.line("task = tl.program_id(0).to(tl.int64)")
        for buffer in program.scratch:
            self.line(f"{_pointer(buffer.name)} += task * {dim_text(buffer.size)}")
        for axis in reversed(program.grid):
            self.line(f"{_number(axis.var)} = task % {dim_text(axis.count)}")
            self.line(f"task = task // {dim_text(axis.count)}")

    def body(self, body: tuple[Instruction, ...]) -> None:
        for instruction in body:
            self.line(f"# {show(instruction)}")
            try:
                self.step(instruction)
            except TileError as error:
                raise TileError(f"tile program {self.program.name}, `{show(instruction)}`: {error}") from error

    def step(self, it: Instruction) -> None:
        match it:
            case Load(name, at, fill):
                dtype = self.blocks[name][0]
                mask = self.mask(at)
                other = f", mask={mask}, other={_literal(fill, dtype)}" if mask else ""
                self.line(f"{_block(name)} = tl.load({_pointer(at.buffer)} + {self.places(at)}{other})")
            case Store(at, value, stream):
                self.store(at, value, stream)
            case Fill(name, dtype, shape, number):
                self.line(f"{_block(name)} = tl.full({list(_extents(shape))}, {_literal(number, dtype)}, {_dtype(dtype)})")
            case Iota(name, dtype, shape, start, rows, cols):
                self.line(f"{_block(name)} = {_lattice(start, rows, cols, shape)}.to({_dtype(dtype)})")
            case Map():
                self.line(f"{_block(it.name)} = {self.map(it)}")
            case Cast(name, dtype, arg):
                self.line(
                    f"{_block(name)} = {f'{_block(arg)} != 0' if dtype == BOOL else f'{_block(arg)}.to({_dtype(dtype)})'}"
                )
            case Dot():
                self.line(f"{_block(it.name)} = {self.dot(it)}")
            case Reduce(name, op, axis, arg):
                self.line(f"{_block(name)} = {self.reduce(op, axis, arg)}")
            case Index():
                self.index(it)
            case For():
                self.loop(it)
            case Prefetch():
                pass  # the comment with its text stays

    def loop(self, it: For) -> None:
        for carry in it.carry:
            self.line(f"{_block(carry.name)} = {_block(carry.init)}")
        self.line(f"for {_number(it.var)} in range({dim_text(it.start)}, {dim_text(it.stop)}, {it.step}):")
        self.depth += 1
        self.body(it.body)
        for carry in it.carry:
            self.line(f"{_block(carry.name)}_next = {_block(carry.next)}")
        for carry in it.carry:
            self.line(f"{_block(carry.name)} = {_block(carry.name)}_next")
        if not it.body and not it.carry:
            self.line("pass")
        self.depth -= 1

    # memory

    def places(self, at: Access) -> str:
        return _lattice(at.offset, at.rows, at.cols, at.shape)

    def mask(self, at: Access) -> str:
        """The condition that all bounds hold, in the block's shape; empty where there are none."""
        parts = []
        for bound in at.bounds:
            place = _lattice(bound.start, bound.rows, bound.cols, at.shape)
            parts.append(f"({place} >= 0) & ({place} < {dim_text(bound.limit)})")
        return " & ".join(parts)

    def store(self, at: Access, value: str, stream: bool) -> None:
        mask = self.mask(at)
        how = (f", mask={mask}" if mask else "") + (", cache_modifier='.cs'" if stream else "")
        again = any(isinstance(i, Load | Index) and i.at.buffer == at.buffer for i in walk(self.program.body))
        if again:  # threads of one task read what another of them wrote
            self.line("tl.debug_barrier()")
        self.line(f"tl.store({_pointer(at.buffer)} + {self.places(at)}, {_block(value)}{how})")
        if again:
            self.line("tl.debug_barrier()")

    def index(self, it: Index) -> None:
        name, limit = _number(it.name), dim_text(it.limit)
        bounds = [f"({dim_text(b.start)} >= 0) & ({dim_text(b.start)} < {dim_text(b.limit)})" for b in it.at.bounds]
        masked = f", mask={' & '.join(bounds)}, other=0" if bounds else ""
        self.line(f"{name} = tl.load({_pointer(it.at.buffer)} + {dim_text(it.at.offset)}{masked}).to(tl.int64)")
        outside = f"(({name} < -{limit}) | ({name} >= {limit}))"
        self.line(f"{name}_bad = {' & '.join([outside, *bounds])}")
        self.line(f"tl.store(status, 1, mask={name}_bad)")
        self.line(f"{name} = tl.where({name}_bad, 0, tl.where({name} < 0, {name} + {limit}, {name}))")

    # arithmetic

    def map(self, it: Map) -> str:
        dtype = self.blocks[it.args[-1]][0]
        pattern = _pattern(it.op, dtype)
        if pattern is None:
            raise TileError(f"{it.op} of {dtype} is not offered on Triton; keep it on the CPU")
        half = dtype.is_float and dtype.bits < 32
        args = [f"{_block(a)}.to(tl.float32)" if half and self.blocks[a][0] == dtype else _block(a) for a in it.args]
        made = f"({pattern.format(*args)})"
        if it.op == "fma":  # its arguments do not broadcast by themselves
            shape = list(_extents(self.blocks[it.name][1]))
            made = f"({pattern.format(*(f'tl.broadcast_to({a}, {shape})' for a in args))})"
        result = self.blocks[it.name][0]
        return made if result == BOOL else f"{made}.to({_dtype(result)})"

    def dot(self, it: Dot) -> str:
        a, b, acc = _block(it.a), _block(it.b), _block(it.acc)
        dtype, (m, n) = self.blocks[it.acc]
        k = self.blocks[it.a][1][1]
        if min(m, n, k) >= LEAST_DOT and dtype in (F32, F64):
            return f"tl.dot({a}, {b}, {acc}, input_precision='ieee')"
        wide = f".to({_dtype(F32 if dtype.is_float and dtype.bits < 32 else dtype)})"
        if k == 1:
            product = f"tl.broadcast_to({a}{wide}, [{m}, {n}]), tl.broadcast_to({b}{wide}, [{m}, {n}])"
            made = f"tl.fma({product}, {acc}{wide})" if dtype.is_float else f"({a}{wide} * {b}{wide} + {acc})"
        else:
            made = f"({acc}{wide} + tl.sum({a}{wide}[:, :, None] * {b}{wide}[None, :, :], axis=1))"
        return f"{made}.to({_dtype(dtype)})"

    def reduce(self, op: str, axis: int, arg: str) -> str:
        dtype, block = self.blocks[arg][0], _block(arg)
        if op in ("any", "all"):
            return f"tl.{'max' if op == 'any' else 'min'}({block}.to(tl.int32), axis={axis}, keep_dims=True) != 0"
        wide = f"{block}.to({_dtype(F32 if dtype.is_float and dtype.bits < 32 else dtype)})"
        if op == "sum":
            return f"tl.sum({wide}, axis={axis}, keep_dims=True).to({_dtype(dtype)})"
        combine = {"max": "_max", "min": "_min", "prod": "_product"}[op]
        return f"tl.reduce({wide}, {axis}, {combine}, keep_dims=True).to({_dtype(dtype)})"


def _lattice(start: Dim, rows: Dim, cols: Dim, shape: Block) -> str:
    """start + rows*i + cols*j in the block's shape, as 64-bit integers."""
    height, width = _extents(shape)
    down, across = f"tl.arange(0, {height})[:, None].to(tl.int64)", f"tl.arange(0, {width})[None, :].to(tl.int64)"
    return f"({dim_text(start)} + {dim_text(rows)}*{down} + {dim_text(cols)}*{across})"


def _extents(shape: Block) -> Block:
    if any(n & (n - 1) for n in shape):
        raise TileError(f"Triton wants extents that are powers of two, and a block is {shape[0]}x{shape[1]}")
    return shape
