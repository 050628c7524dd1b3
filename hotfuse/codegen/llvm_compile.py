"""LLVM IR as text -> object code that needs nothing but itself.

The emitter writes near-final SSA, so few passes are worth their time. CPU time of a GEMM kernel of 8 rows x 3 vectors, and its
speed, for the k loop as it is and written out four times:

    no passes                   9.6 ms  116 GFLOP/s     20.9 ms   74 GFLOP/s
    the passes of _optimise    10.6     116             20.0     116
    LLVM's -O1                 15.8     116             35.5     116
    LLVM's -O2                 18.1     116             38.3     116

Reassociation was tried and loses the addresses that instructions can compute by themselves (75 GFLOP/s). Four fifths of what is
left is instruction selection and register allocation. Vectorisers never run: vectors are the emitter's decision.

State: LLVM is initialised at the first use; one target machine for each set of forbidden instructions is kept.
`LLVM` guards it all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from hotfuse.codegen.object_file import read_symbols, refuse_undefined
from hotfuse.errors import CodegenError
from hotfuse.hardware.spec import Spec
from hotfuse.locks import IMPORTS, make_awaited_lock

# Every use of llvmlite here holds it: contexts and target machines are not for two threads, and no fork may come in between.
LLVM = make_awaited_lock()
_TARGETS: dict[tuple[str, ...], Any] = {}


@functools.cache
def load_llvm() -> Any:
    """llvmlite's binding, initialised. The caller holds `LLVM`."""
    with IMPORTS:
        from llvmlite import binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def target_machine(spec: Spec) -> Any:
    """The caller holds `LLVM`. Code and data of an object lie together, so that addresses fit 32 bits ("small")."""
    llvm = load_llvm()
    if spec.forbidden not in _TARGETS:
        features, cpu = feature_text(_host_features(llvm), spec.forbidden), llvm.get_host_cpu_name()
        target = llvm.Target.from_default_triple()
        _TARGETS[spec.forbidden] = target.create_target_machine(cpu, features, opt=2, reloc="pic", codemodel="small")
    return _TARGETS[spec.forbidden]


def _host_features(llvm: Any) -> dict[str, bool]:
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot ask this kind of processor: its name says enough
        return {}


def feature_text(features: Mapping[str, bool], forbidden: tuple[str, ...]) -> str:
    """What code may use, and then what it must not: a feature brings along what it needs (sm3 needs avx), and only what is
    forbidden after it takes that away again."""
    have = sorted(name for name, there in features.items() if there and not name.startswith(forbidden))
    return ",".join([*(f"+{name}" for name in have), *(f"-{name}" for name in sorted(set(features) - set(have)))])


def compile_ir(ir_text: str, spec: Spec) -> bytes:
    """Object code. Any thread may call this; `CodegenError` says what LLVM found wrong, or what the code would need to call."""
    with LLVM:
        llvm, machine = load_llvm(), target_machine(spec)
        context = llvm.create_context()
        try:
            module = _parse(llvm, ir_text, context)
            try:
                _optimise(llvm, module, machine)
                data = bytes(machine.emit_object(module))
            finally:
                module.close()
        finally:
            context.close()
    refuse_undefined(read_symbols(data).undefined)
    return data


def _parse(llvm: Any, ir_text: str, context: Any) -> Any:
    try:
        module = llvm.parse_assembly(ir_text, context)
    except RuntimeError as error:
        where = str(error).removeprefix("LLVM IR parsing error").strip()
        raise CodegenError(f"LLVM cannot read the code: {where}") from None
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise CodegenError(f"LLVM finds the code invalid: {str(error).strip()}") from None
    return module


def _optimise(llvm: Any, module: Any, machine: Any) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    try:
        passes.run(module, builder)
    finally:
        for part in (passes, builder, options):
            part.close()
