"""What lies between a model's first calls and its first fused ones, imported ahead: while another process captures or builds.

Where it is needed somebody waits for it, and a module that is imported amid a call holds the interpreter against each of its
operators. A fork waits for imports, and so may other work of the background's, so they come one by one.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator

from hotfuse.pace import Pace, imports, make_room

MODULES = (
    "ml_dtypes",  # of record forms
    "hotfuse.runtime.build_cache",
    "hotfuse.runtime.build_jobs",
    "hotfuse.runtime.kernels",
    "hotfuse.runtime.subgraph",
    "hotfuse.runtime.native",
    "hotfuse.runtime.planning",
    "hotfuse.hardware.achieved",
    "hotfuse.runtime.stopwatch",
    "hotfuse.runtime.tracer",
)
VERSION_S = 0.008  # reading all sources


def import_ahead(pace: Pace) -> None:
    """At this pace. What cannot be imported says so where it is needed."""
    with contextlib.suppress(Exception):
        for _ in _imported(pace):
            pass


def import_between(pace: Pace, post: Callable[[Callable[[], None]], object]) -> None:
    """The same, each module as a piece of work of its own, so that others come in between."""
    steps = _imported(pace)

    def go_on() -> None:
        with contextlib.suppress(Exception):
            for _ in steps:
                post(go_on)
                return

    post(go_on)


def _imported(pace: Pace) -> Iterator[None]:
    for name in MODULES:
        with imports(pace):
            importlib.import_module(name)
        yield
    from hotfuse.runtime.build_cache import version

    make_room(pace, VERSION_S)
    version()  # of the sources as they are now; it is kept
