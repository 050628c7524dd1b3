"""Single kernels instead of models: matrix products, and pointwise and row-reduction chains as large as memory.

A kernel is named `gemm:MxNxK` or `chain:NAME:BYTES`. Its inputs come from a seed, so that no gigabytes travel as files, and
answers are judged on at most `MOST_ROWS` rows, the first and last among them. Of a product the right operand is a weight.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from hotfuse.cli.bench.roofline import Work
from hotfuse.records import dataclass

Array = np.ndarray[Any, Any]
GEMM_SIZES = (256, 257, 384, 1000, 1024, 3072, 4096)
GEMM_SAMPLE = 40
# strides of a power of two, where caches with few ways do worst, and the extremes
GEMM_ALWAYS = (
    (1024, 1024, 1024), (4096, 4096, 4096), (256, 4096, 4096), (4096, 256, 1024), (1024, 4096, 256), (257, 257, 257),
    (256, 256, 4096), (1000, 3072, 1024),
)  # fmt: skip
CHAIN_BYTES = {"32MB": 32 << 20, "1GB": 1 << 30}
COLUMNS = 1024
MOST_ROWS = 8192


def gemm_triples() -> tuple[tuple[int, int, int], ...]:
    """The fixed sample of sizes (M, N, K)."""
    every = itertools.product(GEMM_SIZES, GEMM_SIZES, GEMM_SIZES)
    others = [sizes for sizes in every if sizes not in GEMM_ALWAYS]
    return (*GEMM_ALWAYS, *random.Random(0).sample(others, GEMM_SAMPLE - len(GEMM_ALWAYS)))


@dataclass(frozen=True)
class Chain:
    """One function of rows in numpy, torch and ONNX's text form. numpy's may write into `out` and torch's into
    what it has made, as a careful user would."""

    numpy: Callable[[Array, Array], Array]
    torch: Callable[[Any], Any]
    onnx: str
    reduces: bool = False


def _affine(x: Array, out: Array) -> Array:
    np.multiply(x, x.dtype.type(2), out=out)
    np.add(out, x.dtype.type(1), out=out)
    np.maximum(out, x.dtype.type(0), out=out)
    return out


def _silu(x: Array, out: Array) -> Array:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, x.dtype.type(1), out=out)
    np.divide(x, out, out=out)
    return out


def _softmax(x: Array, out: Array) -> Array:
    np.subtract(x, x.max(1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(1, keepdims=True), out=out)
    return out


def _layer_norm(x: Array, out: Array) -> Array:
    np.subtract(x, x.mean(1, keepdims=True), out=out)
    variance = np.einsum("ij,ij->i", out, out)[:, None] / x.shape[1]
    np.divide(out, np.sqrt(variance + x.dtype.type(1e-5)), out=out)
    return out


def _square_sum(x: Array, out: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", x, x)[:, None])


def _torch_layer_norm(x: Any) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(x, x.shape[1:])


def _torch_silu(x: Any) -> Any:
    from torch.nn.functional import silu

    return silu(x)


CHAINS: Mapping[str, Chain] = {
    "affine-relu": Chain(_affine, lambda x: x.mul(2).add_(1).relu_(), "a = Mul(x, two)  b = Add(a, one)  y = Relu(b)"),
    "silu": Chain(_silu, _torch_silu, "a = Sigmoid(x)  y = Mul(x, a)"),
    "softmax": Chain(_softmax, lambda x: x.softmax(1), "y = Softmax <axis = 1> (x)"),
    "layer-norm": Chain(_layer_norm, _torch_layer_norm, "y = LayerNormalization <axis = 1> (x, ones)"),
    "square-sum": Chain(_square_sum, lambda x: (x * x).sum(1, keepdim=True), "a = Mul(x, x)  y = ReduceSum (a, axis)", True),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel by name; what it computes with, and what it must answer."""

    name: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (int(part) for part in self.name.split(":")[1].split("x"))
        return m, n, k

    @property
    def is_product(self) -> bool:
        return self.name.startswith("gemm:")

    @property
    def chain(self) -> Chain:
        return CHAINS[self.name.split(":")[1]]

    @cached_property
    def x(self) -> Array:
        shape = (
            (self.sizes[0], self.sizes[2])
            if self.is_product
            else (CHAIN_BYTES[self.name.split(":")[2]] // COLUMNS // 4, COLUMNS)
        )
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)

    @cached_property
    def weight(self) -> Array:
        return np.random.default_rng(1).standard_normal((self.sizes[2], self.sizes[1]), dtype=np.float32)

    @cached_property
    def rows(self) -> Array:
        """Places of the rows that are judged."""
        count = len(self.x)
        if count <= MOST_ROWS:
            return np.arange(count)
        inner = np.random.default_rng(2).choice(count, MOST_ROWS, replace=False)
        return np.unique(np.concatenate((np.arange(64), inner, np.arange(count - 64, count))))

    def answer(self, dtype: type) -> Array:
        """The judged rows, computed by numpy in that precision."""
        x: Array = self.x[self.rows].astype(dtype)
        return np.asarray(x @ self.weight.astype(dtype) if self.is_product else self.chain.numpy(x, np.empty_like(x)))

    @property
    def work(self) -> Work:
        """Bytes once in and once out."""
        if self.is_product:
            m, n, k = self.sizes
            return Work(2 * m * n * k, 4 * (m * k + k * n + m * n))
        return Work(0, self.x.nbytes + (4 * len(self.x) if self.chain.reduces else self.x.nbytes))

    def model(self) -> Any:
        """As an `onnx.ModelProto`."""
        import onnx
        from onnx import numpy_helper, parser

        body = "y = MatMul(x, w)" if self.is_product else self.chain.onnx
        rows, columns = self.x.shape
        width = self.sizes[1] if self.is_product else 1 if self.chain.reduces else columns
        signature = f"(float[{rows}, {columns}] x) => (float[{rows}, {width}] y)"
        text = f'<ir_version: 10, opset_import: ["": 17]> kernel {signature} {{ {body} }}'
        model: onnx.ModelProto = parser.parse_model(text)
        if self.is_product:
            constants: dict[str, Array] = {"w": self.weight}
        else:
            constants = {
                "two": np.array(2, np.float32),
                "one": np.array(1, np.float32),
                "ones": np.ones(columns, np.float32),
                "axis": np.array([1]),
            }
        used = {name for node in model.graph.node for name in node.input}
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items() if n in used)
        return model
