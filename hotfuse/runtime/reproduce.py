"""Writing reproductions behind a model that serves: what a build worker is asked, and how it is asked (`submit_reproduction`).

    ReproduceRequest: a build, its code, the inputs of a call, a unit  ->  ReproduceReply: where it was written, or why not
                      (weights are asked back, by name)

With a unit, the worker finds out on which inputs its kernels are wrong, the call's or the same at other sizes, and cuts the
unit out at those. With none (a call was answered otherwise) it looks for one that is wrong on the call's inputs; where each is
right by itself, or the worker has died of it before and nothing may be run, the whole graph is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.codegen.tile import TileProgram
from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.events import EventLog
from hotfuse.records import dataclass
from hotfuse.runtime.build import Build, baked
from hotfuse.runtime.build_jobs import worker_job
from hotfuse.runtime.build_request import Weight
from hotfuse.runtime.driver import Driver
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.proof import prove
from hotfuse.runtime.proof_sizes import at_other_sizes, cut
from hotfuse.runtime.reproduction import CALL, UNIT, Reproduction, circumstances_of, cut_call, cut_unit
from hotfuse.runtime.reproduction_folder import ONE_BYTES, reproductions_path, write_reproduction
from hotfuse.runtime.unit_proof import Outcome, Subject, Values, prove_unit
from hotfuse.runtime.workers import Job, is_death

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class ReproduceRequest:
    """`unit` is the place of the wrong one, None if nobody knows; `reason` is what is known to be wrong. `inputs` are those of
    the call. Units that were made for the sizes of this call alone (not for `other_sizes`) are written down for these alone.
    Without `run` no kernel runs."""

    build: Build
    objects: tuple[bytes, ...]
    inputs: Mapping[str, Array]
    config: Config
    unit: int | None
    reason: str
    other_sizes: bool = True
    run: bool = True


@dataclass(frozen=True)
class ReproduceReply:
    """`path` is "" where nothing was written; `reason` says why."""

    path: str
    reason: str = ""


def reproduce_here(asked: ReproduceRequest, weight: Weight) -> ReproduceReply:
    """Write the reproduction that is asked for. Kernels run here: one that is wrong may take this process with it."""
    path = reproductions_path(asked.config)
    if path is None:
        return ReproduceReply("", "reproductions are off (HOTFUSE_REPRODUCTIONS)")
    try:
        written = write_reproduction(path, make_reproduction(asked, weight))
    except Exception as error:  # it is for those who mend kernels: nothing else may come of it
        return ReproduceReply("", f"{type(error).__name__}: {error}")
    return ReproduceReply("" if written.path is None else str(written.path), written.reason)


def make_reproduction(asked: ReproduceRequest, weight: Weight) -> Reproduction:
    build, place = asked.build, asked.unit
    if place is None and asked.run:
        place = _find_wrong(asked, weight)
    if place is None or not asked.run:
        graph, tensors = cut_call(build, asked.inputs, weight, ONE_BYTES)
        circumstances = circumstances_of(asked.config, asked.objects)
        return Reproduction(CALL, asked.reason, "", graph, build.units, tensors, circumstances)
    seen = _see(asked, place, weight)
    graph, tensors = cut_unit(build, place, seen.subject, seen.values)
    if not asked.other_sizes:
        graph = baked(graph, seen.subject.sizes)
    unit = build.units[place]
    mine = {recipe.program for recipe in unit.recipes}
    objects = [data for program, data in zip(build.programs, asked.objects, strict=True) if program in mine]
    circumstances = circumstances_of(asked.config, objects)
    reason = seen.outcome.reason or f"{asked.reason} (it did not show again while this was written)"
    return Reproduction(UNIT, reason, seen.outcome.what, graph, (unit,), tensors, circumstances)


def _find_wrong(asked: ReproduceRequest, weight: Weight) -> int | None:
    """The first unit that is wrong on the call's inputs."""
    verdicts = prove(asked.build, _kernels(asked), asked.inputs, weight, asked.config)
    return next((verdict.unit for verdict in verdicts if verdict.tried and not verdict.ok), None)


def _kernels(asked: ReproduceRequest) -> dict[TileProgram, Kernel]:
    return {program: Kernel(program, data) for program, data in zip(asked.build.programs, asked.objects, strict=True)}


@dataclass(frozen=True)
class _Seen:
    """A unit at exact sizes, the values that it was judged on, and what came of it."""

    subject: Subject
    values: Values
    outcome: Outcome


def _see(asked: ReproduceRequest, unit: int, weight: Weight) -> _Seen:
    """The unit on the first inputs that show that it is wrong; on the first of all if none do any more."""
    kernels = _kernels(asked)
    seen: list[_Seen] = []

    def look(subject: Subject, values: Values, driver: Driver, threads: int) -> Outcome:
        seen.append(_Seen(subject, dict(values), prove_unit(subject, values, driver, threads)))
        return seen[-1].outcome

    for inputs in _tried(asked):
        with contextlib.suppress(HotfuseError):  # sizes that the model itself does not take
            prove(asked.build, kernels, inputs, weight, asked.config, [unit], by=look)
        if seen and seen[-1].outcome.reason:
            return seen[-1]
    if not seen:
        raise ValueError("tier 0 cannot compute what the unit reads")
    return seen[0]


def _tried(asked: ReproduceRequest) -> Iterator[Values]:
    """The inputs that a proof on this call looks at; the whole call last, where it is large."""
    part = cut(asked.build.main, asked.inputs) if asked.other_sizes else asked.inputs
    yield part
    if asked.other_sizes:
        yield from at_other_sizes(asked.build.main, part)
    if part is not asked.inputs:
        yield asked.inputs


def submit_reproduction(
    submit: Callable[[Job], None], label: str, request: ReproduceRequest, weight: Weight, events: EventLog
) -> None:
    """Have a reproduction written behind what serves. What comes of it is an event. Where the worker dies of the kernels, the
    whole call is written and none is run. `weight` gives a weight of the graph that was built, by name; it is called by a
    worker's thread."""
    if reproductions_path(request.config) is None:
        return

    def finish(result: ReproduceReply | BaseException) -> None:
        if is_death(result) and request.run:
            submit_reproduction(submit, label, replace(request, unit=None, run=False), weight, events)
        else:
            note_reproduction(events, label, result)

    what = f"reproduction of {label}"
    submit(worker_job(what, lambda: request, ReproduceReply, finish, request.config, weight, kind="reproduce"))


def note_reproduction(events: EventLog, subject: str, result: ReproduceReply | BaseException) -> None:
    """Tell what came of a reproduction: `reproduction.written`, with its path, or `reproduction.failed`."""
    if isinstance(result, ReproduceReply) and result.path:
        reason = f"`hotfuse replay {result.path}` runs it again"
        events.emit("reproduction.written", subject, reason, path=result.path)
        return
    why = result.reason if isinstance(result, ReproduceReply) else f"{type(result).__name__}: {result}"
    events.emit("reproduction.failed", subject, why)
