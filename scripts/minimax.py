"""Finds the coefficients of hotfuse/codegen/vector_*.py: `python -m scripts.minimax [NAME ...]` prints them with their errors.

Remez: a polynomial is the best one if its weighted error swings between equal extremes, one more than it has terms. Solve
for such a polynomial on trial points, move the points to where its error is extreme, repeat. Coefficients are then rounded to
f32 or f64 one after the other from the constant term up, and those not yet rounded fitted anew, so that they make up for it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mpmath as mp

mp.mp.prec = 200
Number = mp.mpf
Function = Callable[[Number], Number]
GRID = 300


@dataclass(frozen=True)
class Fit:
    """`function` on [low, high] by a polynomial of `terms` terms; `weight` times the error counts (1/function by default)."""

    element: str
    function: Function
    low: Number
    high: Number
    terms: int
    weight: Function | None = None
    fixed: Mapping[int, float] = field(default_factory=dict)


def rounded(element: str, value: Number) -> Number:
    return Number(struct.unpack("<f", struct.pack("<f", float(value)))[0] if element == "f32" else float(value))


def value_at(coefficients: Mapping[int, Number], x: Number) -> Number:
    return mp.fsum(c * x**power for power, c in coefficients.items())


def remez(
    function: Function, points: Sequence[Number], powers: Sequence[int], weights: Sequence[Number]
) -> tuple[list[Number], Number]:
    """The coefficients and the largest weighted error, for a grid of Chebyshev points."""
    n, values = len(powers), [function(x) for x in points]
    rows = [[x**p for p in powers] for x in points]
    at = [round(i * (len(points) - 1) / n) for i in range(n + 1)]
    best: tuple[list[Number], Number] = ([], mp.inf)
    for _ in range(12):
        matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for r, i in enumerate(at):
            for k in range(n):
                matrix[r, k] = weights[i] * rows[i][k]
            matrix[r, n], right[r] = (-1) ** r, weights[i] * values[i]
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[k] for k in range(n)]
        errors = [w * (mp.fdot(coefficients, row) - v) for w, row, v in zip(weights, rows, values)]
        most = max(map(abs, errors))
        if most < best[1]:
            best = coefficients, most
        extremes: list[int] = []  # the largest of each run of one sign
        for i, error in enumerate(errors):
            if extremes and (error > 0) == (errors[extremes[-1]] > 0):
                extremes[-1] = max(extremes[-1], i, key=lambda j: abs(errors[j]))
            else:
                extremes.append(i)
        while len(extremes) > n + 1:
            extremes.pop(0 if abs(errors[extremes[0]]) < abs(errors[extremes[-1]]) else -1)
        if most <= abs(solution[n]) * 1.02 or len(extremes) < n + 1:
            break
        at = extremes
    return best


def solve(fit: Fit) -> tuple[list[Number], Number]:
    """Rounded coefficients, constant term first, and the largest weighted error."""
    low, high = Number(fit.low), Number(fit.high)
    points = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / GRID) for i in range(GRID + 1)]
    weight = fit.weight or (lambda x: 1 / abs(fit.function(x)))
    weights = [abs(weight(x)) for x in points]
    done = {power: Number(value) for power, value in fit.fixed.items()}
    left = [p for p in range(fit.terms) if p not in done]
    fitted, error = remez(lambda x: fit.function(x) - value_at(done, x), points, left, weights)
    while left:
        done[left.pop(0)] = rounded(fit.element, fitted.pop(0))
        if len(left) > 2:
            again, next_error = remez(lambda x: fit.function(x) - value_at(done, x), points, left, weights)
            if next_error <= 1.3 * error or next_error < 1e-19:
                fitted, error = again, max(error, next_error)
    errors = (w * abs(value_at(done, x) - fit.function(x)) for w, x in zip(weights, points))
    return [done[p] for p in range(fit.terms)], max(errors)


def at_zero(value: Number, function: Function) -> Function:
    """The limit where a quotient is 0/0; numbers next to 0 are left to the precision of mpmath."""
    return lambda x: function(x) if abs(x) > Number(10) ** -20 else Number(value)


def _atan_like(function: Function, slope: Number) -> tuple[Function, Function]:
    """(f(u)/u - 1)/u^2 in z = u^2, and the weight that makes its error one relative to f."""
    quotient = at_zero(slope, lambda z: (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z)
    return quotient, at_zero(0, lambda z: z * mp.sqrt(z) / function(mp.sqrt(z)))


LN2, ROOT = mp.log(2), mp.sqrt(2)
NEAR = LN2 / 16 * Number("1.001")
ANGLE = (mp.pi / 4 * Number("1.0001")) ** 2


def _log(base: Number) -> Function:
    return at_zero(1 / mp.log(base), lambda f: mp.log1p(f) / f / mp.log(base))


def _phi_tolerance(a: Number) -> Number:
    """How far Phi(-a) may be off, relative to it: little where it is large, less than eager everywhere."""
    return min(Number(2) ** -24.5 / mp.erfc(a / ROOT) ** 0.4, Number(8))


def _erfcx(k: int) -> Function:
    def function(q: Number) -> Number:
        a = k * (1 + q) / (1 - q)
        return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)

    return function


ATAN, ASIN = _atan_like(mp.atan, -Number(1) / 3), _atan_like(mp.asin, Number(1) / 6)
SIN = at_zero(-Number(1) / 6, lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z)
COS = at_zero(Number(1) / 24, lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2)
EXPM1 = at_zero(Number(1) / 2, lambda r: (mp.expm1(r) - r) / r**2)
EXPM1_WEIGHT = at_zero(0, lambda r: r * r / mp.expm1(r))
LOG_ERFC = at_zero(-2 / mp.sqrt(mp.pi) / LN2, lambda a: mp.log(mp.erfc(a), 2) / a)
LOG_PHI = at_zero(-mp.sqrt(2 / mp.pi) / LN2, lambda a: mp.log(mp.erfc(a / ROOT), 2) / a)
ERF = at_zero(2 / mp.sqrt(mp.pi), lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z))
ATANH = at_zero(Number(1) / 5, lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2)
EXP_NEAR = at_zero(1, lambda r: mp.expm1(r) / r)
EXP2M1 = at_zero(LN2, lambda r: (mp.power(2, r) - 1) / r)
ERF_WEIGHT = at_zero(LN2 * mp.sqrt(mp.pi) / 2, lambda a: a * LN2 * mp.erfc(a) / mp.erf(a))

FITS: Mapping[str, tuple[Fit, ...]] = {
    "exp": tuple(Fit(e, mp.exp, -LN2, LN2, n, fixed={0: 1, 1: 1}) for e, n in (("f32", 8), ("f64", 14))),
    "exp2": tuple(Fit(e, lambda r: mp.power(2, r), -1, 1, n, fixed={0: 1}) for e, n in (("f32", 8), ("f64", 14))),
    "expm1": tuple(
        Fit(e, EXPM1, -LN2 / 2 * Number("1.001"), LN2 / 2 * Number("1.001"), n, EXPM1_WEIGHT, {0: 0.5})
        for e, n in (("f32", 5), ("f64", 11))
    ),
    "exp_near": tuple(
        Fit(e, EXP_NEAR, -limit, limit, n, at_zero(0, lambda r: r / mp.exp(r)), {0: 1})
        for e, n, limit in (("f32", 3, NEAR / 2), ("f64", 7, NEAR))
    ),
    "expm1_near": tuple(
        Fit(e, EXP_NEAR, -limit, limit, n, fixed={0: 1, 1: 0.5}) for e, n, limit in (("f32", 4, NEAR / 2), ("f64", 8, NEAR))
    ),
    "exp2_near": tuple(
        Fit(e, EXP2M1, -limit, limit, n, at_zero(0, lambda r: r / mp.power(2, r)))
        for e, n, limit in (("f32", 3, Number(1) / 32), ("f64", 7, Number(1) / 16))
    ),
    "ln": tuple(Fit(e, _log(mp.e), -0.25, 0.5, n, fixed={0: 1, 1: -0.5}) for e, n in (("f32", 9), ("f64", 21))),
    "log2": tuple(Fit(e, _log(Number(2)), -0.25, 0.5, n) for e, n in (("f32", 9), ("f64", 21))),
    "log10": tuple(Fit(e, _log(Number(10)), -0.25, 0.5, n) for e, n in (("f32", 9), ("f64", 21))),
    "sin": tuple(Fit(e, SIN, 0, ANGLE, n, lambda z: z) for e, n in (("f32", 3), ("f64", 6))),
    "cos": tuple(Fit(e, COS, 0, ANGLE, n, lambda z: z * z / mp.cos(mp.sqrt(z))) for e, n in (("f32", 3), ("f64", 6))),
    "atan": tuple(Fit(e, ATAN[0], 0, 1, n, ATAN[1]) for e, n in (("f32", 8), ("f64", 20))),
    "asin": tuple(Fit(e, ASIN[0], 0, Number(1) / 4, n, ASIN[1]) for e, n in (("f32", 5), ("f64", 12))),
    "log_erfc": (Fit("f32", LOG_ERFC, 0, Number("3.93"), 8, ERF_WEIGHT),),
    "log_phi": (Fit("f32", LOG_PHI, 0, Number("13.2"), 10, lambda a: a * LN2 / _phi_tolerance(a)),),
    "exp2m1": (Fit("f32", EXP2M1, -0.5, 0.5, 6),),
    "erfcx": (
        Fit("f32", _erfcx(2), -1, (Number("10.1") - 2) / (Number("10.1") + 2), 11),
        Fit("f64", _erfcx(4), -1, (Number("27.4") - 4) / (Number("27.4") + 4), 22),
    ),
    "erf": (Fit("f64", ERF, 0, Number("0.64"), 12),),
    "atanh": (Fit("f64", ATANH, 0, ((ROOT - 1) / (ROOT + 1)) ** 2, 7, lambda z: z * z),),
}


def main() -> None:
    for name in sys.argv[1:] or FITS:
        for fit in FITS[name]:
            coefficients, error = solve(fit)
            print(f"{name} {fit.element}, {fit.terms} terms, error {mp.nstr(error, 2)}")
            print("    " + ", ".join(repr(float(c)) for c in coefficients), flush=True)


if __name__ == "__main__":
    main()
