"""The second-level cache is divided between the threads that use it at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.runtime import building, partition
from hotfuse.runtime.partition import SharedCache, cache_of, threads_at_once, with_share

L2 = 1 << 20


def spec_of(physical: int, logical: int) -> Spec:
    return replace(host_spec(), l2_bytes=L2, physical_cores=physical, logical_cores=logical, affinity=tuple(range(logical)))


@pytest.mark.parametrize(
    ("physical", "logical", "sharers", "threads", "at_once"),
    [
        (2, 2, 1, 2, 1),  # a cache for each core
        (8, 16, 2, 8, 1),  # siblings share one, and a team has one thread for each core
        (8, 16, 2, 16, 2),  # a team with a thread for each sibling
        (8, 16, 2, 12, 2),  # some cores have two
        (8, 8, 4, 8, 4),  # a cluster of small cores
        (8, 8, 4, 2, 2),  # both threads may be in one cluster
        (8, 8, 4, 1, 1),
        (1, 1, 1, 4, 4),  # more threads than cores
    ],
)
def test_threads_that_use_one_cache_at_once(physical: int, logical: int, sharers: int, threads: int, at_once: int) -> None:
    spec = spec_of(physical, logical)
    cache = SharedCache(L2, sharers)
    assert threads_at_once(spec, cache, threads) == at_once
    assert with_share(spec, threads, cache).l2_bytes == L2 // at_once
    assert (with_share(spec, threads, cache) is spec) == (at_once == 1)  # nothing is another where the cache is its own


def write_cores(root: Path, lists: dict[int, str]) -> None:
    for core, listed in lists.items():
        for place, (level, kind, shared) in enumerate(
            (("1", "Data", str(core)), ("1", "Instruction", str(core)), ("2", "Unified", listed), ("3", "Unified", "0-63"))
        ):
            index = root / f"sys/devices/system/cpu/cpu{core}/cache/index{place}"
            index.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("shared_cpu_list", shared)):
                (index / name).write_text(text + "\n")


def test_who_shares_is_read_of_the_usable_cores(tmp_path: Path) -> None:
    write_cores(tmp_path, {0: "0,4", 1: "1,5", 2: "2-3,6-7", 3: "2-3,6-7"})
    assert cache_of(replace(spec_of(4, 4), affinity=(0, 1)), tmp_path).sharers == 1  # their siblings are not ours
    assert cache_of(replace(spec_of(4, 4), affinity=(0, 1, 2, 3)), tmp_path).sharers == 2
    assert cache_of(replace(spec_of(4, 4), affinity=(0, 4)), tmp_path).sharers == 2


def test_what_cannot_be_read_is_nobody_elses(tmp_path: Path) -> None:
    assert cache_of(spec_of(4, 4), tmp_path) == SharedCache(L2, 1)
    write_cores(tmp_path, {0: "nonsense", 1: "3-"})
    assert cache_of(spec_of(2, 2), tmp_path) == SharedCache(L2, 1)


def test_builds_are_made_for_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.config import Config
    from hotfuse.passes.hoist import hoist
    from hotfuse.runtime.build import skeleton
    from hotfuse.runtime.specimens import specimen

    seen: list[int] = []
    lower = building.lower

    def spy(graph, values, places, group, spec, known):  # type: ignore[no-untyped-def]
        seen.append(spec.l2_bytes)
        return lower(graph, values, places, group, spec, known)

    spec = host_spec()
    monkeypatch.setattr(building, "lower", spy)
    monkeypatch.setattr(partition, "_host_cache", lambda spec: SharedCache(spec.l2_bytes, spec.logical_cores))
    hoisted = hoist(building.native_form(skeleton(specimen(3).graph), spec), ())
    config = Config(cache="off", threads=2)
    building.build_hoisted(hoisted, spec, config, lambda program: None)
    at_once = threads_at_once(spec, SharedCache(spec.l2_bytes, spec.logical_cores), 2)
    assert set(seen) == {spec.l2_bytes // at_once}
