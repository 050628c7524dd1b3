"""Calibration: specimens are timed and kept, a worker trains, and the next time goes on where this one ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotfuse.config import Config
from hotfuse.errors import ExecutionError
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.retrain import LEAST
from hotfuse.hardware.samples import HELD_OUT, write_samples
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.builder import GraphBuilder
from hotfuse.ir.dim import symbol
from hotfuse.ir.types import F32, TensorType
from hotfuse.runtime import course as module
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibrating import ALONE, PLANS, gather, plans_of, retrain, timed
from hotfuse.runtime.calibration import RATIOS, SUBJECTS, TIMES, Calibration, forget_machine, keep_rates, known_machine
from hotfuse.runtime.specimens import Specimen, specimen
from tests.hardware.test_model import RATES, work
from tests.hardware.test_samples import drawn


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(cache=str(tmp_path / "cache"), tier=1, wait=True)


@pytest.fixture
def calibration(config: Config) -> Calibration:
    return Calibration(host_spec(), RATES, open_cache(config))


def test_who_is_interrupted_goes_on_where_it_was(calibration: Calibration, config: Config) -> None:
    def stop(passed: float, count: int, what: str) -> None:
        told.append(what)
        if len(told) == 3:
            raise KeyboardInterrupt

    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        gather(calibration, config, 60.0, stop)
    kept = calibration.samples()
    assert told == ["specimen 0", "specimen 1", "specimen 2"]
    assert set(kept.source) <= {0, 1}
    assert len(kept)
    told.clear()
    with pytest.raises(KeyboardInterrupt):
        gather(calibration, config, 60.0, stop)
    assert told[0] == f"specimen {kept.source.max() + 1}"
    assert len(calibration.samples()) > len(kept)


def test_a_specimen_that_cannot_run_teaches_nothing(
    calibration: Calibration, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[object]:
        raise ExecutionError("planted")

    monkeypatch.setattr(module, "random_plan", fail)
    assert [len(samples) for samples in timed(calibration, config, 0)] == [0, 0]


def test_every_group_and_every_edit_is_a_sample(calibration: Calibration, config: Config) -> None:
    times, ratios = timed(calibration, config, 3)
    assert len(times) > 2
    assert len(ratios) > 0
    assert (ratios.seconds > 0).all()
    assert (times.source == 3).all()


def test_a_plan_is_edited_several_times_and_each_edit_made_once(calibration: Calibration, config: Config) -> None:
    course = module.Course(calibration, specimen(3), replace(config, threads=1), 3)
    assert len(course._edited) == module.EDITED
    edits = [edit for edited in course._edited for edit in edited.edits]
    assert len(set(map(id, edits))) == len(edits) > module.EDITS
    assert len({(edit.strategy, edit.names, edit.choice) for edit in edits}) == len(edits)
    course.run()
    times, ratios = course.found()
    assert len(ratios) > module.EDITS
    assert len(np.unique(times.rows, axis=0)) > 0.9 * len(times)  # the plan's groups count once, not beside each edited one


def quietly(passed: float, count: int, what: str) -> None:
    """Nobody looks."""


def test_plans_of_a_model_have_sources_of_their_own(calibration: Calibration, config: Config) -> None:
    calls = [specimen(3), specimen(4)]
    series = plans_of("mine", calls)
    assert series.first + PLANS <= 0
    for number in range(0, 20, 2):  # each call once in a round
        assert {id(series.subject(number)), id(series.subject(number + 1))} == set(map(id, calls))
    assert plans_of("other", calls[1:]).first != series.first
    times, ratios = gather(calibration, config, 0.5, quietly, series)
    assert len(times) > 2
    assert len(ratios) > 0
    assert (times.source < 0).all()
    assert series.count(times) >= 1
    found = gather(calibration, config, 0.0, quietly)[0]  # specimens begin at 0 all the same
    assert len(found) == len(times)
    assert timed(calibration, config, 3)[0].source.max() == 3


@pytest.mark.parametrize("count", [2, 4, 5, 8, 10, 20])
def test_of_each_call_some_plans_are_held_out_and_some_go_on_one_thread(count: int) -> None:
    calls = [replace(specimen(3)) for _ in range(count)]
    series = plans_of("mine", calls)
    met: dict[int, set[tuple[bool, bool]]] = {}
    for number in range(60 * count):
        is_held = bool((series.first + number) % HELD_OUT == HELD_OUT - 1)
        met.setdefault(id(series.subject(number)), set()).add((is_held, number % ALONE == 0))
    again = plans_of("mine", calls)  # who goes on later has the same
    assert all(series.subject(number) is again.subject(number) for number in range(3 * count))
    assert len(met) == count
    for ways in met.values():
        assert len({is_held for is_held, _ in ways}) == len({is_alone for _, is_alone in ways}) == 2


def test_all_plans_of_a_model_end_it(calibration: Calibration, config: Config) -> None:
    series = replace(plans_of("mine", [specimen(3)]), most=2)
    times, _ = gather(calibration, config, 60.0, quietly, series)
    assert series.count(times) == 2


def test_a_model_that_cannot_run_is_an_error(calibration: Calibration, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[object]:
        raise ExecutionError("planted")

    monkeypatch.setattr(module, "random_plan", fail)
    with pytest.raises(ExecutionError, match="planted"):
        gather(calibration, config, 60.0, quietly, plans_of("mine", [specimen(0)]))


def test_free_sizes_are_those_of_the_call(calibration: Calibration, config: Config) -> None:
    builder = GraphBuilder("free")
    x = builder.input("x", TensorType(F32, (symbol("rows"), 64)))
    graph = builder.build([builder.add("softmax", builder.add("exp", x), axis=-1)])
    rows = FEATURES.index("points")
    for count in (3, 700):
        call = Specimen(graph, {"x": np.ones((count, 64), np.float32)})
        for number in range(3):  # with kernels for these sizes, and for all
            times, _ = timed(calibration, config, number, plans_of("free", [call]))
            assert np.allclose(2 ** times.rows[:, rows] - 1, count * 64, rtol=1e-4)


def test_a_worker_trains_and_the_forest_is_kept(calibration: Calibration, config: Config) -> None:
    assert calibration.forest() == b""
    assert calibration.known(RATES.threads).model.forest is None
    before = calibration.known(RATES.threads).digest
    samples = drawn(range(LEAST))
    reply = retrain(calibration, samples, config)
    assert reply.forest == calibration.forest() != b""
    assert calibration.known(RATES.threads).digest != before  # builds that were planned without it are no longer found
    assert calibration.known(RATES.threads).model.forest is not None
    assert np.isfinite(calibration.known(RATES.threads).model.predict([work(products=1e6)]).seconds).all()
    again = retrain(calibration, samples, config)
    assert not again.forest  # it is as good as the one that is there
    assert calibration.forest() == reply.forest


def test_what_is_damaged_is_as_good_as_nothing(calibration: Calibration) -> None:
    for subject in SUBJECTS:
        for kind in (subject.samples, subject.forest):
            assert calibration.keep(kind, subject, b"nothing of ours")
        assert len(calibration.samples(subject)) == 0
        assert calibration.forest(subject) == b""
    assert calibration.known(RATES.threads).model.pairs is None


def test_a_forest_of_other_columns_is_none(calibration: Calibration, config: Config) -> None:
    reply = retrain(calibration, drawn(range(LEAST)), config)
    assert calibration.keep(RATIOS.forest, RATIOS, reply.forest)
    assert calibration.forest(RATIOS) == b""


def test_without_a_cache_nothing_is_kept() -> None:
    calibration = Calibration(host_spec(), RATES, None)
    assert not calibration.keep(TIMES.samples, TIMES, b"")
    assert len(calibration.samples()) == 0
    assert calibration.forest() == b""


def test_another_machine_with_the_same_cache_is_known(calibration: Calibration, config: Config) -> None:
    assert not len(calibration.elsewhere())
    calibration.keep(TIMES.samples, TIMES, write_samples(drawn(range(3))))
    assert not len(calibration.elsewhere())  # they are its own
    there = Calibration(host_spec(), replace(RATES, threads=RATES.threads + 1), calibration.cache)
    assert len(there.elsewhere()) == len(drawn(range(3)))
    assert not len(there.elsewhere(RATIOS))
    assert not len(Calibration(host_spec(), RATES, None).elsewhere())


def test_damaged_samples_of_another_machine_are_none(calibration: Calibration) -> None:
    calibration.keep(TIMES.samples, TIMES, b"no samples")
    assert not len(replace(calibration, rates=replace(RATES, threads=RATES.threads + 1)).elsewhere())


def test_who_calibrated_with_all_threads_knows_some_of_them(config: Config) -> None:
    spec, cache = host_spec(), open_cache(config)
    rates = replace(RATES, threads=spec.threads)
    assert keep_rates(rates, spec, cache)
    forget_machine()
    assert known_machine(config.cache, spec, spec.threads).model.rates == rates
    if spec.threads > 1:
        found = known_machine(config.cache, spec, 1).model
        assert (found.rates, found.threads) == (rates, 1)
    more = known_machine(config.cache, spec, spec.threads + 1).model
    assert more.rates != rates
