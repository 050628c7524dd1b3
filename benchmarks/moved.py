"""A forest moved to other hardware: how far off it is there, with a little of the new machine's data, and how far off
one is that was trained of all of that data. The bound: with at most a tenth of it a median error of at most 15 % and a rank
correlation of at least 0.95.

Other hardware is made of this one: kernels of AVX2 only, one thread, and a neighbour that goes through the shared cache all the
time. Each machine is calibrated by a process of its own; what is held out is so on both.

python -m benchmarks.moved [--seconds 60] [--share 0.1] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from hotfuse.config import Config
from hotfuse.hardware.features import FEATURES
from hotfuse.hardware.forest import Forest
from hotfuse.hardware.moving import move
from hotfuse.hardware.samples import Samples, no_samples, read_samples, write_samples
from hotfuse.hardware.spec import host_spec
from hotfuse.hardware.training import Quality, quality
from hotfuse.runtime.cache import open_cache
from hotfuse.runtime.calibrating import gather
from hotfuse.runtime.calibration import Calibration
from hotfuse.runtime.operator_probes import measure_operators
from hotfuse.runtime.probes import measure_rates
from hotfuse.runtime.threads import team_size

ERROR, RANK = 0.15, 0.95
MACHINES = {"old": {}, "new": {"HOTFUSE_ISA": "avx2", "HOTFUSE_THREADS": "1"}}
NEIGHBOUR = "import numpy; a = numpy.ones(6 << 20, numpy.float32)\nwhile True: a.sum()"  # 24 MiB of the shared cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="that kernels are timed on each machine")
    parser.add_argument("--share", type=float, default=0.1, help="of the new machine's data that the moved forest gets")
    parser.add_argument("--folder", type=Path, help="where samples are kept, and found if they are there")
    parser.add_argument("--only", choices=MACHINES, help=argparse.SUPPRESS)  # what the processes are started with
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.only:
        (options.folder / f"{options.only}.samples").write_bytes(write_samples(calibrated(options.seconds)))
        return
    with contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        old, new = (samples_of(name, Path(folder), options.seconds) for name in MACHINES)
    found = judge(old, new, options.share)
    for what, judged in found.items():
        print(f"{what:<52} median error {judged.median_error:6.1%}, rank correlation {judged.rank_correlation:.3f}")
    moved = found[next(name for name in found if "moved" in name)]
    is_met = moved.median_error <= ERROR and moved.rank_correlation >= RANK
    print(f"{moved.samples} kernels held out; the bounds, {ERROR:.0%} and {RANK}, are {'met' if is_met else 'not met'}")
    if options.json:
        options.json.write_text(json.dumps({what: asdict(judged) for what, judged in found.items()}, indent=2))


def samples_of(name: str, folder: Path, seconds: float) -> Samples:
    """Those of one machine, timed now where they are not there."""
    kept = folder / f"{name}.samples"
    if not kept.exists():
        arguments = ["--only", name, "--seconds", str(seconds), "--folder", str(folder)]
        with neighbour() if MACHINES[name] else contextlib.nullcontext():
            subprocess.run(
                [sys.executable, "-m", "benchmarks.moved", *arguments], env={**os.environ, **MACHINES[name]}, check=True
            )
    return read_samples(kept.read_bytes(), FEATURES)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}) as process:
        try:
            yield
        finally:
            process.kill()


def calibrated(seconds: float) -> Samples:
    """What kernels take on the machine that this process takes itself to be on."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(Config.from_environment(), tier=1, wait=True, cache=folder)
        spec, cache = host_spec(config.isa), open_cache(config)
        rates = measure_rates(spec, team_size(spec, config.threads), cache)
        rates = replace(rates, operators=measure_operators(spec, config))
        times, _ = gather(Calibration(spec, rates, cache), config, seconds, lambda passed, count, what: None)
        return times


def judge(old: Samples, new: Samples, share: float) -> dict[str, Quality]:
    """Of forests for the new machine, on what was held out there."""
    held, rest = new.where(new.is_held_out), new.where(~new.is_held_out)
    known = old.where(~old.is_held_out)
    few = rest.where(np.arange(len(rest)) < share * len(new))  # the first that it would time
    none = no_samples(FEATURES)
    return {
        f"of the old machine alone ({len(known)} samples)": _judged(move(known, none, FEATURES), held),
        f"moved, with {len(few)} of {len(new)} samples of the new one": _judged(move(known, few, FEATURES), held),
        f"of those {len(few)} alone": _judged(move(few, none, FEATURES), held),
        f"of all {len(rest)} of the new machine": _judged(move(rest, none, FEATURES), held),
    }


def _judged(forest: Forest, held: Samples) -> Quality:
    return quality(held.prior_s * np.exp(forest.ask(held.rows)[0]), held.seconds)


if __name__ == "__main__":
    main()
