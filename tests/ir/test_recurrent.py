"""Recurrent layers against torch, by the float64 rule. (Their options are held against ONNX Runtime in tests/frontends.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotfuse.ir.op import OPS
from hotfuse.numerics import close_to_exact

RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm(bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(5, 8, bidirectional=bidirectional)
    x = normal(6, 3, 5)

    def gates(name: str) -> np.ndarray:
        """torch's gates i, f, g, o in our order i, o, f, g, for every direction."""
        found = []
        for suffix in ("", "_reverse")[: 1 + bidirectional]:
            i, f, g, o = getattr(layer, f"{name}_l0{suffix}").detach().chunk(4)
            found.append(torch.cat((i, o, f, g)))
        return torch.stack(found).numpy()

    bias = np.concatenate((gates("bias_ih"), gates("bias_hh")), axis=1)
    specs = (("sigmoid", None, None), ("tanh", None, None), ("tanh", None, None)) * (1 + bidirectional)
    direction = "bidirectional" if bidirectional else "forward"
    every, h, c = OPS["lstm"].reference(x, gates("weight_ih"), gates("weight_hh"), bias, direction=direction, activations=specs)
    results = [np.moveaxis(every, 1, 2).reshape(6, 3, -1), h, c]
    with torch.no_grad():
        y, (hn, cn) = layer(torch.from_numpy(x))
        exact_y, (exact_h, exact_c) = layer.double()(torch.from_numpy(x).double())
    for ours, original, exact in zip(results, (y, hn, cn), (exact_y, exact_h, exact_c), strict=True):
        verdict = close_to_exact(ours, original.numpy(), exact.numpy())
        assert verdict, verdict.reason
