"""Object code in memory is bounded in bytes, and what was used last stays."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hotfuse.codegen import llvm_compile
from hotfuse.config import Config
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import objects
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.recent_code import RecentCode


def test_what_was_put_is_found() -> None:
    recent = RecentCode(100)
    recent.put("a", b"x" * 40)
    assert recent.get("a") == b"x" * 40
    assert recent.get("b") is None


def test_the_least_recently_used_goes_first() -> None:
    recent = RecentCode(100)
    for key in "ab":
        recent.put(key, key.encode() * 40)
    recent.get("a")
    recent.put("c", b"c" * 40)
    assert [recent.get(key) is not None for key in "abc"] == [True, False, True]
    assert recent.bytes == 80


def test_what_is_put_again_counts_once() -> None:
    recent = RecentCode(100)
    for size in (40, 60, 20):
        recent.put("a", b"x" * size)
    assert (recent.bytes, len(recent)) == (20, 1)


def test_what_is_larger_than_all_is_not_kept() -> None:
    recent = RecentCode(100)
    recent.put("a", b"x" * 40)
    recent.put("b", b"x" * 101)
    assert recent.get("a")
    assert recent.get("b") is None


def test_many_threads_keep_it_within_its_bytes() -> None:
    recent = RecentCode(1000)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(2000):
            key = str(rng.integers(50))
            found = recent.get(key)
            assert found is None or found == key.encode() * len(found.split(key.encode())[1:])
            recent.put(key, key.encode() * int(rng.integers(1, 60)))
            assert recent.bytes <= 1000 + 120 * 4

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recent.bytes == sum(len(code) for code in recent._code.values()) <= 1000


def test_code_that_was_made_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    original = llvm_compile.compile_ir
    monkeypatch.setattr(llvm_compile, "compile_ir", lambda text, spec: compiled.append(text) or original(text, spec))
    monkeypatch.setattr(objects, "RECENT", RecentCode())
    text = "define i32 @answer() {\n  ret i32 42\n}\n"
    first = objects.object_of_ir(text, host_spec(), None)
    assert objects.object_of_ir(text, host_spec(), None) == first
    assert len(compiled) == 1
    objects.RECENT.clear()
    objects.object_of_ir(text, host_spec(), None)
    assert len(compiled) == 2


def test_code_in_memory_is_put_into_a_folder_that_lacks_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(objects, "RECENT", RecentCode())
    text = "define i32 @answer() {\n  ret i32 43\n}\n"
    made = objects.object_of_ir(text, host_spec(), None)
    cache = open_cache(Config(cache=str(tmp_path / "one")))
    assert cache is not None
    for _ in range(2):
        assert objects.object_of_ir(text, host_spec(), cache) == made
        deadline = time.monotonic() + 10
        while not cache.counts().get("put") and time.monotonic() < deadline:
            time.sleep(0.01)
    assert cache.counts() == {"put": 1}
