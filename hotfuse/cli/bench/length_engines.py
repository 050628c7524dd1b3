"""The engine of the shape-generic build. State: the sessions of this process, one for each model file, opened once."""

from __future__ import annotations

from typing import Any

from hotfuse.cli.bench.engines import Opener, Runner, Settings, hotfuse_options, session_runner
from hotfuse.cli.bench.length_subjects import generic_path
from hotfuse.cli.bench.subject import Subject

_SESSIONS: dict[str, Any] = {}


def run_generic(subject: Subject, settings: Settings) -> Opener:
    """Opening a second subject of the same file is another length for the session that is there."""
    import hotfuse

    path, feeds = generic_path(subject), subject.feeds()
    options, note = hotfuse_options(settings)

    def open_it() -> Runner:
        if path not in _SESSIONS:
            _SESSIONS[path] = hotfuse.load(path, **options)
        return session_runner(_SESSIONS[path], feeds, note)

    return open_it
