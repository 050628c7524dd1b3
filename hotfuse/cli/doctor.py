"""`hotfuse doctor`: what the machine offers, which libraries are there, what is missing, and what to do about it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from importlib import metadata

import click

import hotfuse
from hotfuse.cli.view import json_option, make_console, make_table, write_json
from hotfuse.config import Config
from hotfuse.errors import ConfigError
from hotfuse.hardware.machine import Machine, read_machine
from hotfuse.hardware.spec import Spec, host_spec
from hotfuse.records import dataclass
from hotfuse.runtime.planning import known_model

CORE = ("numpy", "onnx", "ml-dtypes", "llvmlite", "scikit-learn", "safetensors", "psutil", "platformdirs", "rich", "click")
EXTRA = ("torch", "cloudpickle", "triton", "pillow", "onnxruntime", "openvino", "transformers")
TORCH = "2.13.0"


@dataclass(frozen=True)
class Finding:
    """Something to know. `level` is "error" (hotfuse will not work), "warning" (it will work worse) or "note"."""

    level: str
    what: str
    do: str


@click.command(
    "doctor",
    epilog="""\b
Examples:
  hotfuse doctor
  hotfuse doctor --json -""",
)
@json_option
def command(json_path: str | None) -> None:
    """Show what this machine offers, what is missing, and what to do. Exit code 1 if hotfuse cannot work."""
    console = make_console(json_path)
    machine, spec = read_machine(), _spec(os.environ)
    versions = {name: _version(name) for name in (*CORE, *EXTRA)}
    findings = [
        *check_versions(versions),
        *check_machine(machine),
        *check_environment(os.environ),
        *check_calibration(os.environ, spec),
    ]
    console.print(make_table("Machine", ("what", "found"), [*_machine_rows(machine), *_spec_rows(spec)]))
    console.print()
    rows = [("python", sys.version.split()[0]), ("hotfuse", hotfuse.__version__)]
    rows += [(name, version or "-") for name, version in versions.items()]
    console.print(make_table("Versions", ("package", "version"), rows))
    console.print()
    if findings:
        found = [(f.level, f.what, f.do) for f in findings]
        console.print(make_table("Findings", ("", "what", "what to do"), found))
    else:
        console.print("Nothing is missing.")
    write_json(
        json_path,
        {
            "machine": dataclasses.asdict(machine),
            "spec": None if spec is None else {**dataclasses.asdict(spec), "threads": spec.threads, "key": spec.key},
            "python": sys.version.split()[0],
            "hotfuse": hotfuse.__version__,
            "versions": versions,
            "findings": [dataclasses.asdict(f) for f in findings],
        },
    )
    if any(f.level == "error" for f in findings):
        raise click.exceptions.Exit(1)


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    gib = 1 << 30
    quota = "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g} cores"
    limit = "none" if machine.memory_limit_bytes is None else f"{machine.memory_limit_bytes / gib:.1f} GiB"
    return [
        ("system", machine.system),
        ("processor", machine.cpu),
        ("cores", f"{machine.cores}, {machine.usable_cores} usable by this process; quota: {quota}"),
        ("instruction sets", " ".join(machine.instruction_sets) or "not known"),
        ("caches", ", ".join(f"{level} {size // 1024:,} KiB" for level, size in machine.caches.items()) or "not known"),
        ("memory", f"{machine.memory_bytes / gib:.1f} GiB; limit: {limit}"),
    ]


def _spec(environment: Mapping[str, str]) -> Spec | None:
    """What code is generated for; None where the findings say why there is none."""
    try:
        return host_spec(Config.from_environment(environment).isa)
    except (ConfigError, ImportError):
        return None


def _spec_rows(spec: Spec | None) -> list[tuple[str, str]]:
    if spec is None:
        return [("code is generated for", "nothing: see the findings")]
    vectors = f"{spec.vector_registers} vectors of {spec.vector_bytes} bytes"
    cores = f"{spec.physical_cores} physical cores{', each shared by several logical ones' if spec.smt else ''}"
    return [
        (
            "code is generated for",
            f"{spec.isa} on {spec.processor or 'this processor'}: {vectors}{', AMX tiles' if spec.amx else ''}",
        ),
        ("threads of a kernel", f"{spec.threads} ({cores})"),
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_versions(versions: Mapping[str, str | None]) -> list[Finding]:
    """What is missing among the libraries. Only those of the core are needed for ONNX models."""
    found = [Finding("error", f"{name} is not installed", f"pip install {name}") for name in CORE if versions.get(name) is None]
    torch = versions.get("torch")
    if torch is None:
        found.append(Finding("note", "torch is not installed: only ONNX models run", f"pip install torch=={TORCH}"))
    elif torch.partition("+")[0] != TORCH:
        found.append(Finding("warning", f"torch {torch} was never tested with hotfuse", f"pip install torch=={TORCH}"))
    elif versions.get("cloudpickle") is None:
        found.append(Finding("warning", "cloudpickle is missing: PyTorch models stay eager", "pip install cloudpickle"))
    if versions.get("pillow") is None:
        found.append(Finding("note", "pillow is not installed: ONNX's ImageDecoder cannot run", "pip install pillow"))
    return found


def check_machine(machine: Machine) -> list[Finding]:
    found = []
    if not machine.system.startswith("Linux") or "x86_64" not in machine.system:
        found.append(Finding("note", f"{machine.system} is not Linux on x86-64", "everything runs, at tier 0"))
    elif "avx2" not in machine.instruction_sets:
        found.append(Finding("warning", "the processor has no AVX2", "use a newer machine type if speed matters"))
    if machine.cpu_quota is not None and machine.cpu_quota < machine.usable_cores:
        threads = max(1, int(machine.cpu_quota))
        found.append(
            Finding(
                "warning",
                f"the control group allows {machine.cpu_quota:g} of {machine.usable_cores} cores: more threads would stall",
                f"set OMP_NUM_THREADS={threads}, which numpy and torch obey",
            )
        )
    return found


def check_calibration(environment: Mapping[str, str], spec: Spec | None) -> list[Finding]:
    """Whether plans are predicted by what was measured here."""
    if spec is None or known_model(Config.from_environment(environment), spec).pairs is not None:
        return []
    what = "nobody measured this machine: plans rest on typical rates, and what may pay is not tried on traffic"
    return [Finding("note", what, "hotfuse calibrate")]


def check_environment(environment: Mapping[str, str]) -> list[Finding]:
    try:
        host_spec(Config.from_environment(environment).isa)
    except ImportError:  # llvmlite is missing, which the versions say
        return []
    except ConfigError as error:
        return [Finding("error", str(error), "correct or unset the variable")]
    return []
