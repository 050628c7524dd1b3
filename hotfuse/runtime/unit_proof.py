"""The proof of one unit: its kernels, run between guard bands, against the operators that they stand for.

They run twice on what tier 0 computed for what they read: on one thread, then on all, amid other bytes. Inputs must
stay as they are, bands whole, and both runs must give the same bits, so that an element nobody wrote, or one that was computed
from memory beside the inputs, shows. Then each result is held to its rule (`unit_rule`).

Then the unit runs on other inputs, made from these (`proof_inputs`), and tier 0 computes its nodes from the same.

A result that breaks the rule gets a second look, at what is no fault of a kernel's:
  - where rounding decides (`exact`), the side that the kernel took is as good as tier 0's;
  - the mean of a short row is luck: the rule then holds over the same place of many runs, on inputs that differ a little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from hotfuse.errors import BadIndex
from hotfuse.ir.graph import Node
from hotfuse.ir.types import TensorType
from hotfuse.numerics import GOOD, Verdict
from hotfuse.records import dataclass
from hotfuse.runtime.driver import Driver
from hotfuse.runtime.exact import exact_values, has_branches, run_nodes
from hotfuse.runtime.guard_bands import LARGE_BYTES, NAN_BYTES, Bands, Copies
from hotfuse.runtime.memory import parts_in_memory
from hotfuse.runtime.numpy_engine import NUMPY
from hotfuse.runtime.proof_inputs import is_lossy, other_inputs, remade, stirred
from hotfuse.runtime.segment import Segment
from hotfuse.runtime.tables import Part
from hotfuse.runtime.unit_rule import BITS, Rule, judge, rule_of

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]
SIDES = 32  # runs in which decisions are made on operands that are a little off
SHORT = 16  # elements of a row, or runs in place of them


@dataclass(frozen=True)
class Subject:
    """A unit at exact sizes: `nodes` with exact attributes, the `views` between what kernels read and what nodes read. `again`:
    the same code at the same sizes ran on other inputs already: on the real ones is enough. `elsewhere`: it ran on the real
    ones at other sizes: on others made from them is enough, where one run tells as much as many. `rows` are those of tables
    that are there, by name: the others are zeros."""

    nodes: tuple[Node, ...]
    views: tuple[Node, ...]
    parts: tuple[Part, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    types: Mapping[str, TensorType]
    sizes: Mapping[str, int]
    again: bool = False
    elsewhere: bool = False
    rows: Mapping[str, Array] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, ...]:
        """What nodes read that none of them makes."""
        inside = {name for node in self.nodes for name in node.outputs}
        return tuple(dict.fromkeys(n for node in self.nodes for n in node.uses if n not in inside))

    @property
    def needs(self) -> tuple[str, ...]:
        """The values that a proof looks at."""
        inner = [n for node in (*self.views, *self.nodes) for n in (*node.uses, *node.outputs)]
        return tuple(dict.fromkeys((*self.reads, *self.writes, *inner)))


@dataclass(frozen=True)
class Outcome:
    """What a run of kernels left, or what it did that it must not."""

    results: Values = field(default_factory=dict)
    reason: str = ""
    what: str = ""
    seconds: float = 0.0


Run = Callable[[Values], Outcome]  # a unit's programs, run on contiguous values for what they read


def prove_unit(subject: Subject, values: Values, driver: Driver, threads: int) -> Outcome:
    """Whether a unit's kernels are right on these values. Time is that of the faster run."""
    return prove_runs(subject, values, *natively(subject, driver, threads))


def natively(subject: Subject, driver: Driver, threads: int) -> tuple[Run, Run]:
    """Two ways to run a unit's kernels: on one thread and on all, between other bytes."""
    copies: Copies = {}
    return (
        lambda reads: run_kernels(subject, reads, driver, 1, NAN_BYTES, copies),
        lambda reads: run_kernels(subject, reads, driver, threads, LARGE_BYTES, copies),
    )


def prove_runs(subject: Subject, values: Values, run: Run, run_otherwise: Run) -> Outcome:
    """The same for any two ways to run a unit's programs."""
    reads = {name: NUMPY.contiguous(values[name]) for name in subject.reads}
    ops = {node.op for node in subject.nodes}
    others = iter(() if subject.again else other_inputs(reads, ops, subject.rows))
    if subject.elsewhere and not is_lossy(ops):
        reads = {**next(others, reads)}
        values = values_on(subject, values, reads)
    one = run(reads)
    if one.reason:
        return one
    all_ = run_otherwise(reads)
    if all_.reason:
        return all_
    seconds = min(one.seconds, all_.seconds)
    for name in subject.writes:
        if not same_bytes(one.results[name], all_.results[name]):
            reason = "two runs differ: an element is not written, or depends on threads, or on memory beside the inputs"
            return Outcome(reason=reason, what=name, seconds=seconds)
    what, verdict = judge_results(subject, one.results, values, run)
    for other in others:
        if verdict:
            found, made = _run_on(subject, values, other, run)
            verdict = Verdict(False, found.reason) if found.reason else judge_results(subject, found.results, made, run)[1]
    return Outcome(one.results, verdict.reason, what, seconds)


def _run_on(subject: Subject, values: Values, reads: Values, run: Run) -> tuple[Outcome, Values]:
    """A run on other contiguous values for what kernels read, and the values that tier 0 computes from those."""
    return run(reads), values_on(subject, values, reads)


def values_on(subject: Subject, values: Values, reads: Values) -> Values:
    """What tier 0 computes where the kernels would read other values."""
    fixed = {name: values[name] for name in subject.needs}
    return run_nodes((*subject.views, *subject.nodes), {**fixed, **reads})


def run_kernels(
    subject: Subject, reads: Values, driver: Driver, threads: int, byte: int, copies: Copies | None = None
) -> Outcome:
    """One run on contiguous values, and on the `copies` that the run before made of them."""
    kept = {} if copies is None else copies
    for gone in kept.keys() - {id(array) for array in reads.values()}:
        del kept[gone]
    bands = Bands(byte, kept)
    segment = Segment(subject.parts, subject.reads, subject.writes, {}, subject.types, subject.sizes, bands, driver, threads)
    segment.soil(byte)
    given = {name: bands.copy(reads[name], subject.rows.get(name)) for name in subject.reads}
    begun = time.perf_counter()
    try:
        found = segment.run(list(given.values()))
    except BadIndex as error:
        return Outcome(reason=str(error), what=", ".join(subject.writes))
    seconds = time.perf_counter() - begun
    results = dict(zip(subject.writes, found, strict=True))
    for name, array in (*given.items(), *results.items()):
        damage = bands.damage(array)
        if not damage and name in given and _is_changed(array, reads[name], name in subject.rows):
            damage = "it is an input, and was changed"
        if damage:
            return Outcome(reason=damage, what=name, seconds=seconds)
    return Outcome(results, seconds=seconds)


def _is_changed(copy: Array, original: Array, is_empty: bool) -> bool:
    """Whether somebody wrote to a copy. Most of a table is empty, and stays so where nobody touches it."""
    if not is_empty:
        return not same_bytes(copy, original)
    first, second = (x.reshape(-1).view(np.uint8) for x in (copy, original))
    return not all(np.array_equal(first[part], second[part]) for part in parts_in_memory(copy))


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two contiguous arrays of one type have the same bytes."""
    first, second = (x.reshape(-1).view(np.uint8) for x in (a, b))
    whole = first.size // 8 * 8
    return np.array_equal(first[:whole].view(np.int64), second[:whole].view(np.int64)) and np.array_equal(
        first[whole:], second[whole:]
    )


def judge_results(subject: Subject, results: Values, values: Values, run: Run) -> tuple[str, Verdict]:
    """Each result by its rule: what was looked at and which rule it is held to, and the first verdict that is not good."""
    given = {name: values[name] for name in subject.given}
    exact: Values | None = None
    looked = []
    for name in subject.writes:
        ours, original = results[name], np.asarray(values[name])
        rule = rule_of(subject.nodes, values, name)
        looked.append(f"{name} by {rule}")
        if rule != BITS and exact is None:
            exact = exact_values(subject.nodes, given, values)
        truth = original if exact is None else exact[name]
        verdict = judge(rule, ours, original, truth)
        if not verdict and has_branches(subject.nodes, values):
            verdict = judge(rule, ours, *_nearest_sides(subject, ours, original, truth, name, values))
        if not verdict and rule.ulp is None and (ours.shape or (1,))[-1] < SHORT:
            verdict = _over_many_runs(subject, name, rule, values, run)
        if not verdict:
            return looked[-1], verdict
    return ", ".join(looked), GOOD


def _nearest_sides(
    subject: Subject, ours: Array, original: Array, exact: Array, name: str, values: Values
) -> tuple[Array, Array]:
    """Tier 0's result and the exact one, each element on the side of a branch point that ours is on."""
    given = {n: values[n] for n in subject.given}
    with np.errstate(all="ignore"):
        for seed in range(SIDES):
            other = exact_values(subject.nodes, given, values, np.random.default_rng(seed))[name]
            nearer = np.abs(_wide(other) - _wide(ours)) < np.abs(_wide(exact) - _wide(ours))
            exact, original = np.where(nearer, other, exact), np.where(nearer, other.astype(original.dtype), original)
    return original, exact


def _over_many_runs(subject: Subject, name: str, rule: Rule, values: Values, run: Run) -> Verdict:
    """The float64 rule over as many runs as a row of fair length has elements, for each place of the result."""
    reads = {n: NUMPY.contiguous(values[n]) for n in subject.reads}
    columns: list[tuple[Array, Array, Array]] = []
    for seed in range(SHORT):
        rng = np.random.default_rng(seed)
        found, original = _run_on(subject, values, _stirred(reads, rng, subject.rows), run)
        if found.reason:
            return Verdict(False, found.reason)
        exact = exact_values(subject.nodes, {n: original[n] for n in subject.given}, original)
        columns.append((found.results[name], original[name], exact[name]))
    return judge(rule, *(np.stack(column, -1) for column in zip(*columns, strict=True)))


def _stirred(reads: Values, rng: np.random.Generator, rows: Values) -> Values:
    return {name: remade(array, lambda x: stirred(x, rng), rows.get(name)) for name, array in reads.items()}


def _wide(array: Array) -> Array:
    return array.astype(np.float64)
