"""What a suite must show: each criterion with the figure that was measured, what is wanted, and whether that is met.

  models    each of `HELD`: as fast as min(1.25x its best peer, 85 % of its roofline), none slower than its best peer; their
            geometric mean 1.25x; the small MLP through `Session.run` in 0.7 of ONNX Runtime's time; all kernels of BERT-base
            compiled in 2 CPU seconds; memory of every model no more than that of its fastest peer
  products  90 % of the measured FMA rate in the geometric mean, none under 75 %
  chains    each 85 % of the best of numpy, torch and a copy that passes the caches by
  lengths   a shape-generic build takes at most 1.10 of the time of baked ones in the median and 1.25 at any length, in
            generated code everywhere, and compiles nothing after its first length

What was run but gave no figure is not met: a failure never improves a mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hotfuse.cli.bench.contest import Result, Row
from hotfuse.cli.bench.lengths import Length
from hotfuse.cli.bench.shares import kernel_share
from hotfuse.cli.bench.timing import geometric_mean
from hotfuse.records import dataclass

HELD = ("mlp", "minilm-s16", "minilm-s128", "bert-base", "gpt2", "vit-base")
SPEEDUP, ROOFLINE_SHARE, SLOWEST = 1.25, 0.85, 1.0
SESSION_TIME = 0.7
COMPILE_CPU_S = 2.0
FMA_MEAN, FMA_LEAST = 0.90, 0.75
DISTURBED = 1.05  # nothing multiplies faster than the probe: a larger share says that the probe was held up
CHAIN_SHARE = 0.85
GENERIC_MEDIAN, GENERIC_WORST = 1.10, 1.25


@dataclass(frozen=True)
class Criterion:
    """`figure` is to be at least `wanted`, or at most; None where nothing could be measured."""

    what: str
    figure: float | None
    wanted: float
    at_least: bool = True
    unit: str = "x"
    detail: str = ""

    @property
    def met(self) -> bool:
        if self.figure is None:
            return False
        return self.figure >= self.wanted if self.at_least else self.figure <= self.wanted


def as_json(criteria: Sequence[Criterion]) -> list[dict[str, Any]]:
    return [{**asdict(c), "met": c.met} for c in criteria]


# models


def judge_models(results: Sequence[Result]) -> list[Criterion]:
    held = [r for r in results if r.model in HELD]
    found = [_speed(r) for r in held]
    speeds = {r.model: r.speedup.value for r in held if r.speedup}
    complete = bool(held) and len(speeds) == len(held)
    count = f"{len(held)} of {len(HELD)} models"
    slowest = min(speeds, key=lambda name: speeds[name], default="")
    found.append(Criterion("slowest against its best peer", speeds[slowest] if complete else None, SLOWEST, detail=slowest))
    mean = geometric_mean(list(speeds.values())) if complete else None
    found.append(Criterion("geometric mean over the best peers", mean, SPEEDUP, detail=count))
    found += [_session_time(r) for r in results if r.model == "mlp"]
    found += [_compiling(r) for r in results if r.model == "bert-base"]
    return found + [_memory(r) for r in results]


def _row(result: Result, engine: str) -> Row | None:
    return next((row for row in result.rows if row.engine == engine and row.counts), None)


def _speed(result: Result) -> Criterion:
    """min(1.25x the best peer, 85 % of the roofline), said as a speed over the best peer."""
    what = f"{result.model} against {result.best_peer or 'a peer'}"
    peer, ours = _row(result, result.best_peer), _row(result, result.ours)
    if peer is None or ours is None or peer.timing is None or result.speedup is None:
        return Criterion(what, None, SPEEDUP, detail=result.failed)
    wanted = SPEEDUP
    if result.floor_s:
        wanted = min(SPEEDUP, peer.timing.median_s / (result.floor_s / ROOFLINE_SHARE))
    share = "" if ours.roofline_share is None else f"{ours.roofline_share:.0%} of the roofline"
    return Criterion(what, result.speedup.value, wanted, detail=share)


def _session_time(result: Result) -> Criterion:
    ours, theirs = _row(result, "hotfuse-onnx"), _row(result, "onnxruntime")
    figure = ours.timing.median_s / theirs.timing.median_s if ours and theirs and ours.timing and theirs.timing else None
    return Criterion("mlp through Session.run: time over ONNX Runtime's", figure, SESSION_TIME, at_least=False)


def _compiling(result: Result) -> Criterion:
    """From a cold cache: the engines of a contest have empty ones."""
    ours = _row(result, "hotfuse-onnx")
    facts = ours.facts if ours and ours.facts.get("kernels") else {}
    figure = facts["compile_cpu_ms"] / 1e3 if facts else None
    detail = f"{facts['compiled']} compiled, {facts['kernels']} run in a call" if facts else ""
    what = "bert-base: CPU time to emit, compile and link its kernels"
    return Criterion(what, figure, COMPILE_CPU_S, at_least=False, unit="s", detail=detail)


def _memory(result: Result) -> Criterion:
    what = f"{result.model}: peak memory over {result.best_peer or 'a peer'}'s"
    peer, ours = _row(result, result.best_peer), _row(result, result.ours)
    if peer is None or ours is None or not peer.peak_bytes:
        return Criterion(what, None, 1.0, at_least=False)
    detail = f"{ours.peak_bytes / 1e6:,.0f} MB, {peer.peak_bytes / 1e6:,.0f} MB"
    return Criterion(what, ours.peak_bytes / peer.peak_bytes, 1.0, at_least=False, detail=detail)


# kernels


def judge_products(results: Sequence[Result], threads: int) -> list[Criterion]:
    shares = {r.model: kernel_share(r, is_product=True) for r in results}
    known = {name: share for name, share in shares.items() if share is not None}
    where = f"on {threads} thread{'s' * (threads > 1)}"
    mean = geometric_mean(list(known.values())) if len(known) == len(shares) else None
    least, name = _least(shares)
    count = f"{len(shares)} products"
    if max(known.values(), default=0.0) > DISTURBED:
        count += ", some faster than the FMA rate: others used the machine"
    return [
        Criterion(f"products {where}: geometric mean of the FMA rate", mean, FMA_MEAN, unit="%", detail=count),
        Criterion(f"products {where}: least of the FMA rate", least, FMA_LEAST, unit="%", detail=name),
    ]


def judge_chains(results: Sequence[Result]) -> list[Criterion]:
    sizes = dict.fromkeys(r.model.rpartition(":")[2] for r in results)
    found = []
    for size in sizes:
        shares = {r.model: kernel_share(r, is_product=False) for r in results if r.model.endswith(f":{size}")}
        least, name = _least(shares)
        what = f"chains of {size}: least of the best of numpy, torch and a copy"
        found.append(Criterion(what, least, CHAIN_SHARE, unit="%", detail=name))
    return found


def _least(shares: Mapping[str, float | None]) -> tuple[float | None, str]:
    """The least share and whose it is; None and the names where some have none."""
    missing = [name for name, share in shares.items() if share is None]
    if missing or not shares:
        return None, f"no figure for {', '.join(missing)}" if missing else ""
    share, name = min((share, name) for name, share in shares.items() if share is not None)
    return share, name


# lengths


def judge_lengths(lengths: Sequence[Length], compiled: int | None) -> list[Criterion]:
    """`compiled` is how many kernels the generic build compiled after its first length."""
    ratios = {one.length: one.ratio for one in lengths}
    known = [ratio for ratio in ratios.values() if ratio is not None]
    complete = bool(known) and len(known) == len(ratios)
    over = [one.length for one in lengths if one.ratio is not None and one.ratio > GENERIC_WORST]
    native = [one for one in lengths if one.is_native]
    others = [str(one.length) for one in lengths if not one.is_native]
    return [
        Criterion(
            "generic / baked, median of the lengths", statistics.median(known) if complete else None, GENERIC_MEDIAN,
            at_least=False, detail=f"{len(known)} of {len(ratios)} lengths",
        ),
        # the median of three is over the limit exactly if two of them are
        Criterion(
            "generic / baked, worst length by the median of its repeats", max(known) if complete else None, GENERIC_WORST,
            at_least=False, detail=f"over it in most repeats: {', '.join(map(str, over))}" if over else "",
        ),
        Criterion("kernels compiled after the first length", compiled, 0, at_least=False, unit=""),
        Criterion(
            "lengths at which both gave right answers by generated code", len(native), len(lengths), unit="",
            detail=f"not at {', '.join(others)}" if others else "",
        ),
    ]  # fmt: skip
