"""Guard bands: known bytes around memory, which show what a kernel does beside it.

    | a page of `byte` | elements, each byte of them `byte` at first | a page of `byte` |

What is written outside shows in the bands, up to a page from either end; what is written further off may kill the process: that
is why kernels are proved in one that we can lose. What is read outside shows only where it changes a result: bytes of 0xFF are
NaN in every float type and -1 in integers, and a second run between other bytes has another result. What is read there and then
not used, or read further off than a page, does not show.

State: `Bands` keeps what it made; `Copies` what it is copied from, so that the next run need not copy it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotfuse.ir.types import TensorType, type_of
from hotfuse.records import dataclass
from hotfuse.runtime.memory import aligned_block, empty_block
from hotfuse.runtime.numpy_engine import NUMPY

Array = np.ndarray[Any, Any]
BAND_BYTES = 4096
NAN_BYTES, LARGE_BYTES = 0xFF, 0x7F  # NaN in float types; a large number in float32 and float64


@dataclass(frozen=True)
class _Copy:
    original: Array  # held, so that no other is where it was
    array: Array
    block: Array


Copies = dict[int, _Copy]  # by the identity of the original


class Bands:
    """Makes arrays between bands of one byte value. A segment takes it for its engine's arrays. `copies` outlive it: who gives
    them to another has nothing of them in use."""

    shares_threads = False
    address = staticmethod(NUMPY.address)

    def __init__(self, byte: int, copies: Copies | None = None) -> None:
        self._byte = byte
        self._copies: Copies = {} if copies is None else copies
        self._made: list[tuple[Array, Array]] = []

    def fresh(self, type: TensorType) -> Array:
        """An array in which nothing was written yet."""
        array, block = self._place(type)
        block[...] = self._byte
        return array

    def copy(self, array: Array, rows: Array | None = None) -> Array:
        """The same elements, in order. All that is not in `rows`, if given, is zero, and takes no memory."""
        copy = self._copies.get(id(array))
        if copy is None:
            copy = self._copies[id(array)] = _Copy(array, *self._place(type_of(array), zero=rows is not None))
            copy.array[... if rows is None else rows] = array[... if rows is None else rows]
        else:
            self._made.append((copy.array, copy.block))
        copy.block[:BAND_BYTES] = copy.block[BAND_BYTES + array.nbytes :] = self._byte
        return copy.array

    def damage(self, array: Array) -> str:
        """Where something was written beside an array that was made here; "" if nothing was."""
        block = next(block for made, block in self._made if made is array)
        for where, band in (("before", block[:BAND_BYTES]), ("behind", block[BAND_BYTES + array.nbytes :])):
            places = np.flatnonzero(band != self._byte)
            if places.size:
                off = BAND_BYTES - int(places[-1]) if where == "before" else int(places[0]) + 1
                return f"{places.size} bytes {where} it were written, the nearest {off} off"
        return ""

    def results(self, type: TensorType) -> Callable[[], tuple[Array, int]]:
        def make() -> tuple[Array, int]:
            array = self.fresh(type)
            return array, self.address(array)

        return make

    def contiguous(self, value: Any) -> Any:
        return NUMPY.contiguous(value)

    def _place(self, type: TensorType, zero: bool = False) -> tuple[Array, Array]:
        size = type.nbytes
        block = (empty_block if zero else aligned_block)(2 * BAND_BYTES + size)
        array = block[BAND_BYTES : BAND_BYTES + size].view(type.dtype.numpy).reshape(type.sizes)
        self._made.append((array, block))
        return array, block
