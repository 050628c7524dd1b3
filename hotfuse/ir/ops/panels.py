"""Products with packed columns: the form that matrix products take before they become native code.

    matmul(x, y)  =  panel_matmul(x, pack(y))

`pack` writes the columns of y in panels, `panel` columns each, one panel after the other, and in a panel row after row; what is
missing in the last one is 0. The last panel has `last` columns, which is less than `panel` only where the number of columns
is known. `columns` of a product is that number, in a tuple. Panels of half types go with rows of f32. Packing weights is work
that depends on weights alone, so it is done once, as any such work is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim, ceildiv
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, broadcast_shapes, define, size_of
from hotfuse.ir.types import BF16, F16, F32, TensorType, Type
from hotfuse.pace import breathe

Array = np.ndarray[Any, Any]
PIECE_BYTES = 1 << 20  # of panels that are written in one go: half a millisecond,
PIECE_S = 0.004  # or so long where memory is written for the first time and the system has to find it
_LINE = 64  # bytes: vectors of a panel that cross a cache line cost twice


def whole_panels(n: Dim, panel: int, last: int) -> Dim:
    """Panels of full width."""
    return ceildiv(n, panel) if last == panel else n // panel


def packed_columns(n: Dim, panel: int, last: int) -> Dim:
    """Columns with what is added to fill panels."""
    return whole_panels(n, panel, last) * panel + (0 if last == panel else last)


def pack(y: Array, out: Array | None = None, *, panel: int, last: int) -> Array:
    *batch, k, n = y.shape
    whole = n // panel
    columns = packed_columns(n, panel, last)
    assert isinstance(columns, int)
    result = _aligned((*batch, k * columns), y.dtype) if out is None else out
    if result.shape != (*batch, k * columns):
        raise ValueError(f"panels of {y.shape} are {(*batch, k * columns)}, not {result.shape}")
    split = whole * panel * k
    target = result[..., :split].reshape(*batch, whole, k, panel)
    source = np.moveaxis(y[..., : whole * panel].reshape(*batch, k, whole, panel), -3, -2)
    step = max(1, PIECE_BYTES // max(1, k * panel * y.itemsize))
    for first in range(0, whole, step):
        breathe(PIECE_S)
        target[..., first : first + step, :, :] = source[..., first : first + step, :, :]
    if columns > whole * panel:
        rest = result[..., split:].reshape(*batch, k, columns - whole * panel)
        rest[..., : n - whole * panel] = y[..., whole * panel :]
        rest[..., n - whole * panel :] = 0
    return result


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape)) * dtype.itemsize
    block = np.empty(size + _LINE, np.uint8)
    start = -block.ctypes.data % _LINE
    return block[start : start + size].view(dtype).reshape(shape)


def unpack(panels: Array, k: int, n: int, panel: int, last: int) -> Array:
    batch, whole = panels.shape[:-1], n // panel
    split = whole * panel * k
    front = np.moveaxis(panels[..., :split].reshape(*batch, whole, k, panel), -3, -2).reshape(*batch, k, whole * panel)
    if n == whole * panel:
        return front
    width = packed_columns(n, panel, last) - whole * panel
    rest = panels[..., split:].reshape(*batch, k, width)[..., : n - whole * panel]  # type: ignore[arg-type]
    return np.concatenate((front, rest), axis=-1)


def panel_matmul(x: Array, panels: Array, *, columns: tuple[int], panel: int, last: int) -> Array:
    columns_of = unpack(panels, x.shape[-1], columns[0], panel, last).astype(x.dtype, copy=False)
    result: Array = np.matmul(x, columns_of)
    return result


def _pack_infer(call: Call) -> Sequence[Type]:
    y, panel, last = call.tensor(0), call.attrs["panel"], call.attrs["last"]
    if not 0 < last <= panel:
        raise call.fail(f"a last panel of {last} columns does not fit panels of {panel}")
    if y.shape is None:
        return (TensorType(y.dtype, None),)
    if len(y.shape) < 2:
        raise call.fail(f"{y} is no matrix")
    *batch, k, n = y.shape
    return (TensorType(y.dtype, (*batch, k * packed_columns(n, panel, last))),)


def _matmul_infer(call: Call) -> Sequence[Type]:
    x, panels = call.tensor(0), call.tensor(1)
    if x.dtype != panels.dtype and not (x.dtype == F32 and panels.dtype in (F16, BF16)):
        raise call.fail(f"inputs have different types, {x.dtype} and {panels.dtype}")
    if x.shape is None or panels.shape is None:
        return (TensorType(x.dtype, None),)
    columns = call.attrs["columns"][0]
    _check_rows(call, x.shape[-1], panels.shape[-1], packed_columns(columns, call.attrs["panel"], call.attrs["last"]))
    batch = broadcast_shapes(x.shape[:-2], panels.shape[:-1])
    assert batch is not None
    return (TensorType(x.dtype, (*batch, x.shape[-2], columns)),)


def _check_rows(call: Call, k: Dim, packed: Dim, columns: Dim) -> None:
    """Packing hides how many rows there were, and native code would read as many as x has columns."""
    if isinstance(k, int) and isinstance(packed, int) and isinstance(columns, int) and packed != k * columns:
        raise call.fail(f"x has {k} columns, but {packed // columns if columns else 0} rows were packed")


def _flops(call: Call, types: Sequence[Type]) -> Dim:
    shape = call.shape(0)
    return 0 if not shape else 2 * shape[-1] * size_of(types)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    return [
        Sample((rng.standard_normal(shape).astype(np.float32),), {"panel": 4, "last": last})
        for shape, last in (((3, 10), 2), ((3, 8), 4), ((2, 5, 3), 3), ((3, 9), 4), ((0, 4), 4))
    ]


def _matmul_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    made = []
    for a, b, last in (((3, 5), (5, 10), 2), ((2, 3, 5), (5, 8), 4), ((2, 1, 3, 5), (4, 5, 9), 4), ((3, 0), (0, 9), 1)):
        x, y = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
        made.append(Sample((x, pack(y, panel=4, last=last)), {"columns": (b[-1],), "panel": 4, "last": last}))
    return made


define(
    OpDef(
        "pack", _pack_infer, pack, Pattern.MOVEMENT, "the columns of a matrix in panels", flops=lambda call, types: 0,
        samples=_samples,
    )
)  # fmt: skip
define(
    OpDef(
        "panel_matmul", _matmul_infer, panel_matmul, Pattern.CONTRACTION, "matrix product with columns in panels",
        flops=_flops, samples=_matmul_samples,
    )
)  # fmt: skip
