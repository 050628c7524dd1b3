"""The build worker: `python -m hotfuse.runtime.build_worker`, a program of `child_main`.

    request   a BuildRequest, HelpRequest, ProveRequest, AuditRequest, ReproduceRequest, TrainRequest or TrafficRequest, as a
              parcel
    reply     its reply

It wants one core: its BLAS has one thread, and only a proof's kernels run on more, for moments.

State: none between requests but imported modules.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from hotfuse.runtime.child_main import AskBack, run

if TYPE_CHECKING:
    from hotfuse.ir.graph import Graph

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
BEGIN_S = 0.1  # from its start until its first request, where it was started for one
NO_SPINNING = {"OMP_WAIT_POLICY": "passive"}  # kernels run on all threads to be proved, and nobody is in a hurry


def main() -> None:
    os.environ.update(ONE_THREAD | NO_SPINNING)  # before numpy is imported, and so in no process but the worker's own
    run(answer, _prepare)


def answer(request: bytes, ask_back: AskBack) -> bytes:
    from hotfuse.runtime.build_jobs import ask_weights
    from hotfuse.runtime.build_request import BuildRequest, HelpRequest, ProveRequest
    from hotfuse.runtime.build_work import build_here, prove_here
    from hotfuse.runtime.faults import commit, fault_of
    from hotfuse.runtime.foundry import help_here
    from hotfuse.runtime.parcel import unwrap, wrap

    if fault := fault_of(request):
        commit(fault)
    asked = unwrap(request)
    if isinstance(asked, BuildRequest) and not asked.helpers:
        threading.Thread(target=_import_originals, args=(asked.graph,), daemon=True).start()
        return wrap(build_here(asked))
    if isinstance(asked, BuildRequest):
        built = build_here(asked, ask_back)
        threading.Thread(target=_import_originals, args=(asked.graph,), daemon=True).start()
        return wrap(built)
    if isinstance(asked, HelpRequest):
        return wrap(help_here(asked, ask_back))
    if isinstance(asked, ProveRequest):
        return wrap(prove_here(asked, ask_weights(asked.build, ask_back)))
    return _rare_answer(asked, ask_back)


def _rare_answer(asked: object, ask_back: AskBack) -> bytes:
    """To what is asked seldom: the first build does not wait for its modules."""
    from hotfuse.hardware.retrain import TrainRequest, train_here
    from hotfuse.runtime.audit import AuditRequest, audit_here
    from hotfuse.runtime.build_jobs import ask_weights
    from hotfuse.runtime.parcel import wrap
    from hotfuse.runtime.reproduce import ReproduceRequest, reproduce_here
    from hotfuse.runtime.traffic import TrafficRequest, weigh_here

    if isinstance(asked, TrainRequest):
        return wrap(train_here(asked))
    if isinstance(asked, TrafficRequest):
        return wrap(weigh_here(asked))
    if isinstance(asked, AuditRequest):
        return wrap(audit_here(asked, ask_weights(asked.graph, ask_back)))
    if isinstance(asked, ReproduceRequest):
        return wrap(reproduce_here(asked, ask_weights(asked.build, ask_back)))
    raise TypeError(f"nobody here answers a {type(asked).__name__}")


def _prepare(greeting: bytes) -> None:
    """Import what every request needs, so that a warm process answers at once."""
    from hotfuse.runtime import array_call, build_jobs, driver_ir  # noqa: F401
    from hotfuse.runtime.build_work import warm_up
    from hotfuse.runtime.memory import keep_freed

    keep_freed()
    threading.Thread(target=_make_fixed_code, daemon=True).start()
    warm_up()


def _import_originals(graph: Graph) -> None:
    """What a proof of this model would wait for, and a build needs not: LLVM leaves the interpreter free. Where several
    workers build, who have all cores between them, it comes after."""
    from hotfuse.runtime.numpy_engine import needs_scipy

    if needs_scipy(graph, in_float64=True):
        import scipy.special  # noqa: F401


def _make_fixed_code() -> None:
    """The code that belongs to no model. The process that serves finds it in the cache then, and loads no LLVM for it amid
    calls. Beside the first build: LLVM leaves the interpreter free; not while this worker is just about to begin."""
    time.sleep(BEGIN_S)
    from hotfuse.config import Config
    from hotfuse.hardware.spec import host_spec
    from hotfuse.runtime.array_call import ARRAY_CALL_IR
    from hotfuse.runtime.cache import open_cache
    from hotfuse.runtime.driver_ir import driver_ir, timed_driver_ir
    from hotfuse.runtime.objects import object_of_ir

    cache = open_cache(Config())
    for text in (driver_ir(), ARRAY_CALL_IR, timed_driver_ir()) if cache is not None else ():
        object_of_ir(text, host_spec(), cache)


if __name__ == "__main__":
    main()
