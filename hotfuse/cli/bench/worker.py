"""One engine in a process of its own. It does nothing until it is asked, and only one worker of a contest is asked at a time.

    python -m hotfuse.cli.bench.worker DESCRIPTOR

Each line of the standard input is a JSON object with a field `do`; each is answered by one JSON object on the descriptor,
with a field `error` where it failed:

    subject  make a subject                       case, folder              -> {}
    lengths  make a subject for each length       model, lengths, folder    -> {}
    open     an engine for a subject              engine, settings, folder  -> load_s, first_call_s; the answer in `answer`
    round    call it for that many seconds        seconds, least            -> seconds of each call
    finish   call it once more                                              -> notes, facts; the answer in `answer`
    probe    measure what the machine can do      what, ...                 -> rate
    timeline  open an engine and write down every call from then on; see `timeline_worker`
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WARM_SHARE = 0.1  # of a round: calls that are not counted, which fetch back what the other engines drove out of the caches


class Worker:
    """State: the engine that is open, and the probes that are compiled."""

    def __init__(self) -> None:
        self.runner: Any = None
        self.probes: Any = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        fields = {key: value for key, value in request.items() if key != "do"}
        steps: dict[str, Callable[..., dict[str, Any]]] = {
            "subject": self.subject,
            "lengths": self.lengths,
            "open": self.open,
            "round": self.round,
            "finish": self.finish,
            "probe": self.probe,
            "timeline": self.timeline,
        }
        return steps[request["do"]](**fields)

    def subject(self, case: Mapping[str, Any], folder: str) -> dict[str, Any]:
        from hotfuse.cli.bench.models import Case
        from hotfuse.cli.bench.subject import make_subject

        make_subject(Case(**case), Path(folder))
        return {}

    def lengths(self, model: str, lengths: list[int], folder: str) -> dict[str, Any]:
        from hotfuse.cli.bench.length_subjects import make_lengths

        make_lengths(model, lengths, Path(folder))
        return {}

    def open(self, engine: str, settings: Mapping[str, Any], folder: str, answer: str) -> dict[str, Any]:
        from hotfuse.cli.bench.engines import Settings, find_engine
        from hotfuse.cli.bench.subject import read_subject, save_arrays

        self.runner = None
        opener = find_engine(engine)(read_subject(Path(folder)), Settings(**settings))
        begun = time.perf_counter()
        self.runner = opener()
        loaded = time.perf_counter()
        result = self.runner.call()
        done = time.perf_counter()
        save_arrays(Path(answer), self.runner.arrays(result))
        return {"load_s": loaded - begun, "first_call_s": done - loaded}

    def round(self, seconds: float, least: int) -> dict[str, Any]:
        call, clock = self.runner.call, time.perf_counter
        gc.collect()
        end = clock() + WARM_SHARE * seconds
        call()
        while clock() < end:
            call()
        found: list[float] = []
        end = clock() + seconds
        begun = clock()
        while begun < end or len(found) < least:
            call()
            now = clock()
            found.append(now - begun)
            begun = now
        return {"seconds": found}

    def finish(self, answer: str) -> dict[str, Any]:
        from hotfuse.cli.bench.subject import save_arrays

        save_arrays(Path(answer), self.runner.arrays(self.runner.call()))
        return {"notes": self.runner.notes(), "facts": self.runner.facts()}

    def probe(self, what: str, threads: int, seconds: float, bytes: int = 0) -> dict[str, Any]:
        from hotfuse.cli.bench.probes import Probes

        if self.probes is None:
            self.probes = Probes()
        return {"rate": self.probes.rate(what, threads, seconds, bytes)}

    def timeline(self, **request: Any) -> dict[str, Any]:
        from hotfuse.cli.bench.timeline_worker import record

        self.runner, found = record(**request)
        return found


def explain(error: BaseException) -> str:
    """An error in one line, with what to do about it where that is known."""
    if isinstance(error, ModuleNotFoundError):
        extra = "torch" if error.name == "torch" else "bench"
        return f"{error.name} is not installed; pip install 'hotfuse[{extra}]'"
    if isinstance(error, MemoryError):
        return "out of memory"
    text = " ".join(str(error).split())[:300]
    return text if type(error).__name__ == "Missing" else f"{type(error).__name__}: {text}"


def serve(descriptor: int) -> None:
    worker = Worker()
    with os.fdopen(descriptor, "w", buffering=1) as answers:
        for line in sys.stdin:
            try:
                found = worker.answer(json.loads(line))
            except Exception as error:
                found = {"error": explain(error), "skipped": type(error).__name__ == "Missing"}
            print(json.dumps(found), file=answers)


def die_with_parent() -> None:
    """A stopped worker could not notice that its parent is gone; Linux kills it then."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    warnings.simplefilter("ignore")
    serve(int(sys.argv[1]))
