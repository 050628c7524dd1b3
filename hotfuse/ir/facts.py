"""Facts: equalities between sizes that are known to hold. Nothing here guesses: `decide` answers True, False or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, Expr, Symbol, lower_bound, substitute, symbol, symbols_of, upper_bound
from hotfuse.records import dataclass


@dataclass(frozen=True)
class Facts:
    """Equalities that are known to hold. `assume` returns new facts; `simplify` rewrites a dim to its representative."""

    known: Mapping[str, Dim] = field(default_factory=dict)
    others: tuple[tuple[Dim, Dim], ...] = ()

    def simplify(self, dim: Dim) -> Dim:
        if not self.known or isinstance(dim, int):
            return dim
        for _ in range(len(self.known) + 1):
            after = substitute(dim, self.known)
            if after == dim:
                break
            dim = after
        return dim

    def assume(self, a: Dim, b: Dim) -> Facts:
        """These facts and `a == b`. Raises DimError when that contradicts them."""
        a, b = self.simplify(a), self.simplify(b)
        if a == b:
            return self
        verdict = self.decide(a, b)
        if verdict is False:
            raise DimError(f"size {a} cannot equal {b}")
        difference = a - b
        assert isinstance(difference, Expr)
        for monomial, coefficient in reversed(difference.terms):
            if abs(coefficient) == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                atom = monomial[0][0]
                if isinstance(atom, Symbol):
                    rest = symbol(atom.name, atom.minimum) - difference * coefficient
                    if all(s != atom for s in symbols_of([rest])):
                        return Facts({**self.known, atom.name: rest}, self.others)
        return Facts(self.known, (*self.others, (a, b)))

    def decide(self, a: Dim, b: Dim) -> bool | None:
        """Whether `a == b`: True or False when that holds for every size, None when it depends."""
        a, b = self.simplify(a), self.simplify(b)
        if a == b or (a, b) in self.others or (b, a) in self.others:
            return True
        difference = a - b
        low, high = lower_bound(difference), upper_bound(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        if isinstance(difference, Expr):
            constant = sum(c for m, c in difference.terms if not m)
            divisor = math.gcd(*(c for m, c in difference.terms if m))
            if divisor and constant % divisor:
                return False
        return None


NO_FACTS = Facts()
