"""Options: where their values come from, and every value that is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import hotfuse
from hotfuse.config import GIB, Config, resolve
from hotfuse.errors import ConfigError
from hotfuse.hardware.machine import usable_memory_bytes


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTFUSE_MAX_NODES", "7")
    monkeypatch.setenv("HOTFUSE_WAIT", "yes")
    monkeypatch.setenv("HOTFUSE_TIER", "1")
    monkeypatch.setenv("HOTFUSE_THREADS", "3")
    monkeypatch.setenv("HOTFUSE_ISA", "avx2")
    monkeypatch.setenv("HOTFUSE_CAPTURE_TIMEOUT_S", "2.5")
    for found in (Config(), Config.from_environment(), resolve(None, {}), resolve(Config(), {})):
        assert (found.max_nodes, found.wait, found.tier, found.capture_timeout_s) == (7, True, 1, 2.5)
        assert (found.threads, found.isa) == (3, "avx2")
    for found in (Config(max_nodes=9), Config.from_environment(max_nodes=9), resolve(Config(), {"max_nodes": 9})):
        assert (found.max_nodes, found.wait) == (9, True)
    assert Config.from_environment({}).max_nodes == 500_000  # another environment is read instead of this one, not over it


def test_every_option_has_the_variable_of_its_name() -> None:
    for option in dataclasses.fields(Config):
        assert option.metadata["variable"] == f"HOTFUSE_{option.name.upper()}"


def test_a_record_does_not_change_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Config(strict=True)
    monkeypatch.setenv("HOTFUSE_MAX_NODES", "7")
    changed = resolve(made, {"wait": True})
    assert (changed.strict, changed.wait, changed.max_nodes) == (True, True, 500_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tier": 3}, "tier must be 'auto', 0, 1 or 2, not 3"),
        ({"tier": True}, "tier must be"),
        ({"tier": "fast"}, "tier must be"),
        ({"capture": "sometimes"}, "capture must be 'background', 'spawn' or 'blocking'"),
        ({"wait": "no"}, "wait must be True or False, not 'no'"),
        ({"strict": 1}, "strict must be True or False"),
        ({"disable": None}, "disable must be True or False"),
        ({"max_nodes": "2"}, "max_nodes must be a number of type int, not '2'"),
        ({"max_nodes": 2.5}, "max_nodes must be a number of type int"),
        ({"max_nodes": True}, "max_nodes must be a number of type int"),
        ({"max_nodes": 0}, "max_nodes must be at least 1"),
        ({"audit_every": 0}, "audit_every must be at least 1"),
        ({"max_value_bytes": -1}, "max_value_bytes must be at least 0"),
        ({"max_arena_bytes": -1}, "max_arena_bytes must be at least 0"),
        ({"threads": -1}, "threads must be at least 0"),
        ({"threads": "2"}, "threads must be a number of type int, not '2'"),
        ({"isa": "avx9"}, "isa must be 'native', 'avx512', 'avx2' or 'sse', not 'avx9'"),
        ({"isa": 2}, "isa must be"),
        ({"capture_timeout_s": -1}, "capture_timeout_s must be at least 0"),
        ({"capture_timeout_s": float("nan")}, "capture_timeout_s must be at least 0"),
        ({"capture_timeout_s": "1"}, "capture_timeout_s must be a number of type float"),
        ({"max_node": 1}, "there is no option 'max_node'; options are tier, "),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        hotfuse.load(b"", **options)
    with pytest.raises(ConfigError, match=re.escape(says)):
        hotfuse.load(b"", config=Config(), **options)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("HOTFUSE_WAIT", "perhaps", "HOTFUSE_WAIT='perhaps' cannot be read as bool; correct or unset it"),
        ("HOTFUSE_MAX_NODES", "many", "HOTFUSE_MAX_NODES='many' cannot be read as int"),
        ("HOTFUSE_CAPTURE_TIMEOUT_S", "", "cannot be read as float"),
        ("HOTFUSE_TIER", "9", "tier must be"),
    ],
)
def test_variables_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, says: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=re.escape(says)):
        Config()


def test_something_else_is_not_a_config() -> None:
    with pytest.raises(ConfigError, match=r"config must be a hotfuse\.Config, not dict"):
        hotfuse.load(b"", config={"wait": True})  # type: ignore[arg-type]


def test_disabling_allows_tier_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(tier=2, disable=True).tier == 0
    monkeypatch.setenv("HOTFUSE_DISABLE", "1")
    assert (Config().disable, Config(tier=2).tier) == (True, 0)


def machine(root: Path, memory_kib: int, limits: dict[str, str]) -> Path:
    """A file system that tells of a machine's memory, and of the limits of control groups."""
    files = {"proc/meminfo": f"MemTotal: {memory_kib} kB\n", "proc/self/cgroup": "0::/outer/inner\nnot a line of it\n"}
    for name, text in {**files, **{f"sys/fs/cgroup/{k}/memory.max": v for k, v in limits.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("limits", "usable"),
    [
        ({}, 1 << 30),
        ({"outer": "max\n", "outer/inner": "max\n"}, 1 << 30),
        ({"outer": "1000000\n", "outer/inner": "max\n"}, 1_000_000),
        ({"outer": "1000000\n", "outer/inner": "400000\n"}, 400_000),
        ({"outer": f"{1 << 40}\n"}, 1 << 30),
    ],
)
def test_usable_memory_is_what_the_control_group_leaves(tmp_path: Path, limits: dict[str, str], usable: int) -> None:
    assert usable_memory_bytes(machine(tmp_path, 1 << 20, limits)) == usable


def test_limits_follow_the_memory_that_may_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = machine(tmp_path, 1 << 20, {"outer": f"{1 << 28}\n"})
    monkeypatch.setattr("hotfuse.hardware.machine.usable_memory_bytes", lambda: usable_memory_bytes(root))
    assert (Config().max_value_bytes, Config().max_capture_bytes) == (1 << 27, 1 << 27)
    assert Config(max_value_bytes=5).max_value_bytes == 5
    monkeypatch.setattr("hotfuse.hardware.machine.usable_memory_bytes", lambda: usable_memory_bytes(tmp_path / "nothing"))
    assert Config().max_value_bytes == 4 * GIB  # nothing tells
