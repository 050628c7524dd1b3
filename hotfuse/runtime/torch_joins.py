"""Joins: which parts of a model, captured apart, are answered as one, and whether that pays.

    calls in order -> rows of parts that always follow each other -> wired (`torch_chain`) -> captured, built and proved as one
                   -> timed against its parts, in turn -> joined, or apart for a while

Every criterion is explicit, and `report()` tells how each was met or not:

    frequency   one follows the other, and nothing else does, in nearly all of many recent calls
    locality    the second takes what the first makes, and all else it takes is known when the first is called
    resources   together they are not larger than a graph may be; neither changes anything in place nor draws random numbers
    fuel        a join is one of the decisions that the model may make (`Config.fuel`)
    time        calls through the chain are faster than through its parts, by more than noise; looked at again now and then

A chain whose promises are not kept (calls stopped following each other) or that is slower is taken apart, and rests, longer
each time.

State: the order of calls, the rows that are known, and of each thread what it saw of a row and what was promised to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hotfuse.locks import make_lock
from hotfuse.runtime.order import Order, make_chains, runs
from hotfuse.runtime.torch_chain import UNTRACED, ChainModule, Promise, Seen, promise, see, state_of, wire
from hotfuse.runtime.torch_guard import read_call
from hotfuse.runtime.torch_row import Row, fit_rows, is_coming, serves
from hotfuse.runtime.turns import Duel, Times

if TYPE_CHECKING:
    from hotfuse.runtime.torch_family import Family
    from hotfuse.runtime.torch_serving import Member

    Eager = Callable[..., Any]

BEGINS = "(the model is called)"
LOOK_EVERY = 64  # calls of the model: then the order of its parts is looked at
OFTEN = 32.0  # recent calls in which one part followed another, before they are wired
WIRED = 3  # calls in a row that are wired alike
TRY_EVERY = 4  # calls of a chain that does not serve yet: its parts answer the others
HALF_LIFE_S = 30.0
COMING_S = 60.0  # that a row waits for kernels of all its parts
KEPT_SHARE = 0.9  # of promises, or the chain is taken apart
PROMISES = 32  # before it is judged whether they are kept
AGAIN = 4096  # calls of a chain after which it is timed again
REST_S, MOST_REST_S = 60.0, 3600.0
JOINED, APART = "joined", "apart"


class _Thread(threading.local):
    trail: tuple[Row, list[Seen]] | None = None
    promised: tuple[Row, Promise, int] | None = None
    timed: tuple[Row, Any, float] | None = None  # of a duel: whose turn it was, and seconds so far


class Joins:
    """Of one model's parts."""

    def __init__(self, family: Family, make: Callable[[ChainModule, str], Member], clock: Callable[[], float] = time.monotonic):
        self._family, self._make, self._clock = family, make, clock
        self._order = Order(HALF_LIFE_S)
        self._rows: dict[Member, Row] = {}  # by their first part
        self._seen_s: dict[tuple[str, ...], float] = {}
        self._apart: set[tuple[Member, Member]] = set()  # neighbours that cannot be wired
        self._calls = 0
        self._thread = _Thread()
        self._lock = make_lock()

    def begin(self) -> None:
        """The model is called."""
        self._order.note(BEGINS)
        self._calls += 1
        if self._calls % LOOK_EVERY == 0:
            self.look()

    def end(self) -> None:
        """The model has answered, or failed: nobody will ask for what was promised."""
        thread = self._thread
        if thread.promised is not None:
            self._broke(thread.promised[0], "the model returned before")
        thread.trail = thread.promised = thread.timed = None

    def call(self, member: Member, eager: Eager, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The answer to the call of a part."""
        started, thread = time.perf_counter(), self._thread
        row = self._rows.get(member)
        if thread.promised is not None:
            answer, is_kept = self._redeem(member, args, kwargs)
        elif row is not None and row.chain is not None and not row.over and self._takes(row, row.chain):
            answer, is_kept = self._joined(row, row.chain, args, kwargs)
        else:
            is_kept = False
        if not is_kept:
            answer = member.call(eager, args, kwargs)
            if thread.trail is not None or (row is not None and not row.is_wired):
                self._observe(row, member, args, kwargs, answer)
        if member.classes:
            self._order.note(member.name)
        if thread.timed is not None:
            self._time(member, time.perf_counter() - started)
        return answer

    # finding rows

    def look(self) -> None:
        """Look at the order of calls, and begin to wire the rows that are new."""
        known = {member.name: member for member in self._family.all()}
        now_s = self._clock()
        with self._lock:
            chains = [c for c in make_chains("", self._order.collect(now_s)) if BEGINS not in (c.first, c.second)]
            often = {c.first: c for c in chains if c.recent >= OFTEN}
            rows = runs(often.values())
            self._seen_s = {names: self._seen_s.get(names, now_s) for names in rows}
            for names in rows:
                members = [known.get(name) for name in names]
                if now_s < self._seen_s[names] + COMING_S and any(m and is_coming(m) for m in members):
                    continue  # kernels of more of them may serve soon: the longer row is the better one
                for found in fit_rows(members, self._apart, self._family.config.max_nodes):
                    chain = often[found[0].name]
                    share = min(chain.of_first, chain.of_second)
                    self._propose(Row(found, f"{chain.recent:.0f} recent calls, {share:.0%} in this order"))

    def _propose(self, row: Row) -> None:
        """A row that is not known yet. It takes the place of shorter ones within it."""
        within = [old for old in self._rows.values() if not set(row.members).isdisjoint(old.members)]
        if any(not set(old.members) < set(row.members) for old in within):
            return
        for old in within:
            del self._rows[old.members[0]]
            old.gone = True
            if old.chain is not None:
                self._family.forget(old.chain)
        self._rows[row.members[0]] = row

    def _observe(self, row: Row | None, member: Member, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> None:
        """Learn from a call. What fails here must not fail the call."""
        thread = self._thread
        if thread.trail is None and row is not None:
            thread.trail = (row, [])
        try:
            self._follow(member, args, kwargs, answer)
        except Exception as error:
            if thread.trail is not None:
                thread.trail[0].over, thread.trail[0].why = True, f"{type(error).__name__}: {error}"
            thread.trail = None
            self._family.events.emit("observer.failed", member.name, f"{type(error).__name__}: {error}")

    def _follow(self, member: Member, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> None:
        """See one more call of a row that is to be wired; when it was the last, wire it."""
        thread = self._thread
        assert thread.trail is not None
        row, trail = thread.trail
        members = row.members
        if len(trail) >= len(members) or members[len(trail)] is not member:
            thread.trail = None
            return
        trail.append(see(member, read_call(args, kwargs), args, kwargs, answer))
        if len(trail) < len(members):
            return
        thread.trail = None
        links, why = wire(trail)
        with row.lock:
            if row.is_wired or row.members is not members:
                return
            now = trail[0].call.frame, links
            row.alike = row.alike + 1 if now == (row.frame, row.links) else 1
            row.frame, row.links = now
            if row.alike < WIRED:
                return
            if why:
                self._split(row, len(links) + 1, why)
            if links:
                self._join(row)

    def _split(self, row: Row, at: int, why: str) -> None:
        """Parts from `at` on cannot be joined with those before; they may be a row of their own."""
        names = [member.name for member in row.members]
        self._family.events.emit("parts.apart", " + ".join(names[: at + 1]), f"{names[at]}: {why}")
        first, rest = row.members[:at], row.members[at:]
        if at > 1:
            row.members = first
        else:
            row.over, row.why = True, why
        with self._lock:
            self._apart.add((first[-1], rest[0]))
            if len(rest) > 1:
                self._rows[rest[0]] = Row(rest, row.frequency)

    def _join(self, row: Row) -> None:
        why = self._family.fuel.draw()
        if why:
            row.over, row.why = True, why
            return
        module = ChainModule([member.module for member in row.members], row.links)
        with self._family.lock:
            row.chain = self._make(module, row.name)
        taken = sum(source > 0 for link in row.links for source, _ in link.wires)
        reason = f"{row.frequency}; {taken} arguments are made by the parts before"
        self._family.events.emit("parts.joining", row.name, reason)

    # answering

    def _takes(self, row: Row, chain: Member) -> bool:
        """Whether the chain of a row answers the next call."""
        with row.lock:
            row.calls += 1
            if not row.rest.is_over(self._clock()):
                return False
            if any(c.program.mutations or c.program.has_effects for c in chain.classes):
                row.over, row.why = True, "together they change something in place, or draw random numbers"
                return False
            if not serves(chain):
                return row.calls % TRY_EVERY == 0
            if row.duel is None and (not row.pays or row.calls % AGAIN == 0):
                row.duel = Duel(JOINED, APART, None, lambda times: self._judge(row, times))
            if row.duel is None:
                return True
            side = row.duel.turn()
        self._thread.timed = (row, side, 0.0)
        return bool(side == JOINED)

    def _joined(self, row: Row, chain: Member, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
        """The chain's answer to the call of a row's first part, and True; the others are promised."""
        call = read_call(args, kwargs)
        states = [state_of(member) for member in row.members]
        if call.refusal or call.frame != row.frame or not all(states):
            self._thread.timed = None  # what a part does that is not as it was captured is done in its own call alone
            return None, False
        try:
            answers = chain.call(chain.module, args, kwargs)
        except Exception:  # whoever is at fault says so when its turn comes
            self._broke(row, "a part fails")
            return None, False
        audited = row.calls % self._family.config.audit_every == 0
        made = promise(row.links, row.members, call, answers, states, audited)
        if made is None:
            self._broke(row, "inference tensors do not tell when they are changed")
        else:
            self._thread.promised = (row, made, 1)
        return answers[0], True

    def _redeem(self, member: Member, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
        """What was promised to the call of a part, and True, if it is the call that was foreseen."""
        thread = self._thread
        assert thread.promised is not None
        row, made, number = thread.promised
        thread.promised = None
        if made.members[number] is not member:
            self._broke(row, f"{member.name} is called instead of {made.members[number].name}")
            return None, False
        answer, why = made.redeem(number, args, kwargs)
        if why:
            self._broke(row, f"{member.name}: {why}", for_good=why == UNTRACED)
            return None, False
        member.redeemed()
        if number + 1 < len(made.members):
            thread.promised = (row, made, number + 1)
        else:
            row.kept += 1
        return answer, True

    # whether it pays

    def _broke(self, row: Row, why: str, for_good: bool = False) -> None:
        """What was computed ahead is of no use. Too often, and the row is taken apart."""
        self._thread.timed = None
        with row.lock:
            if for_good:
                row.over, row.pays, row.why = True, False, why
                self._family.events.emit("parts.apart", row.name, f"{why}; for good")
                return
            row.broken += 1
            seen = row.kept + row.broken
            if seen < PROMISES:
                return
            share, row.kept, row.broken = row.kept / seen, row.kept // 2, row.broken // 2
            if share < KEPT_SHARE:
                self._rest(row, f"{share:.0%} of its promises are kept: {why}")

    def _time(self, member: Member, seconds: float) -> None:
        assert self._thread.timed is not None
        row, side, before = self._thread.timed
        self._thread.timed = (row, side, before + seconds)
        if member is row.members[-1]:
            self._thread.timed = None
            duel = row.duel
            if duel is not None:
                duel.note(side, before + seconds)

    def _judge(self, row: Row, times: Times) -> None:
        with row.lock:
            row.duel = None
            took = f"{times.with_s * 1e3:.3g} ms joined, {times.without_s * 1e3:.3g} ms apart"
            if times.without_s - times.with_s <= times.spread_s:
                self._rest(row, took)
            elif not row.pays:
                row.pays, row.why = True, took
                self._family.events.emit("parts.joined", row.name, f"{row.frequency}; {took}")

    def _rest(self, row: Row, why: str) -> None:
        """Called under the row's lock."""
        now_s = self._clock()
        row.rest = row.rest.longer(now_s, REST_S, MOST_REST_S)
        row.pays, row.duel, row.why = False, None, why
        self._family.events.emit("parts.apart", row.name, f"{why}; again in {row.rest.until_s - now_s:.0f} s")

    def told(self) -> tuple[tuple[str, str], ...]:
        """Every row: its parts, and what became of it."""
        with self._lock:
            rows = list(self._rows.values())
        return tuple((row.name, self._state(row)) for row in rows)

    def _state(self, row: Row) -> str:
        if row.over or not row.rest.is_over(self._clock()):
            return f"apart: {row.why}"
        if row.pays:
            return f"joined: {row.frequency}; {row.why}"
        return f"{'being proved' if row.chain is not None else 'being looked at'}: {row.frequency}"
