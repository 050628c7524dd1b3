"""Partition: the second-level cache, divided between the threads that use it at once.

Chains and chunks of products are made so that what they work on stays in that cache. Where several threads have one together,
each can count on its part alone, whatever it works on: a share of the same group, another group of a row of steps side by side,
or another caller's model, on the caller's own thread. Threads have one together on cores that share it, as clusters of small
cores do, and on one core, where a team has more threads than there are cores.

State: none; how cores share caches is read once.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from hotfuse.hardware.spec import Spec
from hotfuse.records import dataclass

ROOT = Path("/")


@dataclass(frozen=True)
class SharedCache:
    """A second-level cache, and how many of the usable logical cores have it together."""

    bytes: int
    sharers: int


def cache_of(spec: Spec, root: Path = ROOT) -> SharedCache:
    """That of the usable cores; where they differ, the one that most of them share."""
    return SharedCache(spec.l2_bytes, max((len(_sharers(core, spec.affinity, root)) for core in spec.affinity), default=1))


def threads_at_once(spec: Spec, cache: SharedCache, threads: int) -> int:
    """How many threads of a team use one cache at a time. They are spread evenly over the physical cores."""
    cores = max(1, cache.sharers * spec.physical_cores // max(1, spec.logical_cores))
    on_a_core = -(-threads // max(1, spec.physical_cores))
    return max(1, min(threads, cores * on_a_core))


def with_share(spec: Spec, threads: int, cache: SharedCache | None = None) -> Spec:
    """The spec as one thread of a team sees it: the very same where the cache is its own."""
    at_once = threads_at_once(spec, _host_cache(spec) if cache is None else cache, threads)
    return spec if at_once == 1 else replace(spec, l2_bytes=spec.l2_bytes // at_once)


@functools.lru_cache(8)
def _host_cache(spec: Spec) -> SharedCache:
    return cache_of(spec)


def _sharers(core: int, usable: tuple[int, ...], root: Path) -> set[int]:
    """The usable cores that share a core's second-level cache, itself among them."""
    found = {core}
    for index in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
        if _read(index / "level") == "2" and _read(index / "type") in ("Data", "Unified"):
            found |= _listed(_read(index / "shared_cpu_list")) & set(usable)
    return found


def _listed(text: str) -> set[int]:
    """The numbers of a list as Linux writes it: 0-3,8."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
