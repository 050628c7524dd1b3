"""What a build worker is asked and what it answers, and the jobs that ask it.

    BuildRequest: a skeleton                                 ->  BuildReply: recipes, and the code of each program
    ProveRequest: a build, its code, the inputs of a call    ->  ProveReply: a verdict on each unit
                  (weights are asked back, by name)

State: the pool of this process, made when the first job needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.ir.graph import Graph
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried
from hotfuse.runtime.build import Build
from hotfuse.runtime.child import Serve
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.workers import Job, Pool

if TYPE_CHECKING:
    from hotfuse.runtime.proof import UnitVerdict

Array = np.ndarray[Any, Any]
Weight = Callable[[str], Array]
MODULE = "hotfuse.runtime.build_worker"


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """`graph` is a skeleton; weights named in `live` change with every call. Of `config` the instruction set, the folder of
    edited programs and the cache matter."""

    graph: Graph
    config: Config
    live: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class BuildReply:
    """`objects` has the code of each of `build.programs`, in their order. `compiled` of them are new, the cache had the others;
    `cpu_s` is what all of it took."""

    build: Build
    objects: tuple[bytes, ...]
    compiled: int
    cpu_s: float


@dataclass(frozen=True, eq=False)
class ProveRequest:
    """`inputs` are those of a real call, by name, and nobody's but ours. `units` are the places of those to prove, None all."""

    build: Build
    objects: tuple[bytes, ...]
    inputs: Mapping[str, Array]
    config: Config
    units: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class ProveReply:
    verdicts: tuple[UnitVerdict, ...]
    cpu_s: float


def build_job(
    label: str,
    request: Callable[[], BuildRequest],
    finish: Callable[[BuildReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
) -> Job:
    return Job(
        label,
        lambda: wrap(request(), pace()),
        finish,
        config.compile_timeout_s,
        config.max_worker_bytes,
        read=lambda body: _expected(BuildReply, unwrap(body, pace())),
    )


def prove_job(
    label: str,
    request: Callable[[], ProveRequest],
    weight: Weight,
    finish: Callable[[ProveReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
) -> Job:
    """`weight` gives a weight of the graph that was built, by name; it is called by a worker's thread."""
    return Job(
        label,
        lambda: wrap(request(), pace()),
        finish,
        config.compile_timeout_s,
        config.max_worker_bytes,
        serve=serve_weights(weight),
        read=lambda body: _expected(ProveReply, unwrap(body, pace())),
    )


def _expected(kind: type, record: Any) -> Any:
    if not isinstance(record, kind):
        raise HotfuseError(f"a {type(record).__name__} instead of a {kind.__name__}")
    return record


def serve_weights(weight: Weight) -> Serve:
    """Answers the name of a weight with its bytes, which are not copied where they lie together."""
    return lambda name: np.ascontiguousarray(weight(name.decode())).reshape(-1).view(np.uint8).data


def ask_weights(build: Build, ask_back: Callable[[bytes], bytes]) -> Weight:
    """The other side: the weights of a build, asked for by name."""
    halves = [half for half in (build.hoisted.prepare, build.main) if half is not None]
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
