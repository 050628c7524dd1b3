"""What Python code may read, told from its bytecode."""

from __future__ import annotations

import types
from typing import Any

import torch

import hotfuse
from hotfuse.frontends.torch_code import globals_in, names_in

scale = 2.0
other = 3.0


def code_of(text: str) -> types.CodeType:
    (code,) = (c for c in compile(text, "<test>", "exec").co_consts if isinstance(c, types.CodeType))
    return code


def test_attributes_and_strings_are_no_global_variables() -> None:
    code = code_of("def f(self, x):\n    return self.scale * other(x) + x.shift + len('word')")
    assert {"scale", "shift", "other", "word"} <= names_in(code)
    assert globals_in(code) == {"other", "len"}


def test_nested_code_and_many_names_are_read() -> None:
    many = " + ".join(f"v{i}" for i in range(300))  # numbers of names past 255 take two steps
    inner = f"def g():\n        global written\n        written = {many}"
    code = code_of(f"def f():\n    {inner}\n    class C:\n        z = inner\n    return g")
    assert globals_in(code) >= {"v0", "v299", "written", "inner"}


def test_code_that_may_ask_by_name_reads_all_it_mentions() -> None:
    assert "scale" in globals_in(code_of("def f(self):\n    return globals()['scale']"))
    assert "scale" in globals_in(code_of("def f(self):\n    import sys\n    return getattr(sys.modules['__main__'], 'scale')"))


class Scaled(torch.nn.Module):
    """Has an attribute that is called as a variable of this file is, which it does not read; another that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 5.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + other


def test_a_variable_that_is_called_as_an_attribute_may_change(monkeypatch: Any) -> None:
    fast, x = hotfuse.compile(Scaled(), wait=True, capture="blocking"), torch.ones(2, 3)
    for number in range(3):
        monkeypatch.setattr(f"{__name__}.scale", float(number))
        assert torch.equal(fast(x), torch.full((2, 3), 8.0))
    assert (fast.report().answered, len(fast.report().classes)) == (3, 1)
    monkeypatch.setattr(f"{__name__}.other", 1.0)
    assert torch.equal(fast(x), torch.full((2, 3), 6.0))
