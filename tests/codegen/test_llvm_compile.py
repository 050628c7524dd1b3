"""LLVM IR to object code: for each instruction set, from many threads, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotfuse.codegen.llvm_compile import LLVM, compile_ir, load_llvm, target_machine
from hotfuse.codegen.object_file import read_symbols
from hotfuse.errors import CodegenError
from hotfuse.hardware.spec import host_spec

FMA = """
define void @kernel(ptr %p) {
  %x = load <16 x float>, ptr %p, align 4
  %y = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %x, <16 x float> %x)
  store <16 x float> %y, ptr %p, align 4
  ret void
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""
PRODUCT = FMA.replace(
    "call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %x, <16 x float> %x)", "fmul <16 x float> %x, %x"
)


def assembly(text: str, isa: str) -> str:
    with LLVM:
        return str(target_machine(host_spec(isa)).emit_assembly(load_llvm().parse_assembly(text)))


def offered() -> tuple[str, ...]:
    levels = ("sse", "avx2", "avx512")
    return levels[: levels.index(host_spec().isa) + 1] if host_spec().isa in levels else ()


@pytest.mark.parametrize(
    ("isa", "text", "uses", "avoids"),
    [
        ("avx512", FMA, r"vfm\w+\s.*zmm", r"call"),
        ("avx2", FMA, r"vfm\w+\s.*ymm", r"zmm|[xy]mm(1[6-9]|[23]\d)|%k\d|call"),
        ("sse", PRODUCT, r"mulps\s.*xmm", r"[yz]mm|\sv\w+ps|call"),
    ],
)
def test_code_keeps_to_its_instruction_set(isa: str, text: str, uses: str, avoids: str) -> None:
    if isa not in offered():
        pytest.skip(f"this machine has no {isa}")
    code = assembly(text, isa)
    assert re.search(uses, code)
    assert not re.search(avoids, code)
    assert read_symbols(compile_ir(text, host_spec(isa))).defined == ("kernel",)


def test_passes_clean_up_what_the_emitter_leaves() -> None:
    twice = """define void @kernel(ptr %p, i64 %i) {
  %a = mul i64 %i, 24
  %b = mul i64 %i, 24
  %x.at = getelementptr i8, ptr %p, i64 %a
  %y.at = getelementptr i8, ptr %p, i64 %b
  %x = load float, ptr %x.at
  %y = load float, ptr %y.at
  %s = fadd float %x, %y
  store float %s, ptr %p
  ret void
}"""
    once = twice.replace("%b = mul i64 %i, 24", "").replace("i64 %b", "i64 %a").replace("%y = load float, ptr %y.at", "")
    once = once.replace("  %y.at = getelementptr i8, ptr %p, i64 %a\n", "").replace("%x, %y", "%x, %x")
    assert compile_ir(twice, host_spec()) == compile_ir(once, host_spec())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "define void @kernel(ptr %p) {\n  %x = lod float, ptr %p\n  ret void\n}",
            r"LLVM cannot read the code: <string>:2:8: .*\n.*lod",
        ),
        ("nonsense", "LLVM cannot read the code"),
        (
            "define i64 @kernel(i64 %n) {\na:\n  br label %b\nb:\n  %y = add i64 %x, 1\n  %x = add i64 %n, 1\n  ret i64 %y\n}",
            "LLVM finds the code invalid: Instruction does not dominate all uses",
        ),
        (
            "define float @kernel(float %x) {\n  %y = call float @llvm.exp.f32(float %x)\n  ret float %y\n}\n"
            "declare float @llvm.exp.f32(float)",
            "the object needs expf from outside of itself; compile it without what expf stands for",
        ),
        ("define void @kernel() {\n  call void @elsewhere()\n  ret void\n}\ndeclare void @elsewhere()", "needs elsewhere"),
    ],
)
def test_code_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(CodegenError, match=says):
        compile_ir(text, host_spec())
    assert compile_ir(FMA, host_spec())  # LLVM is as it was


def test_fused_multiply_add_is_refused_where_it_would_be_a_call() -> None:
    if "sse" not in offered():
        pytest.skip("not an x86-64")
    with pytest.raises(CodegenError, match="fmaf"):
        compile_ir(FMA, host_spec("sse"))


def test_many_threads_compile_at_once() -> None:
    texts = [FMA.replace("@kernel", f"@kernel{n}") for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: compile_ir(text, host_spec()), texts))
    assert [read_symbols(data).defined for data in found] == [(f"kernel{n}",) for n in range(24)]
    assert found == [compile_ir(text, host_spec()) for text in texts]


def test_memory_is_flat() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(50):
        compile_ir(FMA, host_spec())
    before = resident()
    for _ in range(150):
        compile_ir(FMA, host_spec())
    assert resident() - before < 2 << 20  # a module that is kept would be 100 KB each time


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_child_that_is_forked_amid_a_compilation_can_compile() -> None:
    stop = threading.Event()

    def compile_on() -> None:
        while not stop.is_set():
            compile_ir(FMA, host_spec())

    worker = threading.Thread(target=compile_on)
    worker.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                os._exit(0 if compile_ir(FMA, host_spec()) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        worker.join()


def test_importing_hotfuse_does_not_load_llvm() -> None:
    code = "import sys, hotfuse, hotfuse.codegen.link, hotfuse.runtime.driver; print('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
