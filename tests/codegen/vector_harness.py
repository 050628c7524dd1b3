"""Compiles a vector function into a loop over arrays, for the tests and for `scripts/ulp_table.py`; counts its instructions."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from hotfuse.codegen.llvm_text import I64, LType, Operand, Writer

Array = np.ndarray[Any, Any]
NUMPY = {"f32": np.float32, "f64": np.float64}
# (instruction set, processor, features): one with AVX-512, one with AVX2 and no more, and the one that tests run the first on.
Target = tuple[str, str, str]
WIDE = ("avx512", "x86-64-v4", "-prefer-256-bit")
NARROW = ("avx2", "haswell", "")
BEST = WIDE if llvm.get_host_cpu_features().get("avx512dq") else NARROW


def machine(target: Target) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _, cpu, features = target
    return llvm.Target.from_default_triple().create_target_machine(cpu, features, opt=2, reloc="pic", codemodel="small")


def _module(name: str, signature: str, w: Writer) -> str:
    return "\n".join([*w.declared, f"define {signature} {{", "entry:", *w.lines, "}", ""]).replace("@NAME", f"@{name}")


def loop_ir(emit: Callable[..., Operand], element: str, lanes: int, arity: int, target: Target) -> str:
    """void kernel(ptr out, ptr in0, ptr in1, i64 count): `count` is a multiple of the lanes."""
    w, type, step = Writer(target[0]), LType(element, lanes), max(lanes, 1)
    head, body, done = w.label("head"), w.label("body"), w.label("done")
    w.jump(head)
    w.place(head)
    w.line(f"%i = phi i64 [ 0, %entry ], [ %next, %{body} ]")
    i = Operand(I64, "%i")
    w.branch(w.compare("lt", i, Operand(I64, "%count")), body, done)
    w.place(body)
    size = LType(element).bits // 8
    args = [w.load(type, w.address(Operand(LType("ptr"), f"%in{k}"), element, i), size) for k in range(arity)]
    w.store(emit(w, *args), w.address(Operand(LType("ptr"), "%out"), element, i), size)
    w.line(f"%next = add i64 %i, {step}")
    w.jump(head)
    w.place(done)
    w.line("ret void")
    return _module("kernel", "void @kernel(ptr %out, ptr %in0, ptr %in1, i64 %count)", w)


def compile_map(
    emit: Callable[..., Operand], element: str, lanes: int = 16, arity: int = 1, target: Target = BEST
) -> Callable[..., Array]:
    """A function of `arity` arrays of one dimension."""
    module = llvm.parse_assembly(loop_ir(emit, element, lanes, arity, target))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine(target))
    engine.finalize_object()
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(engine.get_function_address("kernel"))

    def run(*arrays: Array, _engine: Any = engine) -> Array:
        count = len(arrays[0])
        padded = -(-count // max(lanes, 1)) * max(lanes, 1)
        inputs = [np.zeros(padded, NUMPY[element]) for _ in arrays]
        for memory, array in zip(inputs, arrays):
            memory[:count] = array
        out = np.empty(padded, NUMPY[element])
        kernel(out.ctypes.data, inputs[0].ctypes.data, inputs[-1].ctypes.data, padded)
        return out[:count]

    return run


def assembly(emit: Callable[..., Operand], element: str, lanes: int = 16, arity: int = 1, target: Target = WIDE) -> str:
    return str(machine(target).emit_assembly(llvm.parse_assembly(loop_ir(emit, element, lanes, arity, target))))


def count_instructions(emit: Callable[..., Operand], element: str, lanes: int, arity: int = 1, target: Target = WIDE) -> int:
    """Vector instructions per turn of the loop, without loads, stores, and constants, which are brought in before it starts."""
    blocks = re.split(r"^\.\w+:.*$", assembly(emit, element, lanes, arity, target), flags=re.M)
    return max(sum(1 for line in block.splitlines() if _computes(line.strip())) for block in blocks)


def _computes(line: str) -> bool:
    return line[:1] in ("v", "k") and not re.match(r"vp?broadcast|vmov[au]p[sd]|vmovdq|vmovs[sd]|vzeroupper", line)


def ulp_error(got: Array, exact: Array) -> Array:
    """Distance in units in the last place that the exact value would have in the type of `got`; `exact` is wider. NaN for NaN
    and the same infinity count 0, anything else against them infinity."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        exponent = np.frexp(np.where(np.isfinite(exact), exact, 1))[1] - 1
        spacing = np.ldexp(np.ones_like(exact), np.maximum(exponent, info.minexp) - info.nmant)
        error = np.abs(got.astype(exact.dtype) - exact) / spacing
        same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
        special = ~np.isfinite(got) | ~np.isfinite(rounded)
        # At the edge of overflow the largest number and infinity are one apart.
        edge = np.abs(exact) >= info.max
        top = np.where(np.isinf(got), np.copysign(np.longdouble(2) ** info.maxexp, got), got).astype(exact.dtype)
        at_edge = np.abs(np.where(np.isinf(rounded), np.copysign(np.longdouble(2) ** info.maxexp, rounded), rounded) - top)
        wrong = np.where(edge & ~np.isnan(got), at_edge / np.ldexp(np.longdouble(1), info.maxexp - 1 - info.nmant), np.inf)
        return np.where(same & special, 0, np.where(special, wrong, error)).astype(np.float64)
