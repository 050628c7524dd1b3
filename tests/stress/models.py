"""Small models for stress: one of each front end, hot enough to be compiled after some calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

WIDTH = 256

TEXT = f"""<ir_version: 10, opset_import: ["": 21]> stressed (float[n, {WIDTH}] x) => (float[n, {WIDTH}] y) {{
    a = MatMul(x, w)  b = Add(a, c)  d = Tanh(b)  e = MatMul(d, v)  f = LayerNormalization(e, g)  y = Softmax(f) }}"""


def onnx_model(seed: int = 0) -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(seed)
    for name, shape in (("w", (WIDTH, WIDTH)), ("c", (WIDTH,)), ("v", (WIDTH, WIDTH)), ("g", (WIDTH,))):
        array = (rng.standard_normal(shape) / WIDTH**0.5).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def feeds(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)}
