"""Probes: every one does what it says on this machine, and what was measured is kept until the machine is another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotfuse.codegen.link import Code
from hotfuse.codegen.llvm_compile import compile_ir
from hotfuse.config import Config
from hotfuse.hardware.rates import Rates, print_rates, rates_key
from hotfuse.hardware.spec import host_spec, make_spec
from hotfuse.runtime import probes
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibration import RATES, keep_rates, kept_rates
from hotfuse.runtime.driver import Job, Step, get_driver
from hotfuse.runtime.memory import aligned_block
from hotfuse.runtime.probe_ir import probe_ir
from hotfuse.runtime.probes import Prober, measure_rates
from tests.hardware.test_spec import AMX, machine

SPEC = host_spec()


def run(probe: str, memory: np.ndarray, size: int, times: int, tasks: int) -> None:
    code = Code(compile_ir(probe_ir(SPEC), SPEC))
    table = np.array([memory.ctypes.data, size, times], np.int64)
    get_driver().run(Job([Step(code.address(probe), table.ctypes.data, tasks)], 1, 4096))


def test_a_write_covers_its_parts_and_nothing_else() -> None:
    size = 8 * SPEC.vector_bytes
    memory = aligned_block(4 * size, 4096)
    memory[:] = 255
    run("write", memory, size, 2, 3)
    vectors = memory[: 3 * size].reshape(-1, SPEC.vector_bytes)
    assert (vectors == vectors[0]).all()
    assert (vectors[0] != 255).any()
    assert (memory[3 * size :] == 255).all()


def test_a_read_changes_nothing() -> None:
    memory = aligned_block(1 << 14, 4096)
    memory[:] = 7
    run("read", memory, 1 << 14, 3, 1)
    assert (memory == 7).all()


@pytest.mark.parametrize("isa", ["native", "avx2", "sse"])
def test_probes_of_every_instruction_set_compile(isa: str) -> None:
    spec = host_spec(isa)
    assert compile_ir(probe_ir(spec), spec)


def test_tiles_are_measured_where_there_are_some() -> None:
    assert "tdpbf16ps" in probe_ir(make_spec(machine(AMX)))
    assert "tdpbf16ps" not in probe_ir(make_spec(machine(AMX), "avx512"))
    prober = Prober(SPEC, 1, None)
    assert (prober.amx().one > 0) == SPEC.amx


@pytest.fixture(scope="module")
def rates() -> Rates:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "SIZES", (1 << 14, 1 << 20))
        patch.setattr(probes, "ROUND_S", 0.0005)
        return measure_rates(SPEC, min(2, SPEC.threads), None)


def test_rates_are_those_of_a_machine(rates: Rates) -> None:
    """Within what any machine of this century does: this one may be busy."""
    assert rates.read.bytes == (1 << 14, 1 << 20)
    for rate in (*rates.read.one, *rates.read.team, *rates.write.one, *rates.write.team):
        assert 0.1 < rate < 5000
    assert 1 < rates.fma.one < 2000
    assert 0 < rates.call_s < 1e-5
    assert rates.call_s < rates.start_s < 0.01
    assert 0 < rates.barrier_s < 0.01
    assert 0.01 < rates.touch < 1000


def test_progress_is_told_of_every_measurement() -> None:
    told: list[tuple[str, int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "SIZES", (1 << 14,))
        patch.setattr(probes, "ROUND_S", 0.0001)
        measure_rates(SPEC, 1, None, lambda what, number, of: told.append((what, number, of)))
    assert [(number, of) for _, number, of in told] == [(n, 10) for n in range(1, 11)]


def test_rates_are_kept_until_the_machine_is_another(rates: Rates, tmp_path: Path) -> None:
    cache = open_cache(Config(cache=str(tmp_path / "cache")))
    assert cache is not None
    assert kept_rates(SPEC, rates.threads, cache) is None
    assert keep_rates(rates, SPEC, cache)
    assert kept_rates(SPEC, rates.threads, cache) == rates
    assert kept_rates(SPEC, rates.threads + 1, cache) is None
    assert kept_rates(make_spec(machine()), rates.threads, cache) is None
    assert not keep_rates(rates, SPEC, None)
    assert kept_rates(SPEC, rates.threads, None) is None


@pytest.mark.parametrize("data", [b"", b"\xff", print_rates.__name__.encode()])
def test_what_is_damaged_is_measured_again(data: bytes, tmp_path: Path) -> None:
    cache = open_cache(Config(cache=str(tmp_path / "cache")))
    assert cache is not None
    cache.put(RATES, rates_key(SPEC, 2), data)
    assert kept_rates(SPEC, 2, cache) is None


def test_costs_that_the_clock_cannot_tell_are_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    prober, seconds = Prober(SPEC, 1, None), iter((3e-6, 2e-6, 5e-6, 4e-6))
    monkeypatch.setattr(prober, "_empty", lambda steps, threads: next(seconds))
    call_s, start_s, barrier_s = prober.costs()
    assert (call_s, start_s, barrier_s) == (probes.LEAST_S, 5e-6, probes.LEAST_S)
