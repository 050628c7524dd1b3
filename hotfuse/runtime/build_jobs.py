"""The jobs of a build worker: what it is asked goes there as a parcel, and its answer comes back as one.

State: none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.file_map import FilePart
from hotfuse.ir.graph import Graph
from hotfuse.pace import Pace, Unhurried
from hotfuse.passes.fold import immutable
from hotfuse.right_of_way import RIGHT_OF_WAY
from hotfuse.runtime.build import Build
from hotfuse.runtime.build_request import (
    Array,
    BuildReply,
    BuildRequest,
    HelpReply,
    HelpRequest,
    ProveReply,
    ProveRequest,
    Weight,
)
from hotfuse.runtime.child import Serve
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.pile import Pile
from hotfuse.runtime.proof_inputs import HUGE
from hotfuse.runtime.scheduler import Kind
from hotfuse.runtime.workers import Job
from hotfuse.stress import parse

Reply = TypeVar("Reply")


def worker_job(
    label: str,
    request: Callable[[], Any],
    reply: type[Reply],
    finish: Callable[[Reply | BaseException], None],
    config: Config,
    weight: Weight | None = None,
    pace: Callable[[], Pace] = Unhurried,
    kind: Kind = "build",
    part: Callable[[str], FilePart | None] | None = None,
) -> Job:
    """A job that is answered by a reply of this class. `weight` gives a weight of the model, by name, where the worker may ask
    for one, and `part` says in which file it is, if it is in one; both are called by a worker's thread."""
    return Job(
        label,
        lambda: wrap(request(), pace()),
        finish,
        config.compile_timeout_s,
        config.max_worker_bytes,
        serve=None if weight is None else serve_weights(weight),
        where=None if part is None else lambda name: part(name.decode()),
        read=lambda body: _expected(reply, unwrap(body, pace())),
        stress=parse(config.stress),
        kind=kind,
    )


def build_job(
    label: str,
    request: Callable[[], BuildRequest],
    finish: Callable[[BuildReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
    submit: Callable[[Job], None] | None = None,
) -> Job:
    """A job that builds. With `submit`, as many others as the request says help it: they are jobs of their own. Behind calls
    without a pause nobody does: the pauses that they make are short, and a process would have to be started in them."""
    if submit is None:
        return worker_job(label, request, BuildReply, finish, config, pace=pace)
    pile = _pile(label, config, submit, lambda: request().helpers)

    def end(result: BuildReply | BaseException) -> None:
        pile.close()
        finish(result)

    return replace(worker_job(label, request, BuildReply, end, config, pace=pace), serve=pile.serve)


def with_help(label: str, config: Config, submit: Callable[[Job], None]) -> AskBack:
    """For a foundry of this process: as many workers as there may be make code beside it."""
    return _pile(label, config, submit, lambda: config.workers).serve


def _pile(label: str, config: Config, submit: Callable[[Job], None], helpers: Callable[[], int]) -> Pile:
    numbers = itertools.count()

    def ask_others(pile: Pile, most: int) -> None:
        for number in itertools.islice(numbers, 0 if RIGHT_OF_WAY.crowded else min(most, helpers())):
            submit(_help_job(f"help with {label}", pile, number, config))

    return Pile(ask_others)


def _help_job(label: str, pile: Pile, number: int, config: Config) -> Job:
    def request() -> HelpRequest:
        pile.check()
        return HelpRequest(config)

    job = worker_job(label, request, HelpReply, lambda result: pile.left(number), config, kind="help")
    return replace(job, serve=pile.helper(number))


def prove_job(
    label: str,
    request: Callable[[], ProveRequest],
    weight: Weight,
    finish: Callable[[ProveReply | BaseException], None],
    config: Config,
    pace: Callable[[], Pace] = Unhurried,
    part: Callable[[str], FilePart | None] | None = None,
) -> Job:
    return worker_job(label, request, ProveReply, finish, config, weight, pace, "prove", part)


def _expected(kind: type[Reply], record: Any) -> Reply:
    if not isinstance(record, kind):
        raise HotfuseError(f"a {type(record).__name__} instead of a {kind.__name__}")
    return record


def serve_weights(weight: Weight) -> Serve:
    """Answers the name of a weight with its bytes, which are not copied where they lie together."""
    return lambda name: np.ascontiguousarray(weight(name.decode())).reshape(-1).view(np.uint8).data


def ask_weights(model: Build | Graph, ask_back: AskBack) -> Weight:
    """The other side: the weights of a model, asked for by name. What is not aligned is copied here, once, but for tables."""
    parts = (model,) if isinstance(model, Graph) else (model.hoisted.prepare, model.main)
    halves = [half for half in parts if half is not None]
    types = {name: half.type(name) for half in halves for name in half.weights}

    def weight(name: str) -> Array:
        type: Any = types[name]
        array = np.frombuffer(ask_back(name.encode()), type.dtype.numpy).reshape(type.sizes)
        return array if array.flags.aligned or array.size > HUGE else immutable(array.copy())

    return weight
