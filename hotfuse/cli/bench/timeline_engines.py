"""The engines of a timeline: hotfuse as a user gets it who sets no option, and its un-fused operators alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotfuse.cli.bench.engines import Opener, Runner, Settings, need_onnx, session_runner, torch_opener
from hotfuse.cli.bench.subject import Subject


def run_torch(subject: Subject, settings: Settings) -> Opener:
    import hotfuse
    import hotfuse.entry_torch  # as `import hotfuse` does where torch is there already, as it is for whoever has a module
    import hotfuse.runtime.metrics

    made: list[Any] = []

    def prepare(module: Any) -> Any:
        made.append(hotfuse.compile(module))
        return made[-1]

    opened = torch_opener(subject, settings, prepare)

    def open_it() -> Runner:
        runner = opened()
        from hotfuse.runtime.torch_module import controls

        return replace(runner, events=controls(made[-1]).events)

    return open_it


def run_onnx(subject: Subject, settings: Settings) -> Opener:
    return _onnx(subject)


def run_unfused(subject: Subject, settings: Settings) -> Opener:
    return _onnx(subject, tier=0)


def _onnx(subject: Subject, **options: Any) -> Opener:
    path, feeds = need_onnx(subject), subject.feeds()
    import hotfuse

    def open_it() -> Runner:
        session = hotfuse.load(path, **options)
        return replace(session_runner(session, feeds, ""), events=session.events)

    return open_it
