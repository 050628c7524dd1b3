"""Work: what a kernel does at some sizes, counted. All that the performance model knows of it.

    group of nodes  --`fusion/analyzer`-->  Work  --`hardware/prior`, `hardware/features`-->  seconds

Bytes are counted by where they come from: a `Touch` says how many others the plan moved since they were touched last, which
decides the cache that still has them. Arithmetic is counted by what it costs: multiply-adds of products, and vector operations
of everything else, of which a function like exp takes many.
"""

from __future__ import annotations

from hotfuse.records import dataclass

IN_ORDER, STRIDED, GATHERED = 0, 1, 2  # how memory is gone through
ACCESSES = ("in order", "strided", "gathered")
ALONE, BY_ROWS, BY_COLUMNS = 0, 1, 2  # how threads share a kernel's points: each has its own part (`docs/decisions/0018`)


@dataclass(frozen=True, slots=True)
class Touch:
    """Some bytes of a value that are read or written. `distance`: bytes moved since they were touched before; `handed`: of
    them those that a thread takes over from the cache of another, where there are two (`fusion/whereabouts`)."""

    name: str
    bytes: float
    distance: float
    element: int = 4  # bytes of one
    access: int = IN_ORDER
    is_weight: bool = False
    handed: float = 0.0

    def found_at(self, distance: float, handed: float) -> Touch:
        """The same bytes, from as far and as many of them from others. `replace` takes four times as long, and planning asks
        for this more often than for anything else."""
        return Touch(self.name, self.bytes, distance, self.element, self.access, self.is_weight, handed)


@dataclass(frozen=True, slots=True)
class Use:
    """An operator, on how many elements it is used, how many operations each is worth where nobody measured it, how many rows
    are folded by it, and whether no vectors take its elements together: those are in `row_steps`, others in `steps`."""

    op: str
    elements: float
    steps: float
    rows: float = 0.0
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """`points` are those of the domain, `row` is how many numbers are folded into one, `inner` how many lie side by side for
    all that is touched; `products` are multiply-adds, `steps` other operations on single elements, as many as a function is
    worth, and `row_steps` those on the values of rows, which no vectors take together; `uses` say of what operators."""

    kind: str
    points: float
    row: float
    inner: float
    products: float
    steps: float
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]
    tasks: float
    links: int = 1  # of a chain, which one kernel goes through
    element: int = 4  # bytes of one
    row_steps: float = 0.0
    walks: int = 0  # along a row, or down the columns: how often it is gone over
    is_down: bool = False  # rows are folded across what lies side by side
    uses: tuple[Use, ...] = ()
    matrices: float = 1.0  # products of so many, which share no rows
    lanes: int = BY_ROWS
    cut: float = 0.5  # of the points, what the first of two threads has
    read_again: float = 0.0  # bytes, by later walks along a row

    @property
    def read(self) -> float:
        return sum([touch.bytes for touch in self.reads])

    @property
    def written(self) -> float:
        return sum([touch.bytes for touch in self.writes])

    @property
    def moved(self) -> float:
        return self.read + self.written

    @property
    def handed(self) -> float:
        """Of what is touched, the bytes that a thread takes over from another."""
        return sum(touch.handed for touch in (*self.reads, *self.writes))

    @property
    def flops(self) -> float:
        return 2 * self.products + self.steps + self.row_steps

    @property
    def intensity(self) -> float:
        """Operations for each byte that moves."""
        return self.flops / max(self.moved, 1.0)
