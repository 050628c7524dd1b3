"""Writes docs/vector_math.md: how far each vector function is from exact, where, and what it costs.

python -m scripts.ulp_table
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotfuse.codegen import vector_avx512
from hotfuse.codegen.vector_math import FUNCTIONS, NOT_OFFERED
from tests.codegen.vector_harness import NARROW, WIDE, compile_map, count_instructions, ulp_error
from tests.codegen.vector_oracle import BINARY, ONLY_MPMATH, arguments, exact_slow, exact_wide, pairs

HEAD = """# Vector functions

What `hotfuse/codegen/vector_math.py` offers. Written by `python -m scripts.ulp_table`; `tests/codegen/test_vector_math.py`
holds every row to 4 units in the last place (ULP).

- "most ULP" is the largest distance from the exact result among {f32:,} arguments for f32 (exact in float64) and {f64:,} for
  f64 (exact in long double; {slow:,} and mpmath for erf, erfc and gelu_erf): all binades, denormals, the neighbourhood of each
  change of formula.
- Some functions have code of their own for AVX-512; what is listed is the worse of both.
- Instructions are those of one turn of a loop without loads, stores and constants: 16 numbers of f32 or 8 of f64 with AVX-512,
  8 or 4 with AVX2.
- The gelus are listed for x >= -1. To the left of it they lose digits as the result vanishes, but are nearer to exact than
  eager PyTorch, which computes 1 + erf and 1 + tanh there.
- Code needs fused multiply-add, so AVX2 or better. fmod of f64 is not offered: an exact remainder takes 41 divisions in a row.

| function | type | most ULP | at | AVX-512 instructions | AVX2 instructions |
|---|---|---|---|---|---|
"""
COUNTS = {"f32": 8_000_000, "f64": 2_000_000, "slow": 40_000}


def row(name: str, element: str) -> str:
    slow = element == "f64" and name in ONLY_MPMATH
    count = COUNTS["slow" if slow else element]
    args = pairs(name, element, count // 4, seed=1) if name in BINARY else (arguments(element, count, seed=1),)
    if slow:
        args = (args[0][np.abs(args[0]) < 60],)
    if name.startswith("gelu"):
        args = (args[0][args[0] >= -1],)
    lanes, arity = (16 if element == "f32" else 8), len(args)
    exact = exact_slow(name, *args) if slow else exact_wide(name, element, *args)
    targets = (WIDE, NARROW) if name in vector_avx512.FUNCTIONS else (WIDE,)
    results = (compile_map(FUNCTIONS[name], element, lanes, arity, target)(*args) for target in targets)
    errors = np.max([ulp_error(result, exact) for result in results], axis=0)
    i = int(np.argmax(errors))
    wide, narrow = (count_instructions(FUNCTIONS[name], element, n, arity, t) for n, t in ((lanes, WIDE), (lanes // 2, NARROW)))
    return f"| {name} | {element} | {errors[i]:.2f} | {', '.join(f'{a[i]:.9g}' for a in args)} | {wide} | {narrow} |"


def main() -> None:
    names = sorted((name, element) for element, missing in NOT_OFFERED.items() for name in FUNCTIONS if name not in missing)
    text = HEAD.format(**COUNTS) + "\n".join(row(name, element) for name, element in names) + "\n"
    (Path(__file__).parent.parent / "docs/vector_math.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
