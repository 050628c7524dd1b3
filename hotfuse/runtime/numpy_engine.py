"""Tier 0 in numpy: each node is its operator's reference; unknown ones are asked of onnx's reference evaluator."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hotfuse.ir.graph import Constant, Graph, Node, Value
from hotfuse.ir.op import OPS, Pattern
from hotfuse.ir.ops.elementwise import SPECIAL, SPECIAL_F64
from hotfuse.ir.ops.sequence import joined
from hotfuse.ir.types import ANY, F64, SequenceType, TensorType, Type, type_of
from hotfuse.runtime.control import bind_control
from hotfuse.runtime.engine import Compute, RunGraph
from hotfuse.runtime.numpy_blas import LARGE, is_read_anywhere, with_weights_anywhere
from hotfuse.runtime.onnx_opaque import bind_onnx
from hotfuse.runtime.output_pool import OutputPool, fast_address

MUCH = 1 << 25  # bytes of all large weights
COPYING = 2  # threads: more do not gain


class NumpyEngine:
    """Stateless; one instance serves all sessions."""

    name = "numpy"
    plans_memory = True
    shares_threads = False  # numpy's products run on threads of their own library

    def constant(self, constant: Constant, anywhere: bool = False) -> Any:
        return constant.glance() if anywhere else constant.numpy()

    reads_anywhere = staticmethod(is_read_anywhere)

    def make_ready(self, graph: Graph) -> None:
        """What the first call would otherwise wait for: weights where products can read them, and modules."""
        for name, constant in graph.constants.items():
            if not is_read_anywhere(graph, name):
                constant.numpy()
        if needs_scipy(graph):
            with contextlib.suppress(ImportError):  # who calls hears of it
                import scipy.special  # noqa: F401

    def type_of(self, value: Any) -> Type:
        if isinstance(value, np.ndarray | np.generic):
            return type_of(np.asarray(value))
        return SequenceType(joined([self.type_of(v) for v in value])) if isinstance(value, list) else ANY

    def own(self, value: Any, shared: bool) -> Any:
        """A result the caller may keep: contiguous, writeable, and nobody else's memory."""
        if isinstance(value, np.generic):
            return np.asarray(value)
        if isinstance(value, list):
            return [self.own(v, shared=True) for v in value]
        if not isinstance(value, np.ndarray):
            return value
        if shared or not value.flags.writeable or not value.flags.c_contiguous:
            return value.copy(order="C")
        return value

    def bind(self, node: Node, values: Sequence[Value], run_graph: RunGraph) -> Compute:
        record = OPS[node.op]
        if record.pattern is Pattern.CONTROL:
            return bind_control(node, self, run_graph)
        if node.op == "onnx_op":
            return bind_onnx(node)
        if node.op == "transfer":
            return Compute(lambda x: np.array(x))
        if record.reference is None:
            raise AssertionError(f"operator {node.op} has no reference and no engine runs it")
        function = functools.partial(record.reference, **node.attrs) if node.attrs else record.reference
        function = with_weights_anywhere(node, function)
        many = record.many or len(node.outputs) > 1
        return Compute(function, many, record.writes_out and not many, "first" if record.view else "none")

    # what native code needs

    address = staticmethod(fast_address())

    def contiguous(self, value: Any) -> Any:
        """An array of rows in order. Some operators return numpy's scalars, which are no arrays."""
        return value if type(value) is np.ndarray and value.flags.c_contiguous else np.asarray(value, order="C")

    def results(self, type: TensorType) -> OutputPool:
        return OutputPool(type)

    # what control flow needs

    def item(self, value: Any) -> Any:
        return np.asarray(value).item()

    def scalar(self, value: int | bool) -> Any:
        return np.array(value, dtype=np.bool_ if isinstance(value, bool) else np.int64)

    def stack(self, values: list[Any], axis: int, like: Type) -> Any:
        """The values along a new axis; each leaves the list when it is copied, so that they are not all there twice."""
        if values and not isinstance(values[0], np.ndarray | np.generic):
            return values
        if len({v.shape for v in values}) > 1:
            raise ValueError(f"the rounds of a loop give results of different shapes: {sorted({v.shape for v in values})}")
        if values:
            result = np.empty((len(values), *values[0].shape), dtype=values[0].dtype)
            for i in range(len(values)):
                result[i], values[i] = values[i], None
            return np.ascontiguousarray(np.moveaxis(result, 0, axis))
        if not isinstance(like, TensorType):
            return []
        shape = [d if isinstance(d, int) else 0 for d in like.shape or ()]
        shape.insert(axis % (len(shape) + 1), 0)
        return np.empty(shape, dtype=like.dtype.numpy)

    def slice(self, value: Any, axis: int, index: int) -> Any:
        return np.take(value, index, axis=axis)

    def length(self, value: Any, axis: int) -> int:
        return int(value.shape[axis])


@contextlib.contextmanager
def copied_ahead(graph: Graph) -> Iterator[None]:
    """Meanwhile, have threads copy the weights that cannot be read where they lie in a file, if these are large: a core alone
    copies at a fraction of what memory gives, and what else is done to load a model leaves the others idle."""
    large = [
        constant
        for name, constant in graph.constants.items()
        if constant.type.nbytes >= LARGE and not is_read_anywhere(graph, name) and not constant.glance().flags.aligned
    ]
    if sum(constant.type.nbytes for constant in large) < MUCH:
        yield
        return
    left = iter(large)  # its next is one step, whoever else asks

    def copy() -> None:
        for constant in left:
            constant.numpy()

    threads = [threading.Thread(target=copy, name="hotfuse-weights", daemon=True) for _ in range(COPYING)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def needs_scipy(graph: Graph, in_float64: bool = False) -> bool:
    """Whether some operator's original is scipy's, which takes long to import; also of what is computed `in_float64`."""

    def is_needed(inner: Graph, node: Node) -> bool:
        if node.op in SPECIAL_F64 and not in_float64:
            type = inner.type(node.id)
            return isinstance(type, TensorType) and type.dtype == F64
        return node.op in SPECIAL or node.op in SPECIAL_F64

    return any(is_needed(inner, node) for inner in graph.walk() for node in inner.nodes)


NUMPY = NumpyEngine()
