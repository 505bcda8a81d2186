"""A server on loopback behind the network that a benchmark needs, and what it counted.

nginx delays each request, limits each connection, and refuses what is beyond a number of requests
at a time. What nginx cannot do, such as a rate of all connections together, uneven delays and
requests that fail or stall, is done by `network_server.py`. Requests and bytes are those of the
server's log. nginx and its module echo are Debian's package ``nginx-light``.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

OWN = Path(__file__).with_name("network_server.py")
ECHO = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")


@dataclass(frozen=True)
class Network:
    """What a network is like.

    Attributes:
        delay_s: How long each request waits for its response; the median with ``delay_sigma``.
        connection_nbytes: Bytes a second of each connection.
        max_requests: Requests at a time; the others are refused with status 503.
        card_nbytes: Bytes a second of all connections together.
        cut_nbytes: After so many bytes of bodies a connection is closed.
        delay_sigma: Standard deviation of the logarithm of the delay.
        slow_share: Part of the requests that take ten times as long.
        error_share: Part of the requests whose connection is reset, or that get status 500 or 503.
        silent_at: The request for a tar that is never answered, counted from 1 since the latest
            `WebServer.counted`.
        stalled_at: The same for the request whose body stops after 64 KiB.
        seed: Of the delays and errors.
    """

    delay_s: float = 0
    connection_nbytes: float | None = None
    max_requests: int | None = None
    card_nbytes: float | None = None
    cut_nbytes: int | None = None
    delay_sigma: float = 0
    slow_share: float = 0
    error_share: float = 0
    silent_at: int | None = None
    stalled_at: int | None = None
    seed: int = 0

    @property
    def is_nginx(self) -> bool:
        """Whether nginx can do all of it."""
        return self == Network(self.delay_s, self.connection_nbytes, self.max_requests)

    @property
    def known_nbytes(self) -> float | None:
        """Bytes a second that nobody can exceed; None if only the machine limits them."""
        if self.card_nbytes is not None:
            return self.card_nbytes
        if self.connection_nbytes is None or self.max_requests is None:
            return None
        return self.connection_nbytes * self.max_requests


@dataclass(frozen=True)
class Counted:
    """What the server was asked, and what it sent.

    Attributes:
        num_requests: All requests.
        num_refused: Those that were refused.
        nbytes: Bytes of bodies, whether or not the client received them.
        nbytes_of: The same for each path.
    """

    num_requests: int
    num_refused: int
    nbytes: int
    nbytes_of: dict[str, int]


class WebServer:
    """A server that runs; see `web_server`."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log
        self._read_nbytes = 0

    def counted(self) -> Counted:
        """Return what was counted since the previous call."""
        # One process handles all requests, and logs each when it ends.
        with urllib.request.urlopen(f"{self.url}/-end") as response:  # noqa: S310 - own URL
            response.read()
        until_s = time.monotonic() + 10
        while " /-end " not in (text := self._new_lines()):
            if time.monotonic() > until_s:
                raise RuntimeError(f"{self._log}: the server did not log its last request")
            time.sleep(0.01)
        self._read_nbytes += len(text.encode())
        lines = [line.split(" ") for line in text.splitlines()]
        asked = [(status, path, int(sent)) for status, sent, path, _ in lines if path != "/-end"]
        nbytes_of: dict[str, int] = {}
        for status, path, sent in asked:
            if status in ("200", "206", "499"):
                nbytes_of[path] = nbytes_of.get(path, 0) + sent
        num_refused = sum(status == "503" for status, _, _ in asked)
        return Counted(len(asked), num_refused, sum(nbytes_of.values()), nbytes_of)

    def _new_lines(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._read_nbytes)
            return file.read().decode()


@contextmanager
def web_server(root: Path, network: Network) -> Iterator[WebServer]:
    """Serve a folder until the block ends; an S3 bucket is a folder in it."""
    folder = root.with_name(root.name + "-server")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with ExitStack() as stack:
        if network.is_nginx:
            port = _free_port()
            settings = folder / "nginx.conf"
            settings.write_text(_settings(root, folder, port, network), encoding="utf-8")
            command = ["nginx", "-p", str(folder), "-c", str(settings)]
            stack.enter_context(_process(command, folder / "output"))
            _wait_for(port)
        else:
            port = stack.enter_context(_own(root, folder, network))
        yield WebServer(f"http://127.0.0.1:{port}", folder / "access.log")


def _settings(root: Path, folder: Path, port: int, network: Network) -> str:
    """Return the configuration of nginx."""
    if network.delay_s and not ECHO.exists():
        raise RuntimeError(f"{ECHO}: expected nginx's module echo (Debian: nginx-light)")
    rate = network.connection_nbytes
    # Small pieces: nginx sends one at once, and only then waits as the rate asks.
    limit_rate = f"limit_rate {rate:.0f}; sendfile_max_chunk 128k;" if rate else ""
    limit_requests = (
        f"limit_conn all {network.max_requests}; limit_conn_status 503;"
        if network.max_requests
        else ""
    )
    delay = f"echo_sleep {network.delay_s}; echo_exec @files;" if network.delay_s else ""
    return f"""
        {f"load_module {ECHO};" if network.delay_s else ""}
        daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
        worker_rlimit_nofile 8192;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{ worker_connections 4096; }}
        http {{
            log_format counted "$status $body_bytes_sent $uri $request_time";
            access_log {folder}/access.log counted;
            client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
            fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
            sendfile on; keepalive_timeout 600; keepalive_requests 1000000;
            limit_conn_zone $server_name zone=all:1m;
            limit_conn_log_level info;
            server {{
                listen 127.0.0.1:{port} backlog=4096;
                server_name loopback;
                root {root};
                location = /-end {{ return 204; }}
                location / {{ {limit_requests} {delay} {limit_rate} }}
                location @files {{ {limit_rate} }}
            }}
        }}
    """


@contextmanager
def _own(root: Path, folder: Path, network: Network) -> Iterator[int]:
    arguments = [str(root), str(folder / "access.log"), json.dumps(asdict(network))]
    command = [sys.executable, str(OWN), *arguments]
    with (
        (folder / "output").open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()  # with which it ends
            process.wait(30)


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    until_s = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        else:
            return
