"""Tracing: a module and the shapes of one call become a captured program and the class of shapes it serves.

This runs on a copy of the module, in the capture process (or, for `capture="blocking"`, in the caller's).

    attempts: every size of 1 widened, leading sizes of 1 widened, all sizes dynamic, none dynamic -> the first that works

`torch.export` finds out which sizes must be equal, fixed or bounded; its guards become the `ShapeClass`. It takes for granted
that dynamic sizes are at least 2. Where a size was 1 and was widened, a second trace, at the original sizes, must be the same
program, node by node, before the class includes 1.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_code import CodeRecord
from hotfuse.frontends.torch_facts import make_facts
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_reach import reach_from
from hotfuse.frontends.torch_request import TensorInput, TraceRequest
from hotfuse.frontends.torch_shapes import admit_one, same_program, shape_class, widened_symbols
from hotfuse.frontends.torch_watch import ModuleWatch
from hotfuse.ir.graph import Graph
from hotfuse.ir.guard import ShapeClass, exact_class


@dataclass(frozen=True)
class Trace:
    program: CapturedProgram
    shapes: ShapeClass
    note: str = ""  # attempts that failed before this one


def trace(request: TraceRequest, optimize: Callable[[Graph], Graph]) -> Trace:
    """The program of the first attempt that works, its graph optimized; CaptureError with every attempt's reason when none
    does."""
    module = request.module
    adopt_attributes(module)
    failures: list[str] = []
    for name, widths in _attempts(request.leaves):
        try:
            with _modes(request):
                program, shapes = _attempt(module, request, widths)
            program = replace(program, graph=optimize(program.graph))
            return Trace(program, shapes, "; ".join(failures))
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {_first_lines(error)}")
            if isinstance(error, _SideEffect):
                break
    raise CaptureError("torch.export could not trace it: " + "; ".join(dict.fromkeys(failures)))


class _SideEffect(CaptureError):
    """The forward pass does something beside computing that a graph would not do again."""


def adopt_attributes(module: torch.nn.Module) -> None:
    """Make tensors that are plain attributes buffers, so that they become weights of the graph and are read live."""
    for part in module.modules():
        for name, value in list(part.__dict__.items()):
            if isinstance(value, torch.Tensor) and "." not in name:
                del part.__dict__[name]
                part.register_buffer(name, value, persistent=False)


def _attempts(leaves: Sequence[Any]) -> Iterator[tuple[str, tuple[tuple[int, ...], ...] | None]]:
    """Names and example shapes of the attempts; None asks for a static trace."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorInput)]
    exact = tuple(t.shape for t in tensors)
    if not any(t.order is None or 0 in t.shape for t in tensors):
        taken = {size for shape in exact for size in shape}
        fresh = (n for n in range(3, 1 << 20) if n not in taken)
        rank = max((len(s) for s in exact), default=0)
        widths = [next(fresh) for _ in range(rank)]  # one per axis: sizes of 1 at the same axis most likely belong together
        everywhere = tuple(tuple(widths[i] if size == 1 else size for i, size in enumerate(s)) for s in exact)
        leading = tuple(tuple(widths[0] if size == 1 and i == 0 else size for i, size in enumerate(s)) for s in exact)
        attempts = {everywhere: "widened", leading: "batch widened", exact: "dynamic"}
        yield from ((name, shapes) for shapes, name in attempts.items())
    yield "static", None


def _attempt(
    module: torch.nn.Module, request: TraceRequest, widths: tuple[tuple[int, ...], ...] | None
) -> tuple[CapturedProgram, ShapeClass]:
    from hotfuse.frontends.torch_export import import_exported

    exact = tuple(leaf.shape for leaf in request.leaves if isinstance(leaf, TensorInput))
    record = CodeRecord()
    exported = export(module, request, widths or exact, widths is not None, record)
    shapes = exact_class(exact) if widths is None else shape_class(exported)
    if widths is not None and widths != exact:
        ones = widened_symbols(shapes, exact)
        if not same_program(exported, export(module, request, exact, True, record), ones):
            raise CaptureError("the model does something else where a size is 1")
        shapes = replace(shapes, ranges=tuple(replace(r, least=1) if r.symbol in ones else r for r in shapes.ranges))
        admit_one(exported, ones)
    reason = shapes.check(exact)
    if reason:
        raise CaptureError(f"the trace excludes its own example: {reason}")
    _check_constants(module, exported)
    ran = record.keys()
    facts = make_facts(reach_from(module.named_modules(), ran).tables.values())
    return replace(import_exported(exported), ran=ran, facts=facts), shapes


def _check_constants(module: torch.nn.Module, exported: Any) -> None:
    """Refuse a trace that took a weight for a constant (one reached through a list, say): its values are not here."""
    weights = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    for name, constant in exported.constants.items():
        known = name in exported.graph_signature.non_persistent_buffers
        if isinstance(constant, torch.Tensor) and not known and constant.untyped_storage()._cdata in weights:
            raise CaptureError(f"a weight is reached around its module and became the constant {name}")


def export(
    module: torch.nn.Module, request: TraceRequest, shapes: Sequence[tuple[int, ...]], dynamic: bool, record: CodeRecord
) -> Any:
    """`torch.export` of the module for example tensors of the given shapes, over memory nobody touches."""
    examples: list[Any] = []
    remaining = iter(shapes)
    collection = torch.export.ShapesCollection()
    for leaf in request.leaves:
        if not isinstance(leaf, TensorInput):
            examples.append(leaf)
            continue
        shape = next(remaining)
        example = examples[leaf.same_as] if leaf.same_as >= 0 else _example(leaf, shape)
        examples.append(example)
        if dynamic and shape:
            collection[example] = dict.fromkeys(range(len(shape)), torch.export.Dim.AUTO)
    args, kwargs = pytree.tree_map(lambda place: examples[place], request.structure)
    dynamic_shapes = collection.dynamic_shapes(module, args, kwargs) if dynamic else None
    with _no_side_effects(module, record):
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


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
def _no_side_effects(module: torch.nn.Module, record: CodeRecord) -> Iterator[None]:
    """Refuse a forward pass that changes Python state of its module, or draws numbers or reads the clock outside of torch:
    running the graph would not do so again. The code that it runs goes on record."""
    forward = module.forward
    changes: list[str] = []

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        watch = ModuleWatch(module)
        drawn = _drawn_numbers()
        with record:
            result = forward(*args, **kwargs)
        changes.append(watch.changed() and f"forward changes the module itself: {watch.changed()}")
        changes.append("" if _drawn_numbers() == drawn else "forward draws random numbers outside of torch")
        changes.append(record.clock and f"forward reads the clock: {record.clock}")
        return result

    overridden = "forward" in module.__dict__
    module.forward = watched
    try:
        yield
    finally:
        module.forward = forward
        if not overridden:
            del module.__dict__["forward"]
    found = [c for c in changes if c]
    if found:
        raise _SideEffect(found[0])


def _drawn_numbers() -> tuple[Any, ...]:
    """The states of Python's and numpy's own generators."""
    import random

    import numpy as np

    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state())


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
