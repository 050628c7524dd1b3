"""What the machine can do, measured by small generated loops on as many threads as the engines get.

    fma    independent chains of multiply-adds in registers: flops a second
    read   sums over a buffer, again and again: bytes a second
    copy   one buffer into another with stores that pass the caches by: bytes a second, in and out counted once each

Each thread has a part of its own; all run at the same time.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

CHAINS = 10  # enough to hide the latency of multiply-add on two units, few enough for 16 registers
FMA_STEPS = 100_000
UNROLL = 8  # vectors loaded in one step of a memory loop
PIECE = 1 << 13  # parts of a buffer are multiples of this
BURSTS = 5
Part = tuple[int, int, int]  # addresses to read and to write, and the length


def lanes_of(features: dict[str, bool]) -> int:
    """float32 lanes of the widest registers."""
    return 16 if features.get("avx512f") else 8 if features.get("avx") else 4


def fma_text(lanes: int) -> str:
    kind = f"<{lanes} x float>"
    phis = [f"%c{i} = phi {kind} [ %s, %entry ], [ %d{i}, %loop ]" for i in range(CHAINS)]
    steps = [f"%d{i} = call {kind} @llvm.fmuladd.v{lanes}f32({kind} %a, {kind} %c{i}, {kind} %s)" for i in range(CHAINS)]
    # the answer depends on every chain, and `x` is read at run time, so that nothing can be left out
    sums = [f"%t{i} = fadd {kind} %{'d0' if i == 1 else f't{i - 1}'}, %d{i}" for i in range(1, CHAINS)]
    lines = (
        f"define void @fma(ptr %x, ptr %y, i64 %n) {{\nentry:\n %a = load {kind}, ptr %x, align 4",
        f"%sp = getelementptr float, ptr %x, i64 {lanes}\n %s = load {kind}, ptr %sp, align 4\n br label %loop\nloop:",
        "%i = phi i64 [ 0, %entry ], [ %j, %loop ]",
        *phis,
        *steps,
        "%j = add i64 %i, 1\n %more = icmp ult i64 %j, %n\n br i1 %more, label %loop, label %done\ndone:",
        *sums,
        f"store {kind} %t{CHAINS - 1}, ptr %y, align 4\n ret void\n}}",
        f"declare {kind} @llvm.fmuladd.v{lanes}f32({kind}, {kind}, {kind})",
    )
    return "\n ".join(lines)


def memory_text(lanes: int) -> str:
    """`read(x, y, n)` and `copy(x, y, n)` over n bytes, a multiple of one step."""
    kind, size = f"<{lanes} x i32>", lanes * 4
    step = UNROLL * size
    places = [f"%o{i} = add i64 %i, {i * size}\n %p{i} = getelementptr i8, ptr %x, i64 %o{i}" for i in range(UNROLL)]
    loads = [f"%v{i} = load {kind}, ptr %p{i}, align {size}" for i in range(UNROLL)]
    back = f"%j = add i64 %i, {step}\n %more = icmp ult i64 %j, %n\n br i1 %more, label %loop, label %done\ndone:"
    head = "(ptr %x, ptr %y, i64 %n) {\nentry:\n br label %loop\nloop:\n %i = phi i64 [ 0, %entry ], [ %j, %loop ]"
    phis = [f"%c{i} = phi {kind} [ zeroinitializer, %entry ], [ %d{i}, %loop ]" for i in range(UNROLL)]
    adds = [f"%d{i} = add {kind} %c{i}, %v{i}" for i in range(UNROLL)]
    sums = [f"%t{i} = add {kind} %{'d0' if i == 1 else f't{i - 1}'}, %d{i}" for i in range(1, UNROLL)]
    end = f"store {kind} %t{UNROLL - 1}, ptr %y, align {size}\n ret void\n}}"
    read = "\n ".join((f"define void @read{head}", *phis, *places, *loads, *adds, back, *sums, end))
    targets = [f"%q{i} = getelementptr i8, ptr %y, i64 %o{i}" for i in range(UNROLL)]
    stores = [f"store {kind} %v{i}, ptr %q{i}, align {size}, !nontemporal !0" for i in range(UNROLL)]
    copy = "\n ".join((f"define void @copy{head}", *places, *targets, *loads, *stores, back, "ret void\n}"))
    return f"{read}\n{copy}\n!0 = !{{i32 1}}\n"


def again_text(name: str) -> str:
    """`NAME_again(x, y, n, passes)`: the loop over and over without a word of Python between, which threads would queue for."""
    return f"""define void @{name}_again(ptr %x, ptr %y, i64 %n, i64 %passes) {{
entry:
 br label %loop
loop:
 %i = phi i64 [ 0, %entry ], [ %j, %loop ]
 call void @{name}(ptr %x, ptr %y, i64 %n)
 %j = add i64 %i, 1
 %more = icmp ult i64 %j, %passes
 br i1 %more, label %loop, label %done
done:
 ret void
}}"""


class Probes:
    """State: the compiled loops, the buffers of the size last asked for, and a thread for each part."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = lanes_of(dict(features))
        target = llvm.Target.from_default_triple()
        # a width that the processor has may still be one that LLVM avoids: say that we mean it
        wide = f"{features.flatten()},-prefer-256-bit" if self.lanes == 16 else features.flatten()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=wide, opt=3)
        again = [again_text(name) for name in ("fma", "read", "copy")]
        self._module = llvm.parse_assembly("\n".join((fma_text(self.lanes), memory_text(self.lanes), *again)))
        self._engine = llvm.create_mcjit_compiler(self._module, machine)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._loops = {name: kind(self._engine.get_function_address(f"{name}_again")) for name in ("fma", "read", "copy")}
        self._pool = ThreadPoolExecutor(64)
        self._buffers: dict[tuple[str, int, int], list[Any]] = {}

    def rate(self, what: str, threads: int, seconds: float, bytes: int = 0) -> float:
        """Operations or bytes a second: the median of a few bursts that together take about that time."""
        parts, each = self.parts(what, threads, bytes)
        self.run(what, parts, 1)
        begun = time.perf_counter()
        self.run(what, parts, 1)
        passes = max(1, int(seconds / BURSTS / (time.perf_counter() - begun)))
        found = []
        for _ in range(BURSTS):
            begun = time.perf_counter()
            self.run(what, parts, passes)
            found.append(passes * each * threads / (time.perf_counter() - begun))
        return statistics.median(found)

    def run(self, what: str, parts: list[Part], passes: int) -> None:
        """Every part on a thread of its own, `passes` times."""
        if len(parts) == 1:
            self._loops[what](*parts[0], passes)
        else:
            wait([self._pool.submit(self._loops[what], *part, passes) for part in parts])

    def parts(self, what: str, threads: int, bytes: int) -> tuple[list[Part], int]:
        """Addresses and length for each thread, and the operations or bytes that one pass of a thread counts."""
        one = PIECE if what == "fma" else max(PIECE, bytes // threads // PIECE * PIECE)
        key = (what, one, threads)
        if key not in self._buffers:
            self._buffers = {key: [(_aligned(one), _aligned(one if what == "copy" else PIECE)) for _ in range(threads)]}
        pairs = self._buffers[key]
        if what == "fma":
            return [(a.ctypes.data, b.ctypes.data, FMA_STEPS) for a, b in pairs], FMA_STEPS * CHAINS * self.lanes * 2
        return [(a.ctypes.data, b.ctypes.data, one) for a, b in pairs], one * (2 if what == "copy" else 1)


def _aligned(size: int) -> np.ndarray[Any, Any]:
    """Floats that start on a cache line, all 0.5: chains of multiply-adds on them stay far from infinities and subnormals."""
    whole = np.full(size // 4 + 16, 0.5, np.float32)
    start = (-whole.ctypes.data % 64) // 4
    return whole[start : start + size // 4]
