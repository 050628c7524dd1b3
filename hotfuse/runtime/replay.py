"""Replay: a reproduction judged again, in several ways, by the rules that a proof goes by.

    interpreted   the saved programs, by the letter (`codegen/interpret`)
    compiled      the saved programs, compiled now
    today         the graph, lowered and compiled by today's generator
    together      the whole graph on its compiled kernels, against tier 0; of reproductions of whole calls

Which ways find it wrong tells where the fault is (`meaning`). This runs native code that may be wrong: it belongs into a
process that can be lost (`replay_worker`).

State: the code that was compiled last.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from hotfuse.codegen.interpret import evaluate, poison, run
from hotfuse.codegen.tile import TileProgram
from hotfuse.codegen.tile_text import print_program
from hotfuse.config import Config
from hotfuse.errors import BadIndex, CodegenError, DimError, ExecutionError, InputError, TileError
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.ir.dim import evaluate as number_of
from hotfuse.ir.graph import Constant
from hotfuse.ir.plan import trivial_plan
from hotfuse.numerics import alike
from hotfuse.passes.hoist import Hoisted
from hotfuse.records import dataclass
from hotfuse.runtime.build import Build, attached
from hotfuse.runtime.building import build_hoisted
from hotfuse.runtime.driver import Driver
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.kernels import Kernel
from hotfuse.runtime.native import build_executor
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.objects import object_of
from hotfuse.runtime.proof import prove
from hotfuse.runtime.reproduction import CALL, Reproduction
from hotfuse.runtime.unit_proof import Outcome, Run, Subject, Values, natively, prove_runs, values_on
from hotfuse.runtime.wrong_place import WrongPlace, find_wrong

INTERPRETED, COMPILED, TODAY, TOGETHER = "interpreted", "compiled", "today", "together"
RIGHT, WRONG, UNJUDGED = "right", "wrong", "not judged"


@dataclass(frozen=True)
class Finding:
    """Of one unit, judged in one way. `same`: the code, or the program, is the one that was saved; None where nobody knows.
    `reads` are the values that it was found wrong on, by name."""

    way: str
    unit: str
    verdict: str
    reason: str = ""
    what: str = ""
    place: WrongPlace | None = None
    same: bool | None = None
    reads: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class ReplayRequest:
    """`units` are the places of those to judge, None all."""

    reproduction: Reproduction
    way: str
    config: Config
    units: tuple[int, ...] | None = None


def ways_of(reproduction: Reproduction) -> tuple[str, ...]:
    return (INTERPRETED, COMPILED, TODAY, *((TOGETHER,) if reproduction.kind == CALL else ()))


def texts_of(programs: Sequence[TileProgram]) -> set[str]:
    """Programs as texts: one with NaN in it is not equal to its own copy."""
    return set(map(print_program, programs))


def replay_here(asked: ReplayRequest) -> tuple[Finding, ...]:
    """What one way says of a reproduction. Its kernels run here."""
    try:
        return _WAYS[asked.way](asked)
    except (CodegenError, TileError, DimError, InputError) as error:
        return (Finding(asked.way, "", UNJUDGED, f"{error}"),)


def _interpreted(asked: ReplayRequest) -> tuple[Finding, ...]:
    build, seed = asked.reproduction.build, asked.reproduction.circumstances.seed
    nothing = cast(Mapping[TileProgram, Kernel], dict.fromkeys(build.programs))  # no code is run
    return _judge(asked, build, nothing, lambda subject, driver, threads: (
        lambda reads: interpret_unit(subject, reads, seed),
        lambda reads: interpret_unit(subject, reads, seed + 1),
    ))  # fmt: skip


def _compiled(asked: ReplayRequest) -> tuple[Finding, ...]:
    reproduction = asked.reproduction
    code = _compile(reproduction.programs, asked.config)
    then = reproduction.circumstances.objects
    now = tuple(hashlib.sha256(data).hexdigest() for data in code.values())
    kernels = {program: Kernel(program, data) for program, data in code.items()}
    found = _judge(asked, reproduction.build, kernels, natively)
    return tuple(replace(each, same=then == now if then else None) for each in found)


def _today(asked: ReplayRequest) -> tuple[Finding, ...]:
    reproduction, kernels = asked.reproduction, dict[TileProgram, Kernel]()
    spec = host_spec(asked.config.isa)

    def make(program: TileProgram) -> None:
        if program not in kernels:
            kernels[program] = Kernel(program, _code_of(program, spec))

    ruled = replace(asked.config, fusion="rules")  # what the engine makes of a part depends on what was around it
    build = build_hoisted(Hoisted(reproduction.graph), spec, ruled, make)
    if not build.units:
        why = "; ".join(dict.fromkeys(build.reasons.values())) or "nothing of it is for native code"
        return (Finding(TODAY, "", UNJUDGED, f"today's generator makes no kernel of it: {why}"),)
    same = texts_of(reproduction.programs) == texts_of(build.programs)
    found = _judge(replace(asked, units=None), build, kernels, natively)
    return tuple(replace(each, same=same) for each in found)


def _together(asked: ReplayRequest) -> tuple[Finding, ...]:
    reproduction = asked.reproduction
    build = reproduction.build
    kernels = {program: Kernel(program, data) for program, data in _compile(build.programs, asked.config).items()}
    constants = {name: Constant.of(reproduction.tensors[name]) for name in reproduction.graph.weights}
    graph = attached(build.hoisted, {**reproduction.graph.constants, **constants})
    inputs = [reproduction.tensors[name] for name in graph.inputs]
    own = Executor(trivial_plan(graph), NUMPY, asked.config).run(inputs)
    try:
        found = build_executor(graph, build, kernels, NUMPY, asked.config).run(inputs)
    except BadIndex as error:
        return (Finding(TOGETHER, "all of it", WRONG, str(error)),)
    for name, ours, original in zip(graph.outputs, found, own, strict=True):
        verdict = alike(np.asarray(ours), np.asarray(original))
        if not verdict:
            return (Finding(TOGETHER, "all of it", WRONG, verdict.reason, f"{name} as a whole"),)
    return (Finding(TOGETHER, "all of it", RIGHT, what=", ".join(graph.outputs)),)


_WAYS = {INTERPRETED: _interpreted, COMPILED: _compiled, TODAY: _today, TOGETHER: _together}


def _compile(programs: Sequence[TileProgram], config: Config) -> dict[TileProgram, bytes]:
    """The code of programs, made by this process: what lies in the cache may be what is wrong."""
    return {program: _code_of(program, host_spec(config.isa)) for program in programs}


@functools.lru_cache(maxsize=64)  # one fault is run on many values while it is shrunk
def _code_of(program: TileProgram, spec: Spec) -> bytes:
    return object_of(program, spec, None)[0]


def interpret_unit(subject: Subject, reads: Values, seed: int) -> Outcome:
    """A unit's programs run by the letter, tasks in an order that follows from a seed."""
    memory = {name: np.array(array).reshape(-1) for name, array in reads.items()}
    for name in subject.writes:
        type = subject.types[name]
        memory[name] = poison(type.dtype, int(np.prod(type.sizes)))
    for part in subject.parts:
        program, recipe = part.recipe.program, part.recipe
        sizes = {name: number_of(dim, subject.sizes) for name, dim in zip(program.sizes, recipe.sizes, strict=True)}
        given = dict(zip((b.name for b in program.arguments), recipe.arguments, strict=True))
        short = next((b for b in program.arguments if evaluate(b.size, sizes) != memory[given[b.name]].size), None)
        if short is not None:
            return Outcome(reason=f"{short.name} of {program.name} has another size than {given[short.name]}")
        try:
            status = run(program, {buffer: memory[name] for buffer, name in given.items()}, sizes, seed)
        except (ExecutionError, DimError) as error:
            return Outcome(reason=str(error), what=", ".join(recipe.writes))
        if status:
            return Outcome(reason="an index lies outside of the tensor that it indexes", what=", ".join(recipe.writes))
    return Outcome({name: memory[name].reshape(subject.types[name].sizes) for name in subject.writes})


def _judge(asked: ReplayRequest, build: Build, kernels: Mapping[TileProgram, Kernel], runs: Any) -> tuple[Finding, ...]:
    """A finding on each unit of a build, on the values of the reproduction."""
    reproduction = asked.reproduction
    seen: dict[str, tuple[WrongPlace | None, Values]] = {}

    def by(subject: Subject, values: Values, driver: Driver, threads: int) -> Outcome:
        watched = _Watched(*runs(subject, driver, threads))
        outcome = prove_runs(subject, values, watched.run, watched.run_otherwise)
        if outcome.reason:
            reads, results = watched.last
            place = find_wrong(subject, results, values_on(subject, values, reads)) if results else None
            seen[subject.nodes[-1].id] = place, reads
        return outcome

    weight = reproduction.tensors.__getitem__
    found = []
    for verdict in prove(build, kernels, reproduction.inputs, weight, asked.config, asked.units, by=by):
        name = build.units[verdict.unit].name
        place, reads = seen.get(name, (None, {}))
        said = RIGHT if verdict.ok else WRONG if verdict.tried else UNJUDGED
        found.append(Finding(asked.way, name, said, verdict.reason, verdict.what, place, reads=reads))
    return tuple(found)


class _Watched:
    """Two ways to run a unit. State: what the last run read, and its results."""

    def __init__(self, run: Run, otherwise: Run) -> None:
        self._run, self._otherwise = run, otherwise
        self.last: tuple[Values, Values] = {}, {}

    def run(self, reads: Values) -> Outcome:
        return self._note(reads, self._run(reads))

    def run_otherwise(self, reads: Values) -> Outcome:
        return self._note(reads, self._otherwise(reads))

    def _note(self, reads: Values, outcome: Outcome) -> Outcome:
        self.last = reads, outcome.results
        return outcome


# what it means


def reproduces(findings: Sequence[Finding]) -> bool:
    return any(finding.verdict == WRONG for finding in findings)


def meaning(findings: Sequence[Finding]) -> str:
    """Where the fault is, in a sentence."""
    wrong = {finding.way for finding in findings if finding.verdict == WRONG}
    judged = {finding.way for finding in findings if finding.verdict != UNJUDGED}
    same = all(finding.same for finding in findings if finding.way == TODAY)
    if TODAY in judged and {INTERPRETED, COMPILED} <= judged and not wrong:
        return _nothing_wrong(findings)
    if wrong == {TOGETHER}:
        return "each unit is right by itself and the whole is not: the fault is in how kernels are put together (runtime)"
    if COMPILED in wrong and INTERPRETED in judged - wrong:
        return "the saved program is right and its code is wrong: the fault is in emitting it (codegen/llvm_cpu), or LLVM's"
    if INTERPRETED in wrong and COMPILED in judged - wrong:
        return "the code is right on these values and the program is not, by the letter: it reads or writes what it must not"
    if {INTERPRETED, COMPILED} & wrong and TODAY in judged - wrong:
        return "the saved program is wrong; today's generator makes another one that is right"
    if {INTERPRETED, COMPILED} & wrong and TODAY in wrong:
        return f"the saved program is wrong, and today's generator makes {'the same' if same else 'another one that is wrong'}"
    if {INTERPRETED, COMPILED} & wrong:
        return "the saved program is wrong, and nothing is known of what today's generator makes"
    if TODAY in wrong:
        return "the saved program is right, and today's generator makes another one that is wrong"
    return "nothing wrong was found, and not all of it could be judged"


def _nothing_wrong(findings: Sequence[Finding]) -> str:
    if any(finding.way == COMPILED and finding.same is False for finding in findings):
        return "nothing is wrong any more; the code that was is not what the saved program compiles to now"
    return "nothing is wrong any more"
