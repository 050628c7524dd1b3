"""What a person sees of a contest: a table, bars, and what was not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hotfuse.cli.bench.contest import Result, Row, overall
from hotfuse.cli.bench.criteria import Criterion
from hotfuse.cli.bench.lengths import BAKED, GENERIC, Length
from hotfuse.cli.bench.shares import kernel_rates, kernel_share
from hotfuse.cli.bench.timing import LEAST_ROUNDS
from hotfuse.cli.view import make_table, show_quantity

COLUMNS = (
    "engine", ">median", ">spread", ">p99", ">min", ">first call", ">compile", ">memory", ">of roofline", ">hotfuse is",
    "answer",
)  # fmt: skip
BAR = 40


def show_time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    return ""


def show_contest(console: Console, result: Result) -> None:
    console.print()
    if result.failed:
        console.print(f"{result.model}: {result.failed}", markup=False)
        return
    console.print(make_table(result.model, COLUMNS, [_cells(row, result) for row in result.rows]))
    for (word, reason), engines in _grouped(result).items():
        console.print(f"  {', '.join(engines)} {word}: {reason}", markup=False)
    for row in result.rows:
        if row.notes:
            console.print(f"  {row.engine}: {row.notes}", markup=False)
    console.print(_roofline(result), markup=False)
    console.print(_claim(result), markup=False)
    show_bars(console, result)


def _grouped(result: Result) -> dict[tuple[str, str], list[str]]:
    """Engines that are not right, by what happened to them."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        if row.reason:
            found.setdefault((_word(row), row.reason), []).append(row.engine)
    return found


def _cells(row: Row, result: Result) -> Sequence[str]:
    timing = row.timing
    if timing is None:
        return (row.engine, *("-" for _ in COLUMNS[2:]), _word(row))
    ratio = "=" if row.engine == result.ours else str(row.ratio) if row.ratio else "-"
    return (
        row.engine,
        show_time(timing.median_s),
        show_time(timing.iqr_s),
        show_time(timing.p99_s),
        show_time(timing.min_s),
        show_time(row.first_call_s),
        show_time(row.compile_s),
        f"{row.peak_bytes / 1e6:,.0f} MB",
        "-" if row.roofline_share is None else f"{row.roofline_share:.0%}",
        ratio,
        _word(row),
    )


def _word(row: Row) -> str:
    return {"ok": "right", "wrong": "WRONG"}.get(row.status, row.status)


def _roofline(result: Result) -> str:
    if result.work is None or result.rates is None or result.floor_s is None:
        return "  roofline: unknown, the work of this model could not be counted"
    work, rates = result.work, result.rates
    return (
        f"  roofline {show_time(result.floor_s)}: {show_quantity(work.flops, 'flop')} at {rates.flops_s / 1e9:.0f} Gflop/s, "
        f"{show_quantity(work.bytes, 'B')} at {rates.bytes_s / 1e9:.1f} GB/s, both measured between the rounds"
    )


def _claim(result: Result) -> str:
    if not result.ours:
        return "  no engine of ours gave a right answer"
    if not result.best_peer or result.speedup is None:
        return f"  ours is {result.ours}; no peer gave a right answer"
    speed = result.speedup
    said = f"{speed.value:.2f}x as fast as" if speed.is_claim else f"not told apart (~{speed.value:.2f}x) from"
    if speed.rounds < LEAST_ROUNDS:
        said = f"perhaps {speed.value:.2f}x as fast ({speed.rounds} rounds claim nothing) as"
    interval = f"95 % interval {speed.low:.2f} to {speed.high:.2f}"
    return f"  {result.ours}, our fastest, is {said} {result.best_peer}, the best peer; {interval}"


def show_bars(console: Console, result: Result) -> None:
    """Medians as bars; a right answer has a full bar, any other a broken one."""
    timed = [(row, row.timing) for row in result.rows if row.timing is not None]
    if not timed:
        return
    longest = max(timing.median_s for _, timing in timed)
    width = max(len(row.engine) for row, _ in timed)
    for row, timing in sorted(timed, key=lambda pair: pair[1].median_s):
        bar = ("█" if row.status == "ok" else "░") * max(1, round(BAR * timing.median_s / longest))
        console.print(f"  {row.engine:<{width}} {bar} {show_time(timing.median_s)}", markup=False)


def show_overall(console: Console, results: Sequence[Result]) -> None:
    mean = overall(results)
    if len(results) > 1 and mean is not None:
        count = sum(r.speedup is not None for r in results)
        console.print(f"\ngeometric mean over {count} models: {mean:.2f}x the speed of each one's best peer")


def show_kernels(console: Console, title: str, results: Sequence[Result], is_product: bool) -> None:
    """One line for each kernel: what every engine reached, and its share of what the machine does."""
    engines = list(dict.fromkeys(row.engine for r in results for row in r.rows))
    unit = "Gflop/s" if is_product else "GB/s"
    extra = ("FMA",) if is_product else ("copy",)
    columns = ("kernel", *(f">{e} {unit}" for e in engines), *(f">{name} {unit}" for name in extra), ">share", "answers")
    console.print()
    console.print(make_table(title, columns, [_kernel_cells(r, engines, is_product) for r in results]))
    for r in results:
        for row in r.rows:
            if row.reason:
                console.print(f"  {r.model} {row.engine} {_word(row)}: {row.reason}", markup=False)
            elif row.facts.get("kernels") == 0:
                console.print(f"  {r.model} {row.engine} ran no generated code: {row.notes}", markup=False)
        if r.failed:
            console.print(f"  {r.model}: {r.failed}", markup=False)


def _kernel_cells(result: Result, engines: Sequence[str], is_product: bool) -> Sequence[str]:
    rates = kernel_rates(result, is_product)
    limit = None if result.rates is None else result.rates.flops_s if is_product else result.rates.copy_bytes_s
    share = kernel_share(result, is_product)
    wrong = [f"{row.engine} {_word(row)}" for row in result.rows if row.status != "ok"]
    return (
        result.model,
        *(f"{rates[e] / 1e9:.1f}" if e in rates else "-" for e in engines),
        f"{limit / 1e9:.1f}" if limit else "-",
        "-" if share is None else f"{share:.0%}",
        "failed" if result.failed else ", ".join(wrong) or "right",
    )


def show_lengths(console: Console, title: str, lengths: Sequence[Length]) -> None:
    """One line for each length: both builds, and their ratio in every repeat."""
    repeats = max((len(one.results) for one in lengths), default=0)
    ratios = tuple(f">repeat {number + 1}" for number in range(repeats))
    columns = (">length", ">generic", ">baked", *ratios, ">generic / baked", "answers")
    console.print()
    console.print(make_table(title, columns, [_length_cells(one) for one in lengths]))
    said = dict.fromkeys(
        f"  {row.engine} {_word(row)}: {row.reason}" if row.reason else f"  {row.engine}: {row.notes}"
        for one in lengths for result in one.results for row in result.rows if row.reason or row.notes
    )  # fmt: skip
    for text in (*said, *(f"  {r.model}: {r.failed}" for one in lengths for r in one.results if r.failed)):
        console.print(text, markup=False)


def _length_cells(one: Length) -> Sequence[str]:
    times = (one.median_s(engine) for engine in (GENERIC, BAKED))
    wrong = {f"{row.engine} {_word(row)}" for result in one.results for row in result.rows if row.status != "ok"}
    failed = any(result.failed for result in one.results)
    return (
        str(one.length),
        *("-" if seconds is None else show_time(seconds) for seconds in times),
        *(str(ratio) if ratio else "-" for ratio in one.ratios),
        "-" if one.ratio is None else f"{one.ratio:.2f}x",
        "failed" if failed else ", ".join(sorted(wrong)) or "right",
    )


def show_criteria(console: Console, criteria: Sequence[Criterion], quick: bool) -> None:
    """What the suite must show: one line for each criterion."""
    title = "criteria (a quick run claims nothing)" if quick else "criteria"
    rows = [(c.what, show_figure(c, c.figure), _wanted(c), "met" if c.met else "NOT met", c.detail) for c in criteria]
    console.print()
    console.print(make_table(title, ("what", ">measured", ">wanted", "verdict", ""), rows))


def show_figure(criterion: Criterion, figure: float | None) -> str:
    if figure is None:
        return "nothing"
    return {"x": f"{figure:.2f}x", "%": f"{figure:.1%}", "s": f"{figure:.2f} s"}.get(criterion.unit, f"{figure:g}")


def _wanted(criterion: Criterion) -> str:
    return f"{'>=' if criterion.at_least else '<='} {show_figure(criterion, criterion.wanted)}"
