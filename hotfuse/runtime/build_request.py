"""What is asked of who builds and proves, and what is answered.

BuildRequest: a skeleton                                 ->  BuildReply: recipes, and the code of each program
ProveRequest: a build, its code, the inputs of a call    ->  ProveReply: a verdict on each unit
              (weights are asked back, by name)
HelpRequest: nothing; programs are asked back (`pile`)   ->  HelpReply: how many were made code of
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from hotfuse.config import Config
from hotfuse.fusion.grouping import AS_PLANNED, Grouping
from hotfuse.ir.graph import Graph
from hotfuse.records import dataclass
from hotfuse.runtime.build import Build, Sizes
from hotfuse.runtime.verdict import UnitVerdict

Array = np.ndarray[Any, Any]
Weight = Callable[[str], Array]


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """`graph` is a skeleton; weights named in `live` change with every call. Of `config` the instruction set, who decides on
    fusion, the threads, the folder of edited programs and the cache matter. With `sizes`, or another grouping, a variant of its
    units is asked for."""

    graph: Graph
    config: Config
    live: tuple[str, ...] = ()
    sizes: Sizes = ()
    grouping: Grouping = AS_PLANNED
    helpers: int = 0  # others that may be asked back for help with its programs


@dataclass(frozen=True, eq=False)
class BuildReply:
    """`objects` has the code of each of `build.programs`, in their order. `compiled` of them are new, the cache had the others;
    `cpu_s` is what all of it took, helpers included."""

    build: Build
    objects: tuple[bytes, ...]
    compiled: int
    cpu_s: float


@dataclass(frozen=True, eq=False)
class ProveRequest:
    """`inputs` are those of a real call, by name, and nobody's but ours. `units` are the places of those to prove, None all.
    Units that were made for the sizes of this call alone are not proved at others. `digests` are those of weights that
    somebody has read before."""

    build: Build
    objects: tuple[bytes, ...]
    inputs: Mapping[str, Array]
    config: Config
    units: tuple[int, ...] | None = None
    other_sizes: bool = True
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ProveReply:
    """`digests` are those of the weights that it looked at, where something is kept on disk; `steady`: none changed meanwhile,
    or since its digest was taken."""

    verdicts: tuple[UnitVerdict, ...]
    cpu_s: float
    digests: Mapping[str, str] = field(default_factory=dict)
    steady: bool = True


@dataclass(frozen=True, eq=False)
class HelpRequest:
    """Help with the programs of a build that another worker makes. Of `config` the instruction set and the cache matter."""

    config: Config


@dataclass(frozen=True, eq=False)
class HelpReply:
    made: int
