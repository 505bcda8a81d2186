"""A bucket of a real S3 server on loopback, behind a proxy that can fail.

The server is `moto_server`. The proxy forwards whole requests, logs them, and asks the test's own
function first what to do with each: forward it, answer in the server's place, or stall.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from conftest import need
from servers import free_port, running

Answer = int | str | None
"""A status to answer with; ``"stall"``; ``"lose"`` to forward the request and cut the connection
instead of answering; ``"truncate"`` to forward half of its body; or None to forward it."""


class Bucket:
    """A bucket, empty for each test.

    Attributes:
        url: Its URL, ``s3://…``.
        options: ``storage_options`` for requests through the proxy.
        fault: Called with method and path with query; see `Answer`.
        requests: Method and path with query of each request.
        keys: The access key that each request was signed with; empty if it was not.
        num_sent: Bytes of bodies sent.
        stalled: Set when a request stalls.
        system: An fsspec file system that goes to the server, past the proxy.
    """

    def __init__(self, name: str, server: str, proxy: str) -> None:
        import s3fs

        self.name = name
        self.url = f"s3://{name}"
        self.fault: Callable[[str, str], Answer] = lambda method, path: None  # noqa: ARG005
        self.requests: list[tuple[str, str]] = []
        self.keys: list[str] = []
        self.num_sent = 0
        self.stalled = threading.Event()
        self.end = threading.Event()
        keys = {"key": "test", "secret": "test"}
        self.options: dict[str, Any] = {**keys, "endpoint_url": proxy}
        self.system = s3fs.S3FileSystem(**keys, endpoint_url=server, use_listings_cache=False)
        self.system.mkdir(name)

    def environment(self) -> dict[str, str]:
        """Return the variables with which other processes reach the proxy."""
        return {"WIDS_STORAGE_OPTIONS": json.dumps(self.options)}

    def names(self) -> list[str]:
        """Return the names of all objects."""
        found = self.system.find(self.name)
        return sorted(name.removeprefix(f"{self.name}/") for name in found)

    def unfinished(self) -> list[str]:
        """Return the names of uploads that were begun and neither completed nor aborted."""
        found = self.system.call_s3("list_multipart_uploads", Bucket=self.name)
        return [upload["Key"] for upload in found.get("Uploads", [])]


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server and yield its address."""
    need(
        find_spec("moto") and find_spec("s3fs"), "moto[server] and s3fs (pip install '.[test-all]')"
    )
    port = free_port()
    program = str(Path(sys.executable).with_name("moto_server"))
    with running([program, "-H", "127.0.0.1", "-p", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def bucket_of(server: str, name: str) -> Iterator[Bucket]:
    """Yield a new bucket of a server, behind a proxy."""
    proxy = _ProxyServer(("127.0.0.1", 0), _Proxy)
    bucket = Bucket(name, server, f"http://127.0.0.1:{proxy.server_port}")
    proxy.bucket = bucket  # type: ignore[attr-defined]
    proxy.upstream = server.removeprefix("http://")  # type: ignore[attr-defined]
    thread = threading.Thread(target=proxy.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.end.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._forward
        raise AttributeError(name)

    def _forward(self) -> None:
        bucket: Bucket = self.server.bucket  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket.requests.append((self.command, self.path))
        signature = unquote(self.path) + self.headers.get("Authorization", "")
        bucket.keys.append(signature.partition("Credential=")[2].partition("/")[0])
        answer = bucket.fault(self.command, self.path)
        if answer == "stall":
            bucket.stalled.set()
            bucket.end.wait(60)
            self.close_connection = True
        elif isinstance(answer, int):
            code = {403: "AccessDenied", 501: "NotImplemented"}.get(answer, "InvalidArgument")
            self._send(answer, {}, f"<Error><Code>{code}</Code></Error>".encode())
        else:
            if answer == "truncate":
                body = body[: len(body) // 2]
                self.headers.replace_header("Content-Length", str(len(body)))
            with closing(http.client.HTTPConnection(self.server.upstream)) as upstream:  # type: ignore[attr-defined]
                upstream.request(self.command, self.path, body, dict(self.headers))
                response = upstream.getresponse()
                data = response.read()
            if answer == "lose":
                self.close_connection = True
                return
            bucket.num_sent += 0 if self.command == "HEAD" else len(data)
            self._send(response.status, dict(response.headers), data)

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(data)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
