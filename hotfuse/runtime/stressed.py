"""A session under stress: now and then the original answers, whatever serves, and what was learned of shapes is forgotten.

It is a class of its own, so that sessions without stress need not ask.

State: the number of calls; what was published last; whether the original has its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hotfuse.config import Config
from hotfuse.ir.graph import Graph
from hotfuse.locks import make_lock
from hotfuse.runtime.overrides import Overrides
from hotfuse.runtime.serving import Serving
from hotfuse.runtime.session import Session
from hotfuse.stress import parse


class StressedSession(Session):
    def __init__(
        self,
        graph: Graph,
        output_names: Sequence[str],
        config: Config,
        opaque: Sequence[tuple[str, str, str]] = (),
        overrides: Overrides | None = None,
    ) -> None:
        super().__init__(graph, output_names, config, opaque, overrides)
        self._stress = parse(config.stress)
        self._numbers = itertools.count(1)
        self._published: Serving | None = None
        self._is_swapped = False
        self._publishing = make_lock()

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None) -> list[Any]:
        number = next(self._numbers)
        if self._stress.forgets(number):
            self.refresh()
        self._swap(self._stress.original_answers(number))
        return super().run(output_names, feeds, out)

    def _swap(self, original: bool) -> None:
        """Have calls answered by the original from now on, or by what was published."""
        if original != self._is_swapped:
            with self._publishing:
                self._is_swapped = original
                super().publish(None if original else self._published)

    def publish(self, serving: Serving | None) -> None:
        with self._publishing:
            self._published = serving
            if not self._is_swapped:
                super().publish(serving)


def session_class(config: Config) -> type[Session]:
    """The class that sessions with these options are of."""
    return StressedSession if parse(config.stress).touches_calls else Session
