"""Tracing: a module and the shapes of one call become a captured program and the class of shapes it serves.

This runs on copies of the module, in the capture process (or, for `capture="blocking"`, in the caller's): each attempt has one
of its own, so that what the forward pass of a failed one did to it is gone. When the most general attempt fails the static one
is next: what cannot be traced at fixed sizes is given up at once. Else the first of the others that works serves.

`torch.export` finds out which sizes must be equal, fixed or bounded; its guards become the `ShapeClass`. It takes for granted
that dynamic sizes are at least 2. Where a size was 1 and was widened, a second trace, at the original sizes, must be the same
program, node by node, before the class includes 1.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from hotfuse.errors import CaptureError, ParseError
from hotfuse.frontends.torch_attempt import Attempt, attempts, exact_shapes
from hotfuse.frontends.torch_code_record import CodeRecord, IntricateSizes
from hotfuse.frontends.torch_facts import make_facts
from hotfuse.frontends.torch_failure import describe_failure
from hotfuse.frontends.torch_place import PlainDropout, TracedCall, same_places
from hotfuse.frontends.torch_program import CapturedProgram, Trace
from hotfuse.frontends.torch_reach import reach_from
from hotfuse.frontends.torch_record import Form, flatten_call, is_argument, map_leaves, records_in, take_apart
from hotfuse.frontends.torch_request import SelfChange, TensorInput, TraceRequest
from hotfuse.frontends.torch_shapes import admit_one, same_program, shape_class, widened_symbols
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.ir.graph import Graph
from hotfuse.ir.guard import ShapeClass, exact_class
from hotfuse.ir.record_form import read_record, write_record


def formed(trace: Trace) -> Trace:
    """A trace with its form. Facts are no part of that: they are how things stood where it was made, and nobody else's."""
    try:
        form = write_record(replace(trace, form="", program=replace(trace.program, facts={})))
        read_record(Trace, form)
    except (TypeError, ParseError) as error:
        return replace(trace, form=str(error))
    return replace(trace, form=form)


def trace(load: Callable[[], TraceRequest], optimize: Callable[[Graph], Graph]) -> Trace:
    """The program of the most general attempt that works, its graph optimized; CaptureError with each attempt's reason when
    none does, SelfChange where that is the reason. `load` makes a copy of the request."""
    first, *others = attempts(load().leaves)
    failures: dict[str, list[str]] = {}  # each reason, with the attempts that it ended
    details: list[str] = []
    fallback: Trace | None = None
    intricate = False
    for attempt in (first, *others[-1:], *others[:-1]):
        if intricate and attempt.varies_within:
            continue
        try:
            found = _trace_as(attempt, load(), optimize)
        except (Exception, IntricateSizes) as error:
            if isinstance(error, _SideEffect) or (attempt.is_static and isinstance(error, SelfChange)):
                raise
            failures.setdefault(describe_failure(error), []).append(attempt.name)
            details.append(f"{attempt.name}: {type(error).__name__}: {error}")
            intricate = intricate or isinstance(error, IntricateSizes)
            if attempt.is_static:
                break
            continue
        if not attempt.is_static:
            return replace(found, note=_reasons(failures))
        fallback = found
    if fallback is None:
        raise CaptureError(f"it cannot be traced: {_reasons(failures)}", "\n\n".join(details))
    return replace(fallback, note=_reasons(failures))


def _reasons(failures: Mapping[str, Sequence[str]]) -> str:
    """Why attempts failed; which ones is said only where they failed for different reasons."""
    if len(failures) == 1:
        return next(iter(failures))
    return "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in failures.items())


class _SideEffect(CaptureError):
    """The forward pass does something beside computing that a graph would not do again."""


def adopt_attributes(module: torch.nn.Module) -> None:
    """Make tensors that are plain attributes buffers, so that they become weights of the graph and are read live."""
    for part in module.modules():
        for name, value in list(part.__dict__.items()):
            if isinstance(value, torch.Tensor) and "." not in name:
                del part.__dict__[name]
                part.register_buffer(name, value, persistent=False)


def _trace_as(attempt: Attempt, request: TraceRequest, optimize: Callable[[Graph], Graph]) -> Trace:
    adopt_attributes(request.module)
    with _modes(request):
        program, shapes = _attempt(attempt, request)
    return Trace(replace(program, graph=optimize(program.graph)), shapes)


def _attempt(attempt: Attempt, request: TraceRequest) -> tuple[CapturedProgram, ShapeClass]:
    from hotfuse.frontends.torch_export import check_results, import_exported

    module = request.module
    exact = exact_shapes(request.leaves)
    record = CodeRecord()
    exported, call = export(request, attempt, record)
    shapes = exact_class(exact) if attempt.is_static else shape_class(exported)
    if attempt.shapes != exact:
        ones = widened_symbols(shapes, exact)
        other, other_call = export(request, replace(attempt, shapes=exact), record)
        if call.form != other_call.form or not (same_program(exported, other, ones) and same_places(call, other_call, ones)):
            raise CaptureError("the model does something else where a size is 1")
        shapes = replace(shapes, ranges=tuple(replace(r, least=1) if r.symbol in ones else r for r in shapes.ranges))
        admit_one(exported, ones)
    reason = shapes.check(exact)
    if reason:
        raise CaptureError(f"the trace excludes its own example: {reason}")
    _check_constants(module, exported)
    check_results(exported, call)
    ran = record.keys()
    facts = make_facts(reach_from(module.named_modules(), ran).tables.values())
    return replace(import_exported(exported, call=call), ran=ran, facts=facts), shapes


def _check_constants(module: torch.nn.Module, exported: Any) -> None:
    """Refuse a trace that took a weight for a constant (one reached through a list, say): its values are not here."""
    weights = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    for name, constant in exported.constants.items():
        known = name in exported.graph_signature.non_persistent_buffers
        if isinstance(constant, torch.Tensor) and not known and constant.untyped_storage()._cdata in weights:
            raise CaptureError(f"a weight is reached around its module and became the constant {name}")


def export(request: TraceRequest, attempt: Attempt, record: CodeRecord) -> tuple[Any, TracedCall]:
    """`torch.export` of the module for example tensors as an attempt wants them, over memory nobody touches; and the call that
    it traced."""
    module = request.module
    examples: list[Any] = []
    remaining = iter(zip(attempt.shapes, attempt.axes, strict=True))
    collection = torch.export.ShapesCollection()
    for leaf in request.leaves:
        if not isinstance(leaf, TensorInput):
            examples.append(leaf)
            continue
        shape, axes = next(remaining)
        example = examples[leaf.same_as] if leaf.same_as >= 0 else _example(leaf, shape)
        examples.append(example)
        if axes:
            collection[example] = dict.fromkeys(axes, torch.export.Dim.AUTO)

    def arrange(leaves: Sequence[Any]) -> Any:
        return map_leaves(lambda place: leaves[place], request.structure)

    flat = any(map(is_argument, pytree.tree_leaves(request.structure, is_leaf=is_argument)))
    args, kwargs = (tuple(examples), {}) if flat else arrange(examples)
    calls: list[TracedCall] = []
    with _no_side_effects(module, record, calls, arrange if flat else None):
        dynamic_shapes = collection.dynamic_shapes(module, args, kwargs) if not attempt.is_static else None
        exported = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    return exported, calls[-1]


def _example(leaf: TensorInput, shape: tuple[int, ...]) -> torch.Tensor:
    if leaf.order is None:
        made = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
    else:
        strides, step = [0] * len(shape), 1
        for axis in reversed(leaf.order):
            strides[axis], step = step, step * max(shape[axis], 1)
        made = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
    return made.requires_grad_(leaf.requires_grad)


@contextlib.contextmanager
def _modes(request: TraceRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.default_dtype)
    try:
        with torch.set_grad_enabled(request.grad):
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _no_side_effects(
    module: torch.nn.Module,
    record: CodeRecord,
    calls: list[TracedCall],
    arrange: Callable[[Sequence[Any]], Any] | None,
) -> Iterator[None]:
    """Refuse a forward pass that changes Python state of its module, draws numbers outside of torch, or reads or does anything
    else outside of the model: running the graph would not do so again. The code that it runs goes on record, and its calls are
    added to `calls`."""
    forward = module.forward
    effects: list[CaptureError] = []

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        watch, weights = ModuleWatch(module), dict(_weights(module))
        drawn = _drawn_numbers()
        given, structure = flatten_call((args, {name: kwargs[name] for name in sorted(kwargs)}))
        with record, PlainDropout(record.run):
            result = forward(*args, **kwargs)
        if record.intricate:
            raise IntricateSizes  # once more: somebody took the first for an error of theirs
        changed = watch.changed() or _replaced(module, weights)
        if changed:
            effects.append(SelfChange(f"forward changes the module itself: {changed}"))
        if _drawn_numbers() != drawn:
            effects.append(_SideEffect("forward draws random numbers outside of torch"))
        if record.outside:
            effects.append(_SideEffect(f"forward {record.outside}"))
        left, left_structure = flatten_call((args, {name: kwargs[name] for name in sorted(kwargs)}))
        if left_structure != structure or any(a is not b for a, b in zip(given, left, strict=True)):
            effects.append(_SideEffect("forward changes a container or an object that it is given; return a new one instead"))
        returned, form = _plain_result(module, (args, kwargs), result)
        calls.append(TracedCall(given, dict(_weights(module)), pytree.tree_leaves(returned), form))
        return returned

    def with_leaves(*leaves: Any) -> Any:
        args, kwargs = arrange(leaves)  # type: ignore[misc]
        return watched(*args, **kwargs)

    overridden = "forward" in module.__dict__
    module.forward = watched if arrange is None else with_leaves
    try:
        yield
    finally:
        module.forward = forward
        if not overridden:
            del module.__dict__["forward"]
        if effects:  # also where the export then failed, perhaps because of them
            raise min(effects, key=lambda effect: isinstance(effect, SelfChange))


def _plain_result(module: torch.nn.Module, given: Any, result: Any) -> tuple[Any, Form | None]:
    """A result as torch.export can take it: without records. These must be made in the call, each for one place."""
    records = list(records_in(result))
    if not records:
        return result, None
    old = {id(value) for part in module.modules() for value in part.__dict__.values()} | set(map(id, records_in(given)))
    kept = next((type(r).__name__ for i, r in enumerate(records) if id(r) in old or any(r is o for o in records[:i])), "")
    if kept:
        raise CaptureError(f"the {kept} that it returns is not made in the call, or is returned twice; return a new one")
    leaves, form = take_apart(result)
    return tuple(leaves), form


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _replaced(module: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> str:
    """Which tensor of the module is another object than before: a graph could only write into the old one."""
    return next((f"tensor {name!r} was replaced" for name, t in _weights(module) if before.get(name) is not t), "")


def _drawn_numbers() -> tuple[Any, ...]:
    """The states of Python's and numpy's own generators."""
    import random

    import numpy as np

    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state())
