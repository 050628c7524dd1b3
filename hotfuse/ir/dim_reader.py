"""The text form of dims, read back: what `str` prints, `parse` reads.

sum     = product (("+" | "-") product)*
product = unary (("*" | "//" | "%") unary)*
unary   = "-" unary | number | symbol | "(" sum ")" | ("min" | "max") "(" sum "," sum ")"
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotfuse.errors import DimError
from hotfuse.ir.dim import Dim, maximum, minimum, symbol


class _Reader:
    """A recursive-descent parser of the text form of dims."""

    TOKEN = re.compile(r"\s*(//|[A-Za-z_?][\w.?]*|\d+|[-+*%(),])")

    def __init__(self, text: str, minimums: Mapping[str, int]) -> None:
        self.text = text
        self.minimums = minimums
        self.tokens: list[str] = []
        place = 0
        stripped = text.rstrip()
        while place < len(stripped):
            match = self.TOKEN.match(stripped, place)
            if not match:
                raise DimError(f"cannot read the size {text!r} at column {place + 1}")
            self.tokens.append(match.group(1))
            place = match.end()
        self.place = 0

    def peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or (expected is not None and token != expected):
            raise DimError(f"cannot read the size {self.text!r}: expected {expected or 'more'}, found {token or 'the end'}")
        self.place += 1
        return token

    def sum(self) -> Dim:
        total = self.product()
        while self.peek() in ("+", "-"):
            total = total + self.product() if self.take() == "+" else total - self.product()
        return total

    def product(self) -> Dim:
        total = self.unary()
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            right = self.unary()
            total = total * right if operator == "*" else total // right if operator == "//" else total % right
        return total

    def unary(self) -> Dim:
        if self.peek() == "-":
            self.take()
            return -self.unary()
        return self.atom()

    def atom(self) -> Dim:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.take(")")
            return inner
        if token.isdigit():
            return int(token)
        if token in ("min", "max") and self.peek() == "(":
            self.take("(")
            a = self.sum()
            self.take(",")
            b = self.sum()
            self.take(")")
            return minimum(a, b) if token == "min" else maximum(a, b)
        if token in "+*,)%" or token == "//":
            raise DimError(f"cannot read the size {self.text!r}: unexpected {token!r}")
        return symbol(token, self.minimums.get(token, 0))


def parse(text: str, minimums: Mapping[str, int] | None = None) -> Dim:
    """Read a dim as `str` prints it. Symbols come back with their minimum in `minimums`, or 0."""
    reader = _Reader(text, minimums or {})
    result = reader.sum()
    if reader.peek() is not None:
        raise DimError(f"cannot read the size {text!r}: {reader.peek()!r} is left over")
    return result
