"""A wrong kernel behind a session that serves: it is written down so that it can be run again, and the next process knows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.adaptive import audits
from hotfuse.adaptive.making import Making
from hotfuse.cli.main import main
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.build_jobs import BuildReply
from hotfuse.runtime.objects import object_of
from hotfuse.runtime.reproduction_folder import read_reproduction
from tests.adaptive.test_session_subject import WIDTH, feed, is_fused, model, rules, serve
from tests.adaptive.waiting import in_vain


def broken(reply: BuildReply, right: str = "exp", wrong: str = "sin") -> BuildReply:
    """A reply in which a function is another one, in its programs and in their code."""
    objects = dict(zip(reply.build.programs, reply.objects, strict=True))
    units = []
    for unit in reply.build.units:
        recipes = []
        for recipe in unit.recipes:
            text = print_program(recipe.program)
            program = parse_program(text.replace(f"map {right} ", f"map {wrong} "))
            objects[program] = object_of(program, host_spec(), None)[0]
            recipes.append(replace(recipe, program=program))
        units.append(replace(unit, recipes=tuple(recipes)))
    build = replace(reply.build, units=tuple(units))
    return replace(reply, build=build, objects=tuple(objects[program] for program in build.programs))


def test_what_was_wrong_is_written_down_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Making._built

    def built(self: Any, decision: Any, sizes: Any, result: Any) -> None:
        original(self, decision, sizes, broken(result))

    monkeypatch.setattr(Making, "_built", built)
    options = {"cache": str(tmp_path / "cache"), "reproductions": str(tmp_path / "kept"), "tier": 1}
    with hotfuse.load(model().SerializeToString(), **options) as session:
        serve(session, lambda: is_fused(session) and session.events.of("reproduction"))
        (event,) = session.events.of("reproduction.written")
        assert len(session.events.of("tier.quarantine")) == 1
    result = CliRunner().invoke(main, ["replay", event.data["path"]])
    assert result.exit_code == 1
    assert "the saved program is wrong; today's generator makes another one that is right" in result.stdout
    with hotfuse.load(model().SerializeToString(), **options) as session:
        serve(session, lambda: is_fused(session))
        assert not session.events.of("tier.quarantine")
        assert "operators run one by one" in session.report().why


@pytest.mark.parametrize("found_by", ["shadow", "audit"])
def test_what_was_wrong_is_shown_on_the_call_that_showed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Kernels that are right of zeros alone: these are the sample, and another call tells."""
    built_so, proved_so = Making._built, Making._proved

    def built(self: Any, decision: Any, sizes: Any, result: Any) -> None:
        built_so(self, decision, sizes, broken(result, "tanh", "sin"))

    def proved(self: Any, decision: Any, asked: Any, sampled: bool, result: Any) -> None:
        proved_so(self, decision, asked, sampled, replace(result, verdicts=()))

    monkeypatch.setattr(Making, "_built", built)
    monkeypatch.setattr(Making, "_proved", proved)
    monkeypatch.setattr(audits, "CALLS", 5)
    options: dict[str, Any] = {"cache": "off", "reproductions": str(tmp_path / "kept"), "tier": 1, "fuel": 1}
    zeros, other = np.zeros((96, WIDTH), np.float32), feed()
    with hotfuse.load(model().SerializeToString(), **options) as session:

        def call_until(kind: str, x: Any) -> None:
            deadline = time.monotonic() + 120
            while not session.events.of(kind):
                assert time.monotonic() < deadline, in_vain(session.events)
                session.run(None, {"x": x})
                time.sleep(0.005)

        rules(session, shadow_calls=1 if found_by == "audit" else 1000)
        call_until("tier.publish" if found_by == "audit" else "tier.shadow", zeros)
        call_until("tier.quarantine", other)
        assert bool(session.events.of("audit.failed")) == (found_by == "audit"), in_vain(session.events)
        call_until("reproduction", zeros)
        (event,) = session.events.of("reproduction.written")
    shown = read_reproduction(Path(event.data["path"])).tensors["x"]
    assert np.array_equal(shown, other[: len(shown)])
    assert CliRunner().invoke(main, ["replay", event.data["path"]]).exit_code == 1
