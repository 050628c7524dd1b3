"""What an exported program may be called with. The export fixed the structure of its arguments, each tensor's element type and
device, the values of plain arguments, and the class of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from hotfuse.errors import CaptureError, DimError
from hotfuse.frontends.torch_guard_text import Path, read_guard
from hotfuse.frontends.torch_shapes import shape_class
from hotfuse.ir.dim import Dim
from hotfuse.ir.guard import Relation, ShapeClass
from hotfuse.records import dataclass

_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@dataclass(frozen=True)
class Argument:
    """One leaf of the call. `kind` is "tensor", "number" (of Python type `type`) or "constant" (always `constant`)."""

    name: str
    kind: str
    type: Any = None
    device: str = ""
    constant: Any = None

    def refusal(self, leaf: Any) -> str:
        """Why the program cannot take this leaf, sizes aside; "" if it can."""
        if self.kind == "constant":
            same = type(leaf) is type(self.constant) and repr(leaf) == repr(self.constant)
            return "" if same else f"was exported with the value {self.constant!r} and cannot be {leaf!r}; export it again"
        if self.kind == "number":
            return "" if type(leaf) is self.type else f"must be a number of type {self.type.__name__}, not {leaf!r}"
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return f"must be a dense tensor of type {self.type}, not {getattr(leaf, 'layout', type(leaf).__name__)}"
        if leaf.dtype is not self.type:
            return f"must have elements of type {self.type}, not {leaf.dtype}; convert it with .to"
        if str(leaf.device) != self.device:
            return f"must be on {self.device}, not {leaf.device}; move it with .to"
        return ""


@dataclass(frozen=True)
class Arguments:
    """The leaves of a call, in order, and the class of their sizes."""

    leaves: tuple[Argument, ...]
    shapes: ShapeClass

    def refusal(self, leaves: Sequence[Any]) -> str:
        """Why the program cannot be called with these leaves; "" if it can."""
        sizes = []
        for argument, leaf in zip(self.leaves, leaves, strict=True):
            why = argument.refusal(leaf)
            if why:
                return f"argument {argument.name!r} {why}"
            if isinstance(leaf, torch.Tensor):
                sizes.append(tuple(leaf.shape))
            elif argument.type is int:
                sizes.append((leaf,))
        why = self.shapes.check(sizes)
        return f"{why}; the program was exported for {self}" if why else ""

    def __str__(self) -> str:
        sized = (a for a in self.leaves if a.kind == "tensor" or a.type is int)
        shapes = [f"{a.name}[{', '.join(map(str, s))}]" for a, s in zip(sized, self.shapes.shapes, strict=True)]
        conditions = [str(c) for c in (*self.shapes.ranges, *self.shapes.relations)]
        return ", ".join(shapes) + (f" where {' and '.join(conditions)}" if conditions else "")


def read_arguments(exported: Any) -> Arguments:
    """What the export says of its arguments; CaptureError if it holds a condition that cannot be checked here."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    specs = [s for s in exported.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    leaves = tuple(_argument(spec.arg, values.get(spec.arg.name)) for spec in specs)
    try:
        shapes = shape_class(exported, exported.range_constraints)
        read = tuple(_saved_relations(exported, leaves, shapes))
    except DimError as error:
        raise CaptureError(f"the export relies on something about sizes that cannot be checked: {error}") from error
    return Arguments(leaves, ShapeClass(shapes.shapes, shapes.ranges, tuple(dict.fromkeys((*shapes.relations, *read)))))


def _argument(spec: Any, val: Any) -> Argument:
    if isinstance(val, torch.Tensor):
        return Argument(spec.name, "tensor", val.dtype, str(val.device))
    if type(val) in _NUMBERS:
        return Argument(spec.name, "number", _NUMBERS[type(val)])
    return Argument(spec.name, "constant", constant=getattr(spec, "value", val))


def _saved_relations(exported: Any, leaves: tuple[Argument, ...], shapes: ShapeClass) -> Iterator[Relation]:
    """The guards of a program that was saved and loaded, which has them as text only."""
    places = _places(exported)
    sized = [i for i, a in enumerate(leaves) if a.kind == "tensor" or a.type is int]
    by_leaf = dict(zip(sized, shapes.shapes, strict=True))

    def dim_of(path: Path, axis: int | None) -> Dim:
        found = [path[1]] if path[:1] == ("flat_args",) and len(path) == 2 else places.get("_".join(map(str, path)), [])
        if len(found) != 1 or found[0] not in by_leaf or (axis or 0) >= len(by_leaf[found[0]]):  # type: ignore[index]
            raise DimError(f"a guard is about the argument {path}, which cannot be told")
        return by_leaf[found[0]][axis or 0]  # type: ignore[index]

    for text in exported._guards_code:
        relation = read_guard(text, dim_of)
        if relation.left != relation.right or relation.compare not in ("==", "<=", ">="):
            yield relation


def _places(exported: Any) -> dict[str, list[int]]:
    """The leaves under each path, written with underscores as torch does for lists of arguments."""
    tree = exported.call_spec.in_spec
    numbered = pytree.tree_unflatten(range(tree.num_leaves), tree)
    names = exported.module_call_graph[0].signature.forward_arg_names or ()
    places: dict[str, list[int]] = {}
    for path, place in pytree.tree_leaves_with_path(numbered):
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))) for key in path[1:]]
        if path[0].idx == 0 and path[1].idx < len(names):
            keys[0] = names[path[1].idx]
        places.setdefault("_".join(keys), []).append(place)
    return places
