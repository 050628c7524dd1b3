"""`.pt2` files: what torch saves runs; what could run code is refused before torch sees it."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hotfuse
from hotfuse.config import Config
from hotfuse.errors import InvalidModel, LimitExceeded, UnsafeModel
from hotfuse.frontends.torch_archive import check_archive, is_operator, is_size_expression, load_archive


@pytest.fixture(scope="module")
def archive() -> bytes:
    layer = torch.nn.Linear(3, 4)
    program = torch.export.export(layer, (torch.zeros(5, 3),), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def rewritten(
    archive: bytes, change: Callable[[str, bytes], bytes], extra: dict[str, bytes] | None = None, method: int = 0
) -> bytes:
    """The archive with its entries changed and some added."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(target, "w", method) as made:
        root = source.namelist()[0].split("/")[0]
        for name in source.namelist():
            made.writestr(name, change(name, source.read(name)))
        for name, data in (extra or {}).items():
            made.writestr(f"{root}/{name}", data)
    return target.getvalue()


def unchanged(name: str, data: bytes) -> bytes:
    return data


def edited(part: str, old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        if part not in name or not name.endswith(".json"):
            return data
        text = json.dumps(json.loads(data))
        assert old in text
        return text.replace(old, new, 1).encode()

    return change


def test_a_saved_program_loads_and_serves_all_shapes(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "layer.pt2"
    path.write_bytes(archive)
    model = hotfuse.load(path)
    reference = torch.export.load(io.BytesIO(archive)).module()
    with torch.no_grad():
        for batch in (1, 2, 9):
            x = torch.randn(batch, 3)
            torch.testing.assert_close(model(x), reference(x))
    assert model.inputs[0].shape[1] == 3
    assert not model.opaque


class Harmful:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a file ran code",))


def harmful_inputs(name: str, data: bytes) -> bytes:
    if "/sample_inputs/" not in name:
        return data
    buffer = io.BytesIO()
    torch.save(((Harmful(),), {}), buffer)
    return buffer.getvalue()


CALL = "__import__('os').system('true')"
ATTACKS: dict[str, tuple[Any, dict[str, bytes], int, str]] = {
    "pickled weights": (edited("weights_config", '"use_pickle": false', '"use_pickle": true'), {}, 0, "pickled tensors"),
    "pickled constant": (unchanged, {"data/constants/opaque_obj_0": pickle.dumps(1)}, 0, "pickled object"),
    "script object": (unchanged, {"data/constants/custom_obj_0": b""}, 0, "pickled object"),
    "pickled inputs": (harmful_inputs, {}, 0, "other than tensors"),
    "compiled code": (unchanged, {"data/aotinductor/model/x.so": b""}, 0, "compiled code"),
    "size expression": (edited("/models/", "Symbol('s77', positive=True, integer=True)", CALL), {}, 0, "plain arithmetic"),
    "operator": (edited("/models/", "torch.ops.aten.linear.default", "torch.hub.load"), {}, 0, "not a torch operator"),
    "library": (
        edited("/models/", "torch.ops.aten.linear.default", "torch.ops.load_library.__call__"),
        {},
        0,
        "not a torch operator",
    ),
    "operator as an argument": (
        edited("/models/", '"as_tensor":', '"as_operator": "torch.hub.load", "as_tensor":'),
        {},
        0,
        "hub",
    ),
    "guard": (edited("/models/", '"guards_code": []', f'"guards_code": ["{CALL} == 1"]'), {}, 0, "not comparisons of sizes"),
    "value name": (edited("/models/", '"name": "input"', f'"name": "{CALL}"'), {}, 0, "letters, digits and underscores"),
    "argument name": (
        edited("/models/", '"forward_arg_names": ["input"]', f'"forward_arg_names": ["x={CALL}"]'),
        {},
        0,
        "letters, digits",
    ),
    "keyword": (
        edited("/models/", '\\"context\\": \\"[]\\"', '\\"context\\": \\"[\\\\\\"a b\\\\\\"]\\"'),
        {},
        0,
        "keyword argument",
    ),
    "compression": (unchanged, {}, zipfile.ZIP_DEFLATED, "compressed"),
    "outside path": (unchanged, {"../../x": b""}, 0, "outside"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_could_run_code_is_refused(archive: bytes, attack: str) -> None:
    change, extra, method, message = ATTACKS[attack]
    if attack == "size expression":
        with zipfile.ZipFile(io.BytesIO(archive)) as source:
            text = next(source.read(n).decode() for n in source.namelist() if "/models/" in n)
        found = text[text.index("Symbol('") :]
        change = edited("/models/", found[: found.index(")") + 1], CALL)
    with pytest.raises(UnsafeModel, match=message):
        load_archive(rewritten(archive, change, extra, method), Config())


def test_the_unchanged_archive_passes_the_same_way(archive: bytes) -> None:
    check_archive(rewritten(archive, unchanged))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut short", b"\x80\x04."])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not an exported program"):
        load_archive(data, Config())


def test_archives_without_a_program_are_refused() -> None:
    with pytest.raises(InvalidModel, match="no exported program"):
        load_archive(rewritten(_empty_archive(), unchanged), Config())


def _empty_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("x/version", "0")
    return buffer.getvalue()


def test_a_truncated_archive_is_refused(archive: bytes) -> None:
    for size in range(0, len(archive), len(archive) // 7):
        with pytest.raises(InvalidModel):
            load_archive(archive[:size], Config())


def test_large_files_are_refused(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "big.pt2"
    path.write_bytes(archive)
    with pytest.raises(LimitExceeded, match="max_model_bytes"):
        load_archive(path, Config(max_model_bytes=100))


@pytest.mark.parametrize("name", ["layer.pt2", "folder.pt2", "nul\0.pt2"])
def test_paths_that_are_no_file_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(InvalidModel, match=r"there is no file|not a regular file|cannot be opened"):
        hotfuse.load(str(tmp_path / name))


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.add.Tensor",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.aten.sym_size.int",
        "torch.ops.prims.convert_element_type.default",
        "torch.ops.higher_order.while_loop",
        "torch.sym_max",
        "_operator.getitem",
        "_operator.floordiv",
        "math.trunc",
    ],
)
def test_operators_on_tensors_and_sizes_are_allowed(target: str) -> None:
    assert is_operator(target)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.load_library.__call__",
        "torch.ops.import_module.__call__",
        "torch.ops.loaded_libraries.add",
        "torch.ops.aten.add.__call__",
        "torch.ops.aten.__class__.mro",
        "torch.ops.aten.no_such.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.debugprims.load_tensor.default",
        "torch.ops.higher_order.inline_asm_elementwise",
        "torch.ops.higher_order.call_torchbind",
        "torch.ops.higher_order.__init__",
        "_operator.call",
        "_operator.methodcaller",
        "_operator.setitem",
        "math.factorial",
        "torch.load",
    ],
)
def test_other_targets_are_not(target: str) -> None:
    assert not is_operator(target)


@pytest.mark.parametrize("text", ["3", "s0 + 2*s1", "Max(1, FloorDiv(s0, 2))", "Symbol('u3', integer=True)", "-s0 >= 1"])
def test_sizes_are_arithmetic(text: str) -> None:
    assert is_size_expression(text)


@pytest.mark.parametrize(
    "text", ["os", "s0.func", "s0.__class__", "eval('1')", "Symbol('a b')", "[s0]", "lambda: 1", "(", "f'{s0}'"]
)
def test_anything_else_is_not(text: str) -> None:
    assert not is_size_expression(text)
