"""Subjects: what the controller adapts. A session is one, a captured class of a PyTorch module is another.

The controller decides and has kernels built and proved; a subject knows its model: its graph and weights, inputs of real calls,
and how something else comes to answer them. All methods are called by the background's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotfuse.adaptive.state import Rules
from hotfuse.config import Config
from hotfuse.events import EventLog
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import TensorType
from hotfuse.pace import Pace
from hotfuse.runtime.fuel import Fuel
from hotfuse.runtime.turns import Judged, Report, Timed
from hotfuse.stress import parse

if TYPE_CHECKING:
    from hotfuse.codegen.tile import TileProgram
    from hotfuse.file_map import FilePart
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.build_request import BuildRequest
    from hotfuse.runtime.executor import Executor
    from hotfuse.runtime.kernels import Kernel
    from hotfuse.runtime.workers import Job

    Kernels = Mapping[TileProgram, Kernel]

Array = np.ndarray[Any, Any]
Audited = Callable[[Hashable, Judged], None]  # the form of the call, and what came of it


class Subject(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Config: ...
    @property
    def events(self) -> EventLog: ...
    @property
    def fuel(self) -> Fuel:
        """Common to all subjects of a model."""

    @property
    def is_known(self) -> bool:
        """Whether an earlier process may well have made kernels for it."""

    def request(self) -> BuildRequest:
        """What is to be built."""

    def look_at_next(self) -> None:
        """Have the time of one of the next calls noted, where most are answered without a look."""

    def sample(self, form: Hashable | None) -> Mapping[str, Array] | None:
        """The inputs of a real call, by name, and nobody's but ours; None if there was none of this form (None: of any) since
        they were last asked for or let go. The next one is taken then."""

    def forget_sample(self) -> None: ...

    def weight(self, name: str) -> Array:
        """A weight of the graph that is to be built. Called by a worker's thread."""

    def weight_part(self, name: str) -> FilePart | None:
        """Where its bytes lie in a file; None where they do not."""

    def release_weights(self) -> None:
        """Nobody looks at them for now: memory of those that kernels do not read, and that a file can fill again, is given
        back."""

    def prepare(self, build: Build, kernels: Kernels, pace: Pace) -> None:
        """Compute what kernels read that follows from weights alone, and run none of them; candidates are made sooner then."""

    def forget_prepared(self) -> None:
        """No candidate will be made of it soon."""

    def make(self, build: Build, kernels: Kernels, pace: Pace) -> Any:
        """Something that can answer calls, bound to the shapes of the calls so far."""

    def keep_call(self) -> None:
        """A candidate is being proved: one of the calls that the original answers meanwhile may be the one that is shadowed."""

    def shadow(self, candidate: Any, form: Hashable | None, report: Report) -> None:
        """Have the next call (of this form, if one is named), or one that was kept, answered by the original and by the
        candidate, and say whether they agree, or why nobody can tell."""

    def duel(self, form: Hashable, other: Any | None, report: Timed) -> None:
        """Have calls of a form answered by what serves and by another in turn (None: the original), and say how long both
        took. Until then every call is looked at, whatever its form."""

    def end_duel(self) -> None:
        """The duel that was asked for last takes no more calls, and need not report."""

    def audit(self, submit: Callable[[Job], None], report: Audited) -> None:
        """Have the answer to one of the next calls held against the original's; `submit` has a job done by a worker."""

    @property
    def executor(self) -> Executor | None:
        """That of what serves, if it can be traced."""

    def publish(self, candidate: Any | None) -> None:
        """From now on calls are answered by the candidate; None: by the original."""


def rules_of(config: Config, graph: Graph) -> Rules:
    """The rules of a model's tier machine. Kernels for one shape are of use only where there can be another."""
    shapes = [type.shape or () for name in graph.inputs if isinstance(type := graph.type(name), TensorType)]
    highest = 2 if any(not isinstance(d, int) for shape in shapes for d in shape) else 1
    tier = min(config.tier, highest) if isinstance(config.tier, int) else highest
    return Rules(**{"tier": tier, "fuel": config.fuel, **parse(config.stress).rules(graph.name)})
