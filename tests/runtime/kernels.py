"""Kernels written by hand, with the signature of generated ones: void NAME(ptr table, ptr scratch, i64 begin, i64 end)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from hotfuse.codegen.link import Code
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.driver import Driver, Job, Step

Array = np.ndarray[Any, Any]

# table: i64 array `marks`, i64 array `owners`, turns to wait. Each task adds 1 to its mark and leaves its scratch's address.
MARK = """
define void @mark(ptr %table, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %marks = load ptr, ptr %table
  %owners.at = getelementptr i64, ptr %table, i64 1
  %owners = load ptr, ptr %owners.at
  %turns.at = getelementptr i64, ptr %table, i64 2
  %turns = load i64, ptr %turns.at
  br label %task
task:
  %t = phi i64 [ %begin, %entry ], [ %t.next, %write ]
  br label %wait
wait:
  %w = phi i64 [ 0, %task ], [ %w.next, %wait ]
  %w.next = add i64 %w, 1
  %read = load volatile i64, ptr %turns.at
  %again = icmp slt i64 %w.next, %turns
  br i1 %again, label %wait, label %write
write:
  %mark = getelementptr i64, ptr %marks, i64 %t
  %old = load i64, ptr %mark
  %new = add i64 %old, 1
  store i64 %new, ptr %mark
  %owner = getelementptr i64, ptr %owners, i64 %t
  %address = ptrtoint ptr %scratch to i64
  store i64 %address, ptr %owner
  store i64 %t, ptr %scratch
  %t.next = add i64 %t, 1
  %more = icmp slt i64 %t.next, %end
  br i1 %more, label %task, label %done
done:
  ret void
}
"""
# table: f64 arrays `from` and `to`, their length n, turns that task 0 waits. to[t] = from[n - 1 - t] * 0.5 + 1.
MIRROR = """
define void @mirror(ptr %table, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %from = load ptr, ptr %table
  %to.at = getelementptr i64, ptr %table, i64 1
  %to = load ptr, ptr %to.at
  %n.at = getelementptr i64, ptr %table, i64 2
  %n = load i64, ptr %n.at
  %turns.at = getelementptr i64, ptr %table, i64 3
  %turns = load i64, ptr %turns.at
  %last = sub i64 %n, 1
  br label %task
task:
  %t = phi i64 [ %begin, %entry ], [ %t.next, %write ]
  %first = icmp eq i64 %t, 0
  br i1 %first, label %wait, label %write
wait:
  %w = phi i64 [ 0, %task ], [ %w.next, %wait ]
  %w.next = add i64 %w, 1
  %read = load volatile i64, ptr %turns.at
  %again = icmp slt i64 %w.next, %turns
  br i1 %again, label %wait, label %write
write:
  %place = sub i64 %last, %t
  %x.at = getelementptr double, ptr %from, i64 %place
  %x = load double, ptr %x.at
  %half = fmul double %x, 0.5
  %y = fadd double %half, 1.0
  %y.at = getelementptr double, ptr %to, i64 %t
  store double %y, ptr %y.at
  %t.next = add i64 %t, 1
  %more = icmp slt i64 %t.next, %end
  br i1 %more, label %task, label %done
done:
  ret void
}
"""
# table: an i64 that counts the tasks that have begun, how many there must be before one may end, and an i64 array that gets the
# address of each task's scratch.
GATHER = """
define void @gather(ptr %table, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %count = load ptr, ptr %table
  %all.at = getelementptr i64, ptr %table, i64 1
  %all = load i64, ptr %all.at
  %owners.at = getelementptr i64, ptr %table, i64 2
  %owners = load ptr, ptr %owners.at
  %owner = getelementptr i64, ptr %owners, i64 %begin
  store ptr %scratch, ptr %owner
  %before = atomicrmw add ptr %count, i64 1 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %wait ]
  %turn.next = add i64 %turn, 1
  %begun = load atomic i64, ptr %count seq_cst, align 8
  %here = icmp sge i64 %begun, %all
  %late = icmp sgt i64 %turn.next, 30000000000
  %stop = or i1 %here, %late
  br i1 %stop, label %done, label %wait
done:
  ret void
}
"""
# table: an i64 flag, an i64 answer, and turns. Task 0 waits for the flag for that many turns and says whether it saw it.
AWAIT = """
define void @await(ptr %table, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %flag = load ptr, ptr %table
  %saw.at = getelementptr i64, ptr %table, i64 1
  %saw = load ptr, ptr %saw.at
  %turns.at = getelementptr i64, ptr %table, i64 2
  %turns = load i64, ptr %turns.at
  %first = icmp eq i64 %begin, 0
  br i1 %first, label %wait, label %done
wait:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %wait ]
  %turn.next = add i64 %turn, 1
  %raised = load atomic i64, ptr %flag seq_cst, align 8
  %seen = icmp ne i64 %raised, 0
  %late = icmp sgt i64 %turn.next, %turns
  %stop = or i1 %seen, %late
  br i1 %stop, label %answer, label %wait
answer:
  store i64 %raised, ptr %saw
  br label %done
done:
  ret void
}
define void @raise(ptr %table, ptr %scratch, i64 %begin, i64 %end) {
  %flag = load ptr, ptr %table
  store atomic i64 1, ptr %flag seq_cst, align 8
  ret void
}
"""
# No kernel, but the body of a parallel region: counts the threads that flush denormals to zero.
FLUSHING = """
define void @flushing(ptr %count) {
  %modes.at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %modes.at)
  %modes = load i32, ptr %modes.at
  %bit = lshr i32 %modes, 15
  %wide = zext i32 %bit to i64
  %before = atomicrmw add ptr %count, i64 %wide seq_cst
  ret void
}
declare void @llvm.x86.sse.stmxcsr(ptr)
"""
# As MIRROR, without a wait and without + 1: a tiny number becomes a denormal, or zero where those are flushed.
FLUSH = MIRROR.replace("@mirror", "@flush").replace("fadd double %half, 1.0", "fadd double %half, -0.0")
TEXTS = {"mark": MARK, "mirror": MIRROR, "flush": FLUSH, "gather": GATHER, "await": AWAIT, "raise": AWAIT, "flushing": FLUSHING}


@cache
def kernel(name: str) -> int:
    """The address of a kernel that stays loaded."""
    code = Code(compile_ir(TEXTS[name], host_spec()))
    _KEPT.append(code)
    return code.address(name)


_KEPT: list[Code] = []


def table(*words: int | Array) -> Array:
    return np.array([w if isinstance(w, int) else w.ctypes.data for w in words], np.int64)


def scratch_addresses(job: Job) -> list[int]:
    """Where the scratch of each thread begins."""
    words = job._memory[:40].view(np.int64)
    return [int(words[2]) + thread * job.scratch_stride for thread in range(job.threads)]


class Marks:
    """A step that marks its tasks, and what it left."""

    def __init__(self, tasks: int, chunk: int = 1, turns: int = 0, barrier: bool = True, every: int = 0, unit: int = 1) -> None:
        self.marks, self.owners = np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)
        self.table = table(self.marks, self.owners, turns)
        self.step = Step(kernel("mark"), self.table.ctypes.data, tasks, chunk, barrier, every, unit)


class Chain:
    """Steps that each read, mirrored, what the one before wrote."""

    def __init__(self, n: int, steps: int, threads: int, barrier: bool = True, turns: int = 0, seed: int = 0) -> None:
        self.start = np.random.default_rng(seed).standard_normal(n)
        self.arrays = [self.start.copy(), *(np.empty(n) for _ in range(steps))]
        self.tables = [table(a, b, n, turns) for a, b in zip(self.arrays, self.arrays[1:], strict=False)]
        self.job = Job([Step(kernel("mirror"), t.ctypes.data, n, 1, barrier) for t in self.tables], threads)

    def run(self, driver: Driver) -> Array:
        for array in self.arrays[1:]:
            array.fill(np.nan)
        driver.run(self.job)
        return self.arrays[-1]

    def expected(self) -> Array:
        x = self.start
        for _ in self.tables:
            x = x[::-1] * 0.5 + 1
        return x
