"""Skeletons: a PyTorch module without its weights, as bytes from which another process rebuilds it.

    module -> cloudpickle, each tensor replaced by its place in a table of parts -> bytes -> module

Ties and views survive, because a record names its storage. Tensors below `SMALL_BYTES` travel with their values: a size or a
table that lives in a Python list is then known to the capture. All others are rebuilt over memory that is reserved but never
touched, so a model of any size costs the capture process nothing. Bytes only ever travel over a pipe between a process and a
child it started; nothing here reads a file.

Arguments of the call and sets lie in the same table: so the sizes of the former can be told from all else, and the latter come
in an order that is the same in every process. Then requests that are the same are the same bytes, and `skeleton_key` is a
digest of them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from hotfuse.errors import CaptureError
from hotfuse.frontends.torch_reduction import reduce_module, sent_class
from hotfuse.frontends.torch_request import TensorInput, unsendable
from hotfuse.locks import IMPORTS
from hotfuse.pace import Pace, hurry
from hotfuse.records import dataclass

SMALL_BYTES = 64 * 1024
_PLAIN = frozenset([type(None), bool, int, float, str, bytes])
_LEFT_TO_PICKLE = _PLAIN | {tuple, list, dict}


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor: how it lies in its storage, and its bytes where it is small."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str
    parameter: bool
    requires_grad: bool
    storage: int
    storage_bytes: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class SetRecord:
    """A set of plain values, sorted."""

    kind: type[set[Any]] | type[frozenset[Any]]
    items: tuple[Any, ...]


Part = TensorRecord | TensorInput | SetRecord


@dataclass(frozen=True, slots=True)
class Skeleton:
    parts: tuple[Part, ...]
    body: bytes


def make_skeleton(content: Any, pace: Pace = hurry) -> tuple[bytes, list[torch.Tensor]]:
    """`content` (a module, or a structure of modules and plain values) without its weights, and every tensor found in it."""
    file = io.BytesIO()
    pickler = _pickler_class()(file, pace)
    try:
        pickler.dump(content)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the model cannot be sent to the capture process: {type(error).__name__}: {error}; it stays eager "
            "(remove what cannot be pickled from its attributes, or use capture='blocking')"
        ) from error
    return pickle.dumps(Skeleton(tuple(pickler.parts), file.getvalue()), protocol=5), pickler.tensors


def skeleton_key(data: bytes) -> str:
    """A digest of all that `make_skeleton` made bytes of, in this process, but for what a trace is not asked about: the values
    of parameters (a graph reads them anew) and the sizes of the call's tensors (a class of shapes has to admit them)."""
    skeleton: Skeleton = pickle.loads(data)
    digest = hashlib.sha256(skeleton.body)
    for part in skeleton.parts:
        digest.update(repr(_telling(part)).encode())
    return digest.hexdigest()


def _telling(part: Part) -> Any:
    if isinstance(part, TensorRecord) and part.data is not None:
        return replace(part, data=None if part.parameter else hashlib.sha256(part.data).digest())
    if isinstance(part, TensorInput) and part.order is not None and 0 not in part.shape:
        return part._replace(shape=(-1,) * len(part.shape), stride=())
    return part


def check_tensors(module: torch.nn.Module, watched: Iterable[torch.Tensor], tensors: Iterable[torch.Tensor]) -> None:
    """Refuse tensors that a graph would take for constants although nobody watches them or knows their values."""
    own = {id(t) for t in (*module.parameters(), *module.buffers())}
    own |= {id(v) for part in module.modules() for v in part.__dict__.values() if isinstance(v, torch.Tensor)}
    known = {id(t) for t in watched}
    for tensor in tensors:
        if id(tensor) in own:
            continue
        shape = tuple(tensor.shape)
        if id(tensor) not in known:
            raise CaptureError(f"it reads a tensor of shape {shape} from a closure or a global; make it a buffer")
        if tensor.numel() * tensor.element_size() >= SMALL_BYTES:
            raise CaptureError(f"a tensor of shape {shape} is held in a Python object or container; make it a buffer")


def load_skeleton(data: bytes) -> Any:
    """The structure that `make_skeleton` was given, on memory of its own."""
    skeleton: Skeleton = pickle.loads(data)
    storages: dict[int, torch.UntypedStorage] = {}
    parts = [_rebuild(part, storages) if isinstance(part, TensorRecord) else _made(part) for part in skeleton.parts]
    return _Unpickler(io.BytesIO(skeleton.body), parts).load()


def _made(part: TensorInput | SetRecord) -> Any:
    return part.kind(part.items) if isinstance(part, SetRecord) else part


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: list[Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, place: Any) -> Any:
        return self._parts[place]


def _pickler_class() -> Any:
    """The pickler; made on demand, since cloudpickle is needed only where a model is captured."""
    with IMPORTS:
        import cloudpickle

    class SkeletonPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, pace: Pace) -> None:
            super().__init__(file, protocol=5)
            self._pace = pace
            self.parts: list[Part] = []
            self.tensors: list[torch.Tensor] = []
            self._places: dict[int, int] = {}
            self._storages: dict[int, int] = {}
            self._held: list[Any] = []  # an id is only good while its object lives

        def persistent_id(self, obj: Any) -> int | None:  # asked for every object
            self._pace()
            if type(obj) in _LEFT_TO_PICKLE:
                return None
            place = self._places.get(id(obj))
            if place is None and (part := _part(obj, self._storages)) is not None:
                place = self._places[id(obj)] = len(self.parts)
                self.parts.append(part)
                self._held.append(obj)
                if isinstance(obj, torch.Tensor):
                    self.tensors.append(obj)
            return place

        def reducer_override(self, obj: Any) -> Any:
            found = reduce_module(obj)
            if found is None:
                found = super().reducer_override(obj)
            return sent_class(obj, found) if isinstance(obj, type) and isinstance(found, tuple) else found

    return SkeletonPickler


def _part(obj: Any, storages: dict[int, int]) -> Part | None:
    """What stands for an object in the table; None for those that pickle sees to."""
    if isinstance(obj, torch.Tensor):
        return _record(obj, storages)
    if type(obj) is TensorInput:
        return obj
    if type(obj) in (set, frozenset) and _PLAIN.issuperset(map(type, obj)):
        return SetRecord(type(obj), tuple(sorted(obj, key=lambda item: (type(item).__name__, repr(item)))))
    return None


def _record(tensor: torch.Tensor, storages: dict[int, int]) -> TensorRecord:
    why = unsendable(tensor)
    if why:
        raise CaptureError(f"the model holds {why}; it stays eager")
    storage = tensor.untyped_storage()
    number = storages.setdefault(storage._cdata, len(storages))
    small = tensor.numel() * tensor.element_size() < SMALL_BYTES and tensor.device.type == "cpu"
    return TensorRecord(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.dtype,
        str(tensor.device),
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        number,
        storage.nbytes(),
        _bytes(tensor) if small else None,
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _rebuild(record: TensorRecord, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    storage = storages.get(record.storage)
    if storage is None:
        storage = storages[record.storage] = torch.UntypedStorage(record.storage_bytes, device=record.device)
    tensor = torch.empty(0, dtype=record.dtype, device=record.device)
    tensor.set_(storage, record.offset, record.shape, record.stride)  # type: ignore[call-overload]
    if record.data:
        values = torch.frombuffer(bytearray(record.data), dtype=torch.uint8).view(record.dtype).reshape(record.shape)
        if _overlaps(record):
            tensor = values.as_strided(record.shape, values.stride())
        else:
            tensor.copy_(values)
    if record.parameter:
        return torch.nn.Parameter(tensor, requires_grad=record.requires_grad)
    return tensor.requires_grad_(record.requires_grad)


def _overlaps(record: TensorRecord) -> bool:
    """Whether elements of one tensor share memory (an expanded tensor cannot be written element by element)."""
    return any(stride == 0 and size > 1 for size, stride in zip(record.shape, record.stride, strict=True))
