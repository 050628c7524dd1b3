"""Workers taking turns: A B C A B C ... While one is asked, all others are stopped, whatever their threads were doing.

An engine that is missing, fails, crashes, hangs or runs out of memory loses its worker and gets a reason; the rest goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from hotfuse.cli.child import Child, Died
from hotfuse.cli.process_tree import peak_bytes, resident_bytes, signal_tree
from hotfuse.records import dataclass

SAMPLE_S = 0.05  # between looks at the memory of a process tree that loads and compiles


class Failed(Exception):
    """The worker answered that it could not, or answers no more. `skipped` where the engine was not made for the subject."""

    def __init__(self, reason: str, skipped: bool = False) -> None:
        super().__init__(reason)
        self.skipped = skipped


class Player:
    """One worker process. It runs only inside `ask`; `peak` is the most memory its process tree was seen with."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "hotfuse.cli.bench.worker"]
        self.child = Child(lambda descriptor: [*command, str(descriptor)], environment, apart=True)
        self.peak = 0
        self._stop()

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def _stop(self) -> None:
        if self.child.process.poll() is None:
            signal_tree(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # a signal takes effect later than it is sent

    def ask(self, limit_s: float, watch: bool = False, **request: Any) -> dict[str, Any]:
        """One answer. `watch` samples memory meanwhile, which costs a little time: not for rounds."""
        if self.child.process.poll() is None:
            signal_tree(self.pid, signal.SIGCONT)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        if watch:
            watcher.start()
        try:
            found = self.child.ask(json.dumps(request), limit_s)
        except Died as died:
            hint = " (out of memory?)" if "SIGKILL" in str(died) else ""
            raise Failed(f"{died}{hint}") from died
        finally:
            done.set()
            if watch:
                watcher.join()
        self._look()
        self._stop()
        if "error" in found:
            raise Failed(found["error"], bool(found["skipped"]))
        return found

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.peak = max(self.peak, resident_bytes(self.pid), peak_bytes(self.pid))

    def close(self) -> None:
        self.child.close()


@dataclass
class Entrant:
    """One engine in a contest: its worker, and what it did. `failed` is the reason why it is out."""

    engine: str
    player: Player | None = None
    failed: str = ""
    skipped: bool = False
    load_s: float = 0.0
    first_call_s: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    notes: str = ""
    facts: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0

    def ask(self, limit_s: float, **request: Any) -> dict[str, Any] | None:
        """The worker's answer; None, and out of the contest, where it has none."""
        if self.player is None:
            return None
        try:
            return self.player.ask(limit_s, **request)
        except Failed as failed:
            self.failed, self.skipped = str(failed), failed.skipped
            self.close()
            return None
        finally:
            if self.player is not None:
                self.peak_bytes = self.player.peak

    def close(self) -> None:
        if self.player is not None:
            self.peak_bytes = self.player.peak
            self.player.close()
            self.player = None


def take_turns(entrants: Sequence[Entrant], rounds: int, seconds: float, least: int, limit_s: float) -> Iterator[int]:
    """Every round, each entrant that is still in. Yields the number of the round before each turn."""
    for number in range(rounds):
        for entrant in entrants:
            yield number
            found = entrant.ask(limit_s, do="round", seconds=seconds, least=least)
            if found is not None:
                entrant.rounds.append(found["seconds"])
