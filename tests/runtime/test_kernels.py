"""Kernels are compiled once in a process, and every compilation is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import hotfuse
from hotfuse.codegen import llvm_compile
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.runtime import kernels
from hotfuse.runtime.kernels import compiled_so_far


def session(constant: float, isa: str = "native") -> Any:
    text = f"""<ir_version: 10, opset_import: ["": 17]>
    g (float[n, 8] x) => (float[n, 8] y) <float c = {{{constant}}}> {{ a = Mul(x, c)  y = Sigmoid(a) }}"""
    return hotfuse.load(onnx.parser.parse_model(text), tier=1, wait=True, isa=isa)


def run(model: Any, rows: int) -> None:
    model.run(None, {"x": np.ones((rows, 8), np.float32)})
    assert model.kernels > 0


def test_other_sizes_and_equal_models_compile_nothing() -> None:
    first = session(0.125)
    run(first, 3)
    before = compiled_so_far()
    assert before.kernels > 0
    assert before.cpu_s > 0
    for rows in (1, 4, 100):
        run(first, rows)
    second = session(0.125)
    run(second, 5)
    assert compiled_so_far() == before


def test_what_is_compiled_again_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_KERNELS", {})  # nobody holds a kernel
    before = compiled_so_far()
    model = session(0.125)
    run(model, 3)
    assert compiled_so_far().kernels == before.kernels + len(kernels._KERNELS) > before.kernels
    assert compiled_so_far().cpu_s > before.cpu_s


@pytest.mark.skipif(host_spec().isa != "avx512", reason="the processor has no AVX-512")
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_code_is_written_for_the_instructions_of_the_spec(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def compile_ir(text: str, spec: Spec) -> bytes:
        texts.append(text)
        return real(text, spec)

    real = llvm_compile.compile_ir
    monkeypatch.setattr(kernels, "_KERNELS", {})
    monkeypatch.setattr(llvm_compile, "compile_ir", compile_ir)
    run(session(0.125, isa), 3)
    assert any("x86.avx512" in text for text in texts) == (isa == "avx512")
    assert texts
