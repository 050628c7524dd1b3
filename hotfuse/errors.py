"""Every error hotfuse raises on purpose.

    HotfuseError
    ├── ConfigError           an option has a value that is not allowed
    ├── ModelError            the model itself is at fault
    │   ├── InvalidModel      malformed: cycles, duplicate names, missing values, wrong types
    │   ├── UnsupportedModel  well-formed, but an operator is known to nobody here
    │   ├── UnsafeModel       refused for safety: external-data paths, links, device files
    │   └── LimitExceeded     larger than the limits in Config: nodes, nesting, bytes
    ├── InputError            the inputs of a call do not fit the model
    ├── DimError              size arithmetic that has no answer, or two sizes that contradict each other
    ├── VerifyError           an invariant of the graph or plan does not hold
    ├── IllegalEdit           a plan edit that would change the result; nothing was changed
    ├── ParseError            text that is not a graph, plan or tile program
    ├── TileError             a tile program that breaks a rule of its instruction set
    ├── CodegenError          generated code that LLVM refuses, or an object that must not be loaded
    ├── CaptureError          a PyTorch model could not be captured (serving goes on eagerly unless strict)
    ├── WorkerError           a process that works for this one gave no answer; says whether it crashed, hung or was too large
    ├── NoIdleCores           others use the machine, and what needs it for itself waited long enough
    └── ExecutionError        an operator failed while running; says which, and where it is in the user's model
        ├── BadIndex          an index lies outside of its tensor
        └── OutOfMemory       there is no memory for a call's values

A message says what is wrong, where in the user's model, and what to do next.
"""

from __future__ import annotations


class HotfuseError(Exception):
    """Base of all errors raised by hotfuse."""


class ConfigError(HotfuseError, ValueError):
    pass


class ModelError(HotfuseError):
    pass


class InvalidModel(ModelError, ValueError):
    pass


class UnsupportedModel(ModelError):
    pass


class UnsafeModel(ModelError):
    pass


class LimitExceeded(ModelError):
    pass


class InputError(HotfuseError, ValueError):
    pass


class DimError(HotfuseError, ValueError):
    pass


class VerifyError(HotfuseError):
    pass


class IllegalEdit(HotfuseError):
    """Raised by plan edits. `reason` names the rule that forbids the edit."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ParseError(HotfuseError, ValueError):
    pass


class TileError(HotfuseError):
    pass


class CodegenError(HotfuseError):
    pass


class CaptureError(HotfuseError):
    """`details` is what torch said, in full."""

    def __init__(self, message: str = "", details: str = "") -> None:
        super().__init__(message)
        self.details = details


class WorkerError(HotfuseError):
    """`cause` is one of the words of `runtime/child`: what became of the process."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class NoIdleCores(HotfuseError):
    pass


class ExecutionError(HotfuseError, RuntimeError):
    pass


class BadIndex(ExecutionError):
    """A kernel met an index outside of its tensor; the operators themselves say which."""


class OutOfMemory(ExecutionError, MemoryError):
    pass


def is_shortage(error: Exception) -> bool:
    """Whether memory ran out, which says nothing about what was to run. (torch has no error of its own for that.)"""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
