"""Object code: compiled once, then read from the cache, by a process that never loads LLVM."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

PROGRAM = """
import json, sys
import numpy as np
import hotfuse
from hotfuse.runtime.kernels import compiled_so_far
session = hotfuse.load(sys.argv[1], tier=1, wait=True)
(y,) = session.run(None, {"x": np.ones((3, 8), np.float32)})
facts = {"kernels": session.kernels, "compiled": compiled_so_far().kernels, "llvm": "llvmlite" in sys.modules}
facts["lowered"] = "hotfuse.codegen.lower" in sys.modules
print(json.dumps({"y": y.tolist(), **facts}))
import threading
for thread in threading.enumerate():
    if thread.name == "hotfuse-cache":
        thread.join()
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    weights = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    float32 = onnx.TensorProto.FLOAT
    graph = oh.make_graph(
        [oh.make_node("MatMul", ["x", "w"], ["h"]), oh.make_node("Softmax", ["h"], ["y"])],
        "net",
        [oh.make_tensor_value_info("x", float32, ["n", 8])],
        [oh.make_tensor_value_info("y", float32, ["n", 5])],
        [onh.from_array(weights, "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def answer(model: str, cache: Path, isa: str = "native") -> dict[str, object]:
    import os

    environment = {**os.environ, "HOTFUSE_CACHE": str(cache), "HOTFUSE_ISA": isa}
    done = subprocess.run([sys.executable, "-c", PROGRAM, model], capture_output=True, text=True, env=environment, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_second_process_compiles_and_lowers_nothing_and_loads_no_llvm(model: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = answer(model, cache), answer(model, cache)
    assert first["compiled"] == first["kernels"] != 0
    assert first["llvm"]
    assert (second["compiled"], second["llvm"], second["lowered"]) == (0, False, False)
    assert second["kernels"] == first["kernels"]
    assert second["y"] == first["y"]


def test_other_instructions_are_other_code(model: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    answer(model, cache)
    assert answer(model, cache, "avx2")["compiled"] != 0


def test_a_damaged_entry_is_compiled_again(model: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = answer(model, cache)
    for path in cache.iterdir():
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(bytes(data))
    time.sleep(0.01)
    again = answer(model, cache)
    assert again["compiled"] == first["compiled"]
    assert again["y"] == first["y"]
