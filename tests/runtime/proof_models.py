"""Small models of every family of kernels, built for proofs. Sizes are odd, so that blocks and tails are both there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.parser
from onnx import helper, numpy_helper

import hotfuse
from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, TensorType, tensor
from hotfuse.runtime.build import Build, skeleton
from hotfuse.runtime.building import make_build
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.native import Workshop
from hotfuse.runtime.proof import prove
from hotfuse.runtime.verdict import UnitVerdict
from tests.codegen.lowering import Make, graph_of

Array = np.ndarray[Any, Any]
CONFIG = Config(threads=2, strict=True, fusion="rules")  # each operator that a test asks about is a unit
SIZES = {"b": 3, "s": 7}

# inputs that begin with w become weights
TEXTS = {
    "mlp": """g (float[b, 17] x, float[17, 83] w1, float[83] wb, float[83, 250] w2, float[250, 11] w3) => (float[b, 11] y) {
        a = MatMul(x, w1)  c = Add(a, wb)  r = Relu(c)  d = MatMul(r, w2)  t = Tanh(d)  e = MatMul(t, w3)
        y = Softmax(e) }""",
    "block": """g (float[b, s, 24] x, float[b, 1, 1, s] m, float[24] wg, float[24] wh, float[24, 24] wq, float[24, 24] wk,
            float[24, 24] wv, float[24, 24] wo, float[24, 70] wu, float[70, 24] wd) => (float[b, s, 24] y)
        <int64[4] heads = {0, 0, 3, 8}, int64[3] flat = {0, 0, 24}, float half = {0.35}, float one = {1}, float big = {-9999}> {
        n = LayerNormalization(x, wg, wh)
        q0 = MatMul(n, wq)  q1 = Reshape(q0, heads)  q = Transpose <perm: ints = [0, 2, 1, 3]> (q1)
        k0 = MatMul(n, wk)  k1 = Reshape(k0, heads)  k = Transpose <perm: ints = [0, 2, 3, 1]> (k1)
        v0 = MatMul(n, wv)  v1 = Reshape(v0, heads)  v = Transpose <perm: ints = [0, 2, 1, 3]> (v1)
        s0 = MatMul(q, k)  s1 = Mul(s0, half)  m1 = Sub(one, m)  m2 = Mul(m1, big)  s2 = Add(s1, m2)  p = Softmax(s2)
        o0 = MatMul(p, v)  o1 = Transpose <perm: ints = [0, 2, 1, 3]> (o0)  o2 = Reshape(o1, flat)  o3 = MatMul(o2, wo)
        h = Add(x, o3)  h1 = LayerNormalization(h, wg, wh)  u = MatMul(h1, wu)  g1 = Gelu(u)  d = MatMul(g1, wd)
        y = Add(h, d) }""",
    "norms": """g (float[b, 6, 35] x, float[35] wg, float[35] wh, float[6] wc) => (float[b, 6, 35] y, float[b, 6, 35] z,
            float[b, 6, 35] u, float[b, 6, 35] v) {
        y = LayerNormalization <epsilon: float = 0.001> (x, wg, wh)  z = Softmax <axis: int = 1> (x)
        u = LogSoftmax <axis: int = -1> (x)  v = GroupNormalization <num_groups: int = 3> (x, wc, wc) }""",
    "convolutions": """g (float[b, 5, 13, 11] x, float[8, 5, 3, 3] w1, float[8] wb, float[9, 8, 1, 1] w2)
            => (float[b, 9, s, t] y) {
        a = Conv <pads: ints = [1, 1, 1, 1]> (x, w1, wb)  r = Relu(a)
        p = MaxPool <kernel_shape: ints = [3, 3], strides: ints = [2, 2]> (r)
        c = Conv(p, w2)  d = Sigmoid(c)  e = Mul(c, d)  y = AveragePool <kernel_shape: ints = [2, 2]> (e) }""",
    "reductions": """g (float[b, 7, 45] x) => (float[b, 7] y, float[b, 1, 45] z, float[b, 45] u, int64[b, 7] i,
            float[b, 7, 45] c, float[b, 7] l, float[b, 7, 45] n)
        <int64[1] last = {2}, int64[1] middle = {1}, int64 at = {2}> {
        a = Abs(x)  y = ReduceSum <keepdims: int = 0> (a, last)  z = ReduceMean <keepdims: int = 1> (x, middle)
        u = ReduceMax <keepdims: int = 0> (x, middle)  i = ArgMax <axis: int = 2, keepdims: int = 0> (x)  c = CumSum(x, at)
        l = ReduceLogSumExp <keepdims: int = 0> (x, last)  s = Sin(x)  t = Exp(s)  o = Mul(t, x)  n = Sub(o, s) }""",
    "moves": """g (float[b, 9] x, int64[b, 5] i, float[40, 33] wt, float[b, 33] o) => (float[b, 5, 33] y, float[b, 5] e,
            float[b, 13] p, float[b, 42] c, float[b, 9] t, float[b, 5, 6] h)
        <int64[4] pads = {0, 1, 0, 3}, float[2] marks = {0.5, 2.5}, int64 depth = {6}, int64 six = {6}, int64[1] mid = {1}> {
        r = Gather(wt, i)  one = Unsqueeze(o, mid)  y = Add(r, one)  e = GatherElements <axis: int = 1> (x, i)
        p = Pad(x, pads)  f = Neg(x)  c = Concat <axis: int = 1> (f, o)  t = Trilu <upper: int = 0> (x)
        j = Mod(i, six)  h = OneHot(j, depth, marks) }""",
    "embedding": """g (int64[b, s] i, float[3000, 24] wt, float[24] wg, float[24] wh)
            => (float[b, s, 24] y, float[b, s, 24] z) {
        r = Gather(wt, i)  y = LayerNormalization(r, wg, wh)  z = Tanh(r) }""",
    "types": """g (float16[b, 21] x, float16[21, 37] wa, bfloat16[b, 21] z, int64[b, 21] i, int32[b, 21] k)
            => (float16[b, 37] y, bfloat16[b, 21] q, int64[b, 21] j, int64[b] s, bool[b, 21] t, float[b, 21] f)
        <int64 three = {3}, int64[1] last = {1}> {
        m = MatMul(x, wa)  y = Sigmoid(m)  e = Exp(z)  q = Add(e, z)  a = Mul(i, three)  j = Sub(a, i)
        s = ReduceSum <keepdims: int = 0> (i, last)
        l = Cast <to: int = 7> (k)  t = Less(l, i)  w = Cast <to: int = 1> (x)  f = Sqrt(w) }""",
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A model, its build and kernels; `feeds` makes inputs from a seed and sizes."""

    graph: Graph
    build: Build
    kernels: Mapping[TileProgram, Kernel]
    feeds: Callable[..., dict[str, Array]]

    def weight(self, name: str) -> Array:
        return self.graph.constants[name].numpy()


def built(name: str, seed: int = 0) -> Built:
    """A model of `TEXTS` with random weights."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {TEXTS[name]}')
    rng = np.random.default_rng(seed)
    inputs = list(model.graph.input)
    for info in inputs:
        if info.name.startswith("w"):
            model.graph.initializer.append(numpy_helper.from_array(_weight(rng, info), info.name))
    del model.graph.input[:]
    given = [info for info in inputs if not info.name.startswith("w")]
    model.graph.input.extend(given)
    return from_graph(hotfuse.load(model, strict=True).graph, lambda seed, **sizes: _feeds(given, seed, sizes))


def from_graph(graph: Graph, feeds: Callable[..., dict[str, Array]]) -> Built:
    shop = Workshop(CONFIG)
    return Built(graph, make_build(skeleton(graph), shop.spec, CONFIG, shop), shop.kernels, feeds)


def _weight(rng: np.random.Generator, info: Any) -> Array:
    kind = info.type.tensor_type
    shape = [d.dim_value for d in kind.shape.dim]
    fan = max(1, int(np.prod(shape[:-1] if len(shape) == 2 else shape[1:])))
    scale = fan**-0.5 if len(shape) > 1 else 1.0
    return (rng.standard_normal(shape) * scale).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _feeds(given: list[Any], seed: int, sizes: Mapping[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for info in given:
        kind = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in kind.shape.dim]
        if info.name == "m":  # a mask: the last keys are not there
            found[info.name] = np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 2, shape).astype(dtype)
        elif np.dtype(dtype).kind == "i":
            found[info.name] = rng.integers(0, 9, shape).astype(dtype)
        else:
            found[info.name] = rng.standard_normal(shape).astype(dtype)
    return found


def small(make: Make, **types: TensorType) -> Built:
    """A model written with a builder."""
    return from_graph(graph_of(make, types), lambda seed: {})


def rows_of(make: Make, rows: int = 5, columns: int = 37) -> tuple[Built, dict[str, Array]]:
    model = small(make, x=tensor(F32, symbol("n", 1), columns))
    return model, {"x": np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)}


def verdicts(model: Built, feeds: dict[str, Array], **options: Any) -> list[UnitVerdict]:
    return prove(model.build, model.kernels, feeds, model.weight, CONFIG, **options)
