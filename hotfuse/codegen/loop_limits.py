"""What can be proved of the limits of loops: that a length is a whole number of runs, or not below a number."""

from __future__ import annotations

from collections.abc import Sequence

from hotfuse.codegen.tile import Axis
from hotfuse.ir.dim import Dim, Div, Expr, Max, Min, floordiv, lower_bound, substitute, symbol, symbols_of, upper_bound


def is_multiple(dim: Dim, by: Dim) -> bool:
    """Whether a dim is surely a multiple of another one, whichever side its first minimum or maximum takes."""
    if dim % by == 0:
        return True
    if isinstance(dim, Expr):
        for monomial, coefficient in dim.terms:
            if len(monomial) == 1 and isinstance(monomial[0][0], Min | Max) and monomial[0][1] == 1:
                atom = monomial[0][0]
                rest = dim - Expr(((monomial, coefficient),))
                return all(is_multiple(rest + coefficient * side, by) for side in (atom.a, atom.b))
    return False


def is_at_least(dim: Dim, low: int, grid: Sequence[Axis]) -> bool:
    """Whether a dim of a program is surely not below a number in any task. Beyond `lower_bound` this knows remainders
    (x - x//8*8 is 0 to 7), both sides of a minimum or maximum, and the last value of a grid variable."""
    least = lower_bound(dim)
    if least is not None and least >= low:
        return True
    if isinstance(dim, int):
        return False
    for monomial, coefficient in dim.terms:
        if len(monomial) != 1 or monomial[0][1] != 1:
            continue
        atom, rest = monomial[0][0], dim - Expr(((monomial, coefficient),))
        if isinstance(atom, Div) and isinstance(atom.bottom, int) and abs(coefficient) == atom.bottom:
            least = _least_remainder(rest, Expr((((monomial), 1),)), coefficient)
            if least is not None and least >= low:
                return True
        if isinstance(atom, Min | Max):
            enough = any if isinstance(atom, Min) == (coefficient < 0) else all
            if enough(is_at_least(rest + coefficient * side, low, grid) for side in (atom.a, atom.b)):
                return True
    for place, axis in enumerate(grid):
        step = slope(dim, axis.var)
        most = None if step is None or step == 0 else upper_bound(step)
        if most is not None and most <= 0:  # it falls: what holds in the last task holds in all
            return is_at_least(substitute(dim, {axis.var: axis.count - 1}), low, [*grid[:place], *grid[place + 1 :]])
    return False


def _least_remainder(rest: Dim, quotient: Dim, coefficient: int) -> int | None:
    """The least value of rest + coefficient * quotient, if the quotient is that of the rest and but for a number."""
    by = abs(coefficient)
    shift = floordiv(rest if coefficient < 0 else -rest, by) - quotient
    if not isinstance(shift, int):
        return None
    return by * shift if coefficient < 0 else 1 - by - by * shift


def slope(dim: Dim, var: str) -> Dim | None:
    """What a dim grows by when a variable grows by 1, if that is the same everywhere."""
    if isinstance(dim, int) or var not in {s.name for s in symbols_of((dim,))}:
        return 0
    step = substitute(dim, {var: symbol(var) + 1}) - dim
    return None if var in {s.name for s in symbols_of((step,))} else step
