"""What the tensors that a model returns are to its caller: read off the fake tensors of one traced call.

Eager returns some tensors themselves (an argument, a weight, one result twice), some as views of those, and some as views of
memory that only results share. Fake tensors know all of it: objects, storages, strides and offsets. A result that shares
nothing and fills its memory is described by its order of axes alone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from hotfuse.errors import CaptureError, DimError
from hotfuse.frontends.torch_dim import dim_from_torch
from hotfuse.frontends.torch_program import OutputLeaf, Place, SizeSource, WeightForm
from hotfuse.frontends.torch_record import Form
from hotfuse.frontends.torch_shapes import at_example
from hotfuse.frontends.torch_tensor import axis_order
from hotfuse.ir.dim import Dim, floordiv, symbols_of

Owner = tuple[str, int | str]
_DROPOUT = {torch.dropout: "train", torch.nn.functional.dropout: "training"}  # and what each calls "on"


class PlainDropout(TorchFunctionMode):  # type: ignore[misc]
    """Within, dropout that is off returns its argument itself, as it does in eager; traced, it would be a copy. All other
    functions are called by `run`, with the function, the classes of its tensors and its arguments."""

    def __init__(self, run: Callable[[Any, Sequence[type], Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _DROPOUT:
            given = dict(zip(("input", "p", _DROPOUT[function]), args, strict=False)) | kwargs
            if given.get("p") == 0.0 or not given.get(_DROPOUT[function], True):
                return given["input"]
        return self._run(function, types, args, kwargs)


class TracedCall(NamedTuple):
    """One call of a module while it was traced: the leaves of its arguments, its weights by name, the leaves of its result, and
    its form where that is not the traced graph's."""

    leaves: Sequence[Any]
    weights: Mapping[str, torch.Tensor]
    results: Sequence[Any]
    form: Form | None = None


def find_leaves(call: TracedCall) -> list[OutputLeaf | None]:
    """What each result is, None for those that are no tensors; graph outputs have no number yet."""
    objects, bases = _owned(call)
    leaves: list[OutputLeaf | None] = []
    fresh: dict[int, list[int]] = {}
    for place, result in enumerate(call.results):
        if not is_strided(result) or id(result) in objects:
            leaves.append(objects.get(id(result)))
            continue
        objects[id(result)] = OutputLeaf("output", place)
        base = bases.get(memory_of(result))
        _refuse_odd(result, place, base)
        leaves.append(_view(result, place, base))
        if base is None:
            fresh.setdefault(memory_of(result), []).append(place)
    for block, members in enumerate(fresh.values()):
        for place, leaf in zip(members, _lay_out([call.results[m] for m in members], members, block), strict=True):
            leaves[place] = leaf
    return leaves


def _owned(call: TracedCall) -> tuple[dict[int, OutputLeaf], dict[int, tuple[Owner, Any]]]:
    """The caller's and the module's tensors as results, by object, and as owners of memory, by storage. An owner's tensor is
    None where several weights share the storage: nothing keeps them together from call to call."""
    objects: dict[int, OutputLeaf] = {}
    bases: dict[int, tuple[Owner, Any]] = {}
    for i, leaf in enumerate(call.leaves):
        if is_strided(leaf):
            objects.setdefault(id(leaf), OutputLeaf("input", i))
            bases.setdefault(memory_of(leaf), (("input", i), leaf))
    for name, weight in call.weights.items():
        objects.setdefault(id(weight), OutputLeaf("weight", name=name))
        owner, first = bases.setdefault(memory_of(weight), (("weight", name), weight))
        if first is not weight:
            bases[memory_of(weight)] = owner, None
    return objects, bases


def _refuse_odd(result: torch.Tensor, place: int, base: tuple[Owner, Any] | None) -> None:
    if not isinstance(result, FakeTensor):
        why = "is held in a Python object; make it a buffer"
    elif result.is_conj() or result.is_neg():
        why = "is lazily conjugated or negated; call resolve_conj() or resolve_neg()"
    elif base is None and result.requires_grad:
        why = "requires a gradient although the call asks for none"
    elif base is not None and base[1] is None:
        why = "is a view of memory that several weights share"
    elif base is not None and base[1].dtype != result.dtype:
        why = f"shows the memory of {_name(base[0])} as {result.dtype}"
    else:
        return
    raise CaptureError(f"output {place} {why}")


def _view(result: torch.Tensor, place: int, base: tuple[Owner, Any] | None) -> OutputLeaf | None:
    if base is None:
        return None
    owner, tensor = base
    lies = _lies(result)
    if isinstance(lies, str):
        raise CaptureError(f"output {place} is a view of {_name(owner)}, and {lies}")
    place_there = replace(lies, owner=owner, offset=lies.offset - dim_from_torch(tensor.storage_offset()), room=0)
    return OutputLeaf("view", place=place_there, detached=tensor.requires_grad and not result.requires_grad)


def _lay_out(results: Sequence[torch.Tensor], places: Sequence[int], block: int) -> Iterator[OutputLeaf]:
    """Results that share fresh memory: views of the one that fills it, or each at its place in a block of its size."""
    found = [_lies(result) for result in results]
    orders = [_filling_order(lies) for lies in found]
    whole = next((i for i, order in enumerate(orders) if order is not None), None)
    for i, (result, lies, order) in enumerate(zip(results, found, orders, strict=True)):
        if i == whole:
            yield OutputLeaf("value", order=order, alone=True)
        elif isinstance(lies, str):
            order = axis_order(result)
            if len(results) > 1 or order is None:
                raise CaptureError(f"output {places[i]} has gaps in memory or shares it with another output, and {lies}")
            yield OutputLeaf("value", order=order)
        elif any(r.dtype != result.dtype for r in results):
            raise CaptureError(f"output {places[i]} shows the memory of another output as {result.dtype}")
        elif whole is not None:
            yield OutputLeaf("view", place=replace(lies, owner=("output", places[whole]), room=0))
        else:
            yield OutputLeaf("value", place=replace(lies, owner=("block", block)))


def _lies(tensor: torch.Tensor) -> Place | str:
    """How a tensor lies in its storage, or why that cannot be said."""
    try:
        shape, stride = (tuple(map(dim_from_torch, sizes)) for sizes in (tensor.shape, tensor.stride()))
        room = floordiv(dim_from_torch(tensor.untyped_storage().nbytes()), tensor.element_size())
        return Place(("block", -1), shape, stride, dim_from_torch(tensor.storage_offset()), room)
    except DimError as error:
        return str(error)


def _filling_order(lies: Place | str) -> tuple[int, ...] | None:
    """The axes of a tensor that fills its storage without gaps or overlaps, slowest first."""
    if isinstance(lies, str) or lies.offset != 0 or lies.room != functools.reduce(operator.mul, lies.shape, 1):
        return None
    order: list[int] = []
    step: Dim = 1
    for _ in lies.shape:
        left = (a for a in reversed(range(len(lies.shape))) if a not in order)
        axis = next((a for a in left if lies.stride[a] == step), None)
        if axis is None:
            return None
        order.append(axis)
        size = lies.shape[axis]
        step = step * (max(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(order))


def find_viewed(call: TracedCall, leaves: Sequence[OutputLeaf]) -> tuple[Place, ...]:
    """How the arguments lie in memory that results are views of."""
    owners = dict.fromkeys(leaf.place.owner for leaf in leaves if leaf.kind == "view" and leaf.place is not None)
    places = [(owner, _lies(call.leaves[int(owner[1])])) for owner in owners if owner[0] == "input"]
    return tuple(replace(place, owner=owner, offset=0, room=0) for owner, place in places if not isinstance(place, str))


def find_sizes(call: TracedCall, leaves: Sequence[OutputLeaf]) -> tuple[SizeSource, ...]:
    """Where calls show the sizes that the places of their outputs depend on."""
    places = [leaf.place for leaf in leaves if leaf.place is not None]
    places += find_viewed(call, leaves)
    dims = [d for p in places for d in (*p.shape, *p.stride, p.offset, p.room)]
    return tuple(_source(name, call, leaves) for name in sorted({s.name for s in symbols_of(dims)}))


def _source(name: str, call: TracedCall, leaves: Sequence[OutputLeaf]) -> SizeSource:
    for index, leaf in enumerate(call.leaves):
        for axis, size in enumerate(leaf.shape if isinstance(leaf, torch.Tensor) else ()):
            if str(size) == name:
                return SizeSource(name, True, index, axis)
    for leaf in leaves:
        if leaf.kind == "value" and leaf.place is not None:
            for axis, dim in enumerate(leaf.place.shape):
                if str(dim) == name:
                    return SizeSource(name, False, leaf.index, axis)
    raise CaptureError(f"how an output lies in memory depends on {name}, which no argument shows")


def find_weights(call: TracedCall, leaves: Sequence[OutputLeaf]) -> tuple[WeightForm, ...]:
    """The weights that are returned, whole or as views."""
    owners = [leaf.place.owner for leaf in leaves if leaf.kind == "view" and leaf.place is not None]
    names = [leaf.name for leaf in leaves if leaf.kind == "weight"] + [str(n) for kind, n in owners if kind == "weight"]
    found = ((name, call.weights[name]) for name in dict.fromkeys(names))
    return tuple(WeightForm(name, tuple(weight.stride()), weight.requires_grad) for name, weight in found)


def same_places(one: TracedCall, other: TracedCall, ones: frozenset[str]) -> bool:
    """Whether the results of both calls are the same to their caller, where the symbols `ones` are 1."""
    return _identity(one, ones) == _identity(other, ones)


def _identity(call: TracedCall, ones: frozenset[str]) -> list[Any]:
    """Each result as the first tensor that is the same object and the first of the same memory, with sizes, strides that count
    and offset as numbers."""
    tensors = [t for t in (*call.leaves, *call.weights.values(), *call.results) if is_strided(t)]
    objects, memory = ([key(t) for t in tensors] for key in (id, memory_of))

    def number(size: Any) -> Any:
        return size if isinstance(size, int) else str(at_example(size.node, ones))

    identity = []
    for result in filter(is_strided, call.results):
        sizes = [number(size) for size in result.shape]
        strides = [str(number(s)) for size, s in zip(sizes, result.stride(), strict=True) if str(size) not in ("0", "1")]
        offset = str(number(result.storage_offset()))
        identity.append((objects.index(id(result)), memory.index(memory_of(result)), strides, offset))
    return identity


def is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def _name(owner: Owner) -> str:
    return f"argument {owner[1]}" if owner[0] == "input" else f"{owner[0]} {owner[1]!r}"
