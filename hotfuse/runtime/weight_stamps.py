"""Stamps: whether tensors are still what they were. Noticed are, in this order:

    identity, data pointer, `_version`   in every call: `load_state_dict`, `.to()`, in-place operators, other tensors
    an optimizer's step                  the step hook raises an epoch; then only full checksums can tell
    checksums                            each once in so many calls, spread over them evenly: what leaves no trace, as
                                         `AdamW(fused=True)`, `p.data += d` and writes through numpy

State: how far the audit is (chunks times calls), the epoch that was last found harmless, what a look at all checksums found,
and a count of optimizer steps in this process.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch

from hotfuse.pace import Pace, hurry

CHUNK_BYTES = 1 << 18  # of one checksum: 32,768 words, the most that torch works through without waking its thread pool
STEPPED, UNTRACED = "an optimizer took a step", "a weight changed without a trace"
_VERSION = operator.attrgetter("_version")


class Stamps:
    """What tensors were like when this was made."""

    def __init__(self, tensors: Sequence[torch.Tensor], pace: Pace = hurry) -> None:
        OPTIMIZER_STEPS.listen()
        self._epoch = OPTIMIZER_STEPS.epoch
        self._tensors = list(tensors)
        self._pointers = list(map(torch.Tensor.data_ptr, tensors))
        self._versions = versions(tensors)
        each = [list(chunks(tensor)) for tensor in tensors]
        self._counts = list(map(len, each))
        self._chunks = [chunk for several in each for chunk in several]
        self._sums = []
        for chunk in self._chunks:
            self._sums.append(checksum(chunk))
            pace()
        self._looked = 0
        self._found = ""

    def trace(self, tensors: Sequence[torch.Tensor]) -> str:
        """The change that left a trace; "" if none did."""
        if not all(map(operator.is_, tensors, self._tensors)):
            return "a weight was replaced"
        if list(map(torch.Tensor.data_ptr, tensors)) != self._pointers:
            return "a weight moved to other memory"
        if versions(tensors) != self._versions:
            return "a weight was changed in place"
        return ""

    def doubt(self, tensors: Sequence[torch.Tensor], audit_every: int) -> str:
        """Why the tensors may have changed, an optimizer's step among the reasons; "" if nothing speaks for it."""
        if why := self._found or self.trace(tensors):
            return why
        if self._epoch != OPTIMIZER_STEPS.epoch:
            return STEPPED
        count = len(self._chunks)
        before, self._looked = self._looked, self._looked + count
        if self._differs(i % count for i in range(before // audit_every, self._looked // audit_every)):
            return UNTRACED
        return ""

    def look_at_all(self, tensors: Sequence[torch.Tensor]) -> str:
        """Why the tensors are others now, by all checksums; "" if they are not. What is found speaks against them for good."""
        if not self._found and self._differs(range(len(self._chunks))):
            self._found = UNTRACED
        return self._found or self.trace(tensors)

    def change(self, tensors: Sequence[torch.Tensor], audit_every: int) -> str:
        """Why the tensors are others now; "" if they are not. After an optimizer's step all checksums are compared."""
        why = self.doubt(tensors, audit_every)
        if why != STEPPED:
            return why
        epoch = OPTIMIZER_STEPS.epoch
        if self._differs(range(len(self._chunks))):
            return "an optimizer changed a weight"
        self._epoch = epoch
        return ""

    def marks(self) -> list[Hashable]:
        """For each tensor what tells it and its contents from all others: where it lies, its form, its checksums."""
        found: list[Hashable] = []
        start = 0
        for tensor, count in zip(self._tensors, self._counts, strict=True):
            form = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device))
            found.append((form, tuple(self._sums[start : start + count])))
            start += count
        return found

    def has_contents_of(self, other: Stamps) -> bool:
        return not self.trace(other._tensors) and self._sums == other._sums

    def _differs(self, places: Iterable[int]) -> bool:
        return any(checksum(self._chunks[i]) != self._sums[i] for i in places)


def mark(tensors: Sequence[torch.Tensor]) -> Hashable:
    """What tells one state of tensors from the next as far as that leaves a trace; cheap, and holds none of them."""
    pointers = tuple(map(torch.Tensor.data_ptr, tensors))
    return tuple(map(id, tensors)), pointers, tuple(versions(tensors)), OPTIMIZER_STEPS.epoch


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
