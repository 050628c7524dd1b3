"""Builds and proofs in the disk cache: a process that finds both lowers nothing, compiles nothing and proves nothing again.

    build   known by its skeleton and all else that is asked, the machine, and the sources that it follows from
    proof   known by the build with its code, the contents of the weights, the machine, and those sources

Asking starts no process and loads no LLVM. What is not there is built and proved by the worker, which puts builds there; proofs
are put there by whoever asked, who has all weights and reads them when nobody waits. Units that were found wrong are remembered
as such, for they stay wrong; where something could not be tried nothing is remembered, for the inputs of another call may do.
Whatever was proved before, one call is shadowed before an answer is given.

State: the version of the sources, read once.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import hotfuse.ir
from hotfuse.config import Config
from hotfuse.errors import ParseError
from hotfuse.file_map import map_under
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.record_form import read_record, write_record
from hotfuse.pace import Pace, hurry
from hotfuse.passes.fold import immutable
from hotfuse.runtime.build import Build
from hotfuse.runtime.build_request import Array, BuildReply, BuildRequest, ProveReply, ProveRequest, Weight
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.calibration import known_machine
from hotfuse.runtime.objects import generator_version
from hotfuse.runtime.proof_inputs import HUGE
from hotfuse.runtime.threads import team_size

BUILD, PROOF = "build", "proof"
PIECE_BYTES = 1 << 20  # hashed in one go: half a millisecond
PIECES = 4  # after which others may have their turn
KEPT = 4  # a proof keeps weights, which it need not ask for twice then, in one of so many parts of its process's memory
# The folders that a build follows from, and those that a proof does.
_SOURCES = ("ir", "passes", "hardware", "fusion", "codegen", "runtime")

Reply = TypeVar("Reply", BuildReply, ProveReply)


def cached_build(asked: BuildRequest, pace: Pace = hurry) -> BuildReply | None:
    """The answer to a request, if it was given before."""
    return _get(BUILD, asked, BuildReply, pace)


def keep_build(asked: BuildRequest, reply: BuildReply) -> None:
    """Remember an answer, if it would be the same the next time: what failed for want of memory may not fail again."""
    if reply.build.lasting:
        _keep(BUILD, asked, replace(reply, compiled=0, cpu_s=0.0))


def cached_proof(asked: ProveRequest, pace: Pace = hurry) -> ProveReply | None:
    """The answer to a request that has digests, if it was given before."""
    return _get(PROOF, asked, ProveReply, pace)


def keep_proof(asked: ProveRequest, reply: ProveReply, pace: Pace = hurry) -> None:
    """Remember what was proved and disproved of weights that have these digests."""
    if is_lasting(reply):
        _keep(PROOF, asked, replace(reply, cpu_s=0.0, digests={}), pace)


def is_lasting(reply: ProveReply) -> bool:
    """Whether another proof of the same would say the same."""
    return reply.steady and all(verdict.tried for verdict in reply.verdicts)


def with_digests(asked: ProveRequest, weight: Weight, pace: Pace = hurry) -> ProveRequest:
    """The request with a digest of each weight. All of their bytes are read, with the interpreter let go of."""
    found = dict(asked.digests)
    for read in missing_digests(asked, weight, pace):
        found |= read
    return replace(asked, digests=found)


def missing_digests(asked: ProveRequest, weight: Weight, pace: Pace = hurry) -> Iterator[Mapping[str, str]]:
    """Of the weights that the request has none of, one after the other, and now and then nothing: whoever asks has other things
    to do. Of none where nothing is kept."""
    if _cache(asked.config) is None:
        return
    for name in weights_of(asked.build):
        if name not in asked.digests:
            found = hashlib.sha256()
            for number, piece in enumerate(_pieces(weight(name))):
                pace()
                found.update(piece)
                if number % PIECES == PIECES - 1:
                    yield {}
            yield {name: found.hexdigest()}


def weights_of(build: Build) -> tuple[str, ...]:
    """The names of the weights of the graph that was built."""
    prepared, main = build.hoisted.prepared, build.main.weights
    return tuple(dict.fromkeys((*build.hoisted.sources, *(name for name in main if name not in set(prepared)))))


def digest(array: Array) -> str:
    """Of the array's bytes."""
    found = hashlib.sha256()
    for piece in _pieces(array):
        found.update(piece)
    return found.hexdigest()


def _pieces(array: Array) -> Iterator[memoryview]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return (data[begin : begin + PIECE_BYTES] for begin in range(0, len(data), PIECE_BYTES))


class Witness:
    """Gives out the weights of a proof, and keeps the first of them: they are asked for again. State: those; the digests of all
    that were given out, where something is kept on disk; whether each is as it was before (`steady`). Of a table in a mapped
    file, most of which nobody reads, whoever has the model takes the digest when nobody waits."""

    def __init__(self, weight: Weight, asked: ProveRequest) -> None:
        self._weight, self._room = weight, asked.config.max_worker_bytes // KEPT
        self._kept: dict[str, Array] = {}
        self._before = asked.digests
        self._looks = _cache(asked.config) is not None
        self.digests: dict[str, str] = {}
        self.steady = True

    def __call__(self, name: str) -> Array:
        kept = self._kept.get(name)
        if kept is not None:
            return kept
        array = self._weight(name)
        if array.flags.writeable:  # the model's own, in its process: it may change at any time
            array = immutable(array.copy())
        is_left = array.size > HUGE and map_under(array) is not None
        if self._looks and not is_left:
            found = digest(array)
            before = self.digests.setdefault(name, self._before.get(name, found))
            self.steady = self.steady and found == before
        if array.nbytes <= self._room:
            self._room -= array.nbytes
            self._kept[name] = array
        return array


def _get(kind: str, asked: BuildRequest | ProveRequest, reply: type[Reply], pace: Pace) -> Reply | None:
    cache = _cache(asked.config)
    key = "" if cache is None else _key(asked, pace)
    data = cache.get(kind, key) if cache is not None and key else None
    try:
        return None if data is None else read_record(reply, data, pace)
    except ParseError:  # of another making than ours: the next answer takes its place
        return None


def _keep(kind: str, asked: BuildRequest | ProveRequest, reply: BuildReply | ProveReply, pace: Pace = hurry) -> None:
    cache = _cache(asked.config)
    key = "" if cache is None else _key(asked, pace)
    if cache is not None and key:
        cache.put_later(kind, key, write_record(reply, pace))


def _cache(config: Config) -> DiskCache | None:
    """None as well where programs are edited by hand: what is made of those is nobody else's."""
    return None if config.tiles else open_cache(config)


def _key(asked: BuildRequest | ProveRequest, pace: Pace = hurry) -> str:
    """All that an answer follows from, after the name of the model, which whoever lists the cache looks for. Nothing where that
    cannot be told."""
    spec = host_spec(asked.config.isa)
    facts: tuple[Any, ...]
    if isinstance(asked, BuildRequest):
        name, config = asked.graph.name, asked.config
        team = team_size(spec, config.threads)  # what the plan was made for, and by what was known of the machine
        known = "" if config.fusion == "rules" else known_machine(config.cache, spec, team).digest
        facts = (asked.graph, asked.live, asked.sizes, asked.grouping, config.fusion, config.threads, team, known)
    else:
        threads = (asked.config.threads, spec.threads)
        digests = dict(sorted(asked.digests.items()))
        name, facts = asked.build.main.name, (asked.build, asked.objects, asked.units, asked.other_sizes, threads, digests)
        if not asked.digests and weights_of(asked.build):
            return ""
    try:
        what = hashlib.sha256(write_record(facts, pace)).hexdigest()
    except TypeError:  # an attribute that has no record form
        return ""
    return "\n".join((f"{name}: {what}", version(), spec.key))


@functools.cache
def version() -> str:
    """Of all that builds and proofs follow from besides what is asked: who edits a source never meets what it made before."""
    found = hashlib.sha256()
    root = Path(hotfuse.ir.__path__[0]).parent
    for path in sorted((root / "numerics.py", *(p for folder in _SOURCES for p in (root / folder).rglob("*.py")))):
        found.update(path.read_bytes())
    return f"{generator_version()}, sources {found.hexdigest()[:16]}, numpy {np.__version__}"
