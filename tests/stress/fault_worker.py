"""A program that commits the faults it is sent and echoes everything else: `python -m tests.stress.fault_worker`."""

from __future__ import annotations

from hotfuse.runtime.child_main import AskBack, run
from hotfuse.runtime.faults import commit, fault_of


def answer(request: bytes, ask_back: AskBack) -> bytes:
    if fault := fault_of(request):
        commit(fault)
    return request


if __name__ == "__main__":
    run(answer, lambda greeting: None)
