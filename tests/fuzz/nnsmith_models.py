"""Random torch models by NNSmith, a generator that others wrote: valid by construction, found by a constraint solver (with a
deadline, so that a seed need not give the same model twice: what fails is printed as code).

`make(seed)` gives a net and its trace (Dynamo would break the graph at the net's checks), inputs, eager's results, and the same
in float64; None where float64 is not finite or takes another branch than eager.
"""

from __future__ import annotations

import copy
import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

MAX_NODES = 10
WIDE = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}


@dataclass(frozen=True)
class SmithModel:
    net: torch.nn.Module
    module: torch.fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    original: tuple[torch.Tensor, ...]
    exact: tuple[torch.Tensor, ...]


def make(seed: int) -> SmithModel | None:
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

    kind = Model.init("torch")
    kind.add_seed_setter()
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        generator = model_gen(opset=kind.operators(), seed=seed, max_nodes=MAX_NODES, max_elem_per_tensor=4096, timeout_ms=2000)
        net = kind.from_gir(generator.make_concrete()).torch_model.eval().requires_grad_(False)
        net.debug_numeric = lambda tensors: None  # it reads data, which cannot be traced
        inputs = tuple(net.get_random_inps().values())
        module = make_fx(net)(*inputs)
        original, values = _run(module, inputs)
        exact, wide_values = _run(widened(module), tuple(x.to(WIDE.get(x.dtype, x.dtype)) for x in inputs))
    return SmithModel(net, module, inputs, original, exact) if steady(values, wide_values) else None


class _Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps every tensor on the way."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[tuple[torch.fx.Node, torch.Tensor]] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.seen.append((n, result))
        return result


def _run(module: torch.fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], Any]:
    recorder = _Recorder(module)
    result = recorder.run(*inputs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,), recorder.seen


def widened(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module in float64: weights, inputs and every dtype argument."""
    wide = copy.deepcopy(module).double()
    for node in wide.graph.nodes:
        node.args = tuple(WIDE.get(a, a) if isinstance(a, torch.dtype) else a for a in node.args)
        node.kwargs = {k: WIDE.get(v, v) if isinstance(v, torch.dtype) else v for k, v in node.kwargs.items()}
    wide.recompile()
    return wide


JUMPS = ("floor", "ceil", "round", "trunc", "sign", "remainder", "fmod")


def steady(values: Any, wide: Any) -> bool:
    """Whether float64 is finite throughout and decides as eager does at every jump: rounding, comparing, choosing."""
    for (node, x), (_, y) in zip(values, wide, strict=True):
        if x.is_complex():  # beyond ONNX
            return False
        if y.is_floating_point() and not (torch.isfinite(y).all() and torch.isfinite(x).all()):
            return False
        if x.dtype == y.dtype and not torch.equal(x, y) and not x.is_floating_point():
            return False
        if any(jump in str(node.target) for jump in JUMPS) and not torch.allclose(x.double(), y.double(), atol=0.1):
            return False
        if y.is_floating_point():
            limit = 100 * torch.finfo(x.dtype).eps
            if ((x.double() - y).abs() > limit * (y.abs() + 1e-3 * y.abs().max() if y.numel() else 0)).any():
                return False
    return True
