"""Probes, as LLVM IR: steps of the driver that do one thing only, as fast as the machine can.

    table = {memory, bytes of a task, times it is gone over}          8-byte words

    nothing   what a step costs by itself
    read      vectors of a task's part of the memory, one after the other
    write     the same, written
    fma       multiply-adds on registers, `bytes` of them in a chain; each of them on as many independent vectors as hide it
    amx       the same with tiles of bf16, four at a time

What is read or computed ends in the thread's scratch: no optimiser can find that nobody wanted it.
"""

from __future__ import annotations

from hotfuse.hardware.spec import Spec

WIDE = 8  # vectors that are on their way at once
FLOPS_PER_TILE = 2 * 16 * 16 * 32
TILES = 4

_TASKS = """
define void @{name}(ptr %table, ptr %scratch, i64 %begin, i64 %end) nounwind {{
entry:
  %base = load ptr, ptr %table
  %bytes.at = getelementptr i64, ptr %table, i64 1
  %bytes = load i64, ptr %bytes.at
  %times.at = getelementptr i64, ptr %table, i64 2
  %times = load i64, ptr %times.at
{before}
  br label %task
task:
  %t = phi i64 [ %begin, %entry ], [ %t.next, %task.end ]
  %t.more = icmp slt i64 %t, %end
  br i1 %t.more, label %turn.begin, label %done
turn.begin:
  %offset = mul i64 %t, %bytes
  %part = getelementptr i8, ptr %base, i64 %offset
  br label %turn
turn:
  %r = phi i64 [ 0, %turn.begin ], [ %r.next, %turn.end ]
  br label %loop
loop:
  %i = phi i64 [ 0, %turn ], [ %i.next, %loop ]
{phis}
  %at = getelementptr i8, ptr %part, i64 %i
{body}
  %i.next = add i64 %i, {step}
  %i.more = icmp slt i64 %i.next, %bytes
  br i1 %i.more, label %loop, label %turn.end
turn.end:
{after}
  %r.next = add i64 %r, 1
  %r.more = icmp slt i64 %r.next, %times
  br i1 %r.more, label %turn, label %task.end
task.end:
  %t.next = add i64 %t, 1
  br label %task
done:
{end}
  ret void
}}
"""
_NOTHING = "define void @nothing(ptr %table, ptr %scratch, i64 %begin, i64 %end) nounwind {\n  ret void\n}\n"
# of 64 bytes: palette 1, then for each of 8 tiles 64 bytes a row and 16 rows
_CONFIG = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


def probe_ir(spec: Spec) -> str:
    """All probes that the machine can run."""
    parts = [_NOTHING, _read(spec), _write(spec), _fma(spec)]
    if spec.amx:
        parts.append(_amx())
    return "\n".join(parts)


def chains(spec: Spec) -> int:
    """Vectors that `fma` works on at once: what hides its latency, and leaves registers for two operands."""
    return min(spec.vector_registers - 4, 16)


def _probe(name: str, step: int, phis: str = "", body: str = "", after: str = "", before: str = "", end: str = "") -> str:
    return _TASKS.format(name=name, step=step, phis=phis, body=body, after=after, before=before, end=end)


def _read(spec: Spec) -> str:
    lanes = spec.vector_bytes // 4
    vector = f"<{lanes} x i32>"
    phis = [f"  %x{n} = phi {vector} [ zeroinitializer, %turn ], [ %y{n}, %loop ]" for n in range(WIDE)]
    body = []
    for n in range(WIDE):
        body.append(f"  %p{n} = getelementptr {vector}, ptr %at, i64 {n}")
        body.append(f"  %v{n} = load {vector}, ptr %p{n}, align {spec.vector_bytes}")
        body.append(f"  %y{n} = xor {vector} %x{n}, %v{n}")
    after = [f"  %s0 = xor {vector} %y0, %y1"]
    after += [f"  %s{n} = xor {vector} %s{n - 1}, %y{n + 1}" for n in range(1, WIDE - 1)]
    after.append(f"  store {vector} %s{WIDE - 2}, ptr %scratch, align {spec.vector_bytes}")
    return _probe("read", WIDE * spec.vector_bytes, "\n".join(phis), "\n".join(body), "\n".join(after))


def _write(spec: Spec) -> str:
    vector = f"<{spec.vector_bytes // 4} x i32>"
    body = []
    for n in range(WIDE):
        body.append(f"  %p{n} = getelementptr {vector}, ptr %at, i64 {n}")
        body.append(f"  store {vector} %v, ptr %p{n}, align {spec.vector_bytes}")
    before = f"  %v = load {vector}, ptr %scratch, align {spec.vector_bytes}"
    return _probe("write", WIDE * spec.vector_bytes, body="\n".join(body), before=before)


def _fma(spec: Spec) -> str:
    """Each chain begins with numbers of its own: LLVM makes one of chains that are the same."""
    lanes, count = spec.vector_bytes // 4, chains(spec)
    vector = f"<{lanes} x float>"
    phis = [f"  %x{n} = phi {vector} [ %start{n}, %turn ], [ %y{n}, %loop ]" for n in range(count)]
    if "fma" in spec.extensions:
        body = [
            f"  %y{n} = call {vector} @llvm.fma.v{lanes}f32({vector} %x{n}, {vector} %a, {vector} %b)" for n in range(count)
        ]
    else:
        body = [f"  %z{n} = fmul {vector} %x{n}, %a\n  %y{n} = fadd {vector} %z{n}, %b" for n in range(count)]
    after = [f"  %s0 = fadd {vector} %y0, %y1"]
    after += [f"  %s{n} = fadd {vector} %s{n - 1}, %y{n + 1}" for n in range(1, count - 1)]
    after.append(f"  store {vector} %s{count - 2}, ptr %scratch, align {spec.vector_bytes}")
    before = "\n".join(
        (
            f"  %a = load {vector}, ptr %scratch, align {spec.vector_bytes}",
            f"  %b.at = getelementptr {vector}, ptr %scratch, i64 1",
            f"  %b = load {vector}, ptr %b.at, align {spec.vector_bytes}",
            *(
                f"  %start{n}.at = getelementptr {vector}, ptr %scratch, i64 {2 + n}\n"
                f"  %start{n} = load {vector}, ptr %start{n}.at, align {spec.vector_bytes}"
                for n in range(count)
            ),
        )
    )
    declared = f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})\n"
    return declared + _probe("fma", 1, "\n".join(phis), "\n".join(body), "\n".join(after), before)


def _amx() -> str:
    """Tiles 0 to 3 are sums, 4 to 7 operands."""
    declared = [
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilerelease()",
        "declare void @llvm.x86.tilezero(i8 immarg)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
        f"@tiles = internal constant [64 x i8] [{', '.join(f'i8 {byte}' for byte in _CONFIG)}], align 64\n",
    ]
    before = ["  call void @llvm.x86.ldtilecfg(ptr @tiles)"]
    before += [f"  call void @llvm.x86.tilezero(i8 {n})" for n in range(8)]
    body = [f"  call void @llvm.x86.tdpbf16ps(i8 {n}, i8 {4 + n // 2}, i8 {6 + n % 2})" for n in range(TILES)]
    end = ["  call void @llvm.x86.tilestored64(i8 0, ptr %scratch, i64 64)", "  call void @llvm.x86.tilerelease()"]
    return "\n".join(declared) + _probe("amx", 1, body="\n".join(body), before="\n".join(before), end="\n".join(end))
