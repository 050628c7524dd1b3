"""The error function and its relatives for float32 arrays, in numpy.

scipy has it, and takes longer to import than a model takes to load. What is float64 is computed by scipy all the same: there it
is held to all of its digits, and it is what kernels are judged by.

    erfc(z) = t exp(P(2t - 1) - z^2),       t = 2 / (2 + z),   for z >= 0;   erfc(-z) = 2 - erfc(z)
    erf(x)  = x Q(2x^2 - 1)                 for |x| < 1, where 1 - erfc(x) would lose digits
    erfc(z) = (1 - u) exp(u H(u) - a^2/2),  u = a / (a + 3.75),   a = sqrt(2) z

P, Q and H are fitted at Chebyshev nodes, with relative errors of 6e-9, 2e-9 and 5e-9: a tenth of what rounding to float32 adds.
`erfc` and `ndtr` are computed by the first, in float64, and right to 0.6 ulp. `erf` and `gelu`, where half of a transformer's
time would go otherwise, by the last, in float32: erf is right to 2 ulp, gelu as close as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 4096  # elements that are computed in one go: what lies between stays in the nearest cache
LONG_BLOCK = 16384  # of operations that take no longer than they take to begin
_P = (
    -0.67179408515172123, 0.67264315477454339, 0.047343417521059153, -0.046893640559966365, -0.0098745349182184795,
    0.0088088253693926911, 0.0017706661183516834, -0.0022887652385987422, -0.00018278214120900232, 0.00057376637200835237,
    -3.2113772743042029e-05, -8.7283810217696697e-05, 1.3371503628478957e-05,
)  # fmt: skip
_Q = (
    0.96546873863755078, -0.14053608901552919, 0.019852497722779593, -0.0022854856569558377, 0.00021751198975742588,
    -1.7536824684508114e-05, 1.2316401734147519e-06, -7.5574929974682355e-08,
)  # fmt: skip
_H = (
    -1.9920671170623905, 0.06295401561686853, 0.5349867807632988, 0.12344865398690888, -0.28761266231266236,
    -0.05666933842556284, -0.4025072817507331, 1.0886536974695031, -0.8427872093054596, 0.22416113534291662,
)  # fmt: skip

_ZERO, _HALF, _ONE, _ROOT, _SCALE, _FARTHEST = map(np.float32, (0, 0.5, 1, 2**0.5, 3.75, 15))
_SIGN = np.uint32(1 << 31)
_STEEP, _CUBE = 0.7978845608028654, 0.044715  # of what tanh takes


def erf(x: Array, out: Array | None = None) -> Any:
    if x.dtype != np.float32:
        import scipy.special

        return scipy.special.erf(x, out=out)
    return _in_blocks(_erf, x, out, LONG_BLOCK)


def gelu(x: Array, out: Array | None = None) -> Any:
    """x times the share of a normal distribution below x."""
    if x.dtype != np.float32:
        return np.multiply(erfc(x * x.dtype.type(-(0.5**0.5))), x * x.dtype.type(0.5), out=out)
    return _in_blocks(_gelu, x, out, LONG_BLOCK)


def gelu_by_tanh(x: Array, out: Array | None = None) -> Any:
    """What is close to it: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    kind = x.dtype.type
    if x.dtype != np.float32:
        inner = kind(_STEEP) * (x + kind(_CUBE) * x * x * x)
        return np.multiply(kind(0.5) * x, kind(1) + np.tanh(inner), out=out)
    return _in_blocks(_gelu_by_tanh, x, out, LONG_BLOCK)


def erfc(x: Array) -> Any:
    """1 - erf(x), without the cancellation for large x."""
    if x.dtype != np.float32:
        import scipy.special

        return scipy.special.erfc(x)
    return _in_blocks(_erfc_block, x, None)


def ndtr(x: Array) -> Any:
    """The share of a normal distribution below x."""
    if x.dtype != np.float32:
        import scipy.special

        return scipy.special.ndtr(x)
    return _in_blocks(_ndtr_block, x, None)


def _in_blocks(write: Any, x: Array, out: Array | None, size: int = BLOCK) -> Array:
    """What `write` writes for each block of so many elements, with three more blocks of memory to work in."""
    result = np.empty(x.shape, x.dtype) if out is None else out
    given = np.ascontiguousarray(x).reshape(-1)
    made = result.reshape(-1) if result.flags.c_contiguous else np.empty(given.shape, x.dtype)
    memory = np.empty((3, min(size, given.size)), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, given.size, size):
            block = given[first : first + size]
            write(block, made[first : first + size], *memory[:, : block.size])
    if not result.flags.c_contiguous:
        result[...] = made.reshape(x.shape)
    return result


def _erfc_block(x: Array, out: Array, *memory: Array) -> None:
    out[...] = _erfc(x.astype(np.float64))


def _ndtr_block(x: Array, out: Array, *memory: Array) -> None:
    out[...] = 0.5 * _erfc(x.astype(np.float64) * -(0.5**0.5))


def _erfc(x: Array) -> Array:
    z = np.abs(x)
    t = 2 / (2 + z)
    power = _polynomial(_P, 2 * t - 1)
    z *= z
    power -= z
    t *= np.exp(power, out=power)
    return np.where(x < 0, 2 - t, t)


def _gelu(x: Array, out: Array, a: Array, u: Array, e: Array) -> None:
    np.abs(x, out=a)
    _tails(a, out, u, e)
    a *= _HALF
    e *= a
    np.maximum(x, _ZERO, out=out)
    out -= e
    _sign_as(x, out, u)  # zeros have one, too
    if not x.min() > -np.inf:
        out[np.isneginf(x)] = np.nan  # 0 times infinity


def _gelu_by_tanh(x: Array, out: Array, a: Array, u: Array, e: Array) -> None:
    np.multiply(x, x, out=a)
    a *= np.float32(_STEEP * _CUBE)
    a += np.float32(_STEEP)
    a *= x
    np.tanh(a, out=a)
    a += _ONE
    np.multiply(x, _HALF, out=out)
    out *= a


def _erf(x: Array, out: Array, a: Array, u: Array, e: Array) -> None:
    np.abs(x, out=a)
    is_near = a < _ONE
    a *= _ROOT
    _tails(a, out, u, e)
    np.subtract(_ONE, e, out=out)
    _sign_as(x, out, u)
    np.minimum(x, _ONE, out=a)
    np.maximum(a, -_ONE, out=a)
    np.multiply(a, a, out=u)
    u += u
    u -= _ONE
    _horner(_Q, u, e)
    e *= a
    np.copyto(out, e, where=is_near)


def _sign_as(x: Array, out: Array, memory: Array) -> None:
    """Give results that have no sign yet, or the same, that of x. (`copysign` goes element by element.)"""
    np.bitwise_and(x.view(np.uint32), _SIGN, out=memory.view(np.uint32))
    np.bitwise_or(out.view(np.uint32), memory.view(np.uint32), out=out.view(np.uint32))


def _tails(a: Array, square: Array, u: Array, e: Array) -> None:
    """Write to `e` the shares of a normal distribution beyond a >= 0 on both sides. Beyond the farthest there is nothing, and
    `a` is at most that then."""
    np.minimum(a, _FARTHEST, out=a)
    np.add(a, _SCALE, out=e)
    np.divide(a, e, out=u)
    _horner(_H, u, e)
    e *= u
    np.multiply(a, a, out=square)
    square *= _HALF
    e -= square
    np.exp(e, out=e)
    np.subtract(_ONE, u, out=u)
    e *= u


def _horner(coefficients: Sequence[float], u: Array, out: Array) -> None:
    *others, last = map(np.float32, coefficients)
    np.multiply(u, last, out=out)
    for coefficient in others[:0:-1]:
        out += coefficient
        out *= u
    out += others[0]


def _polynomial(coefficients: Sequence[float], u: Array) -> Array:
    found = np.full(u.shape, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found *= u
        found += coefficient
    return found
