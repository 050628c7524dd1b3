"""The foundry: all programs of a build become code, some of them by other workers.

A build is lowered first, as if there were code for everything, and then its programs are compiled; others begin with those that
there are. Where there can be no code it is lowered again without: a chain link by link, the rest is left to tier 0.

State: the code of each program, or why there is none; the programs that have none yet, in the order of their places, and how
many of them lie where others can take them; how many were compiled, and the time that others took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hotfuse.codegen.tile import TileProgram
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.runtime.build import Build
from hotfuse.runtime.build_request import BuildRequest, HelpReply, HelpRequest
from hotfuse.runtime.building import MakeCode, make_build
from hotfuse.runtime.cache import DiskCache, open_cache
from hotfuse.runtime.child_main import AskBack
from hotfuse.runtime.objects import kept_object, object_of
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.pile import Offer, Take, Taken
from hotfuse.runtime.recent_code import RECENT

AT_ONCE = 8  # programs that are laid down together while others are lowered


class Foundry:
    """Makes builds with code. Others help where somebody answers `ask_back`."""

    def __init__(self, spec: Spec, cache: DiskCache | None, ask_back: AskBack | None = None) -> None:
        self._spec, self._cache, self._ask_back = spec, cache, ask_back
        self._failed: dict[TileProgram, Exception] = {}
        self._missing: dict[TileProgram, None] = {}
        self._offered = 0
        self.objects: dict[TileProgram, bytes] = {}
        self.compiled = 0
        self.others_s = 0.0

    def build(self, asked: BuildRequest) -> Build:
        """What cannot be built is left to tier 0, with the reason."""
        config = replace(asked.config, strict=False)
        return self.made(
            lambda want: make_build(asked.graph, self._spec, config, want, asked.live, asked.sizes, asked.grouping)
        )

    def made(self, build: Callable[[MakeCode], Build]) -> Build:
        """What is built where every program has code, or none that can be made of it."""
        while True:
            self._missing, self._offered = {}, 0
            found = build(self._want)
            self._make()
            if self._failed.keys().isdisjoint(self._missing):
                return found

    def _want(self, program: TileProgram) -> None:
        """Have code of a program, or see to it later. The error that there was where there can be none."""
        if program in self._failed:
            raise self._failed[program]
        if program in self.objects or program in self._missing:
            return
        found = kept_object(program, self._spec, self._cache)
        if found is not None:
            self.objects[program] = found
            return
        self._missing[program] = None
        if self._ask_back is not None and len(self._missing) - self._offered >= AT_ONCE:
            self._offer(self._ask_back, more=True)

    def _make(self) -> None:
        if self._ask_back is not None and len(self._missing) > 1:
            self._make_with_others(self._ask_back)
        else:
            for program in self._missing:
                self._compile(program)

    def _compile(self, program: TileProgram) -> None:
        try:
            self.objects[program], is_new = object_of(program, self._spec, self._cache)
            self.compiled += is_new
        except Exception as error:  # no defect of the generator may keep a model from answering
            self._failed[program] = error

    def _offer(self, ask_back: AskBack, more: bool) -> None:
        """Lay down what does not lie there yet."""
        programs = list(self._missing)[self._offered :]
        ask_back(wrap(Offer(tuple(wrap(program) for program in programs), more)))
        self._offered += len(programs)

    def _make_with_others(self, ask_back: AskBack) -> None:
        self._offer(ask_back, more=False)
        order = tuple(self._missing)
        while True:
            taken: Taken = unwrap(ask_back(wrap(Take())))
            if taken.place is None:
                break
            self._compile(order[taken.place])
        for place, made in taken.made.items():
            if order[place] not in self.objects and made.code is not None:
                self.objects[order[place]] = made.code
                self.compiled += made.is_new
            self.others_s += made.cpu_s


def help_here(asked: HelpRequest, ask_back: AskBack) -> HelpReply:
    """Make code of what lies on somebody's pile, until nothing is left."""
    spec, cache = host_spec(asked.config.isa), open_cache(asked.config)
    RECENT.bound(asked.config.max_cache_bytes)
    brought, made = Take(), 0
    while True:
        taken: Taken = unwrap(ask_back(wrap(brought)))
        if taken.place is None:
            return HelpReply(made)
        started = time.thread_time()
        try:
            code, is_new = object_of(unwrap(taken.program), spec, cache)
            brought = Take(taken.place, code, is_new, time.thread_time() - started)
            made += 1
        except Exception:  # whoever builds finds why
            brought = Take(taken.place)
