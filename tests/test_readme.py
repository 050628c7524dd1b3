"""The README's example runs, and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotfuse.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.S).groups()  # type: ignore[union-attr]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.stdout, done.returncode) == (output, 0), done.stderr


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"`hotfuse {name}" in README


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_make_targets_in_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    wanted = set(re.findall(r"(?:`|^)make ([a-z-]+)", pages, re.M))
    assert wanted
    assert [t for t in wanted if f"\n{t}:" not in makefile] == []
