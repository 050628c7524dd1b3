"""hotfuse as a guest in the user's process: it takes what users feed, works in odd scripts and on full disks, and leaves
threads and affinity alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch

import hotfuse
from hotfuse.errors import InputError
from hotfuse.runtime.report import Report

ROOT = Path(hotfuse.__file__).parent.parent
MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    guest (float[batch, 3] x) => (float[batch, 2] y)
    <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { h = MatMul(x, w)  y = Relu(h) }""")
WEIGHT = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def answer(x: Any) -> np.ndarray[Any, Any]:
    return hotfuse.load(MODEL).run(None, {"x": x})[0]


# feeds


def spread(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.zeros((8, 9), np.float32)
    wide[::2, ::3] = x
    return wide[::2, ::3]


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: np.asfortranarray(x),
        spread,
        lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        lambda x: x.astype(">f4"),
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(np.asfortranarray(x)),
        lambda x: torch.from_numpy(x).requires_grad_(),
        lambda x: torch.nn.Parameter(torch.from_numpy(x)),
        lambda x: list(x),
    ],
    ids=["fortran", "strided", "negative", "big-endian", "tensor", "tensor strided", "requires_grad", "parameter", "rows"],
)
def test_feeds_of_any_layout(layout: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    given = layout(X.copy())
    np.testing.assert_array_max_ulp(answer(given), np.maximum(X @ WEIGHT, 0), maxulp=4)
    np.testing.assert_array_equal(np.asarray(given.detach() if isinstance(given, torch.Tensor) else given), X)


def test_feeds_of_no_size() -> None:
    for empty in (X[:0], torch.empty(0, 3), np.empty((0, 3), ">f4")):
        assert answer(empty).shape == (0, 2)


def test_bfloat16_tensors_are_read_bit_by_bit() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (bfloat16[n] x) => (bfloat16[n] y) { y = Neg(x) }'
    )
    x = torch.tensor([1.5, -2.0, 3e38, float("inf")], dtype=torch.bfloat16)
    (y,) = hotfuse.load(model).run(None, {"x": x})
    assert y.view(np.int16).tolist() == (-x).view(torch.int16).tolist()


class Unreadable:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("not today")


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({"x": torch.empty(4, 3, device="meta")}, r"input 'x' is on meta; .* \.cpu\(\)"),
        ({"x": torch.eye(3).to_sparse()}, "input 'x' is not a dense tensor"),
        ({"x": torch.ones(4, 3, dtype=torch.float64)}, "input 'x' must be float32, not float64"),
        ({"x": [[1.0, 2.0], [3.0]]}, "input 'x' cannot be read as an array: .*inhomogeneous"),
        ({"x": Unreadable()}, "input 'x' cannot be read as an array: 'not today'"),
        (None, "feeds must be a dict from the names of inputs to arrays, not NoneType"),
        ([X], "feeds must be a dict .* not list"),
        (X, "feeds must be a dict .* not ndarray"),
    ],
)
def test_feeds_that_cannot_be_read(feeds: Any, says: str) -> None:
    session = hotfuse.load(MODEL)
    for call in (lambda: session.run(None, feeds), lambda: session.profile(feeds)):
        with pytest.raises(InputError, match=says):
            call()


# odd scripts, odd machines: each in a process of its own


SERVE = f"""
import hotfuse, numpy as np
session = hotfuse.load({MODEL.SerializeToString()!r})
(y,) = session.run(None, {{"x": np.ones((2, 3), np.float32)}})
assert y.tolist() == [[9.0, 12.0]] * 2, y
"""


def run(
    code: str,
    arguments: tuple[str, ...] = ("-",),
    environment: dict[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> str:
    """What a script prints. It comes through standard input, as where there is no file to import."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTFUSE_")}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command,
        input=textwrap.dedent(code),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**kept, **(environment or {})},
        preexec_fn=prepare,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def no_files() -> None:
    """No file may grow: what a full disk does to every write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


NOWHERE = {
    "HOME": "/proc/nowhere",
    "XDG_CACHE_HOME": "/proc/nowhere/cache",
    "TMPDIR": "/proc/nowhere/tmp",
}  # nobody can write there


NOTEBOOK = """
import sys, types
main = types.ModuleType("__main__")  # as in a notebook: cells run in a __main__ without a file
sys.modules["__main__"] = main
cells = [
    '''
import torch, hotfuse
class Net(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(3, 2), scale
    def forward(self, x):
        return self.linear(x) * self.scale(x)
''',
    '''
net = Net(lambda x: x.sum() + 1).requires_grad_(False)
fast = hotfuse.compile(net, wait=True, strict=True)
x = torch.randn(4, 3)
assert torch.allclose(fast(x), net(x))
print(fast.report().answered)
''',
]
for number, cell in enumerate(cells):
    exec(compile(cell, f"<cell {number}>", "exec"), main.__dict__)
"""


def test_models_of_notebooks_are_captured_and_served_without_a_home() -> None:
    assert run(NOTEBOOK, environment={**NOWHERE, "TMPDIR": "/tmp"}) == "1"


def test_modules_answer_on_a_full_disk_although_torch_cannot_export_there() -> None:
    code = """
    import torch, hotfuse
    net = torch.nn.Linear(3, 2).requires_grad_(False)
    fast = hotfuse.compile(net, wait=True)
    x = torch.randn(4, 3)
    assert torch.equal(fast(x), net(x))
    assert torch.equal(fast(x), net(x))
    print(fast.report().why)
    """
    assert "No usable temporary directory" in run(code, environment=NOWHERE, prepare=no_files)


@pytest.mark.parametrize(
    ("environment", "prepare"),
    [(NOWHERE, None), ({"HOME": ""}, None), ({}, no_files), (NOWHERE, no_files)],
    ids=["read-only home", "no home", "full disk", "all of it"],
)
def test_serving_needs_no_disk(environment: dict[str, str], prepare: Callable[[], None] | None) -> None:
    assert run(SERVE + "print(session.report().calls)", environment=environment, prepare=prepare) == "1"


def test_the_command_line_needs_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "guest.onnx"
    onnx.save(MODEL, path)
    out = run("", ("-m", "hotfuse.cli.main", "run", str(path), "--json", "-"), NOWHERE, no_files)
    assert json.loads(out)["outputs"][0]["type"] == "float32[1, 2]"
    assert "no fused kernel" in json.loads(out)["why"]
    doctor = json.loads(run("", ("-m", "hotfuse.cli.main", "doctor", "--json", "-"), NOWHERE, no_files))
    assert doctor["machine"]["usable_cores"] >= 1


THREADS = (
    SERVE
    + """
import json, os, threading, threadpoolctl
pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
print(json.dumps([pools, sorted(os.sched_getaffinity(0)), threading.active_count()]))
"""
)


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_thread_counts_of_the_environment_are_kept(variable: str) -> None:
    """And there is no thread of ours: one call is no reason to build anything, and no cache has something that was built."""
    pools, _, threads = json.loads(run(THREADS, environment={variable: "1", "HOTFUSE_CACHE": "off"}))
    assert pools
    assert set(pools) == {1}
    assert threads == 1


def test_affinity_is_kept() -> None:
    core = min(os.sched_getaffinity(0))
    pools, cores, _ = json.loads(run(THREADS, prepare=lambda: os.sched_setaffinity(0, {core})))
    assert cores == [core]
    assert set(pools) == {1}
    doctor = ("-m", "hotfuse.cli.main", "doctor", "--json", "-")
    found = json.loads(run("", doctor, prepare=lambda: os.sched_setaffinity(0, {core})))
    assert found["machine"]["usable_cores"] == 1


def test_loading_leaves_threads_as_the_user_set_them() -> None:
    code = """
    import threadpoolctl, torch, numpy
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        before = [(p["filepath"], p["num_threads"]) for p in threadpoolctl.threadpool_info()]
        SERVE
        after = [(p["filepath"], p["num_threads"]) for p in threadpoolctl.threadpool_info()]
    print(before == [p for p in after if p in before], torch.get_num_threads())
    """
    body = textwrap.dedent(code).replace("    SERVE", textwrap.indent(SERVE.strip(), "    "))
    assert run(body) == "True 1"


# the switch, and the answer to "why is it not faster yet?"


def exported() -> Any:
    return torch.export.export(torch.nn.Linear(3, 2).requires_grad_(False), (torch.ones(4, 3),))


def test_disabling_runs_models_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { a = Neg(x)  b = Neg(x)  y = Add(a, b) }'
    )
    program = exported()
    x, array = torch.randn(4, 3), np.ones(2, np.float32)
    ours, plain = hotfuse.load(doubled), hotfuse.compile(program, wait=True)
    monkeypatch.setenv("HOTFUSE_DISABLE", "1")
    session, model = hotfuse.load(doubled), hotfuse.compile(program)
    assert len(session.graph.nodes) == 3 > len(ours.graph.nodes)
    np.testing.assert_array_equal(session.run(None, {"x": array})[0], ours.run(None, {"x": array})[0])
    torch.testing.assert_close(model(x), plain(x))
    assert (model.report().bound_shapes, plain.report().bound_shapes) == (0, 1)  # torch's module answered; our plan did
    assert "HOTFUSE_DISABLE" in session.report().why
    assert "HOTFUSE_DISABLE" in model.report().why


def session_report() -> Report:
    session = hotfuse.load(MODEL)
    session.run(None, {"x": X})
    return session.report()


def exported_report() -> Report:
    model = hotfuse.compile(exported())
    model(torch.ones(4, 3))
    return model.report()


def module_report() -> Report:
    model = hotfuse.compile(torch.nn.Linear(3, 2), tier=0)
    model(torch.ones(4, 3))
    return model.report()


@pytest.mark.parametrize("make", [session_report, exported_report, module_report])
def test_every_report_says_why_it_is_not_faster_yet(make: Callable[[], Report]) -> None:
    report = make()
    assert isinstance(report, Report)
    assert report.calls == 1
    assert len(report.why) > 10
    assert str(report).splitlines()[-1] == f"  why it is not faster yet: {report.why}"
    assert json.loads(json.dumps(report.json()))["why"] == report.why
