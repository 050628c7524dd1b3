"""Programs that several workers make code of: none is lost, none is made by nobody, and nobody waits for ever."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotfuse.config import Config
from hotfuse.errors import CodegenError, WorkerError
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime import build_jobs, build_pool, foundry
from hotfuse.runtime.build import skeleton
from hotfuse.runtime.build_jobs import build_job
from hotfuse.runtime.build_pool import MODULE, wake_workers
from hotfuse.runtime.build_request import BuildReply, BuildRequest, HelpRequest
from hotfuse.runtime.build_work import build_here
from hotfuse.runtime.foundry import help_here
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.pile import NEEDLESS, Offer, Pile, Take, Taken
from hotfuse.runtime.recent_code import RECENT
from hotfuse.runtime.workers import Job, Pool
from hotfuse.stress import parse
from tests.runtime.test_build_worker import GRAPH
from tests.runtime.test_scheduler import idle_machine

CONFIG = Config(cache="off", workers=2)


def offered(count: int, helpers: int = 1, long_s: float = 60.0) -> tuple[Pile, list[int]]:
    asked: list[int] = []
    pile = Pile(lambda pile, most: asked.append(min(most, helpers)), long_s)
    pile.serve(wrap(Offer(tuple(bytes([place]) for place in range(count)))))
    return pile, asked


def own(pile: Pile) -> Taken:
    return unwrap(pile.serve(wrap(Take())))  # type: ignore[no-any-return]


def helps(pile: Pile, brought: Take | None = None, number: int = 0) -> Taken:
    return unwrap(pile.helper(number)(wrap(brought or Take())))  # type: ignore[no-any-return]


def test_each_program_is_taken_once_and_what_others_made_comes_at_the_end() -> None:
    pile, asked = offered(4, helpers=3)
    assert asked == [3]
    assert own(pile).place == 0
    first = helps(pile)
    assert (first.place, first.program) == (1, b"\1")
    assert own(pile).place == 2
    second = helps(pile, Take(1, b"code 1", True, 0.5))
    assert second.place == 3
    assert helps(pile, Take(3, b"code 3")).place is None
    end = own(pile)
    assert end.place is None
    assert {place: made.code for place, made in end.made.items()} == {1: b"code 1", 3: b"code 3"}
    assert end.made[1].cpu_s == 0.5


@pytest.mark.parametrize("how", ["it is gone", "there can be no code"])
def test_what_a_helper_does_not_bring_is_done_by_the_one_that_builds(how: str) -> None:
    pile, _ = offered(2)
    assert helps(pile).place == 0
    assert own(pile).place == 1
    if how == "it is gone":
        pile.left(0)
        assert helps(pile, Take(0, b"too late")).place is None
    else:
        assert helps(pile, Take(0)).place is None, "no helper tries it again"
    assert own(pile).place == 0
    assert own(pile) is not None
    assert own(pile).made == {}


def test_the_one_that_builds_waits_for_a_helper_and_not_for_ever() -> None:
    pile, _ = offered(1, long_s=0.2)
    assert helps(pile).place == 0
    threading.Timer(0.05, helps, (pile, Take(0, b"code"))).start()
    begun = time.monotonic()
    assert own(pile).made[0].code == b"code"
    assert 0.02 < time.monotonic() - begun < 0.2
    slow, _ = offered(1, long_s=0.2)
    assert helps(slow).place == 0
    assert own(slow).place == 0
    assert helps(slow, Take(0, b"too late")).place is None
    assert own(slow).made == {}


def test_a_second_offer_forgets_the_first() -> None:
    pile, _ = offered(2)
    helps(pile)
    helps(pile, Take(0, b"old"))
    pile.serve(wrap(Offer((b"new",))))
    assert helps(pile, Take(1, b"old")).program == b"new"
    helps(pile, Take(0, b"made"))
    assert {place: made.code for place, made in own(pile).made.items()} == {0: b"made"}


def test_programs_are_laid_down_while_others_are_lowered() -> None:
    """A helper that is faster than who lowers waits; the longest is taken first; others are asked for once."""
    asked: list[int] = []
    pile = Pile(lambda pile, most: asked.append(most))
    pile.serve(wrap(Offer((b"aa", b"b"), more=True)))
    assert helps(pile).program == b"aa"
    assert helps(pile, Take(0, b"code")).place == 1
    pile.check()  # nothing lies there, and more will
    threading.Timer(0.05, pile.serve, (wrap(Offer((b"c", b"ddd"), more=True)),)).start()
    assert helps(pile, Take(1, b"code")).program == b"ddd"
    pile.serve(wrap(Offer((b"ee",))))
    assert asked == [2]
    assert [own(pile).place, own(pile).place] == [4, 2]
    assert helps(pile, Take(3, b"code")).place is None
    assert sorted(own(pile).made) == [0, 1, 3]


def test_a_helper_does_not_wait_for_who_is_gone() -> None:
    pile = Pile(lambda pile, most: None)
    pile.serve(wrap(Offer((b"a",), more=True)))
    assert helps(pile).place == 0
    threading.Timer(0.05, pile.close).start()
    assert helps(pile, Take(0, b"code")).place is None


def test_who_comes_too_late_starts_no_process() -> None:
    pile, _ = offered(3)
    pile.check()
    pile.close()
    with pytest.raises(WorkerError, match="nothing left to help with") as caught:
        pile.check()
    assert caught.value.cause == NEEDLESS
    assert helps(pile).place is None


def test_any_number_of_workers_in_any_order() -> None:
    """Threads that take, bring, fail and leave: all programs have code in the end."""
    for seed in range(30):
        pile, _ = offered(20, long_s=5.0)

        def work(number: int, pile: Pile = pile, seed: int = seed) -> None:
            brought = Take()
            for turn in itertools.count(seed + number):
                taken = helps(pile, brought, number)
                if taken.place is None or turn % 7 == 6:
                    pile.left(number)
                    return
                brought = Take(taken.place, None if turn % 5 == 4 else b"code")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        mine: list[int] = []
        while (taken := own(pile)).place is not None:
            mine.append(taken.place)
        assert sorted([*mine, *taken.made]) == list(range(20))
        for thread in threads:
            thread.join()


# workers


@pytest.fixture(name="pool")
def _pool() -> Iterator[Pool]:
    made = Pool(MODULE, 2, name="build worker", first_rest_s=0.01, sight=idle_machine())
    yield made
    made.close()


def built(pool: Pool, submit: Callable[[Job], None] | None = None, config: Config = CONFIG) -> BuildReply:
    """A build with a helper; a worker is there already, so that the other has time to come."""
    found: list[Any] = []
    over = threading.Event()
    request = BuildRequest(skeleton(GRAPH), config, helpers=1)
    job = build_job("b", lambda: request, lambda r: (found.append(r), over.set()), config, submit=submit or pool.submit)  # type: ignore[arg-type, return-value]
    pool.submit(replace(job, stress=parse("")))
    assert over.wait(120)
    assert isinstance(found[0], BuildReply), found[0]
    return found[0]


def test_two_workers_make_what_one_makes(pool: Pool) -> None:
    jobs: list[Job] = []

    def submit(job: Job) -> None:
        """The helper is up before the one that builds goes on."""
        over = threading.Event()

        def serve(question: bytes) -> bytes:
            over.set()
            return job.serve(question)  # type: ignore[misc, return-value]

        pool.submit(replace(job, serve=serve))
        jobs.append(job)
        assert over.wait(60)

    reply, here = built(pool, submit), build_here(BuildRequest(skeleton(GRAPH), CONFIG))
    assert [job.label for job in jobs] == ["help with b"]
    assert reply.build.units == here.build.units
    assert reply.objects == here.objects
    assert reply.compiled == len(here.objects)


def test_programs_are_offered_before_all_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundry, "AT_ONCE", 2)
    monkeypatch.setattr(foundry, "kept_object", lambda *_: None)
    pile = Pile(lambda pile, most: None)
    offers: list[tuple[int, bool]] = []

    def ask_back(question: bytes) -> bytes:
        asked = unwrap(question)
        if isinstance(asked, Offer):
            offers.append((len(asked.programs), asked.more))
        return pile.serve(question)

    reply = build_here(BuildRequest(skeleton(GRAPH), CONFIG, helpers=1), ask_back)
    count = len(reply.build.programs)
    assert count > 2
    assert offers == [*[(2, True)] * (count // 2), (count % 2, False)]
    assert reply.objects == build_here(BuildRequest(skeleton(GRAPH), CONFIG)).objects


@pytest.mark.parametrize("fault", [1])
def test_no_program_is_lost_with_a_helper(pool: Pool, fault: int) -> None:
    """Every job but that of the one that builds fails, in one way or another."""
    for _ in range(3):
        RECENT.clear()
        broken = replace(CONFIG, stress=f"fail-compile-every-{fault}")
        reply = built(pool, config=broken)
        assert len(reply.objects) == len(reply.build.programs) > 1


def test_help_ends_where_nothing_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise CodegenError("planted")

    monkeypatch.setattr(foundry, "object_of", fail)
    pile, _ = offered(2)
    monkeypatch.setattr(foundry, "unwrap", lambda body: body if len(body) == 1 else unwrap(body))
    reply = help_here(HelpRequest(CONFIG), pile.helper(0))
    assert reply.made == 0
    assert [own(pile).place, own(pile).place] == [0, 1]


def test_what_has_no_code_is_left_to_tier_0_whoever_tried_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = foundry.object_of
    shop = foundry.Foundry(host_spec(), None)
    programs = shop.build(BuildRequest(skeleton(GRAPH), CONFIG)).programs
    bad = programs[0]

    def fail(program: Any, *rest: Any) -> Any:
        if program == bad:
            raise CodegenError("planted")
        return original(program, *rest)

    monkeypatch.setattr(foundry, "object_of", fail)
    monkeypatch.setattr(foundry, "kept_object", lambda *_: None)
    build = build_here(BuildRequest(skeleton(GRAPH), CONFIG)).build
    assert bad not in build.programs
    assert "planted" in build.reasons.values()


def test_all_workers_are_woken(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(build_pool, "build_pool", lambda config: pool)
    monkeypatch.setattr(pool, "submit", lambda job: asked.append(job.make()))
    wake_workers(CONFIG)
    wake_workers(CONFIG, most=1)
    assert asked == [b"", b"", b""]


def test_nobody_helps_behind_calls_without_a_pause(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> None:
    monkeypatch.setattr(build_jobs, "RIGHT_OF_WAY", SimpleNamespace(crowded=True))
    jobs: list[Job] = []
    assert built(pool, jobs.append).objects
    assert jobs == []
