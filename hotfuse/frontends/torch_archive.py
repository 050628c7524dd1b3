"""`.pt2` files: exported programs on disk, checked before torch reads them.

Using such a file can run code in seven ways: pickled weights and constants, pickled example inputs, compiled libraries,
size expressions (torch hands them to sympy, which evaluates text), operator names that resolve to arbitrary functions, guards
(Python text), and names of values and arguments that torch writes into Python code.
Files as `torch.export.save` writes them for ordinary models need none of these; everything else is refused before torch
sees it. Entries must be stored uncompressed, as torch writes them, so that a file cannot unpack to more than its own size.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

from hotfuse.config import Config
from hotfuse.errors import InvalidModel, LimitExceeded, UnsafeModel
from hotfuse.frontends.torch_guard_text import is_guard

_FUNCTIONS = {
    "Add", "Mul", "Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "Identity",
    "PowByNatural", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt", "Where",
    "Eq", "Ne", "Le", "Lt", "Ge", "Gt", "Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan",
    "StrictGreaterThan", "And", "Or", "Not", "Integer", "Float", "Rational", "OpaqueUnaryFn_sqrt", "Abs",
}  # fmt: skip
_SYMBOL = re.compile(r"^(s|u|zuf|zf)\d+$")
_ON_SIZES = re.compile(
    r"^(torch\.(sym_\w+|_sym_sqrt)|math\.(trunc|floor|ceil|sqrt)|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|abs|add|sub|mul|truediv|"
    r"floordiv|mod|pow|and_|or_|xor|not_|lshift|rshift|getitem))$"
)
_TORCH_OPERATOR = re.compile(r"^torch\.ops\.(\w+)\.(\w+)\.(\w+)$")
# These open, and may make or cut, files that the program names; the others trust whoever calls them with memory.
_REFUSED = {"aten::from_file", "debugprims", "inductor", "static_runtime"}
_ON_GRAPHS = {
    "associative_scan", "auto_functionalized", "auto_functionalized_v2", "cond", "flex_attention", "hints_wrapper",
    "invoke_subgraph", "map", "map_impl", "out_dtype", "run_const_graph", "scan", "strict_mode", "tag_activation_checkpoint",
    "while_loop", "while_loop_stack_output", "wrap", "wrap_with_autocast", "wrap_with_set_grad_enabled",
}  # fmt: skip
_NAMES = {"name", "as_name", "forward_arg_names"}
_NAME = re.compile(r"^[A-Za-z_][\w.]*$|^$")
_PICKLED = re.compile(r"(^|/)(custom_obj_|opaque_obj_)")


def load_archive(source: str | os.PathLike[str] | bytes, config: Config) -> Any:
    """The ExportedProgram of a `.pt2` file, if nothing in it can run code."""
    data = bytes(source) if isinstance(source, bytes) else _read(source, config)
    check_archive(data)
    try:
        return torch.export.load(io.BytesIO(data))
    except Exception as error:
        raise InvalidModel(f"torch cannot read this exported program: {type(error).__name__}: {error}") from error


def _read(path: str | os.PathLike[str], config: Config) -> bytes:
    name = os.fspath(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModel(f"{name!r} is not a regular file; give the path of a file that torch.export.save wrote")
        if status.st_size > config.max_model_bytes:
            raise LimitExceeded(
                f"{name!r} has {status.st_size:,} bytes; the limit is {config.max_model_bytes:,} (raise max_model_bytes)"
            )
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise InvalidModel(f"there is no file {name!r}; check the path (the working directory is {os.getcwd()!r})") from None
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{name!r} cannot be opened: {error}") from None


def check_archive(data: bytes) -> None:
    """Refuse an archive that holds anything that could run code when torch loads it."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise InvalidModel(f"not an exported program: {error}; save it with torch.export.save") from None
    with archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise UnsafeModel("two entries of the archive have the same name")
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise UnsafeModel(f"entry {entry.filename!r} is compressed; torch.export.save stores entries as they are")
            _check_name(entry.filename)
        models = [n for n in names if "/models/" in n and n.endswith(".json")]
        if not models:
            raise InvalidModel("the archive holds no exported program; save it again with torch.export.save of this torch")
        for name in names:
            if name.endswith(".json"):
                _check_json(name, archive.read(name))
            elif "/sample_inputs/" in name:
                _check_inputs(name, archive.read(name))


def _check_name(name: str) -> None:
    if "/aotinductor/" in name or name.endswith((".so", ".o", ".cpp", ".cubin", ".pyd", ".dll")):
        raise UnsafeModel(f"entry {name!r} is compiled code; export the program without it")
    if _PICKLED.search(name):
        raise UnsafeModel(
            f"entry {name!r} is a pickled object, which can run code when it is read; export the model without it"
        )
    if name.startswith("/") or ".." in name.split("/"):
        raise UnsafeModel(f"entry {name!r} points outside of the archive")


def _check_json(name: str, data: bytes) -> None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"entry {name!r} is not readable: {error}") from None
    for key, value in _items(content):
        if key == "use_pickle" and value is not False:
            raise UnsafeModel(f"entry {name!r} has pickled tensors, which can run code when they are read; save plain tensors")
        if key == "expr_str" and not is_size_expression(str(value)):
            raise UnsafeModel(f"entry {name!r} has the size {str(value)[:80]!r}, which is not plain arithmetic")
        if key in ("target", "as_operator") and isinstance(value, str) and "/models/" in name and not is_operator(value):
            raise UnsafeModel(
                f"entry {name!r} calls {value[:80]!r}, which is not a torch operator that computes on tensors or sizes "
                "(import the library that registers it, if it is one of yours)"
            )
        if key == "guards_code" and not all(is_guard(str(text)) for text in value or ()):
            raise UnsafeModel(f"entry {name!r} has guards {str(value)[:200]!r}, which are not comparisons of sizes")
        if key in _NAMES and "/models/" in name and not all(_is_name(text) for text in _listed(value)):
            raise UnsafeModel(f"entry {name!r} has the name {str(value)[:80]!r}; names are letters, digits and underscores")
        if key == "in_spec" and "/models/" in name and not _has_plain_keys(value):
            raise UnsafeModel(f"entry {name!r} has a keyword argument whose name is not one: {str(value)[:200]}")


def is_operator(target: str) -> bool:
    """Whether torch finds under this name an operator on tensors or sizes, or one that runs graphs of them, and nothing else.

    torch looks names up attribute by attribute, so `torch.ops.load_library.__call__` would be found as well."""
    found = _TORCH_OPERATOR.match(target)
    if found is None:
        kind, _, name = target.rpartition(".")
        return bool(_ON_SIZES.match(target)) or (kind == "torch.ops.higher_order" and name in _ON_GRAPHS)
    namespace, name, overload = found.groups()
    if namespace in _REFUSED or f"{namespace}::{name}" in _REFUSED:
        return False
    try:
        torch._C._dispatch_find_schema_or_throw(f"{namespace}::{name}", "" if overload == "default" else overload)
    except RuntimeError:
        return False
    return True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_name(text: Any) -> bool:
    """Whether torch can write this into code as a name. Numbers and records under such keys are looked at by themselves."""
    return not isinstance(text, str) or bool(_NAME.match(text))


def _has_plain_keys(spec: Any) -> bool:
    """Whether the keyword arguments in the structure of a call, which torch writes into code, have names of Python."""
    if not spec:
        return True
    try:
        _, tree = json.loads(spec)
        keywords = json.loads(tree["children_spec"][1]["context"])
        return all(isinstance(key, str) and key.isidentifier() for key in keywords)
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def is_size_expression(text: str) -> bool:
    """Whether the text is arithmetic over numbers, symbols, and the functions torch writes sizes with."""
    try:
        return len(text) < 100_000 and _is_arithmetic(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return bool(_SYMBOL.match(name))
        case ast.UnaryOp(operand=inner):
            return _is_arithmetic(inner)
        case ast.BinOp(left=left, right=right):
            return _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Compare(left=left, comparators=others):
            return all(_is_arithmetic(n) for n in (left, *others))
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=keywords):
            return bool(_SYMBOL.match(name)) and all(isinstance(k.value, ast.Constant) for k in keywords)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and all(_is_arithmetic(n) for n in args)
    return False


def _items(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value, however deep."""
    pending = [content]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                yield key, value
                pending.append(value)
        elif isinstance(item, list):
            pending.extend(item)


def _check_inputs(name: str, data: bytes) -> None:
    """torch falls back to full unpickling where its safe loader refuses; so the safe loader must accept."""
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsafeModel(f"entry {name!r} holds pickled objects other than tensors: {first}") from None
