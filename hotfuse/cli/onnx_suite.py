"""The ONNX backend suite, every CPU test counted by its own tolerance.

A test that the backend declines, and a test that the suite leaves out, count as failures here. The numeric core leaves out
strings, sequences, 8/4/2-bit types, the ml, training, image, random and preview operators.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("ONNX_HOME", os.path.join(tempfile.gettempdir(), "hotfuse-onnx-home"))

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import hotfuse
from hotfuse.runtime.session import Session


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


_last: list[Session] = []


class _Rep(BackendRep):  # type: ignore[misc]
    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = [s.name for s in self.session.inputs]
        return tuple(self.session.run(None, dict(zip(names, inputs, strict=False))))


class HotfuseBackend(Backend):  # type: ignore[misc]
    """hotfuse behind onnx's backend interface."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        session = hotfuse.load(model)
        _last[:] = [session]
        return _Rep(session)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def suite() -> Iterator[tuple[str, str, type[unittest.TestCase], str]]:
    """(category, test name, case class, method name) of all CPU tests."""
    import onnx.backend.test

    np.random.seed(0)
    tests = onnx.backend.test.BackendTest(HotfuseBackend, __name__)
    for category, case in sorted(tests.test_cases.items()):
        for method in sorted(dir(case)):
            if method.startswith("test_") and method.endswith("_cpu"):
                yield category, method, case, method


_NOT_CORE = re.compile(
    r"string|sequence|optional|map|float8|float4|int4|int2|uint4|uint2|e4m3|e5m2|e8m0|e2m1|FLOAT8|FLOAT4|INT4|INT2|"
    r"ai_onnx_ml|adagrad|adam|momentum|training|image|bernoulli|random|regex|tfidf|strnorm|label_encoder|tree_ensemble|"
    r"gradient|array_feature|binarizer|preview|string_split|if_opt|loop16|identity_opt|if_seq|loop13|identity_seq"
)


def is_core(category: str, name: str) -> bool:
    """Whether a test belongs to the numeric core."""
    return category == "OnnxBackendNodeModelTest" and not _NOT_CORE.search(name)


def run_suite(
    pattern: str = "", progress: Callable[[Outcome], None] | None = None, part: tuple[int, int] = (0, 1)
) -> list[Outcome]:
    """Run the tests whose names match, and say what became of each."""
    outcomes = []
    wanted = re.compile(pattern)
    for number, (category, name, case, method) in enumerate(suite()):
        if number % part[1] != part[0] or not wanted.search(name):
            continue
        outcome = _run(category, name, case, method)
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
    return outcomes


def _run(category: str, name: str, case: type[unittest.TestCase], method: str) -> Outcome:
    _last.clear()
    started = time.perf_counter()
    passed, reason = False, ""
    try:
        getattr(case(method), method)()
        passed = True
    except unittest.SkipTest as error:
        reason = f"skipped by the suite: {error}"
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        reason = f"{type(error).__name__}: {error}".strip()
    outcome = Outcome(name, passed, reason, time.perf_counter() - started, core=is_core(category, name))
    if _last:
        outcome.nodes = len(_last[0].graph.nodes)
        outcome.opaque = sorted({op for _, op, _ in _last[0].opaque})
    return outcome


def block_reference() -> None:
    """Make `onnx.reference` unimportable, to count what runs on our own operators alone."""

    class Blocked:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "onnx.reference" or name.startswith("onnx.reference."):
                raise ImportError(f"{name} is blocked for this run")

    for name in [n for n in sys.modules if n == "onnx.reference" or n.startswith("onnx.reference.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Blocked())  # type: ignore[arg-type]
