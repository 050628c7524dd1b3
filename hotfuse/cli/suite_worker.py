"""A child process that runs tests of a suite, one at a time, as its parent asks.

Lines of JSON on the descriptor given: first {"tests": {name: core}}, then one outcome for each test name read from the standard
input. Whatever a test prints, and however it ends, the parent knows which test it was.

    python -m hotfuse.cli.suite_worker SUITE DESCRIPTOR WITHOUT_REFERENCE
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Protocol, cast

SUITES = {"onnx": "hotfuse.cli.onnx_suite", "opinfo": "hotfuse.cli.opinfo_suite"}


class Suite(Protocol):
    """What a module of tests offers. An outcome is a dataclass with at least name, passed, reason, seconds and core."""

    def tests(self) -> Mapping[str, bool]:
        """Every test's name, and whether it belongs to the suite's core."""
        ...

    def run_test(self, name: str) -> Any: ...


def serve(suite: Suite, descriptor: int, without_reference: bool) -> None:
    with os.fdopen(descriptor, "w", buffering=1) as answers:
        print(json.dumps({"tests": dict(suite.tests())}), file=answers)
        if without_reference:
            from hotfuse.cli.onnx_suite import block_reference

            block_reference()
        for line in sys.stdin:
            print(json.dumps(dataclasses.asdict(suite.run_test(line.strip())), default=str), file=answers)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    module = importlib.import_module(SUITES[sys.argv[1]])
    serve(cast(Suite, module), int(sys.argv[2]), sys.argv[3] == "1")
