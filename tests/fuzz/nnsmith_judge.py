"""A model of NNSmith through both front ends, held to eager by the float64 rule. Each function lists what is wrong."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import torch

import hotfuse
from hotfuse.ir.verify import verify
from hotfuse.numerics import close_to_exact, same_bits, within_ulp
from hotfuse.runtime.torch_backend import COMPILED, EVENTS
from tests.fuzz.nnsmith_models import SmithModel

NOT_EXPORTED, ANOTHER_MODEL, THROUGH = "not exported", "exported as another model", "through onnx"


def through_onnx(model: SmithModel) -> tuple[str, list[str]]:
    """By torch.onnx.export and `hotfuse.load`: how far the model came, and what is wrong."""
    file = io.BytesIO()
    names = [f"x{i}" for i in range(len(model.inputs))]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(model.net, model.inputs, file, dynamo=False, input_names=names, opset_version=18)
        proto = onnx.load_from_string(file.getvalue())
    except Exception:
        return NOT_EXPORTED, []
    try:
        session = hotfuse.load(proto, strict=True)
        verify(session.graph)
        fed = {i.name for i in session.inputs}
        feeds = {n: x.numpy() for n, x in zip(names, model.inputs, strict=True) if n in fed}
        ours = session.run(None, feeds)
    except Exception as error:
        return THROUGH, [f"{type(error).__name__}: {error}"]
    found = [*_differences(ours, model)]
    return (ANOTHER_MODEL, []) if found and _is_another_model(proto, feeds, ours, model) else (THROUGH, found)


def _is_another_model(proto: onnx.ModelProto, feeds: dict[str, Any], ours: Sequence[Any], model: SmithModel) -> bool:
    """Whether the exporter wrote another model (it drops float64, for one): onnx's own evaluator breaks the rule against eager
    as ours does, and the two agree."""
    try:
        theirs = [np.asarray(x) for x in onnx.reference.ReferenceEvaluator(proto).run(None, feeds)]
    except Exception:
        return False
    agree = all(
        within_ulp(mine, other, 4) if mine.dtype.kind == "f" else same_bits(mine, other)
        for mine, other in zip(ours, theirs, strict=True)
    )
    return agree and any(True for _ in _differences(theirs, model))


def through_dynamo(model: SmithModel) -> list[str]:
    """By `torch.compile`; a model that never reached our compiler is a failure too."""
    torch._dynamo.reset()
    COMPILED.clear()
    before = EVENTS.counts.get("backend.failed", 0)
    try:
        with torch.no_grad():
            compiled = torch.compile(model.module, backend="hotfuse", fullgraph=True, options={"wait": True, "strict": True})
            ours = compiled(*model.inputs)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    if not COMPILED or EVENTS.counts.get("backend.failed", 0) != before:
        return ["our compiler was not reached"]
    verify(COMPILED[-1].graph)
    results = ours if isinstance(ours, (tuple, list)) else (ours,)
    return [*_differences([x.numpy() for x in results], model)]


def _differences(ours: Sequence[Any], model: SmithModel) -> Iterator[str]:
    for i, (mine, original, exact) in enumerate(zip(ours, model.original, model.exact, strict=True)):
        theirs, truth = original.numpy(), exact.numpy()
        if theirs.dtype.kind != "f":
            verdict = same_bits(mine, theirs)
        else:
            verdict = close_to_exact(mine, theirs, truth)
        if not verdict:
            yield f"output {i}: {verdict.reason}"
