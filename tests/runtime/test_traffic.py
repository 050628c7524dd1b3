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
from hotfuse.hardware.samples import HELD_OUT, Samples, make_samples, no_samples, write_samples
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.training import Quality, train
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.graph import Graph
from hotfuse.ir.types import F32, TensorType
from hotfuse.runtime import traffic
from hotfuse.runtime.build_worker import answer
from hotfuse.runtime.building import make_planned
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import TIMES, Calibration, forget_machine, keep_rates
from hotfuse.runtime.parcel import unwrap, wrap
from hotfuse.runtime.threads import team_size
from hotfuse.runtime.traffic import LEAST, SOURCE, TrafficReply, TrafficRequest, kinds_of, weigh_here
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


def test_layers_alike_are_not_judged_by_their_twins(config: Config) -> None:
    """Of four kinds of units, ten times each, none can be held out from what is learned of them."""
    builder = GraphBuilder("layers")
    found = []
    for number in range(40):
        x = builder.input(f"x{number}", TensorType(F32, (symbol("rows"), 32 + 16 * (number % 4))))
        found.append(builder.add("softmax", x, axis=-1))
    known(config)
    reply = weigh_here(request(config, seconds=5e-2, graph=builder.build(found), trains=True))
    assert len(reply.measured_s) == 40
    assert reply.after is None
    assert not reply.is_replaced


def test_what_is_held_out_is_of_kinds_that_nobody_learned(config: Config) -> None:
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.uniform(0, 20, (7, len(FEATURES))), 5, axis=0)
    samples = make_samples(rows, np.full(35, 1e-6), [1e-6] * 35, [0.01] * 35, SOURCE)
    kinds = kinds_of(samples)
    assert sorted(set(kinds.tolist())) == list(range(7))
    assert all(len(set(kinds[5 * i : 5 * i + 5].tolist())) == 1 for i in range(7))


def test_a_forest_that_forgets_what_calibration_knows_replaces_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = known(config)
    before = calibration.forest()
    learned = train(np.zeros((20, len(FEATURES))), np.full(20, 1e-6), np.full(20, 5e-2), np.full(20, 0.01), FEATURES)
    rng = np.random.default_rng(1)
    rows, prior = rng.uniform(0, 20, (50, len(FEATURES))), rng.uniform(1e-6, 1e-4, 50)
    aside = make_samples(rows, prior, list(2 * prior), [0.01] * 50, HELD_OUT - 1)
    assert calibration.keep(TIMES.samples, TIMES, write_samples(calibration.samples() + aside))
    monkeypatch.setattr(traffic, "move", lambda *_: learned)
    monkeypatch.setattr(traffic, "_quality", lambda forest, samples: _rated(forest is learned, len(samples)))
    reply = weigh_here(request(config, seconds=5e-2, trains=True))
    assert reply.after is not None
    assert reply.before is not None
    assert reply.after < reply.before
    assert not reply.is_replaced
    assert calibration.forest() == before


def _rated(is_new: bool, count: int) -> Quality:
    """The new one is nearer to what it learned of, and has lost the order of all else."""
    return Quality(0.1 if is_new else 0.5, 0.6 if is_new else 0.99, count)


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
