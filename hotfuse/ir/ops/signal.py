"""Signal processing. Complex numbers are pairs in a last axis of 2; real signals have a last axis of 1.

dft    the Fourier transform along one axis; `onesided` keeps the non-redundant half (or, inverse, starts from it)
stft   transforms of windowed frames, `step` apart: [batch, frames, bins, 2]
mel_weight_matrix  triangular filters, evenly spaced on the mel scale: [bins of the spectrum, mel bins]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotfuse.ir.dim import Dim, floordiv
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import Call, OpDef, Pattern, Sample, define, size_of
from hotfuse.ir.ops.elementwise import widened
from hotfuse.ir.ops.movement import normal_axis
from hotfuse.ir.types import F32, DType, TensorType, Type

Array = np.ndarray[Any, Any]


def _complex(x: Array) -> Array:
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _pairs(x: Array, dtype: np.dtype[Any]) -> Array:
    return np.stack((x.real, x.imag), axis=-1).astype(dtype)


def dft(
    x: Array,
    length: Array | None = None,
    place: Array | None = None,
    *,
    axis: int = -2,
    inverse: bool = False,
    onesided: bool = False,
) -> Array:
    axis = (axis if place is None else int(place.reshape(-1)[0])) % x.ndim
    size = x.shape[axis]
    count = int(length.reshape(-1)[0]) if length is not None else 2 * (size - 1) if inverse and onesided else size
    signal = _complex(x)
    if inverse and onesided:
        return np.fft.irfft(signal, n=count, axis=axis)[..., None].astype(x.dtype)
    found = (np.fft.ifft if inverse else np.fft.fft)(signal, n=count, axis=axis)
    if onesided:
        found = np.take(found, np.arange(count // 2 + 1), axis=axis)
    return _pairs(found, x.dtype)


def _dft_infer(call: Call) -> Sequence[Type]:
    x, attrs = call.tensor(0), call.attrs
    if x.shape is None:
        return (x,)
    wanted = call.ints(2)
    if call.has(2) and wanted is None:
        return (TensorType(x.dtype, call.unknown(len(x.shape))),)
    axis = normal_axis(call, wanted[0] if wanted else attrs["axis"], len(x.shape))
    if axis == len(x.shape) - 1 or (x.shape[-1] not in (1, 2) and isinstance(x.shape[-1], int)):
        raise call.fail(f"the last axis of {x} must hold the real and imaginary part (1 or 2 elements), and is not transformed")
    inverse, onesided = attrs.get("inverse", False), attrs.get("onesided", False)
    known = call.contents(1)
    count: Dim = x.shape[axis]
    if call.has(1):
        count = known[0] if known else call.fresh()
    elif inverse and onesided:
        count = 2 * (count - 1)
    if onesided and not inverse:
        count = floordiv(count, 2) + 1
    last = 1 if inverse and onesided else 2
    return (TensorType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 : -1], last)),)


define(
    OpDef(
        "dft", _dft_infer, widened(dft), Pattern.OTHER,
        "the discrete Fourier transform along `axis`, or along the axis that is its third input",
        flops=lambda call, types: 32 * size_of(types),
        samples=lambda: [
            Sample((np.random.default_rng(0).standard_normal((2, 8, 1)).astype(np.float32),), {
                "axis": 1, "inverse": False, "onesided": onesided}) for onesided in (False, True)
        ],
    )
)  # fmt: skip


def stft(x: Array, step: Array, window: Array | None = None, length: Array | None = None, *, onesided: bool = True) -> Array:
    count = _frame_length(x, window, length)
    signal = _complex(x)
    hop = int(step.reshape(-1)[0])
    frames = np.lib.stride_tricks.sliding_window_view(signal, count, axis=1)[:, ::hop]
    found = np.fft.fft(frames if window is None else frames * window, axis=-1)
    if onesided:
        found = found[..., : count // 2 + 1]
    return _pairs(found, x.dtype)


def _frame_length(x: Array, window: Array | None, length: Array | None) -> int:
    if length is not None:
        return int(length.reshape(-1)[0])
    return int(window.shape[0] if window is not None else x.shape[1])


def _stft_infer(call: Call) -> Sequence[Type]:
    x = call.tensor(0)
    shape = x.shape or (call.fresh(), call.fresh(), call.fresh())
    if len(shape) != 3:
        raise call.fail(f"the signal must be [batch, time, 1 or 2], not {x}")
    length: Dim = shape[1]
    if call.has(3):
        known = call.contents(3)
        length = known[0] if known else call.fresh()
    elif call.has(2):
        window = call.shape(2)
        length = window[0] if window else call.fresh()
    if isinstance(length, int) and isinstance(shape[1], int) and length > shape[1]:
        raise call.fail(f"a frame of {length} is longer than the signal of {shape[1]}")
    if call.has(2) and call.has(3):
        window = call.shape(2)
        if window and NO_FACTS.decide(window[0], length) is False:
            raise call.fail(f"the window has {window[0]} elements, a frame {length}")
    step = call.contents(1)
    frames = floordiv(shape[1] - length, step[0]) + 1 if step else call.fresh()
    bins = floordiv(length, 2) + 1 if call.attrs.get("onesided", True) else length
    return (TensorType(x.dtype, (shape[0], frames, bins, 2)),)


define(
    OpDef(
        "stft", _stft_infer, widened(stft), Pattern.OTHER, "Fourier transforms of windowed frames",
        flops=lambda call, types: 32 * size_of(types),
        samples=lambda: [
            Sample((np.random.default_rng(0).standard_normal((1, 20, 1)).astype(np.float32), np.array(4),
                    np.hanning(8).astype(np.float32)), {"onesided": True}),
        ],
    )
)  # fmt: skip


def mel_weight_matrix(bins: Array, length: Array, rate: Array, low: Array, high: Array, *, to: DType) -> Array:
    count, size = int(bins.reshape(-1)[0]), int(length.reshape(-1)[0])
    ends = [2595 * np.log10(1 + float(edge.reshape(-1)[0]) / 700) for edge in (low, high)]
    mels = ends[0] + np.arange(count + 2) * ((ends[1] - ends[0]) / (count + 2))
    points = (((size + 1) * (700 * (10 ** (mels / 2595) - 1))) // float(rate.reshape(-1)[0])).astype(np.int64)
    result = np.zeros((size // 2 + 1, count))
    for i in range(count):
        left, center, right = points[i : i + 3].tolist()
        if left == center:
            result[center, i] = 1
        else:
            result[left : center + 1, i] = np.arange(center - left + 1) / (center - left)
        if right > center:
            result[center:right, i] = np.arange(right - center, 0, -1) / (right - center)
    return result.astype(to.numpy)


def _mel_infer(call: Call) -> Sequence[Type]:
    bins, length = call.contents(0), call.contents(1)
    rows = floordiv(length[0], 2) + 1 if length else call.fresh()
    return (TensorType(call.attrs["to"], (rows, bins[0] if bins else call.fresh())),)


define(
    OpDef(
        "mel_weight_matrix", _mel_infer, mel_weight_matrix, Pattern.SOURCE, "triangular filters on the mel scale",
        flops=lambda call, types: 0,
        samples=lambda: [Sample(tuple(np.array(e) for e in (8, 32, 8000, 0.0, 4000.0)), {"to": F32})],
    )
)  # fmt: skip
