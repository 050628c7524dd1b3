"""Traffic: units are found again in the plan, predictions come beside what was measured, and only a better forest is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.fusion.rules import Fetch
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import write_forest
from hotfuse.hardware.samples import Samples, make_samples, no_samples, write_samples
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.training import train
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, TensorType
from hotfuse.runtime.build_worker import answer
from hotfuse.runtime.building import make_planned
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import TIMES, Calibration, forget_machine, keep_rates
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.threads import team_size
from hotfuse.runtime.traffic import LEAST, SOURCE, TrafficReply, TrafficRequest, weigh_here
from tests.hardware.test_model import RATES

UNITS = 20
SIZES = (("rows", 64),)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    forget_machine()
    return Config(cache=str(tmp_path / "cache"))


def softmaxes(count: int = UNITS) -> Graph:
    """Rows of several widths, each a unit of its own."""
    builder = GraphBuilder("served")
    found = []
    for number in range(count):
        x = builder.input(f"x{number}", TensorType(F32, (symbol("rows"), 32 + 16 * number)))
        found.append(builder.add("softmax", x, axis=-1))
    return builder.build(found)


def request(config: Config, seconds: float = 1e-4, graph: Graph | None = None, **changes: object) -> TrafficRequest:
    graph = graph or softmaxes()
    units = tuple(tuple(n.id for n in g.nodes) for g in make_planned(graph, host_spec(), config, ()).groups)
    made = TrafficRequest(graph, config, SIZES, False, units, (seconds,) * len(units))
    return replace(made, **changes)  # type: ignore[arg-type]


def known(config: Config) -> Calibration:
    """A machine that was calibrated: everything takes twice what the roofline says."""
    spec = host_spec()
    rates = replace(RATES, threads=team_size(spec, config.threads))
    calibration = Calibration(spec, rates, open_cache(config))
    assert keep_rates(rates, spec, calibration.cache)
    rng = np.random.default_rng(0)
    rows, prior = rng.uniform(0, 20, (200, len(FEATURES))), rng.uniform(1e-6, 1e-4, 200)
    parts = [make_samples(rows[i::4], prior[i::4], list(2 * prior[i::4]), [0.01] * 50, i) for i in range(4)]
    samples: Samples = sum(parts, no_samples(FEATURES))
    forest = train(samples.rows, samples.prior_s, samples.seconds, samples.spread, FEATURES)
    assert calibration.keep(TIMES.samples, TIMES, write_samples(samples))
    assert calibration.keep(TIMES.forest, TIMES, write_forest(forest))
    return calibration


@pytest.mark.parametrize("is_baked", [False, True])
def test_units_that_are_groups_still_are_predicted(config: Config, is_baked: bool) -> None:
    known(config)
    reply = weigh_here(request(config, is_baked=is_baked))
    assert len(reply.measured_s) == len(reply.predicted_s) == UNITS
    assert all(0 < seconds < 1 for seconds in reply.predicted_s)
    assert reply.before is reply.after is None


def test_the_time_of_a_pair_is_no_unit_s(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is woven takes the time of both."""
    known(config)
    asked = request(config)
    planned = make_planned(asked.graph, host_spec(), config, ())
    woven = replace(planned.groups[0], fetches=(Fetch("x1", 1),))
    groups = (woven, *planned.groups[1:])
    monkeypatch.setattr("hotfuse.runtime.traffic.make_planned", lambda *_: replace(planned, groups=groups))
    assert len(weigh_here(asked).measured_s) == UNITS - 1


def test_units_of_another_plan_are_left_out(config: Config) -> None:
    known(config)
    asked = request(config)
    reply = weigh_here(replace(asked, units=(("nobody",), *asked.units[1:])))
    assert len(reply.measured_s) == UNITS - 1


def test_a_better_forest_replaces_the_one_in_use_and_traffic_joins_the_window(config: Config) -> None:
    calibration = known(config)
    before = calibration.forest(), len(calibration.samples())
    reply = weigh_here(request(config, seconds=5e-2, trains=True))
    assert reply.is_replaced
    assert reply.before is not None
    assert reply.after is not None
    assert reply.after < reply.before
    assert calibration.forest() != before[0]
    assert len(calibration.samples()) > before[1]
    assert (calibration.samples().source == SOURCE).sum() == UNITS * 4 // 5  # one in five is held out
    again = weigh_here(request(config, seconds=5e-2))
    assert np.median(np.abs(np.log(again.predicted_s) - np.log(5e-2))) < 0.5


def test_a_forest_that_is_no_better_replaces_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = known(config)
    before = calibration.forest()
    asked = request(config)
    predicted = weigh_here(asked).predicted_s
    reply = weigh_here(replace(asked, seconds=predicted, trains=True))  # nothing is nearer than the one in use
    assert reply.after is not None
    assert not reply.is_replaced
    assert calibration.forest() == before


def test_too_few_units_train_nothing(config: Config) -> None:
    known(config)
    reply = weigh_here(request(config, graph=softmaxes(LEAST - 1), trains=True))
    assert reply.after is None
    assert not reply.is_replaced


def test_a_machine_that_nobody_calibrated_has_nothing_to_drift_from(config: Config) -> None:
    reply = weigh_here(request(config, trains=True))
    assert not reply.is_known
    assert reply.measured_s == ()


def test_a_worker_answers(config: Config) -> None:
    known(config)
    reply = unwrap(answer(wrap(request(config)), lambda _: b""))
    assert isinstance(reply, TrafficReply)
    assert len(reply.measured_s) == UNITS
