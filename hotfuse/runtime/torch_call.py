"""Calling a captured program: leaves of the call in, leaves of the answer out, mutated tensors written back in place.

A program that fails has written nothing back and leaves the random numbers where they were, so that eager can answer instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from hotfuse.errors import InputError
from hotfuse.frontends.torch_program import CapturedProgram, OutputLeaf, Place, WeightForm
from hotfuse.frontends.torch_tensor import alone_in_order, in_order
from hotfuse.ir.dim import evaluate
from hotfuse.runtime.executor import Executor


def run_program(
    program: CapturedProgram, executor: Executor, leaves: Sequence[Any], weights: Mapping[str, torch.Tensor]
) -> list[Any]:
    """The leaves of the model's output for the leaves of `(args, kwargs)`. Weights are read now, by name."""
    inputs = [as_input(leaves[place]) for place in program.input_leaves]
    random_state = torch.get_rng_state() if program.has_effects else None
    with torch.no_grad():
        try:
            results = executor.run([*inputs, *(weights[name] for name in executor.plan.graph.weights)], program.views)
        except Exception:
            if random_state is not None:
                torch.set_rng_state(random_state)
            raise
        for mutation in program.mutations:
            target = weights[mutation.name] if mutation.name else leaves[mutation.leaf]
            target.copy_(results[mutation.output])
    if program.is_plain:
        return [result_leaf(leaf, results, leaves) for leaf in program.outputs]
    return assemble(program, results, leaves, weights)


def as_input(leaf: Any) -> Any:
    """A leaf as a graph input: tensors and whole numbers as they are, other numbers as 0-d tensors."""
    if leaf is None or isinstance(leaf, torch.Tensor) or (isinstance(leaf, int) and not isinstance(leaf, bool)):
        return leaf
    if isinstance(leaf, (bool, float)):
        return torch.tensor(leaf, dtype=torch.bool if isinstance(leaf, bool) else torch.float64)
    raise InputError(f"a {type(leaf).__name__} cannot be passed where the model was captured with a tensor or a number")


def result_leaf(leaf: OutputLeaf, results: Sequence[Any], inputs: Sequence[Any]) -> Any:
    if leaf.kind == "value":
        laid = alone_in_order if leaf.alone else in_order
        return laid(results[leaf.index], leaf.order)
    if leaf.kind == "number":
        return results[leaf.index].item()
    return inputs[leaf.index] if leaf.kind == "input" else leaf.constant


def assemble(
    program: CapturedProgram, results: Sequence[Any], leaves: Sequence[Any], weights: Mapping[str, torch.Tensor]
) -> list[Any]:
    """The leaves of an answer in which some are weights, views, or in memory that they share with others."""
    sizes = tuple((s.symbol, (leaves if s.of_call else results)[s.place].shape[s.axis]) for s in program.sizes)
    answer: list[Any] = [None] * len(program.outputs)
    blocks: dict[Any, torch.Tensor] = {}
    views: list[tuple[int, OutputLeaf]] = []
    for place, leaf in enumerate(program.outputs):
        if leaf.kind == "view":
            views.append((place, leaf))
        elif leaf.kind == "weight":
            answer[place] = weights[leaf.name]
        elif leaf.place is not None:
            form = exact_place(leaf.place, sizes)
            answer[place] = _in_block(results[leaf.index], form, blocks, leaf.place.owner in program.shared_blocks)
        elif leaf.kind != "output":
            answer[place] = result_leaf(leaf, results, leaves)
    for place, leaf in views:
        assert leaf.place is not None
        kind, key = leaf.place.owner
        base = weights[key] if isinstance(key, str) else (leaves if kind == "input" else answer)[key]
        base = base.detach() if leaf.detached else base
        form = exact_place(leaf.place, sizes)
        answer[place] = base.as_strided(form.shape, form.stride, base.storage_offset() + form.offset)
    for place, leaf in enumerate(program.outputs):
        if leaf.kind == "output":
            answer[place] = answer[leaf.index]
    return answer


@lru_cache(maxsize=4096)
def exact_place(place: Place, sizes: tuple[tuple[str, int], ...]) -> Place:
    """A place with numbers for its symbols."""
    known = dict(sizes)
    shape, stride = (tuple(evaluate(dim, known) for dim in dims) for dims in (place.shape, place.stride))
    return Place(place.owner, shape, stride, evaluate(place.offset, known), evaluate(place.room, known))


def has_form(weight: torch.Tensor, form: WeightForm) -> bool:
    return (weight.stride(), weight.requires_grad) == (form.stride, form.requires_grad)


def lies_as_captured(program: CapturedProgram, leaves: Sequence[Any]) -> bool:
    """Whether the leaves of a call that outputs are views of lie in memory as those of the capture did."""
    if not program.viewed_inputs:
        return True
    sizes = tuple((s.symbol, leaves[s.place].shape[s.axis]) for s in program.sizes if s.of_call)
    for place in program.viewed_inputs:
        leaf, form = leaves[int(place.owner[1])], exact_place(place, sizes)
        if any(size > 1 and a != b for size, a, b in zip(leaf.shape, leaf.stride(), form.stride, strict=True)):
            return False
    return True


def _in_block(value: torch.Tensor, form: Place, blocks: dict[Any, torch.Tensor], shared: bool) -> torch.Tensor:
    """The value at its place in a block of memory; as it is where it lies so already."""
    if not shared and _lies_at(value, form):
        return value
    block = blocks.get(form.owner)
    if block is None:
        block = blocks[form.owner] = value.new_empty(form.room)
    made = block.as_strided(form.shape, form.stride, form.offset)
    once = tuple(
        slice(0, 1) if step == 0 else slice(None) for step in form.stride
    )  # the rest of such an axis is the same memory
    made[once].copy_(value[once])
    return made


def _lies_at(value: torch.Tensor, form: Place) -> bool:
    room = value.untyped_storage().nbytes() // value.element_size()
    return (value.stride(), value.storage_offset(), room) == (form.stride, form.offset, form.room)
