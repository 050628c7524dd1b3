"""The ONNX backend suite, every CPU test counted by its own tolerance.

A test that the backend declines, and a test that the suite leaves out, count as failures here.

The numeric core is the node tests whose model (`is_core`) computes with tensors of ordinary numbers only: no value is a string,
sequence or optional, no element type is an 8-, 4- or 2-bit float or a 4- or 2-bit integer, every operator belongs to the
default domain (so neither ml nor preview nor training), and none is random or decodes images. 1,628 of 1,884 in onnx 1.23.2.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import hotfuse
from hotfuse.records import dataclass
from hotfuse.runtime.session import Session

NODE_TESTS = "OnnxBackendNodeModelTest"
NOT_NUMERIC = frozenset(
    {"Bernoulli", "ImageDecoder", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
SMALL_OR_TEXT = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4")) or name in ("INT4", "UINT4", "INT2", "UINT2", "STRING")
)


@dataclass
class Outcome:
    """What became of one test."""

    name: str
    passed: bool
    reason: str = ""
    seconds: float = 0.0
    nodes: int = 0
    opaque: list[str] = field(default_factory=list)
    core: bool = False
    native: bool = False  # generated code ran


class _Rep(BackendRep):  # type: ignore[misc]
    def __init__(self, session: Session) -> None:
        self.session = session
        self.answered = False

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = [s.name for s in self.session.inputs]
        outputs = tuple(self.session.run(None, dict(zip(names, inputs, strict=False))))
        self.answered = True
        return outputs


_last: list[_Rep] = []  # what the test that runs now has prepared


class HotfuseBackend(Backend):  # type: ignore[misc]
    """hotfuse behind onnx's backend interface."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        _last[:] = [_Rep(hotfuse.load(model))]
        return _last[0]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Where the suite unpacks its light models; it goes away with the process."""
    return tempfile.TemporaryDirectory(prefix="hotfuse-onnx-")


@functools.cache
def suite() -> tuple[tuple[str, str, type[unittest.TestCase], bool], ...]:
    """(category, test name, case class, whether it is core) of all CPU tests. Building the node cases takes seconds."""
    import onnx.backend.test
    from onnx.backend.test.loader import load_model_tests

    if "ONNX_HOME" not in os.environ:
        os.environ["ONNX_HOME"] = _scratch().name
    np.random.seed(0)  # the cases draw their inputs as they are built
    with np.errstate(all="ignore"):  # and divide by zero on purpose
        tests = onnx.backend.test.BackendTest(HotfuseBackend, __name__)
    core = {f"{case.name}_cpu" for case in load_model_tests(kind="node") if is_core(case.model)}
    return tuple(
        (category, name, case, category == NODE_TESTS and name in core)
        for category, case in sorted(tests.test_cases.items())
        for name in sorted(dir(case))
        if name.startswith("test_") and name.endswith("_cpu")
    )


def is_core(model: onnx.ModelProto) -> bool:
    """Whether a node test's model belongs to the numeric core (see the module docstring)."""
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    if not all(_is_numeric(value.type) for value in values):
        return False
    if any(t.data_type in SMALL_OR_TEXT for t in model.graph.initializer):
        return False
    nodes = [*_nodes(model.graph), *(n for f in model.functions for n in f.node)]
    return all(n.domain in ("", "ai.onnx") and n.op_type not in NOT_NUMERIC for n in nodes)


def _is_numeric(kind: onnx.TypeProto) -> bool:
    return kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.elem_type not in SMALL_OR_TEXT


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of those nested in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for nested in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(nested)


@functools.cache
def tests() -> Mapping[str, bool]:
    """Every test's name, and whether it is of the numeric core."""
    return {name: core for _, name, _, core in suite()}


@functools.cache
def _by_name() -> Mapping[str, tuple[type[unittest.TestCase], bool]]:
    return {name: (case, core) for _, name, case, core in suite()}


def run_suite(
    pattern: str = "", progress: Callable[[Outcome], None] | None = None, part: tuple[int, int] = (0, 1)
) -> list[Outcome]:
    """Run the tests whose names match, in this process, and say what became of each."""
    outcomes = []
    wanted = re.compile(pattern)
    for number, name in enumerate(tests()):
        if number % part[1] != part[0] or not wanted.search(name):
            continue
        outcome = run_test(name)
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
    return outcomes


def run_test(name: str) -> Outcome:
    case, core = _by_name()[name]
    _last.clear()
    started = time.perf_counter()
    passed, reason = False, ""
    try:
        getattr(case(name), name)()
        # The suite lets a test pass whose backend says that it need not implement it.
        passed = bool(_last) and _last[0].answered
        reason = "" if passed else "the backend declined it"
    except unittest.SkipTest as error:
        reason = f"skipped by the suite: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = f"{type(error).__name__}: {error}".strip()
    outcome = Outcome(name, passed, reason, time.perf_counter() - started, core=core)
    if _last:
        outcome.nodes = len(_last[0].session.graph.nodes)
        outcome.native = _last[0].session.kernels > 0
        outcome.opaque = sorted({op for _, op, _ in _last[0].session.opaque})
    return outcome


def block_reference() -> None:
    """Make `onnx.reference` unimportable, to count what runs on our own operators alone."""
    tests()  # the suite itself needs the reference to build some of its cases

    class Blocked:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "onnx.reference" or name.startswith("onnx.reference."):
                raise ImportError(f"{name} is blocked for this run")

    for name in [n for n in sys.modules if n == "onnx.reference" or n.startswith("onnx.reference.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Blocked())  # type: ignore[arg-type]
