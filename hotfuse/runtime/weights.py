"""Weights: read live from the module in every call; values prepared from them are watched, because weights may change under us.

`LiveWeights` finds the tensors behind a graph's weight names.

`PreparedWeights` holds what was computed from weights ahead of calls, and `Stamps` of these weights: values that do not fit the
weights as they are now are never handed out. Who waits for it (`wait=True`) has them computed anew by the call that notices a
change. Else that call and those after it go without, and a thread computes them:

    call: stamps fit -> values
          they do not -> None; once `Patience` saw the same weights often enough -> thread -> new values, by one reference

so weights that change in every step of a training loop are not prepared at all.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from hotfuse.errors import ExecutionError
from hotfuse.frontends.torch_versions import Versions
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import TensorType
from hotfuse.locks import make_lock
from hotfuse.pace import Unhurried, breathe, going_at
from hotfuse.records import dataclass
from hotfuse.runtime.patience import Patience
from hotfuse.runtime.shared_values import share
from hotfuse.runtime.weight_stamps import STEPPED, Stamps, mark

_SHAPE = operator.attrgetter("shape")
_DTYPE = operator.attrgetter("dtype")
_DEVICE = operator.attrgetter("device")
_GRADIENT = operator.attrgetter("requires_grad")

Prepare = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
Keys = Callable[[Sequence[Hashable]], Sequence[bytes | None]]  # of prepared values, from the marks of their sources


class LiveWeights:
    """The tensors of a module by the names that a captured graph gives them. State: those that were found last, for as long as
    nothing is set in the dictionaries that hold them; torch's own check of their properties, one loop of C: where it fails, a
    slower look decides, and it is made anew."""

    def __init__(self, module: torch.nn.Module, graph: Graph, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._module, self._graph = module, graph
        self._places = [_place(module, name) for name in names]
        self._ties = [(_place(module, a), _place(module, b)) for a, b in ties(module)]
        tensors = [table[key] for table, key in self._places]
        self._shapes = list(map(_SHAPE, tensors))
        self._dtypes = list(map(_DTYPE, tensors))
        self._devices = list(map(_DEVICE, tensors))
        self._strides = list(map(torch.Tensor.stride, tensors))
        firsts = {id(t): place for place, t in reversed(list(enumerate(tensors)))}
        self._firsts = list(firsts.values())
        self._copies = [(place, firsts[id(t)]) for place, t in enumerate(tensors) if firsts[id(t)] != place]
        self._guard = _guard(self._distinct(tensors))
        self._found: tuple[list[int] | None, list[torch.Tensor]] = (None, [])  # versions, and what was there then
        self._versions = Versions(table for table, _ in chain(self._places, *self._ties))
        for name, tensor in zip(names, tensors, strict=True):
            declared = graph.type(name)
            if isinstance(declared, TensorType) and declared.shape != tuple(tensor.shape):
                raise ValueError(f"weight {name} has shape {tuple(tensor.shape)}, the capture saw {declared}")

    def renamed(self, names: Sequence[str]) -> LiveWeights:
        """Those of the same module that another form of the same graph names."""
        return LiveWeights(self._module, self._graph, names)

    def read(self) -> Sequence[torch.Tensor] | str:
        """The tensors now, or why they are not those that were captured."""
        versions, (before, found) = self._versions.now(), self._found
        if versions is not None and versions == before and self._guard(*self._distinct(found)):
            return found
        self._found = (None, [])
        try:
            tensors = [table[key] for table, key in self._places]
            same = all(tensors[copy] is tensors[first] for copy, first in self._copies)
            if not (same and self._guard(*self._distinct(tensors))):
                why = self._difference(tensors)
                if why:
                    return why
                self._guard = _guard(self._distinct(tensors))
            if any(a[key] is not b[other] for (a, key), (b, other) in self._ties):
                return "weights that were tied no longer are"
        except (KeyError, AttributeError):
            return "a weight was removed or replaced by something else"
        self._found = (versions, tensors)
        return tensors

    def properties(self) -> list[Any]:
        """What `read` looks at, as it is now."""
        tensors = [table.get(key) for table, key in self._places]
        return [(tuple(t.shape), t.stride(), t.dtype, str(t.device)) if isinstance(t, torch.Tensor) else t for t in tensors]

    def _distinct(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors without those that were known by an earlier name."""
        return [tensors[i] for i in self._firsts] if self._copies else tensors

    def _difference(self, tensors: Sequence[torch.Tensor]) -> str:
        if list(map(_SHAPE, tensors)) != self._shapes:
            return "a weight has another shape"
        if list(map(_DTYPE, tensors)) != self._dtypes:
            return "a weight has another dtype"
        if list(map(_DEVICE, tensors)) != self._devices:
            return "a weight is on another device"
        if list(map(torch.Tensor.stride, tensors)) != self._strides:  # on which the strides of results may depend
            return "a weight lies in memory another way"
        return ""


def _guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether tensors have the types, devices and shapes (and strides, and requires_grad) that these have now, for a thread in
    this one's modes. Tensors that occur twice fail."""
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check  # type: ignore[no-any-return]


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


@dataclass
class _Made:
    """One generation of prepared values. The count of its uses may miss one: it only serves `Patience`."""

    stamps: Stamps
    values: Sequence[torch.Tensor]
    uses: int = 0


class PreparedWeights:
    """Values computed from weights. State: the values there are, the thread that makes new ones, and what it needs to know.
    The lock guards this state for a moment; it is held during a preparation only by those who wait for one anyway."""

    def __init__(self, prepare: Prepare, audit_every: int, keys: Keys | None = None) -> None:
        self._prepare = prepare
        self._keys = keys
        self._audit_every = audit_every
        self._lock = make_lock()
        self._made: _Made | None = None
        self._before: _Made | None = None  # what may turn out to be as good as ever
        self._patience = Patience()
        self._worker: threading.Thread | None = None
        self._refreshes = 0
        self._failure = ""
        self.renewals = 0

    def values(self, sources: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], str]:
        """Values that fit the sources as they are now, and why they were made anew ("" if they were not)."""
        made = self._made
        reason = "first use" if made is None else made.stamps.change(sources, self._audit_every)
        if not reason:
            assert made is not None
            return made.values, ""
        with self._lock:
            other = self._made
            if other is not None and other is not made and not other.stamps.change(sources, self._audit_every):
                return other.values, ""  # another thread was here first
            refreshes = self._refreshes
            new = self._make(sources, None)
            self._made = new if refreshes == self._refreshes else None
            self.renewals += made is not None
            return new.values, reason

    def ready(self, sources: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor] | None, str]:
        """Values that fit the sources, if there are such, and what speaks against the last ones if this call noticed it
        first. ExecutionError if none can be made."""
        made = self._made
        doubt = "" if made is None else made.stamps.doubt(sources, self._audit_every)
        if made is not None and not doubt:
            made.uses += 1
            return made.values, ""
        seen = mark(sources)
        with self._lock:
            if self._failure:
                raise ExecutionError(self._failure)
            first = made is not None and self._made is made
            if first:
                assert made is not None
                self._made, self._before = None, made if doubt == STEPPED else None
                self._patience.judge(made.uses)
            if self._made is None and not self._is_busy() and self._patience.is_steady(seen):
                self._start(sources)
        return None, doubt if first else ""

    def outdated(self, sources: Sequence[torch.Tensor]) -> str:
        """Why the values that there are do not fit the sources, by all checksums; they serve no call then. "" if they do."""
        made = self._made
        return "" if made is None else made.stamps.look_at_all(sources)

    def _is_busy(self) -> bool:
        return self._worker is not None and self._worker.is_alive()  # in a forked child no thread of the parent's is

    def _start(self, sources: Sequence[torch.Tensor]) -> None:
        arguments = (list(sources), self._before, self._refreshes)
        worker = threading.Thread(target=self._renew, args=arguments, name="hotfuse-prepare", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: a later call tries again
            worker.start()
            self._worker = worker

    def _renew(self, sources: Sequence[torch.Tensor], before: _Made | None, refreshes: int) -> None:
        """The thread: make values and publish them, unless the weights changed meanwhile."""
        try:
            with _TURN, going_at(Unhurried()):
                new = self._make(sources, before)
            fits = not new.stamps.doubt(sources, self._audit_every)
        except Exception as error:
            with self._lock:
                self._failure = f"the values that a plan needs of its weights cannot be made: {type(error).__name__}: {error}"
            return
        with self._lock:
            if refreshes != self._refreshes:
                return
            self._before = None
            if fits:
                self._made = new
                self.renewals += 1
            else:
                self._patience.judge(0)

    def _make(self, sources: Sequence[torch.Tensor], before: _Made | None) -> _Made:
        stamps = Stamps(sources, breathe)  # first: what changes while values are computed must not fit
        if before is not None and stamps.has_contents_of(before.stamps):
            return _Made(stamps, before.values)
        with torch.no_grad():
            values = list(self._prepare(sources))
        return _Made(stamps, values if self._keys is None else share(values, self._keys(stamps.marks())))

    def settled(self, timeout_s: float | None) -> bool:
        """Wait until no thread prepares values; False if that takes longer than `timeout_s`."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        return not self._is_busy()

    def refresh(self) -> None:
        """Forget what was prepared, and what is being prepared."""
        self._refreshes += 1
        self._made = self._before = None
        self._failure = ""


_TURN = make_lock()  # models prepare one after another; taken by their threads only
