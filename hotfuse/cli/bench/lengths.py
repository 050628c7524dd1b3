"""One shape-generic build over many lengths, against a build baked for each.

The generic build is opened once, by one process that serves every length. A baked build has a process of its own for each
length and each repeat. At each length the two take turns as in any contest, and both answers are checked against float64.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from hotfuse.cli.bench.contest import Result, Row, Rules, Say, as_json, compete
from hotfuse.cli.bench.engines import cold_caches, thread_environment
from hotfuse.cli.bench.rounds import Entrant, Failed, Player
from hotfuse.cli.bench.subject import read_subject
from hotfuse.cli.bench.timing import Ratio, ratio_of
from hotfuse.records import dataclass

GENERIC, BAKED = "hotfuse-generic", "hotfuse-onnx"
MODEL, QUICK_MODEL = "minilm", "bert-tiny"
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 127, 128, 197, 256, 300, 384, 512)
QUICK_LENGTHS = (1, 17, 64)
REPEATS = 3  # of all lengths, one after the other; a length is too slow if it is so in two of them
QUICK_REPEATS = 1


@dataclass(frozen=True)
class Length:
    """What happened at one length: a result with the rows of both builds for each repeat."""

    length: int
    results: tuple[Result, ...]

    @cached_property
    def ratios(self) -> tuple[Ratio | None, ...]:
        """The time of the generic build over the baked one's in each repeat; None where one gave no right answer."""
        return tuple(_ratio(result) for result in self.results)

    @property
    def ratio(self) -> float | None:
        """The median of the repeats."""
        known = [ratio.value for ratio in self.ratios if ratio is not None]
        return statistics.median(known) if known and len(known) == len(self.ratios) else None

    @property
    def is_native(self) -> bool:
        """Whether generated code gave every answer of both builds, and all were right."""
        rows = [_row(result, engine) for result in self.results for engine in (GENERIC, BAKED)]
        return bool(rows) and all(row and row.counts and row.facts.get("kernels") and not row.facts["missed"] for row in rows)

    def median_s(self, engine: str) -> float | None:
        times = [row.timing.median_s for result in self.results if (row := _row(result, engine)) and row.timing]
        return statistics.median(times) if times else None


def _row(result: Result, engine: str) -> Row | None:
    return next((row for row in result.rows if row.engine == engine), None)


def _ratio(result: Result) -> Ratio | None:
    generic, baked = _row(result, GENERIC), _row(result, BAKED)
    if not (generic and baked and generic.counts and baked.counts and generic.timing and baked.timing):
        return None
    return ratio_of(generic.timing.round_medians_s, baked.timing.round_medians_s)


def compiled_later(lengths: Sequence[Length]) -> int | None:
    """Kernels that the generic build's process compiled after all calls of its first length; None where it does not say."""
    rows = [_row(result, GENERIC) for one in lengths for result in one.results]
    counts = [row.facts["compiled"] for row in rows if row and "compiled" in row.facts]
    return counts[-1] - counts[0] if counts and len(counts) == len(rows) else None  # one process, which never counts down


def hold_lengths(model: str, lengths: Sequence[int], repeats: int, rules: Rules, say: Say) -> list[Length]:
    """Run every length, then all of them again for the next repeat. Whatever a build does becomes a row."""
    with tempfile.TemporaryDirectory(prefix="hotfuse-bench-") as place:
        folder = Path(place)
        environment = thread_environment(rules.settings.threads)
        say("building the model and its float64 answers")
        maker = Player({**environment, **cold_caches(place)})
        try:
            maker.ask(rules.limit_s, do="lengths", model=model, lengths=list(lengths), folder=str(folder / "lengths"))
        except Failed as failed:
            return [Length(lengths[0], (Result(model, (), failed=str(failed)),))]
        finally:
            maker.close()
        found: dict[int, list[Result]] = {length: [] for length in lengths}
        generic = Entrant(GENERIC, Player({**environment, **cold_caches(f"{place}/generic")}))
        try:
            for repeat in range(repeats):
                for length in lengths:
                    # a generic build that failed stays out: nobody opens it a second time
                    generic = Entrant(GENERIC, generic.player, generic.failed)
                    baked = Entrant(BAKED, Player({**environment, **cold_caches(f"{place}/{repeat}-{length}")}))
                    answers = folder / f"answers-{repeat}-{length}"
                    answers.mkdir()
                    try:
                        subject = read_subject(folder / "lengths" / str(length))
                        found[length].append(compete(subject, (generic, baked), rules, answers, _at(say, length, repeat)))
                    finally:
                        baked.close()
        finally:
            generic.close()
    return [Length(length, tuple(results)) for length, results in found.items()]


def _at(say: Say, length: int, repeat: int) -> Say:
    return lambda text: say(f"length {length}, repeat {repeat + 1}, {text}")


def lengths_json(lengths: Sequence[Length]) -> list[dict[str, Any]]:
    return [
        {
            "length": one.length,
            "ratio": one.ratio,
            "ratios": [asdict(ratio) if ratio else None for ratio in one.ratios],
            "results": [as_json(result) for result in one.results],
        }
        for one in lengths
    ]
