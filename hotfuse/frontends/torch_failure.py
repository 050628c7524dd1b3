"""Why a trace failed, in one sentence for the model's author: where in the model, what it does, what to do next."""

from __future__ import annotations

import os
import re
import sysconfig
import textwrap
import traceback
from pathlib import Path

import torch

from hotfuse.errors import HotfuseError

LONGEST = 300
_UNKNOWN_TYPE = re.compile(r"Found <class '(?:.*\.)?([^.']+)'> in output")
_OURS_AND_TORCHS = tuple(f"{Path(file).parents[up]}{os.sep}" for file, up in ((__file__, 1), (torch.__file__, 0)))
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_VALUES = (
    "it branches on values of tensors, or takes a number out of one (.item(), int(), .tolist()), which a graph cannot do; "
    "use torch.where, or keep that code in a module of its own: submodules are captured one by one"
)
_OPERATOR = "{}; use torch operators on tensors instead, or keep that code in a module of its own"


def describe_failure(error: BaseException) -> str:
    """One sentence about an error that a trace ended with."""
    text = " ".join(str(error).split())
    if isinstance(error, HotfuseError):
        return shorten(text)
    kind = type(error).__name__
    unknown = _UNKNOWN_TYPE.search(text)
    if unknown is not None:
        return (
            f"it returns an object of type {unknown[1]}, which torch.export does not know; "
            "return tensors, containers, dataclasses or named tuples, or register the class with torch's pytree"
        )
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
        what = _VALUES
    elif kind in ("UnsupportedOperatorException", "DynamicOutputShapeException"):
        what = _OPERATOR.format(f"torch cannot trace the operator {shorten(text)}")
    elif "not supported for tensor subclasses" in text:
        what = _OPERATOR.format(f"it leaves torch: {shorten(text).rstrip('.')}")
    else:
        what = f"{kind}: {shorten(text)}"
    where = user_line(error)
    return f"{where}: {what}" if where else what


def shorten(text: str) -> str:
    """The beginning of a text, in whole words."""
    return textwrap.shorten(text, LONGEST, placeholder=" ...") if " " in text else text[:LONGEST]


def user_line(error: BaseException) -> str:
    """The innermost line of the user's own code that an error passed through, as `file:line`; "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = frame.filename
        standard = name.startswith(_STANDARD) and "-packages" not in name
        if not (standard or name.startswith(("<", *_OURS_AND_TORCHS))):
            return f"{os.path.basename(name)}:{frame.lineno}"
    return ""
