"""Dims as LLVM integers: what offsets, strides and loop limits become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from hotfuse.codegen.llvm_text import I64, Operand, Writer, literal
from hotfuse.ir.dim import Atom, Dim, Div, Expr, Max, Min, Symbol, lower_bound, symbols_of

Scope: TypeAlias = dict[Dim, Operand]  # dims already computed where we are; a copy for each nested block


def emit_dim(w: Writer, dim: Dim, symbols: Mapping[str, Operand], scope: Scope) -> Operand:
    """The value of `dim` as an i64, computed at most once in a scope."""
    if isinstance(dim, int):
        return literal(I64, dim)
    found = scope.get(dim)
    if found is None:
        found = scope[dim] = _emit(w, dim, symbols, scope)
    return found


def _emit(w: Writer, dim: Expr, symbols: Mapping[str, Operand], scope: Scope) -> Operand:
    total: Operand | None = None
    for monomial, coefficient in dim.terms:
        term: Operand | None = None
        for atom, power in monomial:
            factor = _atom(w, atom, symbols, scope)
            for _ in range(power):
                term = factor if term is None else w.mul(term, factor)
        if term is None:
            term = literal(I64, coefficient)
        elif coefficient != 1:
            term = w.mul(term, literal(I64, coefficient))
        total = term if total is None else w.add(total, term)
    assert total is not None
    return total


def _atom(w: Writer, atom: Atom, symbols: Mapping[str, Operand], scope: Scope) -> Operand:
    if isinstance(atom, Symbol):
        return symbols[atom.name]
    if isinstance(atom, Div):
        top, bottom = emit_dim(w, atom.top, symbols, scope), emit_dim(w, atom.bottom, symbols, scope)
        least = lower_bound(atom.top)
        if least is not None and least >= 0:
            return w.make(I64, f"udiv {top}, {bottom.text}")
        quotient, rest = w.div(top, bottom), w.rem(top, bottom)
        uneven = w.compare("ne", rest, literal(I64, 0))
        opposite = w.compare("lt", w.xor(rest, bottom), literal(I64, 0))
        return w.sub(quotient, w.make(I64, f"zext i1 {w.and_(uneven, opposite).text} to i64"))
    assert isinstance(atom, Min | Max)
    a, b = emit_dim(w, atom.a, symbols, scope), emit_dim(w, atom.b, symbols, scope)
    return w.binary("smin" if isinstance(atom, Min) else "smax", a, b)


def names_in(*dims: Dim) -> set[str]:
    """The symbols that dims mention."""
    return {s.name for s in symbols_of(dims)}
