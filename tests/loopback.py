"""An HTTP server on loopback that can fail in all the ways in which servers fail.

It serves bytes by path, with ranges and tags, logs the requests and the number of bytes sent (those
for the first byte, which ask for a length, apart, in ``asked``), can be limited to a rate, and
accepts faults for a path, each of which affects one request for more. It refuses more than
``max_requests`` at a time.

    python tests/loopback.py FOLDER [BYTES_PER_SECOND [PORT]]

serves the files of a folder from memory until its standard input ends. It first prints its address;
for each line of input it prints the requests since the previous line, with the bytes sent.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any


@dataclass
class Fault:
    """A failure of one request.

    Attributes:
        status: Respond with this status instead of the file.
        after_nbytes: Without a status, fail after this many bytes of the file.
        how: ``"close"`` or ``"reset"`` the connection, ``"stall"`` (send no more until the server
            is closed), ``"silent"`` (send not even the headers until then), or ``"short"``: claim
            that the file ends there; or ``"flip"``: send everything, with one bit flipped in the
            byte of the file at ``after_nbytes``.
        headers: Sent with the status.
        body: Sent with the status; an error page if None.
    """

    status: int | None = None
    after_nbytes: int = 0
    how: str = "close"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


@lru_cache(maxsize=16)
def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'  # noqa: S324 - an ETag


def flipped(body: bytes, at: int) -> bytes:
    """Return bytes with one bit flipped."""
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@dataclass
class Page:
    """A file to serve, and how."""

    body: bytes
    status: int = 200
    has_ranges: bool = True
    has_tag: bool = True
    has_length: bool = True
    is_chunked: bool = False
    location: str | None = None
    needs: tuple[str, str] | None = None
    denial: int = 403
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    stated_nbytes: int | None = None
    respond: Callable[[bytes], bytes] | None = None
    machine: str = ""

    @property
    def tag(self) -> str:
        """The ETag, which changes with the body, and from machine to machine."""
        return f'"{self.machine}{_tag(self.body)[1:]}'

    def next_fault(self, request: Request) -> Fault | None:
        """Return the fault for a request, and remove it."""
        fault = self.always
        if request.asks_length:
            fault = fault if fault is not None and fault.status else None
        elif self.faults:
            fault = self.faults.pop(0)
        if self.needs is not None and request.headers.get(self.needs[0].lower()) != self.needs[1]:
            return Fault(self.denial)
        return fault

    def answer(
        self, request: Request, fault: Fault | None
    ) -> tuple[int, bytes, int, int, dict[str, str]]:
        """Return the status, the file, start and stop of the part to send, and the headers."""
        headers = {"ETag": self.tag} if self.has_tag else {}
        if fault is not None and fault.status is not None:
            body = fault.body or b"<html>an error</html>"
            return fault.status, body, 0, len(body), dict(fault.headers)
        if self.location is not None:
            return 302, b"", 0, 0, {"Location": self.location}
        length = len(self.body)
        if request.asks_length and self.stated_nbytes is not None:
            return 206, b"?", 0, 1, {"Content-Range": f"bytes 0-0/{self.stated_nbytes}"}
        match = self.has_ranges and re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
        is_same = request.headers.get("if-range", self.tag) == self.tag
        if not (match and is_same and self.status == 200):
            return self.status, self.body, 0, length, headers
        start, stop = int(match[1]), min(length, int(match[2] or length) + 1)
        if start >= length:
            return 416, b"", 0, 0, {**headers, "Content-Range": f"bytes */{length}"}
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{length}"
        return 206, self.body, start, stop, headers


@dataclass
class Mirrors(Page):
    """A file on three machines that answer in turn, each with a tag of its own."""

    turns: Iterator[int] = field(default_factory=count)

    def answer(
        self, request: Request, fault: Fault | None
    ) -> tuple[int, bytes, int, int, dict[str, str]]:
        return Page(self.body, machine=f"{next(self.turns) % 3}-").answer(request, fault)


@dataclass
class Request:
    """A request that was received, from which port, and the number of bytes sent in response."""

    path: str
    headers: dict[str, str]
    at_s: float
    num_sent: int = 0
    is_refused: bool = False
    is_busy: bool = False
    port: int = 0

    @property
    def range(self) -> str | None:
        """The ``Range`` header."""
        return self.headers.get("range")

    @property
    def asks_length(self) -> bool:
        """Whether it is for the first byte, whose response states the length."""
        return self.range == "bytes=0-0"

    @property
    def is_download(self) -> bool:
        """Whether a whole file was requested, or the first part of one."""
        first = re.fullmatch(r"bytes=0-(\d+)", self.range or "bytes=0-8388607")
        return first is not None and int(first[1]) + 1 >= 256 << 10


class Server:
    """The server, which runs in threads of this process."""

    def __init__(
        self,
        rate_nbytes: float | None = None,
        port: int = 0,
        pages: dict[str, Page] | None = None,
    ) -> None:
        self.pages: dict[str, Page] = pages or {}
        self.log: list[Request] = []
        self.asked: list[Request] = []
        self.rate_nbytes = rate_nbytes
        self.max_requests = 1 << 30
        self.num_busy = 0
        self._budget_lock = threading.Lock()
        self._free_at_s = 0.0
        self._is_closed = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                fields = self.headers
                headers = {name.lower(): ", ".join(fields.get_all(name, [])) for name in fields}
                request = Request(self.path, headers, time.monotonic())
                request.port = self.client_address[1]
                (server.asked if request.asks_length else server.log).append(request)
                with suppress(ConnectionError, BrokenPipeError):
                    server._answer(self, request)

            def do_HEAD(self) -> None:  # of obstore
                page = server.pages.get(self.path.partition("?")[0], Page(b"", 404))
                status, _, start, stop, headers = page.answer(
                    Request(self.path, {}, 0), page.always
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(stop - start)}.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_POST(self) -> None:
                posted = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                page = server.pages.get(self.path.partition("?")[0])
                if page is not None and page.respond is not None:
                    page.body = page.respond(posted)
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, *_: Any) -> None:
                pass

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass  # tests contain clients that disconnect

        self.http = Http(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.005,), daemon=True)
        self.thread.start()

    @property
    def requests(self) -> list[str]:
        """The requested paths, with their queries."""
        return [request.path for request in self.log]

    @property
    def num_sent(self) -> int:
        """Bytes of bodies sent."""
        return sum(request.num_sent for request in self.log)

    def page(self, path: str, body: object, status: int = 200, **options: Any) -> str:
        """Serve a body (as JSON unless it is bytes) under a path; return its URL."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.pages[path] = Page(data, status, **options)
        return self.url + path

    def close(self) -> None:
        self._is_closed.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._budget_lock:
            is_refused = self.num_busy >= self.max_requests
            request.is_busy = not is_refused
            self.num_busy += request.is_busy
        try:
            self._answer_one(handler, request, Fault(503) if is_refused else None)
        finally:
            self._end(request)

    def _end(self, request: Request) -> None:
        """Have room for another request: before the last bytes, after which the client sends it."""
        with self._budget_lock:
            self.num_busy -= request.is_busy
            request.is_busy = False

    def _answer_one(
        self, handler: BaseHTTPRequestHandler, request: Request, fault: Fault | None
    ) -> None:
        page = self.pages.get(request.path.partition("?")[0], Page(b"<html>not here</html>", 404))
        fault = fault or page.next_fault(request)
        request.is_refused = fault is not None and fault.status == 503
        if fault is not None and fault.how == "silent":
            self._is_closed.wait(60)
            return
        status, body, start, stop, headers = page.answer(request, fault)
        if fault is not None and fault.status is not None:
            fault = None
        elif fault is not None and fault.how == "short":
            stop, fault = min(stop, start + fault.after_nbytes), None
        elif fault is not None and fault.how == "flip":
            body, fault = flipped(body, fault.after_nbytes), None
        is_chunked = page.is_chunked and status == 200
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif page.has_length:
            headers.setdefault("Content-Length", str(stop - start))
        else:
            headers["Connection"] = "close"
            handler.close_connection = True
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        end = stop if fault is None else min(stop, start + fault.after_nbytes)
        if is_chunked:
            handler.wfile.write(b"%x\r\n" % (end - start))
        self._send(handler, request, body, start, end)
        if fault is not None:
            handler.close_connection = True
            self._break_off(handler, fault)
        elif is_chunked:
            handler.wfile.write(b"\r\n0\r\n\r\n")

    def _send(
        self, handler: BaseHTTPRequestHandler, request: Request, body: bytes, start: int, end: int
    ) -> None:
        size = 1 << 20 if self.rate_nbytes is None else 16 << 10
        while start < end:
            part = memoryview(body)[start : min(end, start + size)]
            rate_nbytes = self.rate_nbytes  # a test may change it
            if rate_nbytes is not None:
                with self._budget_lock:
                    now_s = time.monotonic()
                    wait_s = max(0.0, self._free_at_s - now_s)
                    self._free_at_s = max(self._free_at_s, now_s) + len(part) / rate_nbytes
                if self._is_closed.wait(wait_s):
                    return
            request.num_sent += len(part)
            if start + len(part) == end:
                self._end(request)
            handler.wfile.write(part)
            start += len(part)

    def _break_off(self, handler: BaseHTTPRequestHandler, fault: Fault) -> None:
        handler.wfile.flush()
        if fault.how == "stall":
            self._is_closed.wait(60)
        elif fault.how == "reset":
            # A reset discards what the client has not read yet.
            until_s = time.monotonic() + 10
            while has_unread(handler.connection) and time.monotonic() < until_s:
                self._is_closed.wait(0.01)
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()
            handler.rfile.close()


def has_unread(connection: socket.socket) -> bool:
    """Whether the other end of a connection on this machine has bytes that nobody has read."""
    if not sys.platform.startswith("linux"):
        time.sleep(0.2)
        return False
    try:
        ends = {f":{connection.getsockname()[1]:04X}", f":{connection.getpeername()[1]:04X}"}
        lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # the other end is gone
        return False
    for _, local, remote, _, queues, *_ in map(str.split, lines):
        if {local[-5:], remote[-5:]} == ends and queues != "00000000:00000000":
            return True  # not acknowledged by this end, or not read by the other
    return False


def main(folder: str, rate_nbytes: str = "", port: str = "0") -> None:
    """Serve a folder in a process of its own, for measurements and to be killed."""
    # All of it from the first request on: a client may wait for the port.
    pages = {
        f"/{path.relative_to(folder).as_posix()}": Page(path.read_bytes())
        for path in Path(folder).rglob("*")
        if path.is_file()
    }
    server = Server(float(rate_nbytes) if rate_nbytes else None, int(port), pages)
    print(server.url, flush=True)  # noqa: T201 - read by the parent process
    for _ in sys.stdin:
        print(json.dumps([(r.path, r.num_sent) for r in server.log]), flush=True)  # noqa: T201
        server.log.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
