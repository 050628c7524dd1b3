"""A captured class of a PyTorch module as a subject.

The module itself answers until kernels are proved. The class that stands for them then takes the place of the captured one: its
first call is a trial, which the module answers as well, and it serves from then on or never.

State: the inputs of one real call, until they are proved on.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hotfuse.adaptive.controller import Controller
from hotfuse.adaptive.state import Rules
from hotfuse.adaptive.subject import SAMPLE_BYTES, Array, Report
from hotfuse.errors import ExecutionError
from hotfuse.frontends.torch_tensor import to_numpy
from hotfuse.pace import Pace
from hotfuse.runtime.torch_class import ServedClass
from hotfuse.runtime.torch_classes import ClassTable
from hotfuse.runtime.torch_family import Family
from hotfuse.runtime.torch_guard import Call

if TYPE_CHECKING:
    from hotfuse.adaptive.subject import Kernels
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.build_jobs import BuildRequest


class ClassSubject:
    """Watches the calls of one class for the controller, and does to it what that decides."""

    def __init__(self, name: str, family: Family, table: ClassTable, served: ServedClass, rules: Rules) -> None:
        # The family holds this, and this holds nothing of it: a model that nobody holds any more goes at once.
        self.name, self.config, self.events = name, family.config, family.events
        self._family, self._table = weakref.proxy(family), weakref.proxy(table)
        self._captured = self._serving = served
        self._sample: dict[str, Array] | None = None
        self._leaves: list[Any] = []
        self.controller = Controller(self, rules)
        served.watcher = weakref.proxy(self)

    # what calls tell, in callers' threads

    def called(self, call: Call, tier: int, seconds: float) -> None:
        if self._sample is None and not tier:
            self._take(call)
        self.controller.note(call.shapes, tier, seconds)

    def settled(self, timeout_s: float) -> bool:
        return self.controller.settled(timeout_s)

    def close(self) -> None:
        self.controller.close()
        self.forget_sample()

    def _take(self, call: Call) -> None:
        program = self._captured.runner.captured
        given = [call.leaves[place] for place in program.input_leaves]
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        if sum(t.numel() * t.element_size() for t in tensors) > SAMPLE_BYTES:
            return
        self._leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        copies = [self._leaves[place] for place in program.input_leaves]
        self._sample = dict(zip(program.graph.inputs, map(_as_array, copies), strict=True))

    # what the controller asks, in the background

    def request(self) -> BuildRequest:
        from hotfuse.runtime.build_jobs import BuildRequest

        program = self._captured.runner.captured
        return BuildRequest(program.graph, self.config, tuple(m.name for m in program.mutations if m.name))

    def look_at_next(self) -> None:
        """Some calls are looked at anyway."""

    def sample(self) -> Mapping[str, Array] | None:
        return self._sample

    def forget_sample(self) -> None:
        self._sample, self._leaves = None, []

    def weight(self, name: str) -> Array:
        tensors = self._captured.weights()
        if isinstance(tensors, str):
            raise ExecutionError(tensors)
        return np.asarray(to_numpy(tensors[name].detach()))

    def make(self, build: Build, kernels: Kernels, pace: Pace) -> ServedClass:
        made = self._captured.with_kernels(build, kernels)
        made.watcher = weakref.proxy(self)
        made.make_ready(self._leaves)
        return made

    def shadow(self, candidate: ServedClass, report: Report) -> None:
        """The trial of a class is the call that is answered by both."""
        candidate.judged = report
        with self._table.lock:
            if self._family.open:
                self._table.replace(self._serving, candidate)
                self._serving = candidate
        if candidate.proven:  # trials are off
            report(True, "")

    def publish(self, candidate: ServedClass | None) -> None:
        """A class that passed its trial serves already."""
        if candidate is None and self._serving is not self._captured:
            with self._table.lock:
                self._table.replace(self._serving, self._captured)
                self._serving = self._captured


def _as_array(leaf: Any) -> Any:
    """A leaf as the graph's input: sizes stay numbers."""
    if isinstance(leaf, torch.Tensor):
        return to_numpy(leaf)
    return leaf if isinstance(leaf, int) and not isinstance(leaf, bool) else np.asarray(leaf)
