"""Who runs a model. An engine is a function that takes a subject and settings and returns a `Runner`.

Every engine gets the same weights, the same inputs, the same number of threads, and float32 arithmetic. torch engines run the
module, the others its ONNX export. Libraries are imported before the clock starts, and nothing is compiled before it.

An engine of one's own is named `package.module:function`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hotfuse.cli.bench.subject import Arrays, Subject, tensors_of, torch_call
from hotfuse.errors import InputError
from hotfuse.events import EventLog
from hotfuse.records import dataclass


class Missing(Exception):
    """This engine cannot run this subject; the message says why."""


@dataclass(frozen=True)
class Settings:
    """What every engine is told. `tier` is hotfuse's."""

    threads: int = 2
    tier: int = 1


@dataclass(frozen=True)
class Runner:
    """`call` is one inference, `arrays` reads its answer (outside the clock), `notes` says what is worth knowing after some,
    `facts` what can be counted, and `events` what happened, where an engine tells."""

    call: Callable[[], Any]
    arrays: Callable[[Any], Arrays]
    notes: Callable[[], str] = lambda: ""
    facts: Callable[[], dict[str, int]] = dict
    events: EventLog = field(default_factory=EventLog)


# Made in two steps, so that imports and the building of a torch module are not taken for compiling.
Opener = Callable[[], Runner]
Engine = Callable[[Subject, Settings], Opener]


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that must be set before a process starts. Libraries without a call of their own read them."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def cold_caches(folder: str) -> dict[str, str]:
    """Variables that give every engine empty caches: what it compiles, it compiles in this run."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "HOTFUSE_CACHE")
    return {name: os.path.join(folder, name.lower()) for name in names}


def find_engine(name: str) -> Engine:
    """The engine of that name, or the function that `package.module:function` names."""
    known = ENGINES.get(name, name)
    if not isinstance(known, str):
        return known
    module, colon, function = known.partition(":")
    if not colon:
        raise InputError(
            f"there is no engine {name!r}; engines are {', '.join(ENGINES)}, or your own as package.module:function"
        )
    engine: Engine = getattr(importlib.import_module(module), function)
    return engine


def need_onnx(subject: Subject) -> str:
    if subject.no_onnx:
        raise Missing(subject.no_onnx)
    return subject.onnx_path


# torch


def torch_opener(subject: Subject, settings: Settings, prepare: Callable[[Any], Any]) -> Opener:
    if subject.no_torch:
        raise Missing(subject.no_torch)
    import torch

    torch.set_num_threads(settings.threads)
    torch.set_grad_enabled(False)
    call = torch_call(subject.case, Path(subject.folder))

    def open_it() -> Runner:
        module = prepare(call.module)
        args, kwargs = call.args, call.kwargs
        notes = getattr(module, "report", None)
        return Runner(lambda: module(*args, **kwargs), tensors_of, lambda: str(notes().why) if notes else "")

    return open_it


def eager(subject: Subject, settings: Settings) -> Opener:
    return torch_opener(subject, settings, lambda module: module)


def inductor(subject: Subject, settings: Settings) -> Opener:
    import torch

    return torch_opener(subject, settings, torch.compile)


def inductor_max(subject: Subject, settings: Settings) -> Opener:
    """max-autotune with frozen weights."""
    import torch
    from torch._inductor import config

    config.freezing = True
    return torch_opener(subject, settings, lambda module: torch.compile(module, mode="max-autotune"))


def hotfuse_torch(subject: Subject, settings: Settings) -> Opener:
    import hotfuse

    options, note = hotfuse_options(settings)
    if subject.case.model.endswith(".pt2"):
        return torch_opener(subject, settings, lambda module: hotfuse.load(subject.case.model, **options))
    opened = torch_opener(subject, settings, lambda module: hotfuse.compile(module, **options))

    def open_it() -> Runner:
        runner = opened()
        return Runner(runner.call, runner.arrays, lambda: "; ".join(n for n in (note, runner.notes()) if n))

    return open_it


# ONNX


def hotfuse_options(settings: Settings) -> tuple[dict[str, Any], str]:
    """The options of the highest tier that this version takes, and what to say if it is not the one asked for."""
    import hotfuse

    known = {option.name for option in dataclasses.fields(hotfuse.Config)}
    threads = {"threads": settings.threads} if "threads" in known else {}
    wanted: dict[str, Any] = {"tier": settings.tier, "wait": True, **threads}
    try:
        hotfuse.Config(**wanted)
    except hotfuse.HotfuseError as error:
        return {"tier": 0, **threads}, f"tier 0 instead of {settings.tier}: {error}"
    return wanted, ""


def hotfuse_onnx(subject: Subject, settings: Settings) -> Opener:
    path = need_onnx(subject)
    import hotfuse

    options, note = hotfuse_options(settings)
    feeds = subject.feeds()

    return lambda: session_runner(hotfuse.load(path, **options), feeds, note)


def session_runner(session: Any, feeds: Mapping[str, Any], note: str, arrays: Callable[[Any], Arrays] = list) -> Runner:
    """Calls of a session with these inputs. Facts: the kernels that a call runs, the calls that were not for them, how many
    kernels this process has compiled so far, and the CPU time of that."""

    def facts() -> dict[str, int]:
        from hotfuse.runtime.kernels import compiled_so_far  # with a session at tier 0 nobody has imported it yet

        missed, done = session.report().events.get("native.missed", 0), compiled_so_far()
        cpu_ms = round(done.cpu_s * 1e3)
        return {"kernels": session.kernels, "missed": missed, "compiled": done.kernels, "compile_cpu_ms": cpu_ms}

    notes = lambda: "; ".join(n for n in (note, str(session.report().why)) if n)  # noqa: E731
    return Runner(lambda: session.run(None, feeds), arrays, notes, facts)


def _onnxruntime(subject: Subject, settings: Settings, level: str) -> Opener:
    path = need_onnx(subject)
    import onnxruntime

    feeds = subject.feeds()

    def open_it() -> Runner:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return Runner(lambda: session.run(None, feeds), list)

    return open_it


def ort(subject: Subject, settings: Settings) -> Opener:
    return _onnxruntime(subject, settings, "ORT_ENABLE_ALL")


def ort_plain(subject: Subject, settings: Settings) -> Opener:
    """Without its graph optimisations."""
    return _onnxruntime(subject, settings, "ORT_DISABLE_ALL")


def openvino(subject: Subject, settings: Settings) -> Opener:
    path = need_onnx(subject)
    import openvino as ov

    feeds = list(subject.feeds().values())
    # float32 by name: where the processor has bfloat16 products, OpenVINO takes them unasked
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": settings.threads, "INFERENCE_PRECISION_HINT": "f32"}

    def open_it() -> Runner:
        request = ov.Core().compile_model(path, "CPU", options).create_infer_request()
        given = dict(enumerate(feeds))

        def call() -> Any:
            return request.infer(given, share_inputs=True, share_outputs=True)

        return Runner(call, lambda answer: [array.copy() for array in answer.to_tuple()])

    return open_it


# those of single kernels, lengths and timelines are named by where they are: they stand on this module
ENGINES: Mapping[str, Engine | str] = {
    "hotfuse-torch": hotfuse_torch,
    "hotfuse-onnx": hotfuse_onnx,
    "eager": eager,
    "inductor": inductor,
    "inductor-max": inductor_max,
    "onnxruntime": ort,
    "onnxruntime-plain": ort_plain,
    "openvino": openvino,
    "hotfuse": "hotfuse.cli.bench.kernel_engines:run_hotfuse",
    "numpy": "hotfuse.cli.bench.kernel_engines:run_numpy",
    "torch": "hotfuse.cli.bench.kernel_engines:run_torch",
    "hotfuse-generic": "hotfuse.cli.bench.length_engines:run_generic",
    "adaptive-torch": "hotfuse.cli.bench.timeline_engines:run_torch",
    "adaptive-onnx": "hotfuse.cli.bench.timeline_engines:run_onnx",
    "unfused-onnx": "hotfuse.cli.bench.timeline_engines:run_unfused",
}
