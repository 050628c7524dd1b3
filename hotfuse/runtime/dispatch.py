"""Dispatch on what kernels were made for: those for a call's very sizes, then those for every size, then tier 0.

What a call must be like for kernels to answer it is checked where it is cheapest. dtypes and ranks: by the types that bound
plans are looked up by. Strides and alignment: arrays that are not contiguous are copied, and kernels load unaligned. Devices:
by the engine. Sizes: here, once for each shape that is bound. A call that fits nothing is a miss, which the next lower tier
answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotfuse.errors import DimError
from hotfuse.ir.plan import Plan
from hotfuse.ir.types import Type
from hotfuse.runtime.binding import BoundPlan
from hotfuse.runtime.build import Sizes, sizes_of
from hotfuse.runtime.engine import Engine, RunGraph
from hotfuse.runtime.native_binding import NativeBinder


class Dispatch:
    """Binds by the best kernels that there are for the sizes of a call."""

    def __init__(self, generic: NativeBinder, special: Mapping[Sizes, NativeBinder]) -> None:
        self.generic, self.special = generic, special

    def __call__(self, plan: Plan, given: Mapping[str, Type], engine: Engine, run_graph: RunGraph, limit: int) -> BoundPlan:
        special = self.special.get(sizes_of(plan.graph, given)) if self.special else None
        if special is not None:
            try:
                return special(plan, given, engine, run_graph, limit)
            except DimError:  # what its sizes do not say is another size than it was made for
                pass
        return self.generic(plan, given, engine, run_graph, limit)

    # what reports ask

    @property
    def kernels(self) -> int:
        return self.generic.kernels

    @property
    def choices(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        return self.generic.choices

    @property
    def note(self) -> str:
        more = f"; {len(self.special)} choices of sizes have kernels of their own" if self.special else ""
        return self.generic.note + more
