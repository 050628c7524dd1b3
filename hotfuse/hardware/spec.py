"""What code generation needs to know of the machine: instructions, registers, caches, cores.

    Machine (what Linux tells) + the instruction set asked for  ->  Spec

An instruction set narrower than the machine's is the machine without the wider instructions: tuning stays the processor's own,
so that what is measured under `isa="avx2"` is what an AVX2 machine of this make would run.
"""

from __future__ import annotations

import functools
import hashlib

from hotfuse.errors import ConfigError
from hotfuse.hardware.machine import Machine, read_machine
from hotfuse.records import dataclass

KIB = 1 << 10


@dataclass(frozen=True)
class _Level:
    """An instruction set: what a machine must have for it, its vectors, and how the names of wider instructions begin."""

    needs: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    wider: tuple[str, ...]


# The widest first. What LLVM and Linux call an instruction begins alike, but for _ and - (avx512_bf16, avx512bf16).
_LEVELS = {
    "avx512": _Level(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"), 64, 32, ("amx",)),
    "avx2": _Level(("avx2", "fma", "f16c"), 32, 16, ("amx", "avx512", "avx10")),
    "sse": _Level((), 16, 16, ("amx", "avx", "fma", "f16c", "xop", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4")),
}
# The least that processors with AVX2 have, where the machine does not tell.
_CACHES = {"L1": 32 * KIB, "L2": 256 * KIB, "L3": 2048 * KIB}


@dataclass(frozen=True)
class Spec:
    """`isa` is avx512, avx2, sse, or "other" where the processor is no x86-64. `forbidden` is how the names of instructions
    begin that the processor has and code must not use."""

    isa: str
    processor: str
    flags: str  # a digest of all that the processor says it can do
    forbidden: tuple[str, ...]
    extensions: tuple[str, ...]  # instruction sets, as Linux names them, that code may use
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    physical_cores: int  # that this process may use
    logical_cores: int
    affinity: tuple[int, ...]
    cpu_quota: float | None

    @property
    def smt(self) -> bool:
        """Whether usable cores share an arithmetic unit."""
        return self.logical_cores > self.physical_cores

    @property
    def amx(self) -> bool:
        return "amx_tile" in self.extensions

    @property
    def threads(self) -> int:
        """As many as add speed: one for each physical core, within the quota of the control group."""
        quota = self.physical_cores if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(self.physical_cores, quota))

    @property
    def key(self) -> str:
        """A short text that is another one where code would be: instructions, tuning, caches. Cores are no part of it."""
        facts = (self.processor, self.flags, self.forbidden, self.extensions, self.l1_bytes, self.l2_bytes, self.l3_bytes)
        return f"{self.isa}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def make_spec(machine: Machine, isa: str = "native") -> Spec:
    """The spec of a machine; `isa` is as in `Config`."""
    x86 = "x86_64" in machine.system or "AMD64" in machine.system
    offered = [name for name, level in _LEVELS.items() if x86 and set(level.needs) <= set(machine.instruction_sets)]
    if isa != "native" and isa not in offered:
        known = " and ".join(offered) or "none of those that can be asked for"
        raise ConfigError(
            f"isa={isa!r}: this processor ({machine.cpu or machine.system}) has {known}; unset HOTFUSE_ISA or choose another"
        )
    chosen = isa if isa != "native" else offered[0] if x86 else "other"
    level = _LEVELS.get(chosen, _Level((), 16, 32, ()))
    wider = level.wider if chosen == isa else ()  # all that a machine has is "native"
    caches = {**_CACHES, **machine.caches}
    return Spec(
        chosen,
        machine.cpu,
        machine.flags,
        wider,
        tuple(name for name in machine.instruction_sets if not name.startswith(wider)),
        level.vector_bytes,
        level.vector_registers,
        caches["L1"],
        caches["L2"],
        caches["L3"],
        machine.physical_cores or machine.usable_cores,
        machine.usable_cores,
        machine.affinity,
        machine.cpu_quota,
    )


@functools.cache
def host_spec(isa: str = "native") -> Spec:
    """The spec of this machine. Affinity and limits are those of the first call."""
    return make_spec(read_machine(), isa)
