"""Every option of hotfuse, in one frozen record.

A field that is not given has the value of its environment variable, `HOTFUSE_<FIELD>`, where that is set. Fields may be given
as keywords of `hotfuse.compile` and `hotfuse.load`, or as `config=Config(...)`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from hotfuse.errors import ConfigError
from hotfuse.records import dataclass
from hotfuse.stress import parse

GIB = 1 << 30
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _option(variable: str, default: Any, least: float | None = None) -> Any:
    """A field that `variable` fills. A number is not below `least`."""
    metadata = {"variable": variable, "default": default, "least": least}
    return field(default_factory=lambda: _read(variable, os.environ, default), metadata=metadata)


def _read(variable: str, environment: Mapping[str, str], default: Any) -> Any:
    """The value of an environment variable, as a value like `default`; `default` itself where it is not set."""
    text = environment.get(variable)
    if text is None:
        return default
    try:
        if isinstance(default, bool):
            return _WORDS[text.lower()]
        if isinstance(default, int | float):
            return type(default)(text)
        return int(text) if text.isdigit() else text
    except (KeyError, ValueError):
        raise ConfigError(f"{variable}={text!r} cannot be read as {type(default).__name__}; correct or unset it") from None


@dataclass(frozen=True)
class Config:
    """All options. What is not given comes from the environment, then from the defaults here."""

    # the highest tier allowed: "auto", 0, 1 or 2
    tier: int | str = _option("HOTFUSE_TIER", "auto")
    # the original answers, nothing is optimised, and `tier` is 0
    disable: bool = _option("HOTFUSE_DISABLE", False)
    # a folder of edited tile programs (`hotfuse asm dump --to`), used in place of those that are generated
    tiles: str = _option("HOTFUSE_TILES", "")
    # which operators become one kernel: "engine" (what a model of the machine predicts to be fastest) or "rules" (plain ones)
    fusion: str = _option("HOTFUSE_FUSION", "engine")
    # seconds in which plans are measured before the first answer, with tier=2 and wait=True
    tune_s: float = _option("HOTFUSE_TUNE_S", 5.0, least=0)
    # capture and compile before the first answer of a shape class
    wait: bool = _option("HOTFUSE_WAIT", False)
    # raise where hotfuse would fall back
    strict: bool = _option("HOTFUSE_STRICT", False)
    # "background": in a child process, a copy of this one where that is safe; "spawn": in a fresh one, always; "blocking": in
    # this one, on the first call
    capture: str = _option("HOTFUSE_CAPTURE", "background")
    # seconds in which the process is stopped or waits for a core do not count
    capture_timeout_s: float = _option("HOTFUSE_CAPTURE_TIMEOUT_S", 300.0, least=0)
    # threads that generated code uses; 0 is as many as there are cores, OMP_NUM_THREADS or torch allows, whichever is least
    threads: int = _option("HOTFUSE_THREADS", 0, least=0)
    # the instructions that generated code may use: "native" (all the machine has), "avx512", "avx2" or "sse"
    isa: str = _option("HOTFUSE_ISA", "native")
    # the first call of a captured class is answered by the module itself, and the plan must give the same answer
    trial: bool = _option("HOTFUSE_TRIAL", True)
    # classes of calls captured per model or submodule
    max_captures: int = _option("HOTFUSE_MAX_CAPTURES", 8, least=1)
    # physical memory of the capture process; 0 takes half of what this process may use
    max_capture_bytes: int = _option("HOTFUSE_MAX_CAPTURE_BYTES", 0, least=0)
    # the folder of the kernel cache; "" is the user's cache folder, "off" keeps nothing on disk
    cache: str = _option("HOTFUSE_CACHE", "")
    max_cache_bytes: int = _option("HOTFUSE_MAX_CACHE_BYTES", GIB, least=0)
    # the folder of reproductions of wrong kernels, with values of real calls; "": in the user's state folder, "off": none
    reproductions: str = _option("HOTFUSE_REPRODUCTIONS", "")
    # processes that compile and prove kernels behind a model that serves
    workers: int = _option("HOTFUSE_WORKERS", 1, least=1)
    # for one request to such a process; seconds in which it is stopped or waits for a core do not count
    compile_timeout_s: float = _option("HOTFUSE_COMPILE_TIMEOUT_S", 120.0, least=0)
    # physical memory of one such process; 0 takes a quarter of what this process may use
    max_worker_bytes: int = _option("HOTFUSE_MAX_WORKER_BYTES", 0, least=0)
    # calls between checks of weights that change without a trace
    audit_every: int = _option("HOTFUSE_AUDIT_EVERY", 256, least=1)
    # bound plans kept per graph (each nested graph is one), least recently used dropped
    max_bound_shapes: int = _option("HOTFUSE_MAX_BOUND_SHAPES", 64, least=1)
    # idle scratch memory kept per model, nested graphs included
    max_arena_bytes: int = _option("HOTFUSE_MAX_ARENA_BYTES", 2 * GIB, least=0)
    # nodes of one model, nested graphs included
    max_nodes: int = _option("HOTFUSE_MAX_NODES", 500_000, least=1)
    # graphs within graphs
    max_nesting: int = _option("HOTFUSE_MAX_NESTING", 32, least=1)
    # bytes of one value; 0 takes half of the memory that this process may use
    max_value_bytes: int = _option("HOTFUSE_MAX_VALUE_BYTES", 0, least=0)
    # rounds of one ONNX loop, which may have no end by itself: minutes at tier 0
    max_loop_rounds: int = _option("HOTFUSE_MAX_LOOP_ROUNDS", 10_000_000, least=1)
    # bytes of one model file
    max_model_bytes: int = _option("HOTFUSE_MAX_MODEL_BYTES", 64 * GIB, least=1)
    # decisions allowed to each model, of all its parts together: publications and joins, to find the first bad one by halving;
    # -1 is any number
    fuel: int = _option("HOTFUSE_FUEL", -1, least=-1)
    # rare things made common, for tests: the modes of `hotfuse/stress.py`, joined by commas
    stress: str = _option("HOTFUSE_STRESS", "")
    # events kept in the log
    max_events: int = _option("HOTFUSE_MAX_EVENTS", 10_000, least=1)
    # a file that every event is appended to, a line of JSON each; "" is none
    event_log: str = _option("HOTFUSE_EVENT_LOG", "")
    # of that file, before it is renamed to `<path>.1` and a new one is begun
    max_event_log_bytes: int = _option("HOTFUSE_MAX_EVENT_LOG_BYTES", 64 << 20, least=1)
    # the port of 127.0.0.1 at which metrics may be read; 0 is none
    metrics_port: int = _option("HOTFUSE_METRICS_PORT", 0, least=0)

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            _check(option, getattr(self, option.name))
        if isinstance(self.tier, bool) or self.tier not in ("auto", 0, 1, 2):
            raise ConfigError(f"tier must be 'auto', 0, 1 or 2, not {self.tier!r}")
        if self.capture not in ("background", "spawn", "blocking"):
            raise ConfigError(f"capture must be 'background', 'spawn' or 'blocking', not {self.capture!r}")
        if self.fusion not in ("engine", "rules"):
            raise ConfigError(f"fusion must be 'engine' or 'rules', not {self.fusion!r}")
        if self.isa not in ("native", "avx512", "avx2", "sse"):
            raise ConfigError(f"isa must be 'native', 'avx512', 'avx2' or 'sse', not {self.isa!r}")
        if self.metrics_port > 65535:
            raise ConfigError(f"metrics_port must be at most 65535, not {self.metrics_port}")
        if self.disable:
            object.__setattr__(self, "tier", 0)
        if not isinstance(self.stress, str):
            raise ConfigError(f"stress must be text, not {self.stress!r}")
        for name, value in parse(self.stress).options.items():
            object.__setattr__(self, name, value)
        shares = {"max_value_bytes": 2, "max_capture_bytes": 2, "max_worker_bytes": 4}
        open_limits = [name for name in shares if getattr(self, name) == 0]
        usable = _usable_memory_bytes() if open_limits else 0
        for name in open_limits:
            object.__setattr__(self, name, usable // shares[name])

    @property
    def native(self) -> bool:
        """Whether native code is made before the first answer."""
        return self.wait and self.tier in (1, 2)

    @property
    def adapts(self) -> bool:
        """Whether native code is made in the background, while the original answers."""
        return not self.wait and self.tier != 0

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None, **given: Any) -> Config:
        """The defaults, then the variables of `environment` (this process's, if it is not given), then what is given."""
        options = {option.name: option.metadata for option in dataclasses.fields(Config)}
        unknown = sorted(set(given) - set(options))
        if unknown:
            raise ConfigError(f"there is no option {unknown[0]!r}; options are {', '.join(options)}")
        found = os.environ if environment is None else environment
        chosen = {n: _read(o["variable"], found, o["default"]) for n, o in options.items() if n not in given}
        return Config(**chosen, **given)


def _check(option: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a value of another type than the option's, or one below the least allowed."""
    default, least = option.metadata["default"], option.metadata["least"]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{option.name} must be True or False, not {value!r}")
    elif isinstance(default, int | float):
        kinds = int if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(f"{option.name} must be a number of type {type(default).__name__}, not {value!r}")
        if not value >= least:  # written so that NaN is refused
            raise ConfigError(f"{option.name} must be at least {least}, not {value!r}")


def _usable_memory_bytes() -> int:
    from hotfuse.hardware.machine import usable_memory_bytes

    return usable_memory_bytes() or 8 * GIB


def resolve(config: Config | None, options: Mapping[str, Any]) -> Config:
    """The configuration of one call of `load` or `compile`: a record, with keywords over it."""
    if config is None:
        return Config.from_environment(**options)
    if not isinstance(config, Config):
        raise ConfigError(f"config must be a hotfuse.Config, not {type(config).__name__}; options may be given as keywords")
    try:
        return dataclasses.replace(config, **options)
    except TypeError:
        known = [option.name for option in dataclasses.fields(Config)]
        unknown = next(name for name in options if name not in known)
        raise ConfigError(f"there is no option {unknown!r}; options are {', '.join(known)}") from None
