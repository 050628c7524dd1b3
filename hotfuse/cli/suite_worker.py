"""A child process that runs tests of a suite, one at a time, as its parent asks.

Lines of JSON on the descriptor given: first {"tests": {name: core}}, then one outcome for each test name read from the standard
input. Whatever a test prints, and however it ends, the parent knows which test it was.

    python -m hotfuse.cli.suite_worker SUITE DESCRIPTOR WITHOUT_REFERENCE
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from hotfuse.records import dataclass


@dataclass(frozen=True)
class Suite:
    """Every test's name with whether it belongs to the suite's core, and how to run one.

    An outcome is a dataclass with at least name, passed, reason and seconds.
    """

    tests: Mapping[str, bool]
    run: Callable[[str], Any]


def open_onnx() -> Suite:
    from hotfuse.cli import onnx_suite

    return Suite(onnx_suite.tests(), onnx_suite.run_test)


def open_opinfo() -> Suite:
    from hotfuse.cli import opinfo_suite

    names = [f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name for op in opinfo_suite.entries()]
    return Suite(dict.fromkeys(names, True), lambda name: opinfo_suite.run_opinfo(f"^{re.escape(name)}$")[0])


SUITES: Mapping[str, Callable[[], Suite]] = {"onnx": open_onnx, "opinfo": open_opinfo}


def serve(suite: Suite, descriptor: int, without_reference: bool = False) -> None:
    with os.fdopen(descriptor, "w", buffering=1) as answers:
        print(json.dumps({"tests": dict(suite.tests)}), file=answers)
        if without_reference:
            from hotfuse.cli.onnx_suite import block_reference

            block_reference()
        for line in sys.stdin:
            name = line.strip()
            outcome = suite.run(name)
            data = {**dataclasses.asdict(outcome), "passed": outcome.passed, "core": suite.tests[name]}
            print(json.dumps(data, default=str), file=answers)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(SUITES[sys.argv[1]](), int(sys.argv[2]), sys.argv[3] == "1")
