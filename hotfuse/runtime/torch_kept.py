"""Kept captures: what is written to the cache of the captures of one module, for other processes.

    find: what an earlier process captured      keep: a thread writes      disown: nobody meets it again

State: where programs of this process lie in the cache; a lock guards the list.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config
from hotfuse.errors import HotfuseError
from hotfuse.events import EventLog
from hotfuse.frontends.torch_request import TensorInput, TraceRequest
from hotfuse.locks import make_lock
from hotfuse.pace import Pace, Unhurried, imports

if TYPE_CHECKING:
    from hotfuse.frontends.torch_program import CapturedProgram, Trace
    from hotfuse.runtime.cache import DiskCache
    from hotfuse.runtime.capture_cache import Recalled
    from hotfuse.runtime.torch_class import ServedClass


class KeptCaptures:
    """Those of one module."""

    def __init__(self, module: torch.nn.Module, name: str, events: EventLog, config: Config) -> None:
        self._module, self._name, self._events, self._config = module, name, events, config
        self._places: list[tuple[weakref.ref[CapturedProgram], str]] = []
        self._lock = make_lock()

    def find(self, cache: DiskCache, asked: TraceRequest, pace: Pace) -> Recalled | None:
        """What the cache has of a request. None where that cannot be told; whatever the reason, a capture meets it again, and
        says so."""
        try:
            with imports(pace):
                from hotfuse.frontends.torch_skeleton import make_skeleton
                from hotfuse.runtime.capture_cache import recall

            data, _ = make_skeleton(asked, pace)
            shapes = [leaf.shape for leaf in asked.leaves if isinstance(leaf, TensorInput)]
            return recall(cache, data, self._module, shapes, pace)
        except Exception as error:
            self.missed(f"{type(error).__name__}: {error}")
            return None

    def missed(self, why: str) -> None:
        self._events.emit("capture.missed", self._name, why)

    def keep(self, place: str, watch: Any, served: ServedClass, found: Trace) -> None:
        """Have a program written to a place in the cache, or note that it came from there."""
        with self._lock:
            self._places.append((weakref.ref(found.program), place))
        if found.form:
            arguments = (place, watch, served, found)
            threading.Thread(target=self._write, args=arguments, name="hotfuse-keep", daemon=True).start()

    def _write(self, place: str, watch: Any, served: ServedClass, found: Trace) -> None:
        from hotfuse.runtime.cache import open_cache
        from hotfuse.runtime.capture_cache import KIND, make_entry

        why = ""
        try:
            entry = make_entry(self._module, found, Unhurried())
            # Looked at last: what the entry says of the module was true of it when it was captured, and all the time since.
            why = "the module has changed since" if served.guard.watch is watch else served.departure()
            cache = open_cache(self._config)
            if not why and (cache is None or not cache.put(KIND, place, entry)):
                why = "the cache takes nothing"
        except Exception as error:
            why = str(error) if isinstance(error, HotfuseError) else f"{type(error).__name__}: {error}"
        self._events.emit("capture.unkept" if why else "capture.kept", self._name, why)

    def disown(self, program: CapturedProgram) -> None:
        """Take a program that answers otherwise than the module out of the cache, so that nobody meets it again."""
        from hotfuse.runtime.cache import open_cache

        with self._lock:
            places = [place for kept, place in self._places if kept() is program]
        cache = open_cache(self._config) if places else None
        if cache is not None:
            from hotfuse.runtime.capture_cache import KIND

            for place in places:
                cache.put_later(KIND, place, b"")
