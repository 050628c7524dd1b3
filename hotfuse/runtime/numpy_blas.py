"""Products with weights that lie in a file at any address, by the library that numpy's own products use.

The ONNX format puts a weight's bytes wherever they come, most of them at addresses that are no multiple of an element's
size. numpy copies such an operand in every product, so it had to be copied once, ahead: most weights of a model, twice in
memory, into new pages, which are what is dear on a virtual machine: 0.4 to 0.7 s of CPU time for GPT-2. The library reads them
as they lie: the processors that it is asked on here have no loads that want 4-byte numbers at multiples of 4.

State: none; where numpy's library is another one, nothing is found, and weights are copied.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotfuse.ir.graph import Graph, Node
from hotfuse.ir.types import F32

LARGE = 1 << 20  # bytes of a weight: smaller ones are copied before anybody notices

_ROWS, _AS_IT_IS, _TURNED = 101, 111, 112  # of cblas
_NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_")  # those that count in 64 bits

Array = np.ndarray[Any, Any]


@functools.cache
def find_sgemm() -> Callable[..., None] | None:
    """The library's product of float32 matrices; None where it is not known, or the processor is not."""
    if platform.machine() not in ("x86_64", "AMD64") or not hasattr(os, "RTLD_NOLOAD"):
        return None
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.DEFAULT_MODE | os.RTLD_NOLOAD)
        except OSError:  # it is not the one that numpy loaded
            continue
        function = next((getattr(library, name) for name in _NAMES if hasattr(library, name)), None)
        if function is not None:
            flag, size, number, place = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
            function.argtypes = [
                flag, flag, flag, size, size, size, number, place, size, place, size, number, place, size,
            ]  # fmt: skip
            function.restype = None
            return function  # type: ignore[no-any-return]
    return None


def product(x: Array, y: Array, out: Array | None = None) -> Array | None:
    """x @ y for a matrix y at any address; None where numpy has to do it."""
    sgemm = find_sgemm()
    is_plain = x.dtype == y.dtype == np.float32 and y.ndim == 2 and x.ndim >= 2 and x.size > 0 < y.size
    if sgemm is None or not is_plain or x.shape[-1] != y.shape[0]:
        return None
    turned = y.T.flags.c_contiguous
    if not turned and not y.flags.c_contiguous:
        return None
    x = np.require(x, requirements=("C", "A"))
    depth, columns = y.shape
    rows = x.size // depth
    fits = out is not None and out.dtype == np.float32 and out.flags.c_contiguous and out.flags.aligned
    made = out if out is not None and fits else np.empty((*x.shape[:-1], columns), np.float32)
    how, step = (_TURNED, depth) if turned else (_AS_IT_IS, columns)
    places = x.ctypes.data, y.ctypes.data, made.ctypes.data
    sgemm(_ROWS, _AS_IT_IS, how, rows, columns, depth, 1.0, places[0], depth, places[1], step, 0.0, places[2], columns)
    if out is not None and made is not out:
        out[...] = made
        return out
    return made


def with_weights_anywhere(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """A node's function, for weights at any address."""

    def multiply(x: Array, y: Array, out: Array | None = None) -> Any:
        made = None if y.flags.aligned else product(x, y, out)
        return function(x, y, out) if made is None else made

    def look_up(table: Array, places: Array) -> Any:
        return function(table, places) if table.flags.aligned else rows(table, places)

    if node.op == "matmul":
        return multiply
    return look_up if node.op == "gather" and node.attrs.get("axis", 0) == 0 else function


def is_read_anywhere(graph: Graph, name: str) -> bool:
    """Whether a large constant's readers take it at whatever address: products that it is the second operand of, also turned,
    and lookups of its rows."""
    type = graph.constants[name].type
    if type.dtype != F32 or type.nbytes < LARGE or len(type.sizes) != 2 or name in graph.kept or find_sgemm() is None:
        return False
    return _all_read(graph, name, ("matmul", "gather", "transpose"))


def _all_read(graph: Graph, name: str, ways: tuple[str, ...]) -> bool:
    return all(node.op in ways and _reads(graph, node, name) for node in graph.consumers.get(name, ()))


def _reads(graph: Graph, node: Node, name: str) -> bool:
    if node.op == "matmul":
        return node.inputs[1] == name != node.inputs[0]
    if node.op == "gather":
        return node.inputs[0] == name != node.inputs[1] and node.attrs.get("axis", 0) == 0
    return node.id not in graph.kept and _all_read(graph, node.id, ("matmul",))


def rows(table: Array, places: Array) -> Array:
    """The rows of a table at any address, copied as bytes: numpy would copy the whole table first."""
    if table.ndim != 2 or not table.size or not table.flags.c_contiguous:
        return np.asarray(np.take(table, places, axis=0))
    return np.take(table.view(np.uint8), places, axis=0).view(table.dtype)
