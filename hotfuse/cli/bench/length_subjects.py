"""One model at many lengths: a file whose sizes are free, and for each length a file in which the same sizes are numbers.

    generic.onnx, weights   the export with the free sizes `batch` and `sequence`; weights lie apart, all files share them
    baked-17.onnx           the same nodes; batch is 1 and sequence 17 wherever they are declared
    17/                     the subject at that length: inputs, the original's answer and float64's; its ONNX form is baked-17

Answers come from the PyTorch module, which neither file takes part in. Making them happens in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotfuse.cli.bench.models import Case
from hotfuse.cli.bench.subject import Subject, export, make_subject, torch_call
from hotfuse.errors import InputError

TRACED = 12  # the length that the model is traced with; it is none of those that are measured
FREE = ("batch", "sequence")


def generic_path(subject: Subject) -> str:
    """The file of free sizes that a subject's baked file comes from."""
    return str(Path(subject.folder).parent / "generic.onnx")


def make_lengths(model: str, lengths: Sequence[int], folder: Path) -> None:
    """Write everything into `folder`, the subject of each length into a folder named by it."""
    import onnx
    import torch

    torch.set_grad_enabled(False)
    traced = folder / "traced"
    traced.mkdir(parents=True)
    call = torch_call(Case(model, sequence=TRACED), traced)
    axes = dict(enumerate(FREE))
    failed = export(call, traced / "model.onnx", {**dict.fromkeys(call.names, axes), "answer": axes})
    if failed:
        raise InputError(f"{model} cannot be exported with free sizes: {failed}")
    whole = onnx.load(str(traced / "model.onnx"))
    onnx.save(whole, str(folder / "generic.onnx"), save_as_external_data=True, location="weights", size_threshold=1024)
    generic = onnx.load(str(folder / "generic.onnx"), load_external_data=False)
    for length in lengths:
        path = folder / f"baked-{length}.onnx"
        path.write_bytes(bake(generic, dict(zip(FREE, (1, length), strict=True))).SerializeToString())
        make_subject(Case(model, sequence=length), folder / str(length), path)


def bake(model: Any, sizes: Mapping[str, int]) -> Any:
    """A copy of the `onnx.ModelProto` with numbers for free sizes, wherever a value's shape names them."""
    import onnx

    baked = onnx.ModelProto()
    baked.CopyFrom(model)
    for value in (*baked.graph.input, *baked.graph.output, *baked.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return baked
