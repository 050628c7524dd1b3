"""Metrics: what Prometheus' own parser reads of them is what the models did, nothing is kept alive for them, and the endpoint
answers that and nothing else."""

from __future__ import annotations

import gc
import http.client
import os
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from prometheus_client.parser import text_string_to_metric_families

import hotfuse
from hotfuse.errors import ConfigError
from hotfuse.events import EventLog
from hotfuse.runtime import metrics
from hotfuse.runtime.metrics_text import Family, Sample, exposition

X = np.ones((2, 3), np.float32)


def model(name: str) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": 21]> {name} (float[n, 3] x) => (float[n, 3] y) {{ h = Tanh(x)  y = Exp(h) }}'
    return onnx.parser.parse_model(text)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the models of other tests."""
    monkeypatch.setattr(metrics, "_WATCHED", [])
    monkeypatch.setattr(metrics, "_GONE", {})


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the name of a sample and its labels' values, as Prometheus understands them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            key = tuple(sample.labels.values())
            assert key not in values
            values[key] = sample.value
    return found


labels = st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,4}", fullmatch=True), st.text(), max_size=3)


@given(st.lists(st.tuples(st.floats() | st.integers(-(10**18), 10**18), labels), max_size=5), st.text())
@settings(deadline=None)
def test_whatever_is_written_is_read_again(rows: list[tuple[float, dict[str, str]]], help: str) -> None:
    samples = tuple(Sample(value, named) for value, named in rows)
    text = exposition([Family("a", "gauge", help, samples), Family("b_total", "counter", "second", samples[:1])])
    first, *_ = text_string_to_metric_families(text)
    assert [s.labels for s in first.samples] == [s.labels for s in samples]
    np.testing.assert_array_equal([s.value for s in first.samples], [float(s.value) for s in samples])
    assert text.count("\n") == 4 + len(samples) + len(samples[:1])


def test_what_models_did_is_told() -> None:
    native = hotfuse.load(model("native"), tier=1, wait=True)
    plain = [hotfuse.load(model("plain"), tier=0) for _ in range(2)]
    for _ in range(3):
        native.run(None, {"x": X})
    for session in plain:
        session.run(None, {"x": X})
    native.events.emit("tier.built", "generic kernels", kernels=3, compiled=2, cpu_s=0.5)
    native.events.emit("tier.built", "kernels for 2x3", kernels=3, compiled=1, cpu_s=0.25)
    native.events.emit("tier.shadowed", "generic kernels", ok=True)
    native.events.emit("tier.shadowed", "generic kernels", ok=False)
    found = read(hotfuse.metrics())
    assert found["hotfuse_calls_total"] == {("native", "1"): 3, ("plain", "0"): 2}
    assert found["hotfuse_models"] == {("native",): 1, ("plain",): 2}
    assert found["hotfuse_events_total"]["native", "native.made"] == 1
    assert found["hotfuse_compiled_kernels_total"]["native",] == 3
    assert found["hotfuse_compile_cpu_seconds_total"]["native",] == 0.75
    assert (found["hotfuse_shadowed_calls_total"]["native",], found["hotfuse_mismatches_total"]["native",]) == (2, 1)
    assert found["hotfuse_kernels"]["native",] == native.kernels > 0
    assert found["hotfuse_code_bytes"]["native",] > 0 == found["hotfuse_code_bytes"]["plain",]
    assert found["hotfuse_compiled_here_total"][()] >= 1


def test_calls_that_feed_initializers_are_counted_with_the_others() -> None:
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        fed (float[2, 3] x, float[3] w) => (float[2, 3] y) <float[3] w = {1, -9, 1}> { y = Add(x, w) }""")
    session = hotfuse.load(proto, tier=0)
    for feeds in ({"x": X}, {"x": X, "w": X[0]}, {"x": X, "w": X[0]}):
        session.run(None, feeds)
    found = read(hotfuse.metrics())
    assert found["hotfuse_calls_total"] == {("fed", "0"): 3}
    assert found["hotfuse_models"] == {("fed",): 1}
    assert [m for m in hotfuse.models() if m.graph.name == "fed"] == [session]


def test_a_compiled_module_is_counted_by_who_answered() -> None:
    fast = hotfuse.compile(torch.nn.Tanh(), tier=1, wait=True, capture="blocking")
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(2, 3))
    fast(torch.ones(2, 3, requires_grad=True))
    found = read(hotfuse.metrics())
    assert found["hotfuse_calls_total"] == {("Tanh", "0"): 1, ("Tanh", "1"): 3}
    assert found["hotfuse_kernels"]["Tanh",] >= 1


def test_what_dynamo_compiles_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.runtime import torch_backend

    monkeypatch.setattr(torch_backend, "EVENTS", log := EventLog())
    log.emit("backend.compiled", "inference", kernels=3)
    assert read(hotfuse.metrics())["hotfuse_events_total"] == {("(dynamo)", "backend.compiled"): 1}


def test_models_that_are_gone_stay_in_the_totals_and_nowhere_else() -> None:
    totals = []
    for number in range(3):
        session = hotfuse.load(model("brief"), tier=0)
        for _ in range(number + 1):
            session.run(None, {"x": X})
        session.events.emit("tier.publish", "x")
        hotfuse.metrics()
        gone = weakref.ref(session)
        session.close()
        del session
        gc.collect()
        assert gone() is None
        found = read(hotfuse.metrics())
        totals.append((found["hotfuse_calls_total"]["brief", "0"], found["hotfuse_swaps_total"]["brief",]))
        assert "hotfuse_models" not in found
    assert totals == [(1, 1), (3, 2), (6, 3)]
    assert not metrics._WATCHED


def test_names_of_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "NAMES", 3)
    for number in range(8):
        session = hotfuse.load(model(f"m{number}"), tier=0)
        session.events.emit("a", "x")
        del session
    gc.collect()
    found = {key: n for key, n in read(hotfuse.metrics())["hotfuse_events_total"].items() if key[1] == "a"}
    assert set(found) == {("m0", "a"), ("m1", "a"), ("m2", "a"), ("(others)", "a")}
    assert sum(found.values()) == 8


def test_events_go_to_the_file_that_the_configuration_names(tmp_path: Path) -> None:
    code = """
    import hotfuse, numpy as np, onnx.parser
    model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
        logged (float[n] x) => (float[n] y) { y = Tanh(x) }''')
    session = hotfuse.load(model, tier=1, wait=True)
    session.run(None, {"x": np.ones(3, np.float32)})
    """
    path = tmp_path / "log"
    environment = {**os.environ, "HOTFUSE_EVENT_LOG": str(path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=120)
    (line,) = path.read_text().splitlines()  # written by the end of the process
    assert '"kind": "native.made"' in line
    assert '"model": "logged"' in line


# the endpoint


@pytest.fixture
def server() -> Iterator[Any]:
    with hotfuse.serve_metrics() as opened:
        yield opened


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_endpoint_answers_metrics_and_nothing_else(server: Any) -> None:
    session = hotfuse.load(model("served"), tier=0)
    session.run(None, {"x": X})
    status, text = fetch(server.url)
    assert status == 200
    assert read(text)["hotfuse_calls_total"] == {("served", "0"): 1}
    assert fetch(server.url + "?now") == (200, text)
    root = server.url.removesuffix("/metrics")
    assert [fetch(root + path)[0] for path in ("/", "/metrics/", "/../metrics", "/etc/passwd")] == [404] * 4
    assert [fetch(server.url, method)[0] for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS")] == [405] * 5
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        raw.sendall(b"\xff\xfe nonsense\r\n\r\n")
        assert b"400" in raw.recv(1000)
    assert fetch(server.url)[0] == 200


def test_many_scrape_at_once_while_models_come_and_go(server: Any) -> None:
    answers: list[int] = []

    def scrape() -> None:
        for _ in range(10):
            status, text = fetch(server.url)
            read(text)
            answers.append(status)

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        hotfuse.load(model("brief"), tier=0).run(None, {"x": X})
    assert answers == [200] * 40


def test_a_client_that_says_nothing_holds_nobody_up(server: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port)), socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"GET /met")
        assert fetch(server.url)[0] == 200


def test_only_this_machine_is_answered_and_close_is_the_end(server: Any) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_a_defect_is_a_status_and_no_more(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect() -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr("hotfuse.runtime.metrics_endpoint.metrics_text", defect)
    assert fetch(server.url) == (500, "RuntimeError: planted\n")


def test_a_forked_child_lets_go_of_the_port(server: Any) -> None:
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(done[1])
            server.close()
            os.write(ready[1], b"x")
            os.read(done[0], 1)  # until the parent lets go
        finally:
            os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"x"
        assert fetch(server.url)[0] == 200
        server.close()
        with pytest.raises(ConnectionRefusedError):  # the child would keep it open
            socket.create_connection(("127.0.0.1", server.port))
    finally:
        for end in (*ready, *done):
            os.close(end)
        assert os.waitpid(child, 0)[1] == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_port_of_the_configuration_is_served_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotfuse.runtime import metrics_endpoint

    port = free_port()
    monkeypatch.setenv("HOTFUSE_METRICS_PORT", str(port))
    sessions = [hotfuse.load(model("port"), tier=0) for _ in range(2)]
    assert read(fetch(f"http://127.0.0.1:{port}/metrics")[1])["hotfuse_models"] == {("port",): 2}
    assert not any(session.events.of("metrics.failed") for session in sessions)
    metrics_endpoint._BY_PORT[port].close()


def test_a_port_that_is_taken_costs_an_event() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        session = hotfuse.load(model("port"), tier=0, metrics_port=taken.getsockname()[1])
        (event,) = session.events.of("metrics.failed")
        assert "in use" in event.reason
        session.run(None, {"x": X})
    with pytest.raises(ConfigError, match="metrics_port must be at most 65535"):
        hotfuse.load(model("port"), metrics_port=65536)


def test_another_path_in_the_request_line_is_no_way_in(server: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "http://elsewhere/metrics")
    assert connection.getresponse().status == 404
