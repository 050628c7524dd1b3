"""Traces: what one call ran, in order, and what each piece of it took.

A piece is a unit (nodes that became kernels together), named as in events by its last node, or a node that tier 0 ran.
"""

from __future__ import annotations

from hotfuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of a unit or node before it runs, at one form. Bytes are those that must pass between it and others."""

    unit: str
    kind: str  # the operator of a node; "kernels" for a unit
    kernels: int
    tasks: int
    flops: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class PieceTime:
    """`seconds` as the caller's thread saw them: those of all pieces add up. `busy_s` and `waiting_s` are sums over `threads`,
    those that did something. A node of tier 0 is taken for one thread's work."""

    seconds: float
    busy_s: float
    waiting_s: float
    threads: int

    def rate(self, amount: float) -> float:
        """Of something that was done meanwhile, in a second."""
        return amount / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """One call of a plan: `seconds` in all, and what its pieces took of these. Of the caller's thread also the CPU time, inside
    of pieces and outside, where it went into tracing and into what every call does. A form is a text of the inputs' shapes."""

    plan: str
    form: str
    seconds: float
    inside_cpu_s: float
    outside_cpu_s: float
    pieces: tuple[Piece, ...]
    times: tuple[PieceTime, ...]

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(piece.unit for piece in self.pieces)

    @property
    def inside_s(self) -> float:
        """What the pieces took."""
        return sum(time.seconds for time in self.times)

    @property
    def size_bytes(self) -> int:
        """About what it takes to keep it: pieces are shared by all traces of a bound plan."""
        return 200 + 200 * len(self.times)
