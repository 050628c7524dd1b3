"""torch's own operator tests (OpInfo), float32 on the CPU, first sample of each, through `torch.compile(backend="hotfuse")`.

An entry is right when its results are eager's bits; floats of operators that compute may instead be within torch's
tolerance of eager and no further from the float64 result than twice eager's distance plus a tenth of that tolerance. Where
torch itself, running the graph it traced (backend aot_eager), differs from eager and has our very bits, the entry is right
with a note. An entry has reached our compiler when that was called and made a plan; a right answer without that is vacuous
and counted apart. (The plan is empty where the operator returns its own input or a view of it, which AOTAutograd answers by
itself.)
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from hotfuse.runtime import torch_backend

UNINITIALISED = re.compile(r"^(new_)?empty(_like|_strided|_permuted)?$")  # their elements are whatever memory held
RTOL, ATOL = 1.3e-6, 1e-5  # torch.testing's defaults for float32


@dataclass
class Outcome:
    """What became of one entry. `status` is right, wrong, or error (eager answers, the compiled function does not)."""

    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    reached: bool = False
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
        failed = torch_backend.EVENTS.counts["backend.failed"]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return op.op(*args, **kwargs)

        compiled = torch.compile(wrapped, backend=torch_backend.hotfuse, options={"wait": True}, fullgraph=whole)
        try:
            found = _call(op, sample, compiled, gradients)
        except Exception as error:
            outcome.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            continue
        outcome.whole = whole
        break
    programs = list(torch_backend.COMPILED)
    outcome.operators = sum(p.operators for p in programs)
    outcome.opaque = [operator for p in programs for _, operator, _ in p.opaque]
    outcome.reached = bool(programs)
    if found is None:
        return
    outcome.reason = ""
    if torch_backend.EVENTS.counts["backend.failed"] > failed:
        outcome.reason = torch_backend.EVENTS.of("backend.failed")[-1].reason
        outcome.status = "error"
        return
    if UNINITIALISED.match(outcome.name):
        expected, found = ([t.new_zeros(t.shape) for t in leaves] for leaves in (expected, found))
    problem = judge(expected, found, lambda: _exact(op, sample, gradients))
    if problem is not None and _same_as_tracing(op, sample, found, gradients):
        problem, outcome.note = None, f"{problem}; torch's own tracing gives these very bits"
    outcome.status, outcome.reason = ("right", "") if problem is None else ("wrong", problem)


def _same_as_tracing(op: Any, sample: Any, found: list[Any], gradients: bool) -> bool:
    """Whether torch, running the graph it traced itself without us, answers with the same bits: the difference is then its
    own."""
    torch._dynamo.reset()
    traced = _call(op, sample, torch.compile(lambda *a, **k: op.op(*a, **k), backend="aot_eager"), gradients)
    return len(traced) == len(found) and all(
        isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape and same_bits(a.detach(), b.detach())
        for a, b in zip(traced, found, strict=True)
    )


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


def judge(expected: list[Any], found: list[Any], exact: Callable[[], list[Any] | None]) -> str | None:
    """How `found` differs from what eager gives, or None where it is right."""
    if len(expected) != len(found):
        return f"{len(found)} results, eager gives {len(expected)}"
    wide: list[Any] | None = None
    for i, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
            if theirs is not ours and theirs != ours and not (theirs != theirs and ours != ours):
                return f"result {i} is {ours!r}, eager gives {theirs!r}"
            continue
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype or theirs.layout != ours.layout:
            return f"result {i} is {ours.dtype}{tuple(ours.shape)}, eager gives {theirs.dtype}{tuple(theirs.shape)}"
        if theirs.requires_grad != ours.requires_grad:
            return f"result {i} has requires_grad={ours.requires_grad}, eager gives {theirs.requires_grad}"
        theirs, ours = (t.detach().to_dense() if t.layout is not torch.strided else t.detach() for t in (theirs, ours))
        if same_bits(theirs, ours):
            continue
        if not theirs.is_floating_point() and not theirs.is_complex():
            return f"result {i} differs from eager, and must be equal"
        wide = wide or exact()
        close = torch.allclose(theirs, ours, rtol=RTOL, atol=ATOL, equal_nan=True)
        if not close or (wide is not None and closer_to_exact(wide[i], theirs, ours) is False):
            return f"result {i} is off by {(theirs - ours).abs().nan_to_num(0).max():.3g}"
    return None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype is torch.complex32:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    return torch.equal(a, b) or bool(torch.all((a == b) | ((a != a) & (b != b))))


def closer_to_exact(exact: Any, theirs: torch.Tensor, ours: torch.Tensor) -> bool | None:
    """The float64 rule: our distance from the exact result against eager's; None where there is no finite exact result."""
    if not isinstance(exact, torch.Tensor) or exact.shape != ours.shape or exact.is_complex() != ours.is_complex():
        return None
    if not torch.isfinite(torch.view_as_real(exact) if exact.is_complex() else exact).all():
        return None
    mine, reference = ((t.to(exact.dtype) - exact).abs().square().mean().sqrt() for t in (ours, theirs))
    scale = exact.abs().square().mean().sqrt()
    return bool(mine <= 2 * reference + (ATOL + RTOL * scale) / 10)
