"""Known contents: how small integer tensors (sizes, axes, flags) flow through operators before anything runs.

`elementwise(f)` gives the contents of a result element by element, with `f` over dims. Where `f` answers None the element
depends on sizes in a way that nobody can tell yet, and the whole result is unknown. Numbers wrap as the element type does.
Sums and products may be wrapped at the end; whatever else reads a value that may have wrapped is left to run (`may_wrap`).
A quotient is tracked only where no size makes its divisor 0: what dividing by 0 gives is the reference's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotfuse.ir.dim import Atom, Dim, Div, Symbol, floordiv, lower_bound, maximum, minimum, upper_bound
from hotfuse.ir.facts import NO_FACTS
from hotfuse.ir.op import CONTENTS_LIMIT, Call, Contents
from hotfuse.ir.types import BOOL, DType

Track = Callable[[Call], Sequence[Contents | None]]
SIZE_BITS = 26  # an hour of sound at 16 kHz: 58 million


def fit(dim: Dim, dtype: DType) -> Dim:
    """`dim` as an element of `dtype`: numbers wrap around, flags are 0 or 1."""
    if not isinstance(dim, int):
        return dim
    if dtype is BOOL:
        return int(dim != 0)
    if dtype.kind == "uint":
        return int(dim) % (1 << dtype.bits)
    half = 1 << (dtype.bits - 1)
    return (int(dim) + half) % (2 * half) - half


def may_wrap(dim: Dim, dtype: DType) -> bool:
    """Whether an expression could leave the range of `dtype`, with sizes below 2 ** SIZE_BITS."""
    return not isinstance(dim, int) and bits_of(dim) >= dtype.bits


def bits_of(dim: Dim) -> int:
    """Bits that the number `dim` stands for may take, sign included, if a size takes SIZE_BITS."""
    if isinstance(dim, int):
        return dim.bit_length() + 1
    terms = (c.bit_length() + sum(_atom_bits(a) * p for a, p in m) for m, c in dim.terms)
    return max(terms) + (len(dim.terms) - 1).bit_length() + 1


def _atom_bits(atom: Atom) -> int:
    if isinstance(atom, Symbol):
        return SIZE_BITS
    parts = (atom.top,) if isinstance(atom, Div) else (atom.a, atom.b)
    return max(bits_of(d) for d in parts)


def elementwise(
    function: Callable[..., Dim | None], result: Callable[[Call], DType] = lambda call: call.dtype(0), ring: bool = False
) -> Track:
    """Track contents through an operator that computes each element by `function`; `result` names the result's element type. A
    `ring` operator only adds and multiplies."""

    def run(call: Call) -> Sequence[Contents | None]:
        columns: list[Sequence[Dim | None]] = []
        for i, value in enumerate(call.inputs):
            found = (None,) if value is None else call.contents(i)
            if found is None:
                return (None,)
            if not ring and any(d is not None and may_wrap(d, call.dtype(i)) for d in found):
                return (None,)
            columns.append(found)
        count = 0 if any(len(c) == 0 for c in columns) else max(len(c) for c in columns)
        if count > CONTENTS_LIMIT:
            return (None,)
        dtype = result(call)
        dims: list[Dim] = []
        for i in range(count):
            dim = function(*(c[0] if len(c) == 1 else c[i] for c in columns))
            if dim is None:
                return (None,)
            dims.append(fit(dim, dtype))
        return (tuple(dims),)

    return run


def flags(function: Callable[..., bool | None]) -> Track:
    """Track an elementwise operator whose result is bool."""
    return elementwise(function, lambda call: BOOL)


def equal(a: Dim, b: Dim) -> bool | None:
    return NO_FACTS.decide(a, b)


def less(a: Dim, b: Dim) -> bool | None:
    """Whether a < b for every size (True), for none (False), or it depends (None)."""
    low, high = lower_bound(b - a), upper_bound(b - a)
    if low is not None and low > 0:
        return True
    return False if high is not None and high <= 0 else None


def negated(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def both(a: Dim, b: Dim) -> bool | None:
    verdicts = (holds(a), holds(b))
    return False if False in verdicts else None if None in verdicts else True


def either(a: Dim, b: Dim) -> bool | None:
    verdicts = (holds(a), holds(b))
    return True if True in verdicts else None if None in verdicts else False


def holds(a: Dim) -> bool | None:
    """Whether an element counts as true."""
    return negated(equal(a, 0))


def differ(a: Dim, b: Dim) -> bool | None:
    verdicts = (holds(a), holds(b))
    return None if None in verdicts else verdicts[0] != verdicts[1]


def choose(condition: Dim, x: Dim, y: Dim) -> Dim | None:
    if x == y:
        return x
    verdict = holds(condition)
    return None if verdict is None else x if verdict else y


def magnitude(a: Dim) -> Dim | None:
    low, high = lower_bound(a), upper_bound(a)
    if low is not None and low >= 0:
        return a
    return -a if high is not None and high <= 0 else None


def may_be_zero(a: Dim) -> bool:
    low, high = lower_bound(a), upper_bound(a)
    return not ((low is not None and low > 0) or (high is not None and high < 0))


def quotient(a: Dim, b: Dim) -> Dim | None:
    """Division toward zero: known where it equals floor division, because nothing is negative or nothing is left over."""
    if may_be_zero(b):
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    floor = floordiv(a, b)
    low, divisor_low = lower_bound(a), lower_bound(b)
    if floor * b == a or (low is not None and low >= 0 and divisor_low is not None and divisor_low >= 0):
        return floor
    return None


def floor_quotient(a: Dim, b: Dim) -> Dim | None:
    return None if may_be_zero(b) else floordiv(a, b)


def remainder(a: Dim, b: Dim) -> Dim | None:
    """The remainder of floor division: it has the sign of b."""
    return None if may_be_zero(b) else a - b * floordiv(a, b)


def truncated_remainder(a: Dim, b: Dim) -> Dim | None:
    """The remainder of division toward zero: it has the sign of a."""
    found = quotient(a, b)
    return None if found is None else a - b * found


def clipped(x: Dim, low: Dim | None = None, high: Dim | None = None) -> Dim:
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)
