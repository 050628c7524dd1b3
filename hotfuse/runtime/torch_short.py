"""ShortCall: a captured program bound to the shapes of one call, when what is left of it is one run of kernels.

What a bound plan computes from weights alone (rows of a table of positions, as many as there are tokens) is computed once and
watched like every prepared weight. A call then gathers tensors by place, and native code does the rest: no types are compared,
no slots filled, no modes entered, since the kernels only fill fresh memory.

State: the values computed from weights; `PreparedWeights` says how they change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotfuse.frontends.torch_program import CapturedProgram, OutputLeaf
from hotfuse.ir.op import OPS, Pattern
from hotfuse.runtime.binding import BoundPlan, Step, is_small
from hotfuse.runtime.segment import Segment
from hotfuse.runtime.torch_call import result_leaf
from hotfuse.runtime.weights import PreparedWeights

_NOT_OURS = (Pattern.CONTROL, Pattern.OPAQUE, Pattern.TRANSFER)


class ShortCall:
    """Answers calls of one form. `places` are those of the segment's inputs among a call's leaves, its weights and what is
    settled, in this order."""

    def __init__(
        self,
        segment: Segment,
        places: Sequence[int],
        outputs: Sequence[OutputLeaf],
        order: Sequence[int],
        settled: PreparedWeights | None,
        sources: Sequence[int],
    ) -> None:
        self._segment, self._places, self._order = segment, tuple(places), tuple(order)
        self._settled, self._sources = settled, tuple(sources)
        self._outputs = None if _are_results(outputs, len(self._order)) else tuple(outputs)
        self._in_turn = self._order == tuple(range(len(self._order)))

    def __call__(self, leaves: Sequence[Any], weights: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The leaves of the answer. Raises BadIndex as the segment does."""
        given = [*leaves, *weights]
        if self._settled is not None:
            given += self._settled.values([weights[i] for i in self._sources])[0]
        made = self._segment(*[given[i] for i in self._places])
        results = made if self._in_turn else [made[i] for i in self._order]
        if self._outputs is None:
            return results
        return [result_leaf(leaf, results, leaves) for leaf in self._outputs]


def _are_results(outputs: Sequence[OutputLeaf], count: int) -> bool:
    """Whether the leaves are the results of a segment as they are: all of them, in order, each laid out by its axes."""
    return [leaf.index for leaf in outputs] == list(range(count)) and all(
        leaf.kind == "value" and (leaf.order is None or leaf.order == tuple(range(len(leaf.order)))) for leaf in outputs
    )


def shorten(program: CapturedProgram, bound: BoundPlan, leaves: Sequence[Any], weights: int, every: int) -> ShortCall | None:
    """The short way for calls with leaves like these, if there is one. The plan takes the program's inputs and then its
    weights, `weights` of them; values settled from these are audited once in `every` calls."""
    if program.mutations or program.has_effects or not program.is_plain or not bound.steps:
        return None
    if not all(isinstance(leaves[place], torch.Tensor) for place in program.input_leaves):
        return None
    *early, last = bound.steps
    segment = last.function
    order = [last.outputs.index(slot) for slot, shared in bound.outputs if slot in last.outputs and not shared]
    if not isinstance(segment, Segment) or len(order) != len(bound.outputs):
        return None
    count = len(program.input_leaves)
    weight_of = {slot: i for i, slot in enumerate(bound.inputs[count:])}
    if not _settles(bound, early, {*weight_of, *(i for i, value in enumerate(bound.template) if value is not None), 0}):
        return None
    place_of = dict(zip(bound.inputs, (*program.input_leaves, *range(len(leaves), len(leaves) + weights)), strict=True))
    read = [slot for slot in last.inputs if slot not in place_of]
    place_of |= {slot: len(leaves) + weights + i for i, slot in enumerate(read)}
    sources = list(dict.fromkeys(slot for step in early for slot in step.inputs if slot in weight_of))
    settled = PreparedWeights(_settle(bound, early, sources, read), every) if read else None
    places = [place_of[slot] for slot in last.inputs]
    return ShortCall(segment, places, program.outputs, order, settled, [weight_of[slot] for slot in sources])


def _settles(bound: BoundPlan, steps: Sequence[Step], known: set[int]) -> bool:
    """Whether steps follow from known slots alone, and give the same small results every time."""
    for step in steps:
        record = OPS.get(step.node.op)
        if record is None or not record.deterministic or record.pattern in _NOT_OURS or step.check or step.view >= 0:
            return False
        if not known.issuperset(step.inputs) or not all(is_small(bound.types[name]) for name in step.node.outputs):
            return False
        known.update(step.outputs)
    return True


def _settle(
    bound: BoundPlan, steps: Sequence[Step], sources: Sequence[int], wanted: Sequence[int]
) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
    """A function from the weights at slots `sources` to the values of slots `wanted`."""

    def compute(weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        slots = list(bound.template)
        for slot, weight in zip(sources, weights, strict=True):
            slots[slot] = weight
        for step in steps:
            result = step.function(*(slots[i] for i in step.inputs))
            for slot, value in zip(step.outputs, result if step.many else (result,), strict=False):
                slots[slot] = value
        return [slots[i] for i in wanted]

    return compute
