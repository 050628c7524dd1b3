"""What can be proved of the limits of loops."""

from __future__ import annotations

import pytest

from hotfuse.codegen.loop_limits import is_at_least
from hotfuse.codegen.tile import Axis
from hotfuse.ir.dim import Dim, ceildiv, evaluate, minimum, symbol

M, N = symbol("m"), symbol("n")
T = symbol("t")
CHUNK = minimum(N, 64 * T + 64) - 64 * T


@pytest.mark.parametrize(
    ("dim", "low", "proved"),
    [
        (N, 0, True),
        (N - 1, 0, False),
        (CHUNK, 1, True),  # a task of the grid has a row
        (CHUNK, 2, False),
        (CHUNK - CHUNK // 8 * 8, 0, True),  # a remainder
        (CHUNK - CHUNK // 8 * 8, 1, False),
        (64 - CHUNK, 0, True),
        (63 - CHUNK, 0, False),
        (M - 64 * T, 0, False),
    ],
)
def test_limits_that_can_be_proved(dim: Dim, low: int, proved: bool) -> None:
    assert is_at_least(dim, low, (Axis("t", ceildiv(N, 64)),)) is proved


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
def test_what_is_proved_of_limits_holds(n: int) -> None:
    for t in range(-(-n // 64)):
        length = evaluate(CHUNK, {"n": n, "t": t})
        assert 1 <= length <= 64
        assert evaluate(CHUNK - CHUNK // 8 * 8, {"n": n, "t": t}) in range(8)
