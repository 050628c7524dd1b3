"""Elementwise functions of floats as vector code: `FUNCTIONS` by name.

Each takes a `Writer` and operands of one type, f32 or f64 with any number of lanes, writes straight-line code that calls
nothing, and returns the result. Results are within 4 units in the last place of the exact value everywhere, denormals included
(docs/vector_math.md has the figures), and infinities, NaN and zeros are as in C. Only the gelus lose digits, left of -1, and
less than eager torch does, which has none left at -6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hotfuse.codegen import vector_arc, vector_avx512, vector_erf, vector_exp, vector_log, vector_pow, vector_trig
from hotfuse.codegen.llvm_text import Operand

_ANYWHERE: Mapping[str, Callable[..., Operand]] = {
    "exp": vector_exp.exp, "exp2": vector_exp.exp2, "expm1": vector_exp.expm1, "sigmoid": vector_exp.sigmoid,
    "tanh": vector_exp.tanh, "sinh": vector_exp.sinh, "cosh": vector_exp.cosh, "gelu_tanh": vector_exp.gelu_tanh,
    "erf": vector_erf.erf, "erfc": vector_erf.erfc, "gelu_erf": vector_erf.gelu_erf,
    "log": vector_log.log, "log1p": vector_log.log1p, "log2": vector_log.log2, "log10": vector_log.log10,
    "asinh": vector_log.asinh, "acosh": vector_log.acosh, "atanh": vector_log.atanh,
    "sin": vector_trig.sin, "cos": vector_trig.cos, "tan": vector_trig.tan,
    "asin": vector_arc.asin, "acos": vector_arc.acos, "atan": vector_arc.atan, "atan2": vector_arc.atan2,
    "pow": vector_pow.pow, "rsqrt": vector_pow.rsqrt, "fmod": vector_pow.fmod,
}  # fmt: skip


def _by_target(anywhere: Callable[..., Operand], avx512: Callable[..., Operand]) -> Callable[..., Operand]:
    return lambda w, *args: (avx512 if w.isa == "avx512" else anywhere)(w, *args)


FUNCTIONS: Mapping[str, Callable[..., Operand]] = {
    **_ANYWHERE,
    **{name: _by_target(_ANYWHERE[name], function) for name, function in vector_avx512.FUNCTIONS.items()},
}

# What a function is not written for, by element type; it raises TileError there.
NOT_OFFERED: Mapping[str, tuple[str, ...]] = {"f32": (), "f64": ("fmod",)}
