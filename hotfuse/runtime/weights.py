"""Weights: read live from the module in every call; values prepared from them are watched, because weights may change under us.

`LiveWeights` finds the tensors behind a graph's weight names. State: none but where to look.

`PreparedWeights` holds what was computed from weights ahead of calls, and notices that a source changed by, in this order:

    identity, data pointer, `_version`   in every call: `load_state_dict`, `.to()`, in-place operators, other tensors
    an optimizer's step                  the step hook raises an epoch; the next call compares full checksums
    checksums                            a share in every call, all of them once in `audit_every` calls: what leaves no trace,
                                         as `AdamW(fused=True)`, `p.data += d` and writes through numpy

A change means new values before the next answer: the call that notices it computes them, others that need them wait.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hotfuse.ir.graph import Graph
from hotfuse.ir.types import TensorType
from hotfuse.locks import make_lock

CHUNK_BYTES = 1 << 18  # of one checksum: 32,768 words, the most that torch works through without waking its thread pool
_VERSION = operator.attrgetter("_version")
_SHAPE = operator.attrgetter("shape")
_DTYPE = operator.attrgetter("dtype")
_DEVICE = operator.attrgetter("device")
_GRADIENT = operator.attrgetter("requires_grad")


class LiveWeights:
    """The tensors of a module by the names that a captured graph gives them."""

    def __init__(self, module: torch.nn.Module, graph: Graph, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._places = [_place(module, name) for name in names]
        self._ties = [(_place(module, a), _place(module, b)) for a, b in ties(module)]
        tensors = [table[key] for table, key in self._places]
        self._shapes = list(map(_SHAPE, tensors))
        self._dtypes = list(map(_DTYPE, tensors))
        self._devices = list(map(_DEVICE, tensors))
        for name, tensor in zip(names, tensors, strict=True):
            declared = graph.type(name)
            if isinstance(declared, TensorType) and declared.shape != tuple(tensor.shape):
                raise ValueError(f"weight {name} has shape {tuple(tensor.shape)}, the capture saw {declared}")

    def read(self) -> list[torch.Tensor] | str:
        """The tensors now, or why they are not those that were captured."""
        try:
            tensors = [table[key] for table, key in self._places]
            if list(map(_SHAPE, tensors)) != self._shapes:
                return "a weight has another shape"
            if list(map(_DTYPE, tensors)) != self._dtypes:
                return "a weight has another dtype"
            if list(map(_DEVICE, tensors)) != self._devices:
                return "a weight is on another device"
            if any(a[key] is not b[other] for (a, key), (b, other) in self._ties):
                return "weights that were tied no longer are"
        except (KeyError, AttributeError):
            return "a weight was removed or replaced by something else"
        return tensors


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return any(map(_GRADIENT, tensors))


def _place(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary and key under which a module tree holds a tensor."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    for table in (owner._parameters, owner._buffers, owner.__dict__):
        if isinstance(table.get(key), torch.Tensor):
            return table, key
    raise KeyError(name)


def ties(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Pairs of names for one tensor."""
    first: dict[int, str] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            known = first.setdefault(id(tensor), name)
            if known != name:
                yield known, name


class PreparedWeights:
    """Values computed from weights. One lock guards a renewal; a call that finds nothing changed takes none."""

    def __init__(self, prepare: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], audit_every: int) -> None:
        self._prepare = prepare
        self._audit_every = audit_every
        self._lock = make_lock()
        self._made: _Made | None = None
        self.renewals = 0
        OPTIMIZER_STEPS.listen()

    def values(self, sources: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], str]:
        """Values that fit the sources as they are now, and why they were made anew ("" if they were not)."""
        made = self._made
        reason = "first use" if made is None else made.stale(sources, self._audit_every)
        if not reason:
            assert made is not None
            return made.values, ""
        with self._lock:
            if self._made is not made and self._made is not None:  # another thread was here first
                reason_now = self._made.stale(sources, self._audit_every)
                if not reason_now:
                    return self._made.values, ""
            self._made = _Made(sources, self._prepare)
            self.renewals += made is not None
            return self._made.values, reason

    def refresh(self) -> None:
        """Forget what was prepared; the next call prepares anew."""
        self._made = None


class _Made:
    """One generation of prepared values, with the stamps and checksums its sources had just before it was computed."""

    def __init__(
        self, sources: Sequence[torch.Tensor], prepare: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    ) -> None:
        self._epoch = OPTIMIZER_STEPS.epoch
        self._sources = list(sources)
        self._pointers = list(map(torch.Tensor.data_ptr, sources))
        self._versions = versions(sources)
        self._chunks = [chunk for tensor in sources for chunk in chunks(tensor)]
        self._sums = [checksum(chunk) for chunk in self._chunks]
        self._cursor = 0
        with torch.no_grad():
            self.values = list(prepare(sources))

    def stale(self, sources: Sequence[torch.Tensor], audit_every: int) -> str:
        if not all(map(operator.is_, sources, self._sources)):
            return "a weight was replaced"
        if list(map(torch.Tensor.data_ptr, sources)) != self._pointers:
            return "a weight moved to other memory"
        if versions(sources) != self._versions:
            return "a weight was changed in place"
        if self._epoch != OPTIMIZER_STEPS.epoch:
            if self._differs(range(len(self._chunks))):
                return "an optimizer changed a weight"
            self._epoch = OPTIMIZER_STEPS.epoch
        share = -(-len(self._chunks) // audit_every)
        start, self._cursor = self._cursor, (self._cursor + share) % max(len(self._chunks), 1)
        if self._differs(i % len(self._chunks) for i in range(start, start + share)):
            return "a weight changed without a trace"
        return ""

    def _differs(self, places: Any) -> bool:
        return any(checksum(self._chunks[i]) != self._sums[i] for i in places)


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The versions of tensors; inference tensors have none."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return [-1 if t.is_inference() else t._version for t in tensors]


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Pieces of a tensor that share its memory; one that is not contiguous is read through its whole storage."""
    flat = tensor.detach()
    if flat.is_contiguous():
        raw = flat.reshape(-1).view(torch.uint8)
    else:
        raw = torch.empty(0, dtype=torch.uint8, device=flat.device).set_(flat.untyped_storage())  # type: ignore[call-overload]
    yield from raw.split(CHUNK_BYTES)


def checksum(chunk: torch.Tensor) -> tuple[int, int, int]:
    """Position-sensitive sums of a chunk: exchanging two rows changes them, as changing one element does. The upper halves of
    words are summed once more: a flipped sign of many doubles cancels out at the top of a word, but not there."""
    whole = chunk.numel() // 8 * 8
    words = chunk[:whole].view(torch.int64) if chunk.data_ptr() % 8 == 0 else chunk[:whole].clone().view(torch.int64)
    factors = _factors(words.numel(), chunk.device)
    low, high = (int(torch.dot(w, factors)) for w in (words, words >> 32)) if whole else (0, 0)
    return low, high, hash(tuple(chunk[whole:].tolist()))


_FACTORS: dict[torch.device, torch.Tensor] = {}


def _factors(count: int, device: torch.device) -> torch.Tensor:
    """Fixed odd numbers: an odd factor is invertible modulo 2**64, so no single change cancels out."""
    found = _FACTORS.get(device)
    if found is None:
        generator = torch.Generator().manual_seed(0x5EED)
        found = (torch.randint(-(1 << 62), 1 << 62, (CHUNK_BYTES // 8,), generator=generator) * 2 + 1).to(device)
        _FACTORS[device] = found
    return found[:count]


class _OptimizerSteps:
    """Counts steps of any optimizer in this process, from the first time somebody listens."""

    def __init__(self) -> None:
        self.epoch = 0
        self._listening = False

    def listen(self) -> None:
        if not self._listening:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._listening = True
            register_optimizer_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.epoch += 1


OPTIMIZER_STEPS = _OptimizerSteps()
