"""Calling a captured program: leaves of the call in, leaves of the answer out, mutated tensors written back in place.

A program that fails has written nothing back and leaves the random numbers where they were, so that eager can answer instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hotfuse.errors import InputError
from hotfuse.frontends.torch_program import CapturedProgram, OutputLeaf
from hotfuse.frontends.torch_tensor import in_order
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
    return [result_leaf(leaf, results, leaves) for leaf in program.outputs]


def as_input(leaf: Any) -> Any:
    """A leaf as a graph input: tensors and whole numbers as they are, other numbers as 0-d tensors."""
    if leaf is None or isinstance(leaf, torch.Tensor) or (isinstance(leaf, int) and not isinstance(leaf, bool)):
        return leaf
    if isinstance(leaf, (bool, float)):
        return torch.tensor(leaf, dtype=torch.bool if isinstance(leaf, bool) else torch.float64)
    raise InputError(f"a {type(leaf).__name__} cannot be passed where the model was captured with a tensor or a number")


def result_leaf(leaf: OutputLeaf, results: Sequence[Any], inputs: Sequence[Any]) -> Any:
    if leaf.kind == "value":
        return in_order(results[leaf.index], leaf.order)
    if leaf.kind == "number":
        return results[leaf.index].item()
    return inputs[leaf.index] if leaf.kind == "input" else leaf.constant
