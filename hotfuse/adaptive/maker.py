"""Maker: has kernels built and proved for a subject: the cache is asked, then a worker process, another one if that is
lost, then, where none can be started, a thread of this one.

State: the pool, once something had to be built; digests of the weights, until they change; which builds were found in the
cache, and those of them that nobody asked for yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotfuse.adaptive.background import BACKGROUND
from hotfuse.adaptive.lineup import grouping_of
from hotfuse.adaptive.subject import Subject
from hotfuse.adaptive.target import Generic, Target
from hotfuse.config import Config
from hotfuse.errors import WorkerError
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import TensorType
from hotfuse.pace import Pace, Unhurried, imports
from hotfuse.runtime.cache import open_cache

if TYPE_CHECKING:
    from hotfuse.runtime.build import Sizes
    from hotfuse.runtime.build_request import BuildReply, ProveReply, ProveRequest
    from hotfuse.runtime.workers import Executor, Job

LARGE_BYTES = 1 << 24  # of weights: a call takes milliseconds
KNOWN, ASKED = "known", "asked"
# causes of errors: START and DIED of `runtime.child`, which is not imported before something is built
NO_PROCESS, LOST = "start", "died"

Finish = Callable[[Any], None]


def may_find(config: Config) -> bool:
    """Whether there is anything in the cache, so that looking for more is worth it."""
    cache = open_cache(config)
    return cache is not None and not cache.is_empty


def wake_early(config: Config, weights_bytes: int) -> bool:
    """Where there is nothing to find, have workers start while a large model is loaded, and say so: they are there by the time
    that it is hot, which takes a few calls, and takes nothing from the first. Small ones may never be hot."""

    def wake() -> None:
        from hotfuse.runtime.build_pool import wake_workers

        wake_workers(config)

    early = weights_bytes >= LARGE_BYTES and not may_find(config)
    if early:
        BACKGROUND.post(wake)
    return early


def get_ready() -> None:
    """Import what a large model's first kernels are made with, once it has answered and workers are on their way."""

    def import_it() -> None:
        from hotfuse.adaptive.ahead import import_between

        import_between(Unhurried(), BACKGROUND.post)

    BACKGROUND.post_after_answer(import_it)


def constant_bytes(graph: Graph) -> int:
    """Of all weights of a model."""
    types = (graph.type(name) for name in graph.constants)
    return sum(type.nbytes for type in types if isinstance(type, TensorType) and type.is_static)


class Maker:
    """Results come to `done`, in whatever thread has them; it returns at once."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._pool: Executor | None = None
        self._digests: Mapping[str, str] = {}
        self.era = 0  # how often weights changed
        self._found: dict[Target, BuildReply] = {}
        # whose builds were looked for in the cache, and are not there
        self._missed: set[Target] = set() if may_find(subject.config) else {Generic()}
        self._kept: set[Target] = set()  # whose builds an earlier process made: it may have proved them, too
        self.pace: Callable[[], Pace] = Unhurried  # of what is done here

    def forget(self) -> None:
        """The weights are others now."""
        self._digests = {}
        self.era += 1

    @property
    def queue(self) -> int:
        """Jobs that wait before the next one."""
        return 0 if self._pool is None else max(0, len(self._pool.unfinished) - self._pool.size)

    def finds(self, target: Target) -> bool:
        """Whether an earlier process made the units of a target, for all sizes."""
        with imports(self.pace()):
            from hotfuse.runtime.build_cache import cached_build
        found = cached_build(replace(self._subject.request(), grouping=grouping_of(target)), self.pace())
        if found is None:
            self._missed.add(target)
        else:
            self._found[target] = found
        return found is not None

    def build(self, target: Target, sizes: Sizes, done: Callable[[BuildReply | BaseException], None]) -> None:
        """Have the units of a target made."""
        with imports(self.pace()):  # not before something is built: who imports hotfuse need not wait for it
            from hotfuse.runtime.build_cache import cached_build
        subject = self._subject
        request = replace(subject.request(), sizes=sizes, grouping=grouping_of(target))
        found = self._found.pop(target, None)
        if found is None and target not in self._missed:
            found = cached_build(request, self.pace())
        self._missed.discard(target)
        if found is not None:
            self._kept.add(target)
            done(found)
            return

        def here() -> BuildReply:
            from hotfuse.runtime.build_work import build_here

            return build_here(request)

        with imports(self.pace()):
            from hotfuse.runtime.build_jobs import build_job
        others = min(self._open_pool().size, subject.config.workers) - 1
        label, helped = f"{subject.name}: {target}", replace(request, helpers=others)

        def begin(finish: Finish) -> None:
            self.submit(build_job(label, lambda: helped, finish, subject.config, submit=self.submit))

        _begin(begin, _or_here(done, here))

    def prove(
        self, target: Target, request: ProveRequest, sampled: bool, done: Callable[[ProveReply | BaseException], None]
    ) -> str:
        """Have units held against the original operators, and say how it goes: an earlier process did (KNOWN), a worker is
        ASKED, or nobody is, for it is not `sampled`: there are no inputs of a call in the request."""
        from hotfuse.runtime.build_cache import cached_proof, with_digests

        subject, asked = self._subject, replace(request, digests=self._digests)
        if target in self._kept:
            asked = with_digests(asked, subject.weight, self.pace())
            self._digests = asked.digests
            found = cached_proof(asked, self.pace())
            if found is not None:
                done(found)
                return KNOWN
        if not sampled:
            return ""

        def here() -> ProveReply:
            from hotfuse.runtime.build_work import prove_here

            return prove_here(asked, subject.weight)

        with imports(self.pace()):
            from hotfuse.runtime.build_jobs import prove_job
        label = f"{subject.name}: proof of {target}"

        def begin(finish: Finish) -> None:
            self.submit(prove_job(label, lambda: asked, subject.weight, finish, subject.config, part=subject.weight_part))

        _begin(begin, _or_here(done, here))
        return ASKED

    def keep(self, era: int, asked: ProveRequest, reply: ProveReply) -> Iterator[None]:
        """Put what a worker found into the cache, for weights that have these contents: they are read, some of them with each
        step. Weights that are others by now have not been proved."""
        from hotfuse.runtime.build_cache import is_lasting, keep_proof, missing_digests

        if era != self.era or not is_lasting(reply):
            return
        asked = replace(asked, digests={**self._digests, **reply.digests})
        found = dict(asked.digests)
        for read in missing_digests(asked, self._subject.weight, self.pace()):
            found |= read
            yield
            if era != self.era:
                return
        self._digests = found
        keep_proof(replace(asked, digests=found), reply, self.pace())

    def reproduce(self, target: Target, proof: ProveRequest, unit: int | None, reason: str) -> None:
        """Have what was found wrong written down, so that it can be run again."""
        from hotfuse.runtime.reproduce import ReproduceRequest, submit_reproduction

        subject = self._subject
        asked = ReproduceRequest(
            proof.build, proof.objects, proof.inputs, proof.config, unit, reason, other_sizes=proof.other_sizes
        )
        submit_reproduction(self.submit, str(target), asked, subject.weight, subject.events)

    def submit(self, job: Job) -> None:
        """Have a job done by the pool. What costs a process its life is told, and why a job has to wait."""
        from hotfuse.runtime.workers import is_death

        def finish(result: Any) -> None:
            if is_death(result):
                self._subject.events.emit("worker.died", job.label, str(result))
            job.finish(result)

        def waits(reason: str) -> None:
            self._subject.events.emit("worker.waits", job.label, reason)

        self._open_pool().submit(replace(job, finish=finish, waits=waits))

    def _open_pool(self) -> Executor:
        if self._pool is None:
            from hotfuse.runtime.build_pool import build_pool

            self._pool = build_pool(self._subject.config)
        return self._pool


def _begin(begin: Callable[[Finish], None], done: Finish) -> None:
    """Begin a job, and once more where who worked on it is lost: it may have been killed for what others did."""

    def finish(result: Any) -> None:
        if isinstance(result, WorkerError) and result.cause == LOST:
            begin(done)
        else:
            done(result)

    begin(finish)


def _or_here(done: Finish, here: Callable[[], Any]) -> Finish:
    """Hand on a result; where there is none because no process can be started, a thread makes it."""

    def work() -> None:
        try:
            done(here())
        except Exception as error:
            done(error)

    def finish(result: Any) -> None:
        if isinstance(result, WorkerError) and result.cause == NO_PROCESS:
            try:
                threading.Thread(target=work, name="hotfuse-build", daemon=True).start()
            except RuntimeError:  # nor a thread
                done(result)
        else:
            done(result)

    return finish
