"""`late`: an operator some of whose attributes are data, known only when it runs.

    late(*inputs, *numbers){of, names, ...}  is  of(*inputs){names = numbers, ...}

The last inputs are integer tensors; a vector becomes a tuple, a scalar an int. Where inference knows their elements the types
are exact, else only the element type and, if the front end can tell it, the `rank` of the results is known. Front ends use
it for operators whose results are not larger than their first input, so that it needs no limit of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotfuse.ir.op import OPS, Call, OpDef, Pattern, Sample, define
from hotfuse.ir.types import TensorType, Type

_OWN = ("of", "names", "rank")


def _passed_on(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k not in _OWN}


def late(*inputs: Any, of: str, names: tuple[str, ...], rank: int | None = None, **attrs: Any) -> Any:
    reference = OPS[of].reference
    assert reference is not None
    numbers = {
        name: tuple(int(x) for x in array) if np.ndim(array) else int(array)
        for name, array in zip(names, inputs[-len(names) :], strict=True)
    }
    result = reference(*inputs[: -len(names)], **numbers, **attrs)
    return result if OPS[of].many else (result,)


def _late_infer(call: Call) -> Sequence[Type]:
    names = call.attrs["names"]
    first = len(call.inputs) - len(names)
    numbers: dict[str, Any] = {}
    for i, name in enumerate(names, first):
        found = call.ints(i)
        if found is None:
            shape = call.unknown(call.attrs.get("rank"))
            return tuple(TensorType(call.dtype(0), shape) for _ in range(call.num_outputs))
        numbers[name] = found if call.shape(i) != () else found[0]
    of = call.attrs["of"]
    return OPS[of].infer(replace(call, op=of, inputs=call.inputs[:first], attrs={**_passed_on(call.attrs), **numbers}))


define(
    OpDef(
        "late", _late_infer, late, Pattern.OTHER, "the operator `of`, whose attributes `names` are the last inputs",
        flops=lambda call, types: 0, view=True, many=True,
        samples=lambda: [
            Sample((np.arange(6.0).reshape(2, 1, 3), np.array([1])), {"of": "squeeze", "names": ("axes",), "rank": 2}),
            Sample((np.arange(6.0), np.array([4]), np.array([0]), np.array([0]), np.array([-2])),
                   {"of": "slice", "names": ("axes", "steps")}),
        ],
    )
)  # fmt: skip
