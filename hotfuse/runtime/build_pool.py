"""The pool of build workers: the processes that build and prove for all models of this process.

It is a module of its own so that workers can be started before anything is imported that jobs are made of: they need a moment
to be there, and whoever loads a model has one.

State: the pool of this process, made when the first job, or the first large model, needs it.
"""

from __future__ import annotations

from hotfuse.config import Config
from hotfuse.locks import make_lock
from hotfuse.runtime.workers import Job, Pool

MODULE = "hotfuse.runtime.build_worker"


def build_pool(config: Config) -> Pool:
    """The pool that builds and proves for all models of this process, as large as the first of them had it."""
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = Pool(MODULE, config.workers, name="build worker")
        return _pool


def worker_pids() -> tuple[int, ...]:
    """The processes of the pool; what they have of the cores is ours."""
    return () if _pool is None else _pool.pids


def wake_workers(config: Config, most: int = 2) -> None:
    """Have workers ready for what is built soon. Whether that succeeds is seen then. Of two the first is there to build, the
    second to prove what it built."""
    pool = build_pool(config)
    if not pool.pids and not pool.unfinished:
        for _ in range(min(pool.size, config.workers, most)):
            pool.submit(wake_job(config))


def wake_job(config: Config) -> Job:
    """Nothing to do but to be there, with all modules."""
    return Job("wake up", bytes, lambda _: None, config.compile_timeout_s, config.max_worker_bytes)


_LOCK = make_lock()
_pool: Pool | None = None
