"""The shape of the code base: who may import whom, how large files are, that the map of it is true, and that it starts fast."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hotfuse

ROOT = Path(hotfuse.__file__).parent.parent
PACKAGE = ROOT / "hotfuse"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each folder may import those of lower rank and itself; folders of one rank do not import each other.
RANKS = {
    "ir": 1,
    "frontends": 2,
    "passes": 2,
    "hardware": 2,
    "fusion": 3,
    "codegen": 4,
    "runtime": 5,
    "adaptive": 6,
    "inspector": 7,
    "cli": 7,
}
SERVE_ALL = {
    "config",
    "errors",
    "event_file",
    "events",
    "file_map",
    "locks",
    "numerics",
    "pace",
    "rank",
    "records",
    "right_of_way",
    "share",
    "stress",
}
# These put the layers together: `import hotfuse` leads here, so only `cli` (which stands on the public names) may import them.
COMPOSITION = {"__init__", "entry", "entry_torch"}
# Defaults follow from what the machine offers, which `hardware/machine.py` reads without importing anything of ours.
ALLOWED = {("config", "hardware")}


def part_of(path: Path) -> str:
    """The folder of a module, or its own name at the top."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of hotfuse that a module imports, anywhere in it, with the line. Imports for the type checker do not count."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" if node.module == "hotfuse" else str(node.module) for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "hotfuse":
                part = rest.partition(".")[0]
                yield (part if part in RANKS or part in SERVE_ALL or part in COMPOSITION else "__init__"), node.lineno


def violation(importer: str, imported: str) -> str | None:
    """Why `importer` must not import `imported`; None if it may."""
    if imported in SERVE_ALL:
        return None
    if importer in SERVE_ALL:
        return f"{importer} serves all and may import nothing of them"
    if imported in COMPOSITION:
        return (
            None
            if importer in COMPOSITION or RANKS[importer] == 7
            else f"{imported} puts the layers together and is above them"
        )
    if importer in COMPOSITION or importer == imported:
        return None
    return None if RANKS[imported] < RANKS[importer] else f"{imported} is not below {importer}"


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {reason}"
        for path in MODULES
        for imported, line in imports_of(path)
        if (reason := violation(part_of(path), imported)) and (part_of(path), imported) not in ALLOWED
    ]
    assert wrong == []


def test_what_defaults_come_from_imports_nothing_of_ours() -> None:
    assert {name for name, _ in imports_of(PACKAGE / "hardware/machine.py")} <= {"records"}
    assert list(imports_of(PACKAGE / "records.py")) == []


def test_every_folder_has_a_rank() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= set(RANKS)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("ir", "frontends"),
        ("frontends", "passes"),
        ("runtime", "cli"),
        ("errors", "ir"),
        ("ir", "entry"),
        ("fusion", "runtime"),
    ],
)
def test_the_import_rule_refuses(importer: str, imported: str) -> None:
    assert violation(importer, imported)


def test_the_import_rule_sees_imports_inside_functions(tmp_path: Path) -> None:
    module = tmp_path / "late.py"
    module.write_text(
        "def f():\n    from hotfuse.runtime.session import Session\n    from hotfuse import load\n    import hotfuse.cli.main\n"
    )
    assert list(imports_of(module)) == [("runtime", 2), ("__init__", 3), ("cli", 4)]


def test_no_module_has_a_name_that_says_nothing() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [p for p in MODULES if banned & {*p.with_suffix("").parts[len(PACKAGE.parts) :]}] == []


def test_no_file_is_past_500_lines() -> None:
    assert {str(p.relative_to(PACKAGE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 500} == {}


def test_every_module_says_what_it_is() -> None:
    assert [str(p) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text()))] == []


def test_public_names_are_sorted_and_exist() -> None:
    assert hotfuse.__all__ == sorted(hotfuse.__all__)
    assert all(hasattr(hotfuse, name) for name in hotfuse.__all__)


def test_no_pickle_is_read_from_a_file() -> None:
    """`pickle.load(s)` and `allow_pickle=True` stand nowhere but where things from the other end of a child's pipe are read."""
    pipe = {"runtime/parcel.py", "frontends/torch_skeleton.py"}
    reading = re.compile(r"allow_pickle\s*=\s*True|pickle\.loads?\(|weights_only\s*=\s*False")
    found = {str(p.relative_to(PACKAGE)) for p in MODULES if reading.search(p.read_text())}
    assert found <= pipe


def concept_table() -> list[tuple[str, str]]:
    """The rows `| concept | file |` of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Concepts and their files", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `?([^|`]+)`? \| `([^`|]+)` \|", section, re.M)


def test_the_concept_table_is_true() -> None:
    table = concept_table()
    assert len(table) >= 25
    for concept, file in table:
        path = PACKAGE / file
        assert path.exists(), f"ARCHITECTURE.md sends {concept} to {file}, which does not exist"
        if concept.isidentifier() and path.suffix == ".py":
            assert re.search(rf"^(class|def|    def) {concept}\b|^{concept}\b.*=", path.read_text(), re.M), (
                f"{concept} is not in {file}"
            )


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_importing_hotfuse_loads_no_heavy_library() -> None:
    heavy = run_python(
        "import sys, hotfuse; print([m for m in ('torch', 'scipy', 'sklearn', 'onnx', 'rich', 'llvmlite') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_loading_an_onnx_model_needs_no_torch_scipy_or_sklearn() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'scipy', 'sklearn')))\n"
        "import hotfuse.entry, hotfuse.frontends.onnx_model, hotfuse.runtime.session, hotfuse.passes\n"
        "print('fine')"
    )
    assert run_python(code) == "fine"


def test_importing_hotfuse_takes_at_most_300_ms() -> None:
    code = "import time; t = time.perf_counter(); import hotfuse; print(time.perf_counter() - t)"
    # Other work on the machine only ever adds time, so the least of a few processes is the import's own.
    assert min(float(run_python(code)) for _ in range(5)) <= 0.3


def test_the_command_line_answers_without_heavy_libraries() -> None:
    code = (
        "import sys\nfrom hotfuse.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'scipy', 'sklearn', 'onnx', 'rich', 'numpy') if m in sys.modules])"
    )
    assert run_python(code).splitlines()[-1] == "[]"
