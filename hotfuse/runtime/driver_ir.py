"""The native driver, as LLVM IR.

    step = {function, table, tasks, chunk, barrier, every, unit, first, length, ahead, and of a step that it is woven with
            function, table, tasks} 8-byte words
    job  = {steps, count, scratch, stride, counters, modes, lanes, times}, {progress}, {left} three cache lines
    void run(ptr job, i64 threads)

Every thread walks over all steps. In a step it takes `chunk` tasks at a time and calls

    function(table, scratch + thread * stride, begin, end)

until none are left. Tasks lie in lanes, one for each thread: of every `every` tasks a lane has a share, cut at multiples of
`unit`. A thread begins with its own lane and goes on with the others' when that is empty: it mostly reads what it wrote itself,
which the caches of another core would take long to hand over, and cores of a shared machine are never equally fast. A step of
one chunk runs on thread 0, but for those side by side with others (below). One thread alone runs each step as one
call, in order.

Steps that are to run side by side lie in a row, `length` of them from step `first` on: thread t begins with the one `ahead` * t
places further on, and goes round. What one of them waits for, memory or arithmetic, the other does not. Whoever comes first
takes a step of one chunk there.

A step that is woven with another one has its function, table and tasks as well, and runs these: behind task i of n the other's
from i / n of all to (i + 1) / n. The other one has no tasks of its own left then. The first fetches amid its arithmetic what
the second will read (`fusion/weaving`).

At a barrier threads do not meet: each waits until all tasks of the steps before it are done, whoever did them. A thread that
has no core just then (the machine is shared, the pool was asleep) holds nobody up unless it is amid a task; when it comes it
goes on where thread 0 is (`progress`). Who waits spins for a moment and then gives the core away. libgomp's own barrier, at the
end, spins for milliseconds, maybe on the very core that the other thread needs: thread 0 enters it last (`left`).

Counters are cache lines, for each step one of tasks done and one for each lane of takes from it. They are 0 between runs: the
caller's thread clears them when all others have left. Flags of floating point (flush to zero, rounding) are the caller's on
every thread, or results would depend on who took which task.

The same with times is code of its own: at each line `; times:` that the plain driver has not, a thread reads the cycle counter
into its cell of a step, a cache line {begun, no task left, gone on, tasks done}; the cells of thread t are a row of `count`.
"""

from __future__ import annotations

import platform

_IR = """
%step = type { ptr, ptr, i64, i64, i64, i64, i64, i64, i64, i64, ptr, ptr, i64 }
%job = type { ptr, i64, ptr, i64, ptr, i64, i64, i64, i64, [7 x i64], i64 }

; GOMP_parallel, omp_get_thread_num, omp_get_num_threads, sched_yield: written after linking
@outside = global [4 x ptr] zeroinitializer

define void @run(ptr %job, i64 %threads) nounwind {
  %steps = load ptr, ptr %job
  %count.at = getelementptr %job, ptr %job, i64 0, i32 1
  %count = load i64, ptr %count.at
  %scratch.at = getelementptr %job, ptr %job, i64 0, i32 2
  %scratch = load ptr, ptr %scratch.at
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %together, label %alone

together:
  %modes = getelementptr %job, ptr %job, i64 0, i32 5
  call void @save_modes(ptr %modes)
  %parallel = load ptr, ptr @outside
  %wanted = trunc i64 %threads to i32
  call void %parallel(ptr @work, ptr %job, i32 %wanted, i32 0)
  %progress = getelementptr %job, ptr %job, i64 0, i32 8
  store i64 0, ptr %progress
  %left = getelementptr %job, ptr %job, i64 0, i32 10
  store i64 0, ptr %left
  %lanes.at = getelementptr %job, ptr %job, i64 0, i32 6
  %lanes = load i64, ptr %lanes.at
  %lines = add i64 %lanes, 1
  %all.lines = mul i64 %lines, %count
  %counters.at = getelementptr %job, ptr %job, i64 0, i32 4
  %counters = load ptr, ptr %counters.at
  br label %clear
clear:
  %c = phi i64 [ 0, %together ], [ %c.next, %clear.one ]
  %c.more = icmp slt i64 %c, %all.lines
  br i1 %c.more, label %clear.one, label %end
clear.one:
  %line = getelementptr [8 x i64], ptr %counters, i64 %c
  store <2 x i64> zeroinitializer, ptr %line
  %c.next = add i64 %c, 1
  br label %clear

alone:
  %i = phi i64 [ 0, %0 ], [ %i.next, %called ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %begin.step, label %end
begin.step:
  %step = getelementptr %step, ptr %steps, i64 %i
  %function = load ptr, ptr %step
  %table.at = getelementptr %step, ptr %step, i64 0, i32 1
  %table = load ptr, ptr %table.at
  %tasks.at = getelementptr %step, ptr %step, i64 0, i32 2
  %tasks = load i64, ptr %tasks.at
  %some = icmp sgt i64 %tasks, 0
  ; times: begin alone
  br i1 %some, label %call, label %called
call:
  %other.at = getelementptr %step, ptr %step, i64 0, i32 10
  %other = load ptr, ptr %other.at
  %is.woven = icmp ne ptr %other, null
  br i1 %is.woven, label %call.woven, label %call.plain
call.woven:
  call void @weave(ptr %step, ptr %scratch, i64 0, i64 %tasks)
  br label %did.all
call.plain:
  call void %function(ptr %table, ptr %scratch, i64 0, i64 %tasks)
  br label %did.all
did.all:
  ; times: did all
  br label %called
called:
  ; times: end
  ; times: go on
  %i.next = add i64 %i, 1
  br label %alone
end:
  ret void
}

define internal void @work(ptr %job) nounwind {
entry:
  %own = alloca i32
  call void @save_modes(ptr %own)
  %modes = getelementptr %job, ptr %job, i64 0, i32 5
  call void @load_modes(ptr %modes)
  %steps = load ptr, ptr %job
  %count.at = getelementptr %job, ptr %job, i64 0, i32 1
  %count = load i64, ptr %count.at
  %scratch.at = getelementptr %job, ptr %job, i64 0, i32 2
  %all.scratch = load ptr, ptr %scratch.at
  %stride.at = getelementptr %job, ptr %job, i64 0, i32 3
  %stride = load i64, ptr %stride.at
  %counters.at = getelementptr %job, ptr %job, i64 0, i32 4
  %counters = load ptr, ptr %counters.at
  %number.at = getelementptr ptr, ptr @outside, i64 1
  %number = load ptr, ptr %number.at
  %thread = call i32 %number()
  %first = icmp eq i32 %thread, 0
  %place = zext i32 %thread to i64
  %offset = mul i64 %place, %stride
  %scratch = getelementptr i8, ptr %all.scratch, i64 %offset
  %lanes.at = getelementptr %job, ptr %job, i64 0, i32 6
  %lanes = load i64, ptr %lanes.at
  %lines = add i64 %lanes, 1
  %progress = getelementptr %job, ptr %job, i64 0, i32 8
  %start = load atomic i64, ptr %progress acquire, align 8
  br label %steps.next

steps.next:
  %i = phi i64 [ %start, %entry ], [ %i.next, %behind ], [ %i.next, %passed ]
  %open = phi i64 [ %start, %entry ], [ %open, %behind ], [ %i.next, %passed ] ; the first step since the last barrier
  %more = icmp slt i64 %i, %count
  br i1 %more, label %begin.step, label %end
begin.step:
  %i.next = add i64 %i, 1
  %in.turn = getelementptr %step, ptr %steps, i64 %i
  %row.first.at = getelementptr %step, ptr %in.turn, i64 0, i32 7
  %row.first = load i64, ptr %row.first.at
  %row.length.at = getelementptr %step, ptr %in.turn, i64 0, i32 8
  %row.length = load i64, ptr %row.length.at
  %row.ahead.at = getelementptr %step, ptr %in.turn, i64 0, i32 9
  %row.ahead = load i64, ptr %row.ahead.at
  %in.row = sub i64 %i, %row.first
  %ahead = mul i64 %row.ahead, %place
  %further = add i64 %in.row, %ahead
  %round.row = urem i64 %further, %row.length
  %j = add i64 %row.first, %round.row
  %step = getelementptr %step, ptr %steps, i64 %j
  %function = load ptr, ptr %step
  %table.at = getelementptr %step, ptr %step, i64 0, i32 1
  %table = load ptr, ptr %table.at
  %tasks.at = getelementptr %step, ptr %step, i64 0, i32 2
  %tasks = load i64, ptr %tasks.at
  %chunk.at = getelementptr %step, ptr %step, i64 0, i32 3
  %chunk = load i64, ptr %chunk.at
  %other.at = getelementptr %step, ptr %step, i64 0, i32 10
  %other = load ptr, ptr %other.at
  %is.woven = icmp ne ptr %other, null
  %line = mul i64 %j, %lines
  %done = getelementptr [8 x i64], ptr %counters, i64 %line
  %one = icmp sle i64 %tasks, %chunk
  ; times: begin
  br i1 %one, label %one.chunk, label %many

one.chunk:
  %any = icmp sgt i64 %tasks, 0
  %in.order = icmp eq i64 %row.length, 1
  br i1 %in.order, label %one.first, label %one.claimed
one.first:
  %ours = and i1 %first, %any
  br i1 %ours, label %alone, label %behind.all
one.claimed:
  %claims = getelementptr [8 x i64], ptr %done, i64 1
  %claim = atomicrmw add ptr %claims, i64 1 monotonic
  %is.first = icmp eq i64 %claim, 0
  %ours.now = and i1 %is.first, %any
  br i1 %ours.now, label %alone, label %behind.all
alone:
  br i1 %is.woven, label %alone.woven, label %alone.plain
alone.woven:
  call void @weave(ptr %step, ptr %scratch, i64 0, i64 %tasks)
  br label %did.all
alone.plain:
  call void %function(ptr %table, ptr %scratch, i64 0, i64 %tasks)
  br label %did.all
did.all:
  ; times: did all
  store atomic i64 %tasks, ptr %done release, align 8
  br label %behind.all

many:
  %every.at = getelementptr %step, ptr %step, i64 0, i32 5
  %every = load i64, ptr %every.at
  %unit.at = getelementptr %step, ptr %step, i64 0, i32 6
  %unit = load i64, ptr %unit.at
  %rounds = udiv i64 %tasks, %every
  %share = udiv i64 %every, %unit
  %own.lane = urem i64 %place, %lanes
  br label %lane.next

lane.next:
  %turn = phi i64 [ 0, %many ], [ %turn.next, %lane.empty ]
  %did.before = phi i64 [ 0, %many ], [ %did.after, %lane.empty ]
  %lane.more = icmp slt i64 %turn, %lanes
  br i1 %lane.more, label %lane.begin, label %taken.none
lane.begin:
  %turn.next = add i64 %turn, 1
  %lane.sum = add i64 %own.lane, %turn
  %lane.wraps = icmp sge i64 %lane.sum, %lanes
  %lane.less = sub i64 %lane.sum, %lanes
  %lane = select i1 %lane.wraps, i64 %lane.less, i64 %lane.sum
  %low.of = mul i64 %share, %lane
  %low.place = udiv i64 %low.of, %lanes
  %low = mul i64 %low.place, %unit
  %high.of = add i64 %low.of, %share
  %high.place = udiv i64 %high.of, %lanes
  %high = mul i64 %high.place, %unit
  %length = sub i64 %high, %low
  %length.up = add i64 %length, %chunk
  %length.less = sub i64 %length.up, 1
  %takes = udiv i64 %length.less, %chunk
  %taken.line = add i64 %lane, 1
  %taken = getelementptr [8 x i64], ptr %done, i64 %taken.line
  %lane.some = icmp sgt i64 %takes, 0
  br i1 %lane.some, label %take, label %lane.empty
lane.empty:
  %did.after = phi i64 [ %did.before, %lane.begin ], [ %did, %take ]
  br label %lane.next

take:
  %did = phi i64 [ %did.before, %lane.begin ], [ %did.next, %taken.done ]
  %number.taken = atomicrmw add ptr %taken, i64 1 monotonic
  %round = udiv i64 %number.taken, %takes
  %some = icmp slt i64 %round, %rounds
  br i1 %some, label %taken.some, label %lane.empty
taken.some:
  %round.first = mul i64 %round, %takes
  %in.round = sub i64 %number.taken, %round.first
  %base = mul i64 %round, %every
  %low.here = add i64 %base, %low
  %high.here = add i64 %base, %high
  %before.it = mul i64 %in.round, %chunk
  %begin = add i64 %low.here, %before.it
  %full = add i64 %begin, %chunk
  %over = icmp sgt i64 %full, %high.here
  %stop = select i1 %over, i64 %high.here, i64 %full
  br i1 %is.woven, label %taken.woven, label %taken.plain
taken.woven:
  call void @weave(ptr %step, ptr %scratch, i64 %begin, i64 %stop)
  br label %taken.done
taken.plain:
  call void %function(ptr %table, ptr %scratch, i64 %begin, i64 %stop)
  br label %taken.done
taken.done:
  %size = sub i64 %stop, %begin
  %did.next = add i64 %did, %size
  br label %take
taken.none:
  %did.some = icmp sgt i64 %did.before, 0
  br i1 %did.some, label %report, label %behind.all
report:
  ; times: did some
  %before = atomicrmw add ptr %done, i64 %did.before release
  br label %behind.all

behind.all:
  ; times: end
  %barrier.at = getelementptr %step, ptr %in.turn, i64 0, i32 4
  %barrier = load i64, ptr %barrier.at
  %wanted = icmp ne i64 %barrier, 0
  %not.last = icmp slt i64 %i.next, %count
  %wait = and i1 %wanted, %not.last
  br i1 %wait, label %await, label %behind
behind:
  ; times: go on
  br label %steps.next

await:
  %w = phi i64 [ %open, %behind.all ], [ %w.next, %awaited ]
  %w.step = getelementptr %step, ptr %steps, i64 %w
  %w.tasks.at = getelementptr %step, ptr %w.step, i64 0, i32 2
  %w.tasks = load i64, ptr %w.tasks.at
  %w.line = mul i64 %w, %lines
  %w.done = getelementptr [8 x i64], ptr %counters, i64 %w.line
  call void @wait_until(ptr %w.done, i64 %w.tasks)
  br label %awaited
awaited:
  %w.next = add i64 %w, 1
  %w.more = icmp slt i64 %w.next, %i.next
  br i1 %w.more, label %await, label %all.done
all.done:
  br i1 %first, label %publish, label %passed
publish:
  store atomic i64 %i.next, ptr %progress release, align 8
  br label %passed
passed:
  ; times: go on
  br label %steps.next

end:
  call void @load_modes(ptr %own)
  %left = getelementptr %job, ptr %job, i64 0, i32 10
  br i1 %first, label %await.others, label %leave
await.others:
  %team.at = getelementptr ptr, ptr @outside, i64 2
  %team.f = load ptr, ptr %team.at
  %team = call i32 %team.f()
  %others = sub i32 %team, 1
  %others.all = zext i32 %others to i64
  call void @wait_until(ptr %left, i64 %others.all)
  ; times: end of all
  ret void
leave:
  %left.before = atomicrmw add ptr %left, i64 1 release
  ret void
}

; Tasks of a step one by one, behind each the tasks of the other step that are as large a part of all of that.
define internal void @weave(ptr %step, ptr %scratch, i64 %begin, i64 %stop) nounwind {
entry:
  %function = load ptr, ptr %step
  %table.at = getelementptr %step, ptr %step, i64 0, i32 1
  %table = load ptr, ptr %table.at
  %tasks.at = getelementptr %step, ptr %step, i64 0, i32 2
  %tasks = load i64, ptr %tasks.at
  %other.at = getelementptr %step, ptr %step, i64 0, i32 10
  %other = load ptr, ptr %other.at
  %other.table.at = getelementptr %step, ptr %step, i64 0, i32 11
  %other.table = load ptr, ptr %other.table.at
  %other.tasks.at = getelementptr %step, ptr %step, i64 0, i32 12
  %other.tasks = load i64, ptr %other.tasks.at
  br label %task
task:
  %t = phi i64 [ %begin, %entry ], [ %t.next, %task.done ]
  %t.next = add i64 %t, 1
  call void %function(ptr %table, ptr %scratch, i64 %t, i64 %t.next)
  %low.of = mul i64 %t, %other.tasks
  %low = udiv i64 %low.of, %tasks
  %high.of = add i64 %low.of, %other.tasks
  %high = udiv i64 %high.of, %tasks
  %some = icmp ult i64 %low, %high
  br i1 %some, label %share, label %task.done
share:
  call void %other(ptr %other.table, ptr %scratch, i64 %low, i64 %high)
  br label %task.done
task.done:
  %more = icmp slt i64 %t.next, %stop
  br i1 %more, label %task, label %end
end:
  ret void
}

; Spins SPINS times, then lets others have the core now and then.
define internal void @wait_until(ptr %done, i64 %tasks) nounwind {
entry:
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %spin ], [ AGAIN, %give ]
  %now = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %now, %tasks
  br i1 %all, label %end, label %wait
wait:
  %turn.next = add i64 %turn, 1
  %long = icmp sgt i64 %turn.next, SPINS
  br i1 %long, label %give, label %spin
spin:
  call void @relax()
  br label %look
give:
  %yield.at = getelementptr ptr, ptr @outside, i64 3
  %yield = load ptr, ptr %yield.at
  %ignored = call i32 %yield()
  br label %look
end:
  ret void
}
"""
_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
define internal void @save_modes(ptr %to) nounwind {
  call void @llvm.x86.sse.stmxcsr(ptr %to)
  ret void
}
define internal void @load_modes(ptr %from) nounwind {
  call void @llvm.x86.sse.ldmxcsr(ptr %from)
  ret void
}
define internal void @relax() nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
"""
_OTHERS = """
define internal void @save_modes(ptr %to) nounwind {
  ret void
}
define internal void @load_modes(ptr %from) nounwind {
  ret void
}
define internal void @relax() nounwind {
  ret void
}
"""
_BEGIN = """  %times.at = getelementptr %job, ptr %job, i64 0, i32 7
  %times = load ptr, ptr %times.at
  %cell = getelementptr [8 x i64], ptr %times, i64 CELL
  call void @stamp(ptr %cell, i64 0)
"""
_DID = """  %cell.tasks = getelementptr i64, ptr %cell, i64 3
  store i64 TASKS, ptr %cell.tasks
"""
_TIMES = {
    "begin alone": _BEGIN.replace("CELL", "%i"),
    "begin": "  %row = mul i64 %place, %count\n  %cell.place = add i64 %row, %j\n" + _BEGIN.replace("CELL", "%cell.place"),
    "did all": _DID.replace("TASKS", "%tasks"),
    "did some": _DID.replace("%cell.tasks", "%cell.some").replace("TASKS", "%did.before"),
    "end": "  call void @stamp(ptr %cell, i64 1)\n",
    "go on": "  call void @stamp(ptr %cell, i64 2)\n",
    # behind the last step nobody waits but the first thread, for the others to leave; a job of no steps has one cell as well
    "end of all": """  %all.times.at = getelementptr %job, ptr %job, i64 0, i32 7
  %all.times = load ptr, ptr %all.times.at
  %last.up = call i64 @llvm.smax.i64(i64 %count, i64 1)
  %last = sub i64 %last.up, 1
  %last.cell = getelementptr [8 x i64], ptr %all.times, i64 %last
  call void @stamp(ptr %last.cell, i64 2)
""",
}
_CLOCK = """
declare i64 @llvm.smax.i64(i64, i64)
define internal void @stamp(ptr %cell, i64 %word) nounwind {
  %at = getelementptr i64, ptr %cell, i64 %word
  %now = call i64 @now()
  store i64 %now, ptr %at
  ret void
}
"""
_X86_NOW = """
declare i64 @llvm.readcyclecounter()
define i64 @now() nounwind {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
"""
_NO_NOW = """
define i64 @now() nounwind {
  ret i64 0
}
"""
_SPINS, _AGAIN = 500, 450  # about 10 us before a thread first gives its core away, then 1 us


def driver_ir() -> str:
    plain = "".join(line for line in _IR.splitlines(keepends=True) if not line.startswith("  ; times: "))
    return _filled(plain) + (_X86 if _is_x86() else _OTHERS)


def timed_driver_ir() -> str:
    """The same with times, and the counter as `now()`. Only x86 lets every process read it; elsewhere all times are 0."""
    timed = _IR
    for name, lines in _TIMES.items():
        timed = timed.replace(f"  ; times: {name}\n", lines)
    return _filled(timed) + (_X86 + _X86_NOW if _is_x86() else _OTHERS + _NO_NOW) + _CLOCK


def _filled(text: str) -> str:
    return text.replace("SPINS", str(_SPINS)).replace("AGAIN", str(_AGAIN))


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
