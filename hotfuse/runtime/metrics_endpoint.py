"""A local endpoint for metrics: `GET /metrics`, and nothing else.

State: the endpoints that are open, and which of them a port of the configuration has. A forked child closes its copies: the
port is the parent's.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hotfuse.locks import make_lock
from hotfuse.runtime.metrics import metrics_text
from hotfuse.runtime.metrics_text import CONTENT_TYPE

PATH = "/metrics"
LOOPBACK = "127.0.0.1"
PATIENCE_S = 5.0  # with a client that does not finish its request


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "hotfuse", ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(404, f"there is {PATH}\n")
            return
        try:
            self._answer(200, metrics_text())
        except Exception as error:
            self._answer(500, f"{type(error).__name__}: {error}\n")

    def _refuse(self) -> None:
        self._answer(405, "only GET is answered\n")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the standard error is the program's own."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking the network what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that goes away is no matter of ours."""


class MetricsServer:
    """Answers until it is closed, or the process ends."""

    def __init__(self, port: int, host: str) -> None:
        self._server: _Server | None = _Server(host, port)
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="hotfuse-metrics", daemon=True).start()
        _SERVERS.add(self)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{PATH}"

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _forget(self) -> None:
        """In a forked child, where nobody accepts."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()


def serve(port: int = 0, host: str = LOOPBACK) -> MetricsServer:
    """Serve metrics at a port; 0 is any that is free. Raises OSError where the port is taken."""
    return MetricsServer(port, host)


def serve_once(port: int) -> None:
    """Serve metrics at a port of this machine, if this process does not already."""
    with _LOCK:
        known = _BY_PORT.get(port)
        if known is None or known._server is None:
            _BY_PORT[port] = serve(port)


def _forget_all() -> None:
    for server in list(_SERVERS):
        server._forget()
    _BY_PORT.clear()


_LOCK = make_lock()
_SERVERS: weakref.WeakSet[MetricsServer] = weakref.WeakSet()
_BY_PORT: dict[int, MetricsServer] = {}
os.register_at_fork(after_in_child=_forget_all)
