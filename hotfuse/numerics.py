"""When are two results equal? The rules of floating point that every check here uses, strictest that applies first.

  bitwise   data movement, integers, bools, repeat runs of one kernel: the same bits (NaN equals NaN)
  ulp       elementwise: at most 2 units in the last place for arithmetic, 4 for transcendental functions; specials as they
            were in the original
  float64   reductions, products, norms, whole models: with e(x) = RMSE(x, exact) and exact the original computed in float64,
                e(ours) <= k * e(original) + tolerance / 10          over the tensor and over every row
                max|ours - exact| <= 8 * max|original - exact| + 4 ulp of the row's scale
            k = 2 (3 for half types); tolerance is that of torch.testing for the type, times the scale
  alike     two answers to one call where nothing exact is at hand and only a blunder is looked for: half of the significand's
            bits agree, in proportion to the element or to the tensor's scale

A tensor-wide mean hides one wrong tail row, which is why the rule also holds per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Verdict:
    """`ok`, or the reason why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


GOOD = Verdict(True)

# relative and absolute tolerance of torch.testing.assert_close, and bits of the significand
_TOLERANCE = {
    "float16": (1e-3, 1e-5, 10),
    "bfloat16": (1.6e-2, 1e-5, 7),
    "float32": (1.3e-6, 1e-5, 23),
    "float64": (1e-7, 1e-7, 52),
    "complex64": (1.3e-6, 1e-5, 23),
    "complex128": (1e-7, 1e-7, 52),
}


def same_bits(ours: Array, original: Array) -> Verdict:
    """The same shape, type and bits; any NaN equals any other."""
    shape = _same_form(ours, original)
    if not shape:
        return shape
    if ours.dtype.kind == "c":
        return same_bits(_pairs(ours), _pairs(original))
    if ours.dtype.name in _TOLERANCE:
        equal = (ours == original) & (np.signbit(ours) == np.signbit(original))
        equal = equal | (np.isnan(_wide(ours)) & np.isnan(_wide(original)))
    else:
        equal = ours == original
    if bool(np.all(equal)):
        return GOOD
    return Verdict(False, f"{int(np.sum(~equal))} of {ours.size} elements differ, first at {_first(~np.asarray(equal))}")


def within_ulp(ours: Array, original: Array, limit: int) -> Verdict:
    """At most `limit` units in the last place apart; NaN, infinities as in the original."""
    shape = _same_form(ours, original)
    if not shape:
        return shape
    a, b = _wide(ours), _wide(original)
    special = ~np.isfinite(b)
    if not np.array_equal(a[special], b[special], equal_nan=True) or not bool(np.all(np.isfinite(a[~special]))):
        return Verdict(False, "NaN or infinity where the original has another value")
    if not a.size or special.all():
        return GOOD
    apart = np.abs(a[~special] - b[~special]) / spacing(b[~special], original.dtype.name)
    if float(apart.max()) <= limit:
        return GOOD
    return Verdict(False, f"{float(apart.max()):.1f} units in the last place apart, {limit} are allowed")


def spacing(values: Array, dtype: str) -> Array:
    """The distance to the next number of type `dtype` at each value."""
    bits = _TOLERANCE[dtype][2]
    least = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}.get(dtype, -126)
    exponent = np.where(values == 0, least, np.frexp(np.abs(values))[1] - 1)
    return np.asarray(np.ldexp(1.0, np.maximum(exponent, least) - bits))


def close_to_exact(ours: Array, original: Array, exact: Array) -> Verdict:
    """The float64 rule: ours is about as close to `exact` (computed in float64) as the original is."""
    shape = _same_form(ours, original)
    if not shape:
        return shape
    if original.dtype.name not in _TOLERANCE:
        return same_bits(ours, original)
    a, b, truth = _wide(ours), _wide(original), _wide(exact)
    special = ~np.isfinite(b) | ~np.isfinite(truth)
    if special.any():
        if not np.array_equal(a[~np.isfinite(b)], b[~np.isfinite(b)], equal_nan=True):
            return Verdict(False, "NaN or infinity where the original has another value")
        a, b, truth = (np.where(special, 0.0, x) for x in (a, b, truth))
    if not np.isfinite(a).all():
        return Verdict(False, f"not finite where the original is, first at {_first(~np.isfinite(a))}")
    if not a.size:
        return GOOD
    relative, absolute, bits = _TOLERANCE[original.dtype.name]
    k = 3.0 if bits <= 10 else 2.0
    rows = [x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1) for x in (a, b, truth)]
    scale = np.sqrt(np.mean(rows[2] ** 2, axis=1))
    ours_rms, original_rms = (np.sqrt(np.mean((x - rows[2]) ** 2, axis=1)) for x in rows[:2])
    # a row's own error can be lucky: the tensor's typical error is what its rows are held to
    typical = float(np.sqrt(np.mean(original_rms**2)))
    allowed = k * np.maximum(original_rms, typical) + (relative * scale + absolute) / 10
    if (ours_rms > allowed).any():
        worst = int(np.argmax(ours_rms - allowed))
        return Verdict(False, f"row {worst}: error {ours_rms[worst]:.3g}, the original's is {original_rms[worst]:.3g}")
    largest = np.abs(rows[0] - rows[2]).max(axis=1)
    limit = 8 * float(np.abs(rows[1] - rows[2]).max()) + 4 * spacing(np.abs(rows[2]).max(axis=1), original.dtype.name)
    if (largest > limit + absolute / 10).any():
        worst = int(np.argmax(largest - limit))
        return Verdict(False, f"row {worst}: largest error {largest[worst]:.3g}, allowed {limit[worst]:.3g}")
    return GOOD


def alike(ours: Array, original: Array) -> Verdict:
    """Half of the digits agree: other rounding passes, another computation hardly does. The same bits where nothing rounds."""
    if original.dtype.name not in _TOLERANCE or not _same_form(ours, original):
        return same_bits(ours, original)
    a, b = _wide(ours), _wide(original)
    special = ~np.isfinite(b)
    if not np.array_equal(a[special], b[special], equal_nan=True) or not bool(np.isfinite(a[~special]).all()):
        return Verdict(False, "NaN or infinity where the original has another value")
    a, b = a[~special], b[~special]
    if not a.size:
        return GOOD
    _, absolute, bits = _TOLERANCE[original.dtype.name]
    scale = np.maximum(np.abs(b), np.sqrt(np.mean(b**2)))
    excess = np.abs(a - b) - (2.0 ** (-bits / 2) * scale + absolute)
    if bool((excess <= 0).all()):
        return GOOD
    worst = int(np.argmax(excess))
    return Verdict(False, f"{int((excess > 0).sum())} of {b.size} elements differ, at worst {a[worst]:.6g} from {b[worst]:.6g}")


def _same_form(ours: Array, original: Array) -> Verdict:
    if ours.shape != original.shape:
        return Verdict(False, f"shape {ours.shape}, the original has {original.shape}")
    if ours.dtype != original.dtype:
        return Verdict(False, f"type {ours.dtype}, the original has {original.dtype}")
    return GOOD


def _wide(x: Array) -> Array:
    return (_pairs(x) if x.dtype.kind == "c" else x).astype(np.float64)


def _pairs(x: Array) -> Array:
    """Complex numbers as real and imaginary parts along a last axis."""
    return np.stack([x.real, x.imag], -1)


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
