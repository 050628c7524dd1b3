"""What vector functions should give: numpy and scipy in a wider type, mpmath where there is none; and the arguments to try.

`exact_wide` answers f32 in float64 and f64 in long double, `exact_slow` f64 from mpmath. Both return the wider type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy.special

Array = np.ndarray[Any, Any]
WIDER = {"f32": np.float64, "f64": np.longdouble}
BINARY = ("pow", "atan2", "fmod")
ONLY_MPMATH = ("erf", "erfc", "gelu_erf")  # scipy has them in float64, and erfc's tail is not good enough to judge f64 by


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, np.ones_like(x)) / (1 + e)


def _gelu_tanh(x: Array) -> Array:
    k = 2 * np.sqrt(2 / (4 * np.arctan(np.ones_like(x))))
    return x * _sigmoid(k * (x + x.dtype.type("0.044715") * x * x * x))


_WIDE: dict[str, Callable[..., Array]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "sigmoid": _sigmoid, "gelu_tanh": _gelu_tanh, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "gelu_erf": lambda x: x * scipy.special.ndtr(x),
}  # fmt: skip

_SLOW: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: mpmath.power(2, x), "log2": lambda x: mpmath.log(x) / mpmath.log(2), "pow": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "gelu_erf": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))),
}  # fmt: skip


def exact_wide(name: str, element: str, *arrays: Array) -> Array:
    function = _WIDE.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        return np.asarray(function(*(a.astype(WIDER[element]) for a in arrays)))


def exact_slow(name: str, *arrays: Array) -> Array:
    """NaN where the result is not real and finite."""
    function = _SLOW.get(name) or getattr(mpmath, name)
    with mpmath.workprec(1300 if name in ("sin", "cos", "tan") else 160):
        return np.array([_long(function, *map(float, args)) for args in zip(*arrays)])


def _long(function: Callable[..., Any], *args: float) -> np.longdouble:
    try:
        value = function(*(mpmath.mpf(a) for a in args))
    except (ValueError, ZeroDivisionError):
        return np.longdouble("nan")
    if not isinstance(value, mpmath.mpf) or not mpmath.isfinite(value):
        return np.longdouble("nan")
    if abs(value) > mpmath.mpf(2) ** 1030:
        return np.longdouble(math.copysign(math.inf, value))
    # In two pieces, scaled so that the second is not denormal.
    scaled = mpmath.ldexp(value, 200 if abs(value) < 1 else -200)
    high = float(scaled)
    back = np.longdouble(2) ** (-200 if abs(value) < 1 else 200)
    return (np.longdouble(high) + np.longdouble(float(scaled - high))) * back


SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
# Where some function changes its formula, overflows or vanishes; the numbers next to them are tried too.
CUTS = (
    0.5, 0.75, 0.8, 1.0, 1.5, 2.0, 3.93, 10.0, 10.1, 12.622, 13.1, 13.5, 18.0, 20.0, 27.3, 38.0, 38.6, 87.33, 88.72, 89.4,
    103.97, 104.0, 126.0, 127.0, 128.0, 149.0, 150.0, 708.4, 709.78, 710.47, 745.13, 746.0, 1022.0, 1023.0, 1024.0, 1074.0,
    1075.0, 2.0**52, 2.0**60, 2.0**104, 2.0**-12, 2.0**-28, 2.0**-30, 2.0**-60, 2.0**-24, 2.0**-53, math.sqrt(0.5),
    math.sqrt(2), math.log(2) / 2, math.log(2), math.pi / 4, math.pi / 2, math.pi, 0.4142135623730951, 0.2928932188134524,
)  # fmt: skip


def arguments(element: str, count: int, seed: int = 0) -> Array:
    """About `count` numbers: all binades and the denormals, the range of networks, 1 and the cuts and what is next to them."""
    random = np.random.default_rng(seed)
    dtype, integer = (np.float32, np.uint32) if element == "f32" else (np.float64, np.uint64)
    step = (1 << (32 if element == "f32" else 64)) // (count // 2)
    patterns = np.arange(count // 2, dtype=np.uint64) * np.uint64(step) + random.integers(0, step, count // 2, dtype=np.uint64)
    spread = random.standard_normal(count // 4) * 10.0 ** random.uniform(-3, 2.9, count // 4)
    near_one = 1 + random.standard_normal(count // 8) * 10.0 ** random.uniform(-7, 0, count // 8)
    turns = random.integers(1, 1 << 20, count // 8) * (math.pi / 2)
    cuts = np.array(CUTS + tuple(-c for c in CUTS), dtype)
    around = [(cuts.view(integer) + np.array(k).astype(integer)).view(dtype) for k in range(-3, 4)]
    with np.errstate(invalid="ignore"):  # among the bit patterns there are signalling NaN
        return np.concatenate([patterns.astype(integer).view(dtype), spread, near_one, turns, *around, SPECIAL]).astype(dtype)


def pairs(name: str, element: str, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Arguments of a function of two: each special with each, any with any, and those whose result is of moderate size."""
    random = np.random.default_rng(seed)
    dtype = np.float32 if element == "f32" else np.float64
    few = np.array([*SPECIAL, 3.0, -3.0, 1.5, -1.5, 1e-40, -1e-40, 3e38, -3e38, 2.0**24 - 1, 2.0**24, 2.0**53 - 1, -(2.0**53)])
    x, y = (side.ravel() for side in np.meshgrid(few, few))
    any_x, any_y = arguments(element, count, seed), arguments(element, count, seed + 1)
    base = 10.0 ** random.uniform(-30, 30, count)
    near_one = 1 + random.standard_normal(count) * 1e-3
    most = 80.0 if element == "f32" else 690.0
    size = random.uniform(-most, most, count)
    whole = random.integers(-30, 30, (2, count))
    xs = [x, random.permutation(any_x), base, near_one, whole[0]]
    ys = [y, any_y, size / np.log(base), size / np.log(near_one), whole[1]]
    return np.concatenate(xs).astype(dtype), np.concatenate(ys).astype(dtype)


def hard_angles(element: str) -> Array:
    """Numbers of various exponents that come nearest to multiples of pi/2: M 2^e, where M is the denominator of a convergent
    of 2^e/(pi/2), as large as the mantissa allows."""
    bits, exponents = (24, range(-26, 105, 2)) if element == "f32" else (53, range(-56, 971, 13))
    found = []
    with mpmath.workprec(1300):
        for e in exponents:
            rest, before, denominator = mpmath.ldexp(1, e) / (mpmath.pi / 2), 1, 0
            while True:
                whole = int(mpmath.floor(rest))
                before, denominator = denominator, whole * denominator + before
                if denominator >= 1 << bits:
                    break
                rest = 1 / (rest - whole)
            found.append(math.ldexp(before, e))
    return np.array([*found, *(-x for x in found)], np.float32 if element == "f32" else np.float64)
