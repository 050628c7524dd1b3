"""The jobs of a build worker: what it is asked goes there as a parcel, and its answer comes back as one.

State: the pool of this process, made when the first job needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.ir.graph import Graph
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried
from hotfuse.runtime.build import Build
from hotfuse.runtime.build_request import Array, BuildReply, BuildRequest, ProveReply, ProveRequest, WakeUp, Weight
from hotfuse.runtime.child import Serve
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.workers import Job, Pool
from hotfuse.stress import CALM, parse

MODULE = "hotfuse.runtime.build_worker"

Reply = TypeVar("Reply")


def worker_job(
    label: str,
    request: Callable[[], Any],
    reply: type[Reply],
    finish: Callable[[Reply | BaseException], None],
    config: Config,
    weight: Weight | None = None,
    pace: Callable[[], Pace] = Unhurried,
) -> Job:
    """A job that is answered by a reply of this kind. `weight` gives a weight of the model, by name, where the worker may ask
    for one; it is called by a worker's thread."""
    return Job(
        label,
        lambda: wrap(request(), pace()),
        finish,
        config.compile_timeout_s,
        config.max_worker_bytes,
        serve=None if weight is None else serve_weights(weight),
        read=lambda body: _expected(reply, unwrap(body, pace())),
        stress=parse(config.stress),
    )


def wake_worker(config: Config) -> None:
    """Have a worker ready for what is built soon. Whether that succeeds is seen then."""
    pool = build_pool(config)
    if not pool.pids and not pool.unfinished:
        job = worker_job("wake up", WakeUp, WakeUp, lambda _: None, config)
        pool.submit(replace(job, stress=CALM))


def build_job(
    label: str,
    request: Callable[[], BuildRequest],
    finish: Callable[[BuildReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
) -> Job:
    return worker_job(label, request, BuildReply, finish, config, pace=pace)


def prove_job(
    label: str,
    request: Callable[[], ProveRequest],
    weight: Weight,
    finish: Callable[[ProveReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
) -> Job:
    return worker_job(label, request, ProveReply, finish, config, weight, pace)


def _expected(kind: type[Reply], record: Any) -> Reply:
    if not isinstance(record, kind):
        raise HotfuseError(f"a {type(record).__name__} instead of a {kind.__name__}")
    return record


def serve_weights(weight: Weight) -> Serve:
    """Answers the name of a weight with its bytes, which are not copied where they lie together."""
    return lambda name: np.ascontiguousarray(weight(name.decode())).reshape(-1).view(np.uint8).data


def ask_weights(model: Build | Graph, ask_back: Callable[[bytes], bytes]) -> Weight:
    """The other side: the weights of a model, asked for by name."""
    parts = (model,) if isinstance(model, Graph) else (model.hoisted.prepare, model.main)
    halves = [half for half in parts if half is not None]
    types = {name: half.type(name) for half in halves for name in half.weights}

    def weight(name: str) -> Array:
        type: Any = types[name]
        return np.frombuffer(ask_back(name.encode()), type.dtype.numpy).reshape(type.sizes)

    return weight


def build_pool(config: Config) -> Pool:
    """The pool that builds and proves for all models of this process, as large as the first of them had it."""
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = Pool(MODULE, config.workers, name="build worker")
        return _pool


_LOCK = make_lock()
_pool: Pool | None = None
