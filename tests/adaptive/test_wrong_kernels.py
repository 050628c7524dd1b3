"""A wrong kernel behind a session that serves: it is written down so that it can be run again, and the next process knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hotfuse
from hotfuse.adaptive.making import Making
from hotfuse.cli.main import main
from hotfuse.codegen.tile_reader import parse_program
from hotfuse.codegen.tile_text import print_program
from hotfuse.hardware.spec import host_spec
from hotfuse.runtime.build_jobs import BuildReply
from hotfuse.runtime.objects import object_of
from tests.adaptive.test_session_subject import is_fused, model, serve


def broken(reply: BuildReply) -> BuildReply:
    """A reply whose softmax is another function, in its program and in its code."""
    objects = dict(zip(reply.build.programs, reply.objects, strict=True))
    units = []
    for unit in reply.build.units:
        recipes = []
        for recipe in unit.recipes:
            text = print_program(recipe.program)
            program = parse_program(text.replace("map exp ", "map sin "))
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
