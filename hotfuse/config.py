"""Every option of hotfuse, in one frozen record.

A field's default comes from the environment variable `HOTFUSE_<FIELD>` when that is set. Fields may be given as keywords of
`hotfuse.compile` and `hotfuse.load`, or as `config=Config(...)`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotfuse.errors import ConfigError

Tier = int | str
GIB = 1 << 30


@dataclass(frozen=True)
class Config:
    """All options. See each field's comment; `Config.from_environment()` reads `HOTFUSE_*`."""

    tier: Tier = "auto"  # highest tier allowed: "auto", 0, 1 or 2
    wait: bool = False  # capture and compile before the first answer of a shape class
    strict: bool = False  # raise where hotfuse would fall back
    threads: int = 0  # threads of one call; 0 takes what the process may use
    capture: str = "background"  # "background": in a child process; "blocking": in this one, on the first call
    capture_timeout_s: float = 300.0
    max_captures: int = 8  # classes of calls captured per model or submodule
    max_capture_bytes: int = 0  # physical memory of the capture process; 0 takes half of the machine's
    audit_every: int = 256  # calls between checks of weights that change without a trace
    max_bound_shapes: int = 64  # bound plans kept per model, least recently used dropped
    max_arena_bytes: int = 2 * GIB  # idle scratch memory kept per model
    max_nodes: int = 500_000  # of one model, nested graphs included
    max_nesting: int = 32  # graphs within graphs
    max_value_bytes: int = 0  # of one value; 0 takes half of the machine's memory
    max_model_bytes: int = 64 * GIB  # of one model file
    max_events: int = 10_000  # kept in the event log

    def __post_init__(self) -> None:
        if self.tier not in ("auto", 0, 1, 2):
            raise ConfigError(f"tier must be 'auto', 0, 1 or 2, not {self.tier!r}")
        if self.capture not in ("background", "blocking"):
            raise ConfigError(f"capture must be 'background' or 'blocking', not {self.capture!r}")
        for name in ("threads", "max_value_bytes", "max_arena_bytes", "max_capture_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")
        for name in (
            "audit_every",
            "max_captures",
            "max_bound_shapes",
            "max_nodes",
            "max_nesting",
            "max_model_bytes",
            "max_events",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.max_value_bytes == 0:
            object.__setattr__(self, "max_value_bytes", _physical_bytes() // 2)
        if self.max_capture_bytes == 0:
            object.__setattr__(self, "max_capture_bytes", _physical_bytes() // 2)

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None, **given: Any) -> Config:
        """The defaults, then `HOTFUSE_*`, then what is given."""
        environment = os.environ if environment is None else environment
        fields = {f.name: f for f in dataclasses.fields(Config)}
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise ConfigError(f"there is no option {unknown[0]!r}; options are {', '.join(fields)}")
        chosen = {
            name: _read(f"HOTFUSE_{name.upper()}", environment[f"HOTFUSE_{name.upper()}"], field.default)
            for name, field in fields.items()
            if f"HOTFUSE_{name.upper()}" in environment
        }
        return Config(**{**chosen, **given})


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 * GIB


def _read(name: str, text: str, like: Any) -> Any:
    try:
        if isinstance(like, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if isinstance(like, (int, float)):
            return type(like)(text)
        return int(text) if text.isdigit() else text
    except (KeyError, ValueError):
        raise ConfigError(f"{name}={text!r} cannot be read as {type(like).__name__}") from None


def resolve(config: Config | None, options: Mapping[str, Any]) -> Config:
    """The configuration of one call of `load` or `compile`: a record, with keywords over it."""
    if config is None:
        return Config.from_environment(**options)
    try:
        return dataclasses.replace(config, **options)
    except TypeError:
        unknown = next(k for k in options if k not in {f.name for f in dataclasses.fields(Config)})
        raise ConfigError(f"there is no option {unknown!r}") from None
