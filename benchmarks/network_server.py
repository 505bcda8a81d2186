"""An HTTP server of a folder, in a process of its own, over a network that is slow and faulty.

    python network_server.py FOLDER LOG '{"card_nbytes": 30e6, "delay_s": 0.045}'

The last argument has attributes of `web_server.Network`. The server first prints its port, appends
a line to the log for each request that has ended, and runs until its standard input ends. A thread
serves each connection; files go from the kernel's memory to the socket, so that hundreds of
megabytes a second cost little of a processor.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

from web_server import Network

PIECE_NBYTES = 64 << 10
SENT_BEFORE_STALL_NBYTES = 64 << 10
PAUSE_S = 0.005
"""A pause of all senders is a credit for so long: a scheduler's turn."""
FOREVER_S = 86_400.0


class CutError(ConnectionError):
    """A connection that ends here, because the network is like that."""


class Request(NamedTuple):
    """What was asked, and what this network does with it.

    Attributes:
        method: GET or HEAD.
        path: Without the query.
        headers: By lower-case name.
        slowness: How many times longer it takes than others.
        fault: What it gets instead of an answer: ``"reset"``, ``"500"``, ``"503"``, or nothing.
        is_silent: Whether it is never answered.
        is_stalled: Whether its body stops soon.
    """

    method: str
    path: str
    headers: dict[str, str]
    slowness: float
    fault: str
    is_silent: bool
    is_stalled: bool


class Server:
    """What all connections share."""

    def __init__(self, root: Path, log: Path, network: Network) -> None:
        self.root = root
        self.network = network
        self._log = log.open("a", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()
        self._random = random.Random(network.seed)
        self._num_tars = 0
        self._num_busy = 0
        self._free_at_s = 0.0

    def serve(self, client: socket.socket) -> None:
        """Answer the requests of one connection."""
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        left_nbytes = self.network.cut_nbytes or sys.maxsize
        with client, client.makefile("rb") as lines, suppress(OSError):
            while request := self._request(lines):
                left_nbytes -= self._answer(client, request, left_nbytes)

    def _request(self, lines: BinaryIO) -> Request | None:
        """Read a request, and draw what happens to it; None at the end of the connection."""
        first = lines.readline().decode("latin-1").split(" ")
        if len(first) != 3:
            return None
        headers = {}
        while line := lines.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        path, network = unquote(first[1].partition("?")[0]), self.network
        with self._lock:
            is_tar = first[0] == "GET" and path.endswith(".tar")
            self._num_tars += is_tar
            number = self._num_tars if is_tar else -1
            slowness = math.exp(self._random.gauss(0, network.delay_sigma))
            is_slow = self._random.random() < network.slow_share
            is_faulty = self._random.random() < network.error_share
            fault = self._random.choice(("reset", "500", "503")) if is_faulty else ""
        slowness *= 10 if is_slow else 1
        is_silent, is_stalled = number == network.silent_at, number == network.stalled_at
        return Request(first[0], path, headers, slowness, fault, is_silent, is_stalled)

    def _answer(self, client: socket.socket, request: Request, most_nbytes: int) -> int:
        """Answer a request, and write its line; return the bytes of the body."""
        if request.path == "/-end":
            client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            self._num_tars = 0
            self._note("204", 0, request.path, 0.0)
            return 0
        began_s, status, sent = time.monotonic(), "499", [0]
        try:
            with self._busy() as is_free:
                status = self._respond(client, request, most_nbytes, sent, is_free=is_free)
        finally:
            self._note(status, sent[0], request.path, time.monotonic() - began_s)
        return sent[0]

    def _respond(
        self,
        client: socket.socket,
        request: Request,
        most_nbytes: int,
        sent: list[int],
        *,
        is_free: bool,
    ) -> str:
        """Send a response, or break off; return its status."""
        if not is_free:
            return _send_head(client, "503 Service Unavailable", {"Content-Length": "0"})
        time.sleep(FOREVER_S if request.is_silent else self.network.delay_s * request.slowness)
        if request.fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise CutError
        if request.fault:
            return _send_head(client, f"{request.fault} Error", {"Content-Length": "0"})
        path = self.root / request.path.lstrip("/")
        if not path.resolve().is_relative_to(self.root) or not path.is_file():
            return _send_head(client, "404 Not Found", {"Content-Length": "0"})
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            tag = f'"{about.st_mtime_ns:x}-{about.st_size:x}"'
            headers = {"ETag": tag, "Last-Modified": _date(about.st_mtime), "Date": _date()}
            status, start, stop = "200 OK", 0, about.st_size
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
            if asked and request.headers.get("if-range", tag) == tag:
                if asked[1]:
                    start, stop = int(asked[1]), min(stop, int(asked[2] or stop) + 1)
                else:
                    start = max(0, stop - int(asked[2]))
                if start >= stop:
                    return _send_head(client, "416 Too Short", {"Content-Length": "0"})
                status = "206 Partial Content"
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{about.st_size}"
            status = _send_head(client, status, {**headers, "Content-Length": str(stop - start)})
            if request.method == "GET":
                self._send(client, file, (start, stop), request, most_nbytes, sent)
        return status

    def _send(
        self,
        client: socket.socket,
        file: BinaryIO,
        part: tuple[int, int],
        request: Request,
        most_nbytes: int,
        sent: list[int],
    ) -> None:
        """Send a part of a file as fast as the network does."""
        rate_nbytes, (start, stop) = self.network.connection_nbytes, part
        began_s, end = time.monotonic(), min(stop, start + most_nbytes)
        while start < end:
            if request.is_stalled and sent[0] >= SENT_BEFORE_STALL_NBYTES:
                time.sleep(FOREVER_S)
            nbytes = min(PIECE_NBYTES, end - start)
            until_s = self._shared_until_s(nbytes)
            if rate_nbytes:
                own_s = (sent[0] + nbytes) * request.slowness / rate_nbytes
                until_s = max(until_s, began_s + own_s)
            if (wait_s := until_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            while nbytes:
                count = os.sendfile(client.fileno(), file.fileno(), start, nbytes)
                start, nbytes, sent[0] = start + count, nbytes - count, sent[0] + count
        if end < stop:
            raise CutError

    def _shared_until_s(self, nbytes: int) -> float:
        """Return when so many more bytes may be sent over all connections."""
        if not self.network.card_nbytes:
            return 0.0
        with self._lock:
            since_s = max(self._free_at_s, time.monotonic() - PAUSE_S)
            self._free_at_s = since_s + nbytes / self.network.card_nbytes
            return self._free_at_s

    @contextmanager
    def _busy(self) -> Iterator[bool]:
        """Count a request; say whether it is one of those that may be sent at a time."""
        with self._lock:
            is_free = self._num_busy < (self.network.max_requests or sys.maxsize)
            self._num_busy += is_free
        try:
            yield is_free
        finally:
            with self._lock:
                self._num_busy -= is_free

    def _note(self, status: str, nbytes: int, path: str, seconds: float) -> None:
        with self._lock:
            self._log.write(f"{status} {nbytes} {path} {seconds:.3f}\n")


def _send_head(client: socket.socket, status: str, headers: dict[str, str]) -> str:
    """Send the beginning of a response; return the number of its status."""
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    return status[:3]


def _date(seconds: float | None = None) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


def main(folder: str, log: str, network: str = "{}") -> None:
    """Serve until standard input ends."""
    server = Server(Path(folder).resolve(), Path(log), Network(**json.loads(network)))
    # Before the first connection, which inherits it: what is in buffers when a connection is cut
    # has been sent, and will not arrive.
    with socket.socket() as listener:
        if server.network.cut_nbytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_NBYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)

        def accept() -> None:
            while True:
                client, _ = listener.accept()
                threading.Thread(target=server.serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        sys.stdin.read()
        os._exit(0)  # threads may sleep for a day


if __name__ == "__main__":
    main(*sys.argv[1:])
