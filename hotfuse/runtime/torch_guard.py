"""Guards of PyTorch calls: what a call looks like, and whether a captured program may answer it.

A call is split into its `frame` (everything compared for equality: structure, plain arguments by type and value, each tensor's
dtype, device, layout of axes, requires_grad, is_inference and aliasing, and the modes of the thread) and the `shapes` of its
tensors, which a `ShapeClass` judges. `bypass` names the circumstances in which nothing but the module itself may answer.
"""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hotfuse.frontends.torch_record import flatten_call, map_leaves
from hotfuse.frontends.torch_request import TensorInput, own_attributes, unsendable
from hotfuse.records import dataclass

if TYPE_CHECKING:
    from hotfuse.frontends.torch_watch import ModuleWatch
    from hotfuse.ir.guard import ShapeClass

_FLAT = frozenset({torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str})
_BY_VALUE = (
    type(None), bool, int, str, bytes, type, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum,
    types.FunctionType, types.BuiltinFunctionType, types.EllipsisType,
)  # fmt: skip


class Call(NamedTuple):
    """One call, read. `refusal` says why no capture can stand for it."""

    leaves: Sequence[Any]
    frame: Hashable
    shapes: tuple[tuple[int, ...], ...]
    refusal: str = ""


class Miss(NamedTuple):
    """Why a captured class does not answer a call; `failed` is the class if it tried to. `hopeless` says that no other capture
    could answer the call either."""

    reason: str
    failed: Any = None
    hopeless: bool = False
    waiting: Any = None  # a class that fits and has nothing better than the module yet

    @property
    def mendable(self) -> bool:
        """Whether a capture of this call may help."""
        return self.failed is None and not self.hopeless


@dataclass(frozen=True)
class CallGuard:
    """What must hold for one captured program to answer a call."""

    frame: Hashable
    shapes: ShapeClass
    watch: ModuleWatch

    def check(self, call: Call) -> str:
        """Why the program does not fit the call; "" if it does. (The module's own state is `watch`'s.)"""
        if call.frame != self.frame:
            return difference(self.frame, call.frame)
        return self.shapes.check(call.shapes)


def bypass() -> str:
    """Why only the module itself may answer in this thread now; "" in ordinary circumstances."""
    if (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch.fx._symbolic_trace._is_fx_tracing_flag
    ):
        return "the call is being traced"
    if torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:  # also in frames that Dynamo gave up on
        return "torch.compile runs the call"
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a torch function or dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform (vmap, grad, functionalize) is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if torch._C._is_any_autocast_enabled():
        return "autocast is on"
    if torch.nn.utils.parametrize._cache_enabled:  # eager then does not look at weights that change meanwhile
        return "parametrizations are cached"
    return ""


def modes() -> tuple[Hashable, ...]:
    """The thread's modes that change what a model computes."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


def read_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Flatten and describe one call. Keywords count by name, not by order."""
    names = tuple(sorted(kwargs)) if kwargs else ()
    leaves: Sequence[Any] = [*args, *[kwargs[name] for name in names]]
    structure: Hashable = (len(args), names)
    if not _FLAT.issuperset(map(type, leaves)):
        leaves, structure = flatten_call((args, {name: kwargs[name] for name in names}))
    entries: list[Hashable] = []
    shapes: list[tuple[int, ...]] = []
    memory: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            why = unsendable(leaf)
            if why:
                return Call(leaves, None, (), f"an argument is {why}")
            if leaf.__dict__ and (own := own_attributes(leaf)):
                return Call(leaves, None, (), f"an argument carries attributes of its own ({', '.join(own)})")
            alias = place if len(leaves) == 1 else memory.setdefault(leaf.untyped_storage()._cdata, place)
            if alias != place and leaf is not leaves[alias]:
                return Call(leaves, None, (), "arguments overlap in memory")
            layout = exact = None
            if not leaf.is_contiguous():
                layout = axis_order(leaf)
                exact = tuple(leaf.stride()) if layout is None else None
            shape = tuple(leaf.shape)
            entries.append((leaf.dtype, leaf.device, len(shape), leaf.requires_grad, leaf.is_inference(), layout, exact, alias))
            shapes.append(shape)
        elif isinstance(leaf, (float, complex)):
            entries.append((type(leaf), repr(leaf)))
        elif isinstance(leaf, _BY_VALUE):
            entries.append((type(leaf), leaf))
        else:
            return Call(leaves, None, (), f"an argument of type {type(leaf).__name__} cannot be compared between calls")
    return Call(leaves, (structure, tuple(entries), modes()), tuple(shapes))


def axis_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a tensor that fills its memory without gaps, from the largest stride to the smallest; else None."""
    order = sorted(range(tensor.dim()), key=lambda i: (-tensor.stride(i), i))
    step = 1
    for axis in reversed(order):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != step:
            return None
        step *= tensor.shape[axis]
    return tuple(order)


def call_structure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`(args, kwargs)` with each leaf's number, as `read_call` counts them, in its place."""
    numbers = itertools.count()
    return map_leaves(lambda leaf: next(numbers), (args, {name: kwargs[name] for name in sorted(kwargs)}))


def describe_leaves(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The leaves of a call without the tensors' data."""
    described: list[Any] = []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            described.append(leaf)
            continue
        same = next(
            (
                i
                for i in range(place)
                if leaves[i] is leaf or (isinstance(leaves[i], torch.Tensor) and _shared(leaves[i], leaf))
            ),
            -1,
        )
        order = tuple(range(leaf.dim())) if leaf.is_contiguous() else axis_order(leaf)
        described.append(
            TensorInput(tuple(leaf.shape), tuple(leaf.stride()), order, leaf.dtype, str(leaf.device), leaf.requires_grad, same)
        )
    return tuple(described)


def _shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def difference(expected: Any, found: Any) -> str:
    """Which part of two frames differs, for people to read."""
    if expected[0] != found[0]:
        return "the structure of the arguments differs"
    if expected[2] != found[2]:
        names = ("grad mode", "inference mode", "default dtype", "deterministic algorithms", "matmul precision")
        changed = [n for n, a, b in zip(names, expected[2], found[2], strict=True) if a != b]
        return f"{', '.join(changed)} changed"
    for place, (a, b) in enumerate(zip(expected[1], found[1], strict=False)):
        if a != b:
            what = ("dtype", "device", "rank", "requires_grad", "inference", "layout", "strides", "aliasing")
            if len(a) == len(b) == len(what):
                return f"argument {place}: {what[next(i for i in range(len(what)) if a[i] != b[i])]} differs"
            return f"argument {place} differs: {b[-1]!r} instead of {a[-1]!r}"
    return "the arguments differ"
