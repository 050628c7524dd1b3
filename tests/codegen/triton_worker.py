"""Runs tile programs as Triton kernels, in a process of its own because triton reads TRITON_INTERPRET when it is imported.

    TRITON_INTERPRET=1 python -m tests.codegen.triton_worker          on the CPU, interpreted
    python -m tests.codegen.triton_worker cuda                        compiled

Prints one JSON object: for each golden at its sizes, and for each elementwise operation and type, what is wrong with the
result; empty where it is right. Operations of the device's own library cannot be interpreted and are left out there.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotfuse.codegen.interpret import evaluate
from hotfuse.codegen.scalar_ops import SCALAR_OPS, ScalarOp
from hotfuse.codegen.tile import Access, Buffer, Load, Map, Store, TileProgram
from hotfuse.codegen.triton_gpu import LIBRARY, is_offered, render
from hotfuse.ir.types import BF16, DTYPES, DType, dtype_of
from hotfuse.numerics import close_to_exact, same_bits
from tests.codegen.goldens import Golden, Sizes, case_id, cases


def load_kernel(program: TileProgram, folder: Path) -> Any:
    """The rendered kernel. Triton reads a kernel's source from its file."""
    path = folder / f"{program.name}.py"
    path.write_text(render(program))
    spec = importlib.util.spec_from_file_location(program.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, program.name)


def launch(program: TileProgram, kernel: Any, buffers: dict[str, np.ndarray], sizes: Sizes, device: str) -> int:
    """Run all tasks; outputs are copied back into `buffers`. Returns the status."""
    tasks = evaluate(program.tasks, sizes)
    status = torch.zeros(1, dtype=torch.int64, device=device)
    tensors = {b.name: _tensor(buffers[b.name]).to(device) for b in program.arguments}
    scratch = [
        torch.full(
            (tasks * evaluate(b.size, sizes),), torch.nan, device=device, dtype=_tensor(np.zeros(1, b.dtype.numpy)).dtype
        )
        for b in program.scratch
    ]
    if tasks:
        kernel[(tasks,)](status, *tensors.values(), *scratch, *(sizes[s] for s in program.sizes))
    for b in program.arguments:
        if b.kind == "output":
            result = tensors[b.name].cpu()
            found = result.view(torch.uint16).numpy().view(b.dtype.numpy) if b.dtype == BF16 else result.numpy()
            buffers[b.name][:] = found
    return int(status.item())


def _tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) if x.dtype == BF16.numpy else torch.from_numpy(x)


def verdict(golden: Golden, sizes: Sizes, folder: Path, device: str) -> str:
    inputs, buffers = golden.buffers(sizes)
    try:
        status = launch(golden.program, load_kernel(golden.program, folder), buffers, sizes, device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "the status is not 0" if status else golden.judge(inputs, buffers["y"]).reason


def bad_index(folder: Path, device: str) -> int:
    """The status of a gather whose index is out of range."""
    golden = next(g for g, _ in cases() if g.name == "gather")
    sizes = golden.sizes[0]
    _, buffers = golden.buffers(sizes)
    buffers["rows"][3] = sizes["t"]
    return launch(golden.program, load_kernel(golden.program, folder), buffers, sizes, device)


def op_verdict(op: ScalarOp, dtype: DType, folder: Path, device: str) -> str:
    """One operation on every pair of a few numbers, against its reference; the float64 rule where there is rounding."""
    row = np.array([0.25, 0.5, 1.0, 1.5, -0.75, -2.0, 3.0, -0.0] if dtype.is_float else [0, 1, 1, 2, 3, 5, 7, 4])
    x = np.repeat(row, 8).astype(dtype.numpy)
    arrays = [x, np.tile(row, 8).astype(dtype.numpy), np.tile(row[::-1], 8).astype(dtype.numpy)][: op.arity]
    if op.name == "where":
        arrays[0] = arrays[0] != 0
    expected = op.reference(*arrays)
    name = f"{op.name}_{dtype}"
    at = Access("", 0, 0, 1, (1, 64))
    buffers = [Buffer(f"x{i}", dtype_of(a), 64) for i, a in enumerate(arrays)]
    loads = [Load(f"a{i}", replace(at, buffer=b.name)) for i, b in enumerate(buffers)]
    made = Map("r", op.name, tuple(i.name for i in loads))
    out = Buffer("y", dtype_of(expected), 64, "output")
    program = TileProgram(name, (), (*buffers, out), (), (*loads, made, Store(replace(at, buffer="y"), "r")))
    memory = {**{b.name: a for b, a in zip(buffers, arrays, strict=True)}, "y": np.zeros(64, expected.dtype)}
    try:
        launch(program, load_kernel(program, folder), memory, {}, device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if dtype.is_float and not op.is_test:
        wide = op.reference(*(a.astype(np.float64) if a.dtype == dtype.numpy else a for a in arrays))
        return close_to_exact(memory["y"], expected, wide).reason
    return same_bits(memory["y"], expected).reason


def offered(device: str) -> list[tuple[ScalarOp, DType]]:
    """The operations and types that can be rendered and run."""
    dtypes = [DTYPES[name] for name in ("f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool")]
    return [
        (op, d)
        for op in SCALAR_OPS.values()
        for d in dtypes
        if d.kind in op.kinds and is_offered(op.name, d) and (device != "cpu" or not d.is_float or op.name not in LIBRARY)
    ]


def main(device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        goldens = {f"{g.name}-{case_id(dict(s))}": verdict(g, s, place, device) for g, s in cases()}
        ops = {f"{op.name}-{d}": op_verdict(op, d, place, device) for op, d in offered(device)}
        print(json.dumps({"goldens": goldens, "ops": ops, "bad_index": bad_index(place, device)}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
