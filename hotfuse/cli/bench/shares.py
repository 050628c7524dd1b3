"""What a kernel reached: operations or bytes a second, and its share of what the machine or the best other does."""

from __future__ import annotations

from hotfuse.cli.bench.contest import OURS, Result


def kernel_rates(result: Result, is_product: bool) -> dict[str, float]:
    """Operations or bytes a second of each engine that answered right. Bytes count once in and once out."""
    if result.work is None:
        return {}
    amount = result.work.flops if is_product else result.work.bytes
    return {row.engine: amount / row.timing.median_s for row in result.rows if row.counts and row.timing}


def kernel_share(result: Result, is_product: bool) -> float | None:
    """Ours over the measured FMA rate; for chains over the best of the peers and a copy, which must have been measured."""
    rates = kernel_rates(result, is_product)
    if OURS not in rates or result.rates is None:
        return None
    if is_product:
        return rates[OURS] / result.rates.flops_s
    if result.rates.copy_bytes_s is None:
        return None
    return rates[OURS] / max(result.rates.copy_bytes_s, *(v for e, v in rates.items() if e != OURS), 0.0)
