"""A random ONNX model in the making: every node is computed by an oracle as soon as it is added.

State: a `Draft` holds the nodes so far and, for each value, its data at several settings of the model's free sizes, once as the
oracle computes it and once in float64. A node that the oracle refuses, or whose results would make a poor test (infinite,
huge, ill-conditioned), raises `Rejected` and leaves no trace. The oracle is ONNX Runtime without optimisations; onnx's
reference evaluator stands in where ONNX Runtime has no kernel.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 4096
FAMILIAR = 26  # the newest opset of ONNX Runtime
MAX_MAGNITUDE = {"f": 1e3, "i": 1e6, "u": 1e6, "b": 1}
MAX_RELATIVE_ERROR = 1e-2  # of the oracle against float64
# units in the last place that one elementwise operator may be off
ULP = dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "LeakyRelu", "PRelu", "Softsign"), 2) | dict.fromkeys(
    ("Exp", "Log", "Sin", "Cos", "Atan", "Sinh", "Asinh", "Tanh", "Sigmoid", "Erf", "Pow", "Softplus"), 4
)
_WIDE = {onnx.TensorProto.FLOAT: onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16: onnx.TensorProto.DOUBLE}


class Rejected(Exception):
    """The node at hand does not make a model worth running."""


class Discarded(Rejected):
    """A sample that the rule of floating point leaves out: float64 is not finite, or another branch was taken there."""


@dataclass(frozen=True)
class Tensor:
    """One value of a draft: its data at each setting of the sizes. `bits`: no rounding on its way, so every bit counts. `ulp`:
    one elementwise operator rounded, so that it may be so many units in the last place from exact; 0 where more went on."""

    name: str
    data: tuple[Array, ...]
    exact: tuple[Array, ...]
    bits: bool
    constant: bool = False
    ulp: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data[0].dtype

    @property
    def rank(self) -> int:
        return self.data[0].ndim

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes that are the same at every setting; None for the others."""
        return tuple(s[0] if len(set(s)) == 1 else None for s in zip(*(x.shape for x in self.data), strict=True))

    def least(self, axis: int) -> int:
        return min(x.shape[axis] for x in self.data)


@dataclass
class Draft:
    """A model under construction. `settings` gives the free sizes; the first is the usual one."""

    rng: random.Random
    opset: int
    settings: Sequence[Mapping[str, int]]
    outer: Sequence[Tensor] = ()  # what a nested graph may read
    prefix: str = ""
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    counter: int = 0
    discarded: Counter[str] = field(default_factory=Counter)  # what was left out, by reason; nested drafts count here too

    @property
    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.getrandbits(32))

    def name(self) -> str:
        self.counter += 1
        return f"{self.prefix}v{self.counter}"

    def pool(self) -> list[Tensor]:
        return [t for t in (*self.outer, *self.tensors.values()) if not t.constant]

    def pick(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
        """Any value that fits, a recent one by preference."""
        found = [t for t in self.pool() if wanted(t)]
        if not found:
            raise Rejected("no value fits")
        return self.rng.choice(found[-4:] if self.rng.random() < 0.5 else found)

    def input(self, dtype: Any, dims: Sequence[int | str], low: float = -2, high: float = 2) -> Tensor:
        """A graph input of random data; dims that are names are free sizes."""
        shapes = [tuple(d if isinstance(d, int) else s[d] for d in dims) for s in self.settings]
        data = tuple(random_array(self.numpy, np.dtype(dtype), shape, low, high) for shape in shapes)
        tensor = self._keep(Tensor(self.name(), data, tuple(map(widen, data)), True))
        proto = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        self.inputs.append(helper.make_tensor_value_info(tensor.name, proto, list(dims)))
        return tensor

    def constant(self, array: Any) -> Tensor:
        array = np.asarray(array)
        count = len(self.settings)
        return self._keep(Tensor(self.name(), (array,) * count, (widen(array),) * count, True, True))

    def add(
        self, op: str, inputs: Sequence[Tensor | None], outputs: int = 1, bits: bool | None = None, **attrs: Any
    ) -> list[Tensor]:
        """The results of a new node. `bits` says that it rounds nothing; integers never do."""
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, ["" if t is None else t.name for t in inputs], names, name=names[0], **attrs)
        made = self.results(node, bool(bits))
        self.nodes.append(node)
        return [self._keep(tensor) for tensor in made]

    def results(self, node: onnx.NodeProto, bits: bool) -> list[Tensor]:
        """What a node makes of the values so far, by the oracle and in float64."""
        op = node.op_type
        reads = {t.name: t for t in (*self.outer, *self.tensors.values()) if t.name in read_names(node)}
        narrow = node.input[1:] if op in ("Resize", "Upsample") else ()  # scales are float32 by definition
        original = compute(node, reads, self.opset, [{n: t.data[i] for n, t in reads.items()} for i in range(self.count)])
        exact = compute(
            widen_node(node, self.opset),
            {n: t for n, t in reads.items() if not t.is_float},
            self.opset,
            [{n: (t.data if n in narrow else t.exact)[i] for n, t in reads.items()} for i in range(self.count)],
            wide=True,
        )
        made = []
        sources_exact = all(t.bits for t in reads.values())
        units = [t.ulp for t in reads.values() if not t.bits]
        ulp = ULP.get(op, 0) if sources_exact else max(units) if bits and all(units) and op != "Cast" else 0
        for k, name in enumerate(node.output):
            data, truth = tuple(o[k] for o in original), tuple(o[k] for o in exact)
            kept = sources_exact and (bits or data[0].dtype.kind != "f")
            made.append(Tensor(name, data, truth, kept, ulp=0 if kept else ulp))
            check_worth(made[-1])
        return made

    def one(self, op: str, *inputs: Tensor | None, bits: bool | None = None, **attrs: Any) -> Tensor:
        return self.add(op, inputs, bits=bits, **attrs)[0]

    @property
    def count(self) -> int:
        return len(self.settings)

    def mark(self) -> tuple[int, set[str]]:
        return len(self.nodes), set(self.tensors)

    def undo(self, mark: tuple[int, set[str]]) -> None:
        del self.nodes[mark[0] :]
        self.tensors = {n: t for n, t in self.tensors.items() if n in mark[1]}
        self.inputs = [i for i in self.inputs if i.name in mark[1]]

    def _keep(self, tensor: Tensor) -> Tensor:
        self.tensors[tensor.name] = tensor
        return tensor


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], low: float, high: float) -> Array:
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    if dtype.kind in "iu":
        return rng.integers(max(low, 0) if dtype.kind == "u" else low, high + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def read_names(node: onnx.NodeProto) -> set[str]:
    """Every name a node reads, those its nested graphs take from outside included."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = attribute.g
            inner = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            for child in graph.node:
                names |= read_names(child) - inner
                inner |= set(child.output)
            names |= {o.name for o in graph.output} - inner
    return names - {""}


def widen_node(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """The node with float64 wherever it names a narrower float, or means one by default."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    if "stash_type" in onnx.defs.get_schema(node.op_type, opset).attributes:
        wide.attribute.append(helper.make_attribute("stash_type", onnx.TensorProto.DOUBLE))
    for attribute in wide.attribute:
        if attribute.name in ("to", "dtype", "stash_type", "softmax_precision") and attribute.i in _WIDE:
            attribute.i = _WIDE[attribute.i]
        if attribute.HasField("t"):
            attribute.t.CopyFrom(numpy_helper.from_array(widen(numpy_helper.to_array(attribute.t)), attribute.t.name))
        if attribute.HasField("g"):
            _widen_graph(attribute.g, opset)
    return wide


def _widen_graph(graph: onnx.GraphProto, opset: int) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        kind = info.type.tensor_type
        kind.elem_type = _WIDE.get(kind.elem_type, kind.elem_type)
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(widen(numpy_helper.to_array(tensor)), tensor.name))
    for node in graph.node:
        node.CopyFrom(widen_node(node, opset))


def compute(
    node: onnx.NodeProto, constants: Mapping[str, Tensor], opset: int, feeds: Sequence[Mapping[str, Array]], wide: bool = False
) -> list[list[Array]]:
    """The node's results for each of `feeds`. Constants of the model are constants to the oracle too."""
    owned = {n: f for n, f in feeds[0].items() if n in constants and constants[n].constant}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
        for n, x in feeds[0].items()
        if n not in owned
    ]
    graph = helper.make_graph(
        [node],
        "one",
        infos,
        [onnx.ValueInfoProto(name=n) for n in node.output],
        [numpy_helper.from_array(x, n) for n, x in owned.items()],
    )
    opset = familiar_opset(node, opset)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    fed = [{n: x for n, x in f.items() if n not in owned} for f in feeds]
    if wide:
        return _in_float64(node, proto, fed)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise Rejected(f"{node.op_type}: {error}") from error
    try:
        session = _open(inferred)
    except Exception:
        return _by_reference(proto, fed)
    try:
        results = [[np.asarray(x) for x in session.run(None, f)] for f in fed]
    except Exception as error:
        raise Rejected(f"{node.op_type}: {error}") from error
    _check_empty(proto, fed, results)
    return results


def _standardized(x: Array, axes: Sequence[int] = (0, 2, 3)) -> Array:
    centered = x - x.mean(tuple(axes), keepdims=True)
    return np.asarray(centered / (np.sqrt(np.square(centered).mean(tuple(axes), keepdims=True)) + 1e-9))


def _gelu(x: Array, approximate: bytes = b"none") -> Array:
    if approximate == b"tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


_erf = np.vectorize(math.erf, otypes=[np.float64])
# functions that no oracle computes in float64
_OWN: dict[str, Callable[..., Array]] = {
    "Erf": _erf,
    "Gelu": _gelu,
    "MeanVarianceNormalization": _standardized,
}


def _in_float64(node: onnx.NodeProto, proto: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    """ONNX Runtime's results where it computes in float64; onnx's evaluator is less strict about types."""
    if node.op_type in _OWN:
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return [[_OWN[node.op_type](f[node.input[0]], **attrs)] for f in feeds]
    try:
        session = _open(onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True))
        return [[np.asarray(x) for x in session.run(None, f)] for f in feeds]
    except Exception:
        return _by_reference(proto, feeds)


def _open(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(proto.SerializeToString(), _options(), providers=["CPUExecutionProvider"])


def _check_empty(proto: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]], results: Sequence[Sequence[Array]]) -> None:
    """ONNX Runtime makes odd results of empty tensors at times: there the two oracles must agree."""
    empty = [i for i, f in enumerate(feeds) if any(x.size == 0 for x in (*f.values(), *results[i]))]
    if empty:
        for i, other in zip(empty, _by_reference(proto, [feeds[i] for i in empty]), strict=True):
            for x, y in zip(other, results[i], strict=True):
                if x.shape != y.shape or not np.allclose(x, y):
                    raise Rejected("the oracles disagree about nothing")


def familiar_opset(node: onnx.NodeProto, opset: int) -> int:
    """The opset to ask the oracle in: the newest that ONNX Runtime knows, where the node still means the same there."""
    return FAMILIAR if opset > FAMILIAR and _is_familiar(node, opset) else opset


def _is_familiar(node: onnx.NodeProto, opset: int) -> bool:
    graphs = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    known = onnx.defs.get_schema(node.op_type, opset).since_version <= FAMILIAR
    return known and all(_is_familiar(child, opset) for g in graphs for child in g.node)


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _by_reference(proto: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    if proto.graph.node[0].op_type == "Loop":  # it joins the results of scalars instead of stacking them
        raise Rejected("no oracle")
    try:
        evaluator = ReferenceEvaluator(proto)
        with np.errstate(all="ignore"):
            return [[np.asarray(x) for x in evaluator.run(None, dict(f))] for f in feeds]
    except Exception as error:
        raise Rejected(str(error)) from error


def run_optimized(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    """A whole model by ONNX Runtime with every optimisation it has: other kernels than those of single nodes."""
    options = _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    known = onnx.ModelProto()
    known.CopyFrom(proto)
    opset = known.opset_import[0]
    if all(_is_familiar(node, opset.version) for node in known.graph.node):
        opset.version = min(opset.version, FAMILIAR)
    session = onnxruntime.InferenceSession(known.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def run_reference(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    """A whole model by onnx's evaluator."""
    return ReferenceEvaluator(proto).run(None, dict(feeds))


def check_worth(tensor: Tensor) -> None:
    """Refuse results that are too large; discard those that are not finite, ill-conditioned, or on a branch point."""
    for data, exact in zip(tensor.data, tensor.exact, strict=True):
        if data.size > MAX_ELEMENTS or data.dtype.kind not in "fiub":
            raise Rejected(f"{tensor.name}: shape {data.shape}, type {data.dtype}")
        if data.shape != exact.shape or (data.dtype.kind != "f" and not np.array_equal(data, exact)):
            raise Discarded("float64 takes another branch")
        if data.dtype.kind == "f" and not (np.isfinite(data).all() and np.isfinite(exact).all()):
            raise Discarded("not finite")
        if not data.size:
            continue
        scale = float(np.abs(exact.astype(np.float64)).max())
        if scale > MAX_MAGNITUDE[data.dtype.kind]:
            raise Rejected(f"{tensor.name}: too large")
        if data.dtype.kind == "f" and float(np.abs(data - exact).max()) > MAX_RELATIVE_ERROR * (scale + 1e-3):
            raise Discarded("ill-conditioned")
