"""One model made ready for every engine: the same weights and inputs as files, the answer in float64, the work it takes.

A subject is a folder:
    subject.json   the record `Subject`
    model.onnx     the model for engines that take ONNX, where it could be made
    feeds.npz      its inputs, in order
    original.npz   the answer of the original in its own precision: eager torch, or ONNX Runtime without optimisations
    exact.npz      the answer in float64: torch's module in double precision, or the ONNX model with every float made double and
                   run by our operators one by one without passes; it must agree with the original, which is not ours

Making one builds and runs the model, so it happens in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import hotfuse
from hotfuse.cli.bench.float64 import to_float64
from hotfuse.cli.bench.kernels import Kernel
from hotfuse.cli.bench.models import LIGHT, Case, make_light, make_torch, one_output
from hotfuse.cli.bench.roofline import Work, work_of
from hotfuse.cli.feeds import NAMED_SIZES, free_sizes, make_feeds
from hotfuse.errors import InputError
from hotfuse.records import dataclass

Arrays = list[np.ndarray[Any, Any]]
ORACLE_AGREES = 1e-2  # RMSE of the original to the float64 answer, over its scale; float32 models are near 1e-6


@dataclass(frozen=True)
class Subject:
    """`no_onnx`, `no_torch` and `no_exact` say why something is missing; "" where it is there."""

    folder: str
    label: str
    case: Case
    onnx_path: str
    no_onnx: str
    no_torch: str
    no_exact: str
    oracle: str
    work: Work | None

    def arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(Path(self.folder) / f"{name}.npz", allow_pickle=False) as found:
            return dict(found)

    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        names = json.loads((Path(self.folder) / "inputs.json").read_text())
        return dict(zip(names, self.arrays("feeds").values(), strict=True))


def save_arrays(path: Path, arrays: Sequence[Any]) -> None:
    """Arrays in order, under names that any input may have."""
    np.savez(path, allow_pickle=False, **{f"{i:04d}": np.asarray(a) for i, a in enumerate(arrays)})


def read_subject(folder: Path) -> Subject:
    found = json.loads((folder / "subject.json").read_text())
    found["case"] = Case(**found["case"])
    found["work"] = Work(**found["work"]) if found["work"] else None
    return Subject(**found)


def make_subject(case: Case, folder: Path, exported: Path | None = None) -> Subject:
    """Build the model, and write all that engines and the judge need. `exported` is the ONNX form of a PyTorch model, where
    there is one already."""
    folder.mkdir(parents=True, exist_ok=True)
    if case.is_kernel:
        subject = _from_kernel(case, folder)
    elif case.model.endswith(".onnx") or case.model in LIGHT:
        subject = _from_onnx(case, folder)
    else:
        subject = _from_torch(case, folder, exported)
    (folder / "subject.json").write_text(json.dumps(asdict(subject)))
    return subject


def _write_feeds(folder: Path, feeds: Mapping[str, Any]) -> None:
    (folder / "inputs.json").write_text(json.dumps(list(feeds)))
    save_arrays(folder / "feeds.npz", list(feeds.values()))


def _from_kernel(case: Case, folder: Path) -> Subject:
    import onnx

    kernel = Kernel(case.model)
    path = folder / "model.onnx"
    onnx.save(kernel.model(), str(path))
    save_arrays(folder / "original.npz", [kernel.answer(np.float32)])
    save_arrays(folder / "exact.npz", [kernel.answer(np.float64)])
    oracle = f"float64 run by numpy, {len(kernel.rows)} of {len(kernel.x)} rows; original: numpy"
    return Subject(str(folder), case.model, case, str(path), "", "it is a kernel, not a module", "", oracle, kernel.work)


# ONNX models


def _from_onnx(case: Case, folder: Path) -> Subject:
    import onnx

    path = case.model
    if case.model in LIGHT:
        path = str(folder / "model.onnx")
        onnx.save(make_light(case.model), path)
    session = hotfuse.load(path, disable=True)
    sizes = _chosen_sizes(free_sizes(session.inputs), case)
    feeds = make_feeds(session.graph, session.inputs, given={}, shapes={}, dims=sizes, seed=0)
    _write_feeds(folder, feeds)
    original, whose = _run_original(path, feeds, session)
    save_arrays(folder / "original.npz", original)

    def exact() -> Arrays:
        wide = hotfuse.load(to_float64(onnx.load(path)), disable=True)
        return list(wide.run(None, _in_float64(feeds)))

    missing = _write_exact(folder, exact, original)
    work = work_of(hotfuse.load(path, tier=0).graph, feeds)
    oracle = f"float64 run of the ONNX model by our un-fused operators; original: {whose}"
    return Subject(
        str(folder), case.label, case, path, "", "the model is an ONNX file, not a PyTorch module", missing, oracle, work
    )


def _chosen_sizes(free: Mapping[str, int], case: Case) -> dict[str, int]:
    """Sizes for the free dims that `--batch` and `--seq` mean, by their names."""
    chosen: dict[str, int] = {}
    for option, size, (pattern, _) in zip(("--batch", "--seq"), (case.batch, case.sequence), NAMED_SIZES, strict=False):
        named = [name for name in free if pattern.search(name)]
        if size and not named:
            raise InputError(f"{option} names no free size of the model; its free sizes are {', '.join(free) or 'none'}")
        chosen |= {name: size for name in named if size}
    return chosen


def _run_original(path: str, feeds: Mapping[str, Any], session: Any) -> tuple[Arrays, str]:
    try:
        import onnxruntime
    except ImportError:
        return list(session.run(None, feeds)), "our un-fused operators (ONNX Runtime is not installed)"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        other = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return list(other.run(None, dict(feeds))), "ONNX Runtime without optimisations"
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        return list(session.run(None, feeds)), f"our un-fused operators (ONNX Runtime cannot: {reason})"


def _in_float64(feeds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}


# torch models


def _from_torch(case: Case, folder: Path, exported: Path | None) -> Subject:
    import torch

    torch.set_grad_enabled(False)
    call = torch_call(case, folder)
    original = tensors_of(call.run())
    save_arrays(folder / "original.npz", original)
    path = exported or folder / "model.onnx"
    no_onnx = "" if exported else export(call, path)

    def exact() -> Arrays:
        double = call.module.double()
        args, kwargs = torch.utils._pytree.tree_map(_wide, (call.args, call.kwargs))
        return tensors_of(double(*args, **kwargs))

    missing = _write_exact(folder, exact, original)
    work = None
    if not no_onnx:
        feeds = dict(zip(call.names, (t.numpy() for t in call.tensors), strict=True))
        work = work_of(hotfuse.load(str(path), tier=0).graph, feeds)
    oracle = "float64 run of the PyTorch module; original: eager PyTorch"
    return Subject(str(folder), case.label, case, str(path), no_onnx, "", missing, oracle, work)


@dataclass(frozen=True)
class TorchCall:
    """A module and the arguments of one call; `names` and `tensors` are those among the arguments. `traced` takes the tensors
    alone and is what becomes ONNX."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]
    tensors: tuple[Any, ...]
    traced: Any

    def run(self) -> Any:
        return self.module(*self.args, **self.kwargs)


def torch_call(case: Case, folder: Path) -> TorchCall:
    """The model as a module with its arguments; the first to make it writes the inputs, the others read them."""
    if not case.model.endswith(".pt2"):
        made = make_torch(case)
        if not (folder / "inputs.json").exists():
            _write_feeds(folder, {made.name: made.value.numpy()})
        return TorchCall(one_output(made), (made.value,), {}, (made.name,), (made.value,), one_output(made, traced=True))
    import torch
    from torch.utils import _pytree as pytree

    from hotfuse.config import Config
    from hotfuse.frontends.torch_archive import load_archive

    model = hotfuse.load(case.model, tier=0)
    names = [a.name for a in model.arguments.leaves if a.kind != "constant"]
    if not (folder / "inputs.json").exists():
        sizes = _chosen_sizes(free_sizes(model.inputs), case)
        feeds = make_feeds(model.graph, model.inputs, given={}, shapes={}, dims=sizes, seed=0)
        _write_feeds(folder, {name: feeds[name] for name in names})
    with np.load(folder / "feeds.npz", allow_pickle=False) as found:
        tensors = dict(zip(names, (torch.from_numpy(a) for a in found.values()), strict=True))
    exported = load_archive(case.model, Config())
    leaves = [a.constant if a.kind == "constant" else tensors[a.name] for a in model.arguments.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    module = exported.module().requires_grad_(False)  # tracing keeps its weights as constants
    places = [i for i, a in enumerate(model.arguments.leaves) if a.kind != "constant"]

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Tensors in, tensors out. The program is no submodule: an exported one refuses the `train` that tracing calls."""

        def forward(self, *given: Any) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, given, strict=True):
                filled[place] = tensor
            positional, named = pytree.tree_unflatten(filled, exported.call_spec.in_spec)
            answer = pytree.tree_leaves(module(*positional, **named))
            return tuple(t for t in answer if isinstance(t, torch.Tensor))

    return TorchCall(module, tuple(args), kwargs, tuple(names), tuple(tensors.values()), Flat())


def tensors_of(answer: Any) -> Arrays:
    """The tensors of an answer, as arrays."""
    import torch

    return [t.detach().numpy() for t in torch.utils._pytree.tree_leaves(answer) if isinstance(t, torch.Tensor)]


def _wide(leaf: Any) -> Any:
    import torch

    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def export(call: TorchCall, path: Path, free: Mapping[str, Mapping[int, str]] | None = None) -> str:
    """Write the ONNX file; why that failed, or "". `free` names the axes whose sizes stay open, for each input and output."""
    import torch

    try:
        names = list(call.names)
        outputs = [name for name in free or () if name not in names] or None
        options = {"input_names": names, "output_names": outputs, "dynamic_axes": free, "opset_version": 17}
        torch.onnx.export(call.traced, call.tensors, str(path), dynamo=False, **options)
    except Exception as error:
        return f"torch.onnx.export failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return ""


def _write_exact(folder: Path, run: Callable[[], Arrays], original: Arrays) -> str:
    """Write the float64 answer; why there is none, or ""."""
    try:
        exact = run()
    except Exception as error:
        return f"there is no float64 answer: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if len(exact) != len(original):
        return f"the float64 run has {len(exact)} outputs, the original {len(original)}"
    for place, (a, b) in enumerate(zip(original, exact, strict=True)):
        if a.dtype.kind != "f":
            continue
        if b.dtype != np.float64 or not np.isfinite(b).all():
            return f"output {place} of the float64 run is of type {b.dtype}" + (
                " and not finite" if b.dtype == np.float64 else ""
            )
        apart = float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2))) if a.shape == b.shape and a.size else 0.0
        if a.shape != b.shape or apart > ORACLE_AGREES * max(float(np.sqrt(np.mean(b**2))), 1e-30):
            return f"output {place} of the float64 run does not agree with the original ({apart:.2g} apart)"
    save_arrays(folder / "exact.npz", exact)
    return ""
