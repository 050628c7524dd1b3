"""The geometry of sliding windows, shared by convolution, pooling and patches.

Along one spatial axis a window has a kernel of k taps that lie d (the dilation) apart, so it spans (k - 1) * d + 1 places, and
moves by s (the stride). With `before` and `after` places of padding there are

    (size + before + after - span) // stride + 1

windows; rounding up (`ceil`) adds a last window that may reach past the end, if it starts inside the input or the padding
before it. `pads` are all befores, then all afters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hotfuse.errors import LimitExceeded
from hotfuse.ir.dim import Dim, ceildiv, floordiv, minimum
from hotfuse.ir.op import Call
from hotfuse.ir.types import Shape
from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]

SCRATCH_BYTES = 1 << 30  # scratch below this size, or below this many times its input and output, is never refused
SCRATCH_RATIO = 16
SPARSE_BYTES = 1 << 26  # padding that is out of proportion by the same ratio is avoided from this size on


def window_count(size: Dim, kernel: Dim, stride: int, before: Dim, after: Dim, dilation: int, ceil: bool = False) -> Dim:
    """How many windows there are along one axis."""
    free = size + before + after - ((kernel - 1) * dilation + 1)
    if not ceil:
        return floordiv(free, stride) + 1
    return minimum(ceildiv(free, stride), floordiv(size + before - 1, stride)) + 1


def window_counts(
    call: Call,
    sizes: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Ints,
    pads: Sequence[Dim],
    dilations: Ints,
    ceil: bool = False,
) -> Shape:
    """The spatial shape after a window operator, or an error that names the axis that is too small."""
    rank = len(sizes)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise call.fail(
            f"the input has {rank} spatial axes, but kernel, strides, dilations and pads are given for "
            f"{len(kernel)}, {len(strides)}, {len(dilations)} and {len(pads) / 2:g}"
        )
    if any(s < 1 for s in (*strides, *dilations)):
        raise call.fail(f"strides {strides} and dilations {dilations} must be at least 1")
    counts = []
    for i, size in enumerate(sizes):
        count = window_count(size, kernel[i], strides[i], pads[i], pads[i + rank], dilations[i], ceil)
        if isinstance(count, int) and count < 1:
            raise call.fail(
                f"spatial axis {i} has size {size} (padded by {pads[i]} and {pads[i + rank]}), too small for a kernel of "
                f"{kernel[i]} taps, {dilations[i]} apart"
            )
        counts.append(count)
    return tuple(counts)


def counts_of(x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False) -> Ints:
    """`window_counts` of an array."""
    n = len(kernel)
    found = (window_count(x.shape[2 + i], kernel[i], strides[i], pads[i], pads[i + n], dilations[i], ceil) for i in range(n))
    return tuple(int(c) for c in found)  # type: ignore[arg-type]


def is_wasteful(shape: Sequence[int], itemsize: int, useful: int, limit: int) -> bool:
    """Whether scratch memory is above `limit` bytes and out of proportion to the `useful` elements."""
    return prod(shape) * itemsize > limit and prod(shape) > SCRATCH_RATIO * useful


def check_scratch(what: str, shape: Sequence[int], itemsize: int, useful: int) -> None:
    """Refuse scratch memory that is huge, and out of proportion to the `useful` elements: pads and strides are mere numbers."""
    if is_wasteful(shape, itemsize, useful, SCRATCH_BYTES):
        raise LimitExceeded(
            f"{what} would need a scratch tensor of {prod(shape) * itemsize:,} bytes, {tuple(shape)}, for {useful:,} useful "
            "elements; check the pads and strides"
        )


def spatial(slices: Iterable[slice]) -> Any:
    """An index that takes these slices of the last axes."""
    return (..., *slices)


def padded(x: Array, pads: Ints, fill: Any = 0) -> Array:
    """`x` with its spatial axes padded; `x` itself where there is nothing to pad. Negative pads crop."""
    if not any(pads):
        return x
    n = len(pads) // 2
    if any(p < 0 for p in pads):
        x = x[spatial(slice(max(-pads[i], 0), size - max(-pads[i + n], 0)) for i, size in enumerate(x.shape[2:]))]
        pads = tuple(max(p, 0) for p in pads)
    shape = (*x.shape[:2], *(size + pads[i] + pads[i + n] for i, size in enumerate(x.shape[2:])))
    check_scratch("padding", shape, x.itemsize, x.size)
    result = np.full(shape, fill, dtype=x.dtype)
    result[spatial(slice(pads[i], pads[i] + size) for i, size in enumerate(x.shape[2:]))] = x
    return result


@dataclass(frozen=True)
class Frame:
    """A padded input and how windows walk it. `kept` are the taps along each axis that are left of the kernel."""

    x: Array
    kept: tuple[Array, ...]
    strides: Ints
    dilations: Ints

    @property
    def kernel(self) -> Ints:
        return tuple(len(k) for k in self.kept)


def framed(
    x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, counts: Ints, fill: Any = 0, sparse: bool = False
) -> Frame:
    """The input padded so that every window lies inside. Where that is wasteful (a few pixels in wide padding under long
    strides) or `sparse` asks for it, only what windows see, side by side, without the taps that see nothing but padding."""
    cover = covering_pads(x, kernel, strides, pads, dilations, counts)
    full = (*x.shape[:2], *(s + sum(cover[i :: len(kernel)]) for i, s in enumerate(x.shape[2:])))
    if not (sparse or is_wasteful(full, x.itemsize, x.size, SPARSE_BYTES)):
        return Frame(padded(x, cover, fill), tuple(np.arange(k) for k in kernel), strides, dilations)
    check_scratch("padding", [max(c * k for c, k in zip(counts, kernel, strict=True))], 8, x.size)
    seen = [
        np.arange(counts[i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i] - pads[i] for i in range(len(kernel))
    ]
    inside = [(places >= 0) & (places < size) for places, size in zip(seen, x.shape[2:], strict=True)]
    kept = tuple(np.flatnonzero(i.any(axis=0)) if i.any() else np.zeros(1, np.int64) for i in inside)
    sizes = tuple(c * len(k) for c, k in zip(counts, kept, strict=True))
    check_scratch("padding", (*x.shape[:2], *sizes), x.itemsize, x.size + x.shape[0] * prod(counts))
    result = np.full((*x.shape[:2], *sizes), fill, dtype=x.dtype)
    real = [i[:, k].reshape(-1) for i, k in zip(inside, kept, strict=True)]
    sources = [p[:, k].reshape(-1)[r] for p, k, r in zip(seen, kept, real, strict=True)]
    whole = [np.arange(n) for n in x.shape[:2]]
    result[np.ix_(*whole, *(np.flatnonzero(r) for r in real))] = x[np.ix_(*whole, *sources)]
    return Frame(result, kept, tuple(len(k) for k in kept), (1,) * len(kernel))


def covering_pads(x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, counts: Ints) -> Ints:
    """`pads` with the afters grown so that every window lies inside (only rounding up asks for more)."""
    n = len(kernel)
    needed = ((counts[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 for i in range(n))
    afters = (max(pads[i + n], need - x.shape[2 + i] - pads[i]) for i, need in enumerate(needed))
    return (*pads[:n], *afters)


def tap(x: Array, offsets: Sequence[int], strides: Ints, counts: Ints) -> Array:
    """The view of `x` that one tap of the kernel sees: every stride-th element from its offset."""
    return x[spatial(slice(o, o + (c - 1) * s + 1, s) for o, s, c in zip(offsets, strides, counts, strict=True))]  # type: ignore[no-any-return]


def taps(kernel: Ints, dilations: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Each place of a kernel in row-major order, with its offset in the input."""
    for place in product(*(range(k) for k in kernel)):
        yield place, tuple(p * d for p, d in zip(place, dilations, strict=True))


def at_place(columns: Array, place: Ints) -> Any:
    """What [batch, channels, *kernel, *counts] holds for one place of the kernel."""
    index: Any = (slice(None), slice(None), *place)
    return columns[index]


def patches(x: Array, kernel: Ints, strides: Ints, dilations: Ints, counts: Ints) -> Array:
    """A view [batch, channels, *kernel, *counts] of a padded input: no element is copied."""
    steps = x.strides[2:]
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:2], *kernel, *counts),
        (
            *x.strides[:2],
            *(s * d for s, d in zip(steps, dilations, strict=True)),
            *(s * t for s, t in zip(steps, strides, strict=True)),
        ),
        writeable=False,
    )
