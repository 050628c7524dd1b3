"""torch's own operator tests (OpInfo), float32 on the CPU, first sample of each, through `torch.compile(backend="hotfuse")`.

Results are judged by the rules of `hotfuse.numerics`, strictest that applies: eager's bits for integers, bools and results
made of nothing but elements of the inputs; units in the last place for elementwise operators; else the float64 rule, or
eager's bits where there is no float64 result. Where torch itself, running the graph it traced (backend aot_eager), breaks the
rule with our very bits, the entry is right with a note.

An entry that never called our compiler is vacuous. One that did may still have an empty plan, where the operator returns its
own input or a view of it, which AOTAutograd answers by itself; `ran` says that a plan with nodes answered.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.numerics import close_to_exact, same_bits, within_ulp
from hotfuse.records import dataclass
from hotfuse.runtime import torch_backend

Array = np.ndarray[Any, Any]
UNINITIALISED = re.compile(r"^(new_)?empty(_like|_strided|_permuted)?$")  # their elements are whatever memory held
ARITHMETIC = re.compile(
    r"^(add|sub|rsub|mul|div.*|true_divide|floor_divide|remainder|fmod|square|reciprocal|sqrt|rsqrt|abs|neg)$"
)


@dataclass
class Outcome:
    """What became of one entry. `status` is right, wrong, or error (eager answers, the compiled function does not)."""

    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    reached: bool = False  # our compiler was called
    native: bool = False  # generated code ran
    ran: bool = False  # a plan with at least one node answered
    noted: bool = False  # right only because torch's own tracing differs from eager alike
    note: str = ""
    whole: bool = False  # captured without a graph break
    operators: int = 0
    opaque: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.status == "right"


def entries() -> Iterator[Any]:
    """The OpInfo records that have float32 on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return (op for op in op_db if op.supports_dtype(torch.float32, "cpu"))


def run_opinfo(
    pattern: str = "",
    progress: Callable[[Outcome], None] | None = None,
    part: tuple[int, int] = (0, 1),
    gradients: bool = False,
) -> list[Outcome]:
    """Run the entries whose names match; with `gradients` compare gradients too, where eager has them."""
    outcomes = []
    wanted = re.compile(pattern)
    for number, op in enumerate(entries()):
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if number % part[1] != part[0] or not wanted.search(name) or (gradients and not op.supports_autograd):
            continue
        outcome = run_entry(op, name, gradients)
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
    return outcomes


def run_entry(op: Any, name: str, gradients: bool = False) -> Outcome:
    """What becomes of the first sample of one entry."""
    started = time.perf_counter()
    outcome = Outcome(name, "error")
    from torch.testing._internal import common_methods_invocations as invocations

    settings = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    unseeded = mock.patch.object(invocations, "wrapper_set_seed", _plainly)  # Dynamo cannot trace the original; `_call` seeds
    with warnings.catch_warnings(), settings, unseeded:
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=gradients)))
            expected = _call(op, sample, op.op, gradients)
        except Exception as error:
            outcome.reason = f"eager itself fails: {type(error).__name__}: {error}"
        else:
            _compare(op, sample, expected, gradients, outcome)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _compare(op: Any, sample: Any, expected: list[Any], gradients: bool, outcome: Outcome) -> None:
    found: list[Any] | None = None
    for whole in (True, False):
        torch._dynamo.reset()
        torch_backend.COMPILED.clear()
        outcome.reached = False
        failed = torch_backend.EVENTS.counts["backend.failed"]

        def backend(graph: Any, inputs: Any) -> Any:
            outcome.reached = True
            return torch_backend.hotfuse(graph, inputs, {"wait": True})

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return op.op(*args, **kwargs)

        try:
            found = _call(op, sample, torch.compile(wrapped, backend=backend, fullgraph=whole), gradients)
        except Exception as error:
            outcome.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            continue
        outcome.whole = whole
        break
    programs = list(torch_backend.COMPILED)
    outcome.operators = sum(p.operators for p in programs)
    outcome.opaque = [operator for p in programs for _, operator, _ in p.opaque]
    if found is None:
        return
    outcome.reason = ""
    if torch_backend.EVENTS.counts["backend.failed"] > failed:
        outcome.reason = torch_backend.EVENTS.of("backend.failed")[-1].reason
        outcome.status = "error"
        return
    outcome.ran = any(p.graph.nodes for p in programs)
    compiled = torch_backend.EVENTS.of("backend.compiled")[-len(programs) :] if programs else []
    outcome.native = any(event.data.get("kernels") for event in compiled)
    if UNINITIALISED.match(outcome.name):
        expected, found = ([t.new_zeros(t.shape) for t in leaves] for leaves in (expected, found))
    elementwise = _ulp_limit(op) if not gradients else None
    problem = judge(expected, found, lambda: _exact(op, sample, gradients), _elements(sample), elementwise)
    if problem is not None and _same_as_tracing(op, sample, found, gradients):
        outcome.noted, outcome.note = True, f"{problem}; torch's own tracing gives these very bits"
        problem = None
    outcome.status, outcome.reason = ("right", "") if problem is None else ("wrong", problem)


def _ulp_limit(op: Any) -> int | None:
    """How many units in the last place an elementwise operator may be off; None for the others."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    if not isinstance(op, (BinaryUfuncInfo, UnaryUfuncInfo)):
        return None
    return 2 if ARITHMETIC.match(op.name) else 4


def _elements(sample: Any) -> Array:
    """Every element of the sample's real tensors."""
    leaves = pytree.tree_leaves((sample.input, sample.args, dict(sample.kwargs)))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and not t.is_complex()]
    parts = [_array(t).astype(np.float64).reshape(-1) for t in tensors]
    return np.concatenate([np.zeros(0), *parts])


def _same_as_tracing(op: Any, sample: Any, found: list[Any], gradients: bool) -> bool:
    """Whether torch, running the graph it traced itself without us, answers with the same bits: the difference is then its
    own."""
    torch._dynamo.reset()
    traced = _call(op, sample, torch.compile(lambda *a, **k: op.op(*a, **k), backend="aot_eager"), gradients)
    return len(traced) == len(found) and all(
        isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and same_bits(_array(b), _array(a)).ok
        for a, b in zip(traced, found, strict=True)
    )


def _array(tensor: torch.Tensor) -> Array:
    """A tensor for the rules: dense, complex numbers as pairs of real ones."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    if dense._is_zerotensor():  # a gradient that has no memory
        dense = torch.zeros(dense.shape, dtype=dense.dtype)
    return to_numpy(torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense)


def _call(op: Any, sample: Any, function: Callable[..., Any], gradients: bool) -> list[Any]:
    """The leaves of the result (and of the inputs' gradients) for fresh copies of the sample's tensors."""
    args, kwargs = pytree.tree_map(_copied, ((sample.input, *sample.args), dict(sample.kwargs)))
    torch.manual_seed(1)
    result = function(*args, **kwargs)
    leaves = list(pytree.tree_leaves(result))
    if not gradients:
        return leaves
    roots = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not roots or not inputs:
        return leaves
    total = torch.stack([(t * t).sum() for t in roots]).sum()
    return [*leaves, *torch.autograd.grad(total, inputs, allow_unused=True)]


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
        return leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)
    return leaf


def _exact(op: Any, sample: Any, gradients: bool) -> list[Any] | None:
    """Eager's answer in float64, where the operator has one."""

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32:
            return leaf.detach().to(torch.float64).requires_grad_(leaf.requires_grad)
        return torch.float64 if leaf is torch.float32 else leaf

    try:
        wide = type(sample)(
            widened(sample.input),
            args=pytree.tree_map(widened, sample.args),
            kwargs=pytree.tree_map(widened, dict(sample.kwargs)),
        )
        return _call(op, wide, op.op, gradients)
    except Exception:  # an operator without float64: the other rules decide
        return None


def judge(
    expected: list[Any],
    found: list[Any],
    exact: Callable[[], list[Any] | None],
    given: Array | None = None,
    elementwise: int | None = None,
) -> str | None:
    """How `found` breaks the rules against what eager gives, or None where it is right. `given` are the inputs' elements,
    `elementwise` the units in the last place that an elementwise operator may be off."""
    if len(expected) != len(found):
        return f"{len(found)} results, eager gives {len(expected)}"
    wide: list[Any] | None = None
    for i, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
            if theirs is not ours and theirs != ours and not (theirs != theirs and ours != ours):
                return f"result {i} is {ours!r}, eager gives {theirs!r}"
            continue
        if theirs.layout != ours.layout or theirs.requires_grad != ours.requires_grad:
            return (
                f"result {i} has layout {ours.layout} and requires_grad={ours.requires_grad}, "
                f"eager gives {theirs.layout} and {theirs.requires_grad}"
            )
        mine, original = _array(ours), _array(theirs)
        verdict = same_bits(mine, original)
        moved = given is not None and original.dtype.kind == "f" and bool(np.isin(original, given.astype(original.dtype)).all())
        if verdict or moved or not (theirs.is_floating_point() or theirs.is_complex()):
            pass
        elif elementwise is not None and not theirs.is_complex():
            verdict = within_ulp(mine, original, elementwise)
        else:
            wide = wide or exact()
            if wide is not None and isinstance(wide[i], torch.Tensor):
                verdict = close_to_exact(mine, original, _array(wide[i]))
        if not verdict:
            return f"result {i}: {verdict.reason}"
    return None
