"""HTTP requests and responses: redirects, users, proxies, and hostile servers."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from socketserver import BaseRequestHandler, StreamRequestHandler, ThreadingTCPServer
from typing import Any, ClassVar

import pytest
from conftest import need, raises
from events import LONG_S
from loopback import Fault, Server
from transfers import DATA, saved, waited_s

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.fetch import Fetcher
from wids.storage.transport import connections, http
from wids.storage.transport.http import Http

pytestmark = pytest.mark.usefixtures("quick_retries")


def test_redirects(server: Server) -> None:
    """They are followed; a loop is an error at once; another scheme is refused."""
    target = server.page("/b", DATA)
    assert saved(server.page("/a", b"", location=target)) == DATA

    loop = server.page("/loop", b"", location="/loop")
    with raises(FetchError, "more than 10 redirects"):
        saved(loop)
    with raises(FetchError, "/evil", "found a redirect to file:///etc/passwd"):
        saved(server.page("/evil", b"", location="file:///etc/passwd"))
    server.page("/relative/b", b"there")
    assert saved(server.page("/relative/a", b"", location="b")) == b"there"
    # As servers send it that do not escape: UTF-8.
    server.page("/%C3%BC", b"there")
    assert saved(server.page("/umlaut", b"", location="/ü".encode().decode("latin-1"))) == b"there"
    # A server with "redirect" in its name is not one.
    with raises(FetchError, "the connection failed", " s for http://redirect.invalid") as caught:
        saved("http://redirect.invalid/x")
    assert 4 <= waited_s(caught.value) < 15


def test_signed_urls_arrive_as_they_are(server: Server) -> None:
    """Ampersands, percent signs and equal signs reach the server unchanged."""
    query = "?X-Amz-Signature=a%2Fb%3D&Expires=1&x=$(id)"
    url = server.page("/a b;c.tar".replace(" ", "%20"), DATA) + query

    assert saved(url) == DATA
    assert server.requests == ["/a%20b;c.tar" + query]


def test_compressed_transfers_are_refused(server: Server) -> None:
    """In an encoded file every offset differs."""
    for name, encoding in (("Content-Encoding", "gzip"), ("Transfer-Encoding", "gzip, chunked")):
        fault = Fault(200, body=b"\x1f\x8b", headers={name: encoding})
        with raises(FetchError, f"{name} {encoding}"):
            saved(server.page("/a", DATA, faults=[fault]))
    assert server.log[0].headers["accept-encoding"] == "identity"


def test_a_user_in_the_url_is_authorized(server: Server) -> None:
    """http://user:password@host works as in curl."""
    url = server.page("/a", DATA, needs=("Authorization", "Basic bWU6YSBi"))

    assert saved(url.replace("http://", "http://me:a%20b@")) == DATA


def test_a_header_of_the_caller_is_sent_once(server: Server) -> None:
    """In place of the usual one; but ranges are those of the request, whatever the caller says."""
    url, given = server.page("/a", DATA), {"RANGE": "bytes=0-1", "host": "h", "user-agent": "me"}
    reader = Fetcher({"headers": given}).range_reader(url, len(DATA))

    assert reader(5, 9) == DATA[5:9]
    sent = server.log[-1].headers
    assert (sent["range"], sent["host"], sent["user-agent"]) == ("bytes=5-8", "h", "me")


def test_endless_numbers_are_errors(server: Server) -> None:
    """A number of thousands of digits is refused, and so is a header of two lines."""
    headers = {"Content-Range": f"bytes 0-0/{'9' * 5000}"}
    fault = Fault(206, headers=headers, body=b"x")
    with raises(FetchError, "Content-Range"):
        Fetcher().range_reader(server.page("/a", b"", faults=[fault]), 5)(0, 2)
    with pytest.raises(FetchError) as caught:
        saved(server.page("/b", DATA), storage_options={"headers": {"a": "SECRET\nc"}})
    assert "correct the headers" in str(caught.value)
    assert "SECRET" not in str(caught.value)  # (SEC-4)


def test_a_broken_handshake_is_retried() -> None:
    """It is retried like any failed connection; a wrong certificate is not."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with suppress(OSError):  # when it is closed
                while True:
                    connection, _ = listener.accept()
                    accepted.append(connection.recv(10))
                    connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with raises(FetchError, "check the address") as caught:
            saved(f"https://127.0.0.1:{listener.getsockname()[1]}/a")
        # Less than eight seconds, if another attempt as slow as the last would end after them.
        assert 4 <= waited_s(caught.value) < 15
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(accepted) > 1


def certified(folder: Path, named: str) -> ssl.SSLContext:
    """Make a certificate of its own authority for an address; return what a server needs."""
    need(shutil.which("openssl"), "openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", f"subjectAltName=IP:{named}", "-keyout", "key.pem", "-out", "own.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem", folder / "key.pem")
    return context


@contextmanager
def serving(
    context: ssl.SSLContext | None, handler: Callable[..., BaseRequestHandler]
) -> Iterator[str]:
    """Serve each connection in a thread, by TLS if there is a context; return host and port."""
    with ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Files(SimpleHTTPRequestHandler):
    """Sends the files of a folder."""

    protocol_version = "HTTP/1.1"
    timeout = 5

    def log_message(self, *_: object) -> None:
        pass


TUNNEL = b"HTTP/1.1 200 Tunnel\r\n\r\n"


class Proxy(StreamRequestHandler):
    """Opens tunnels for a user, and for nobody else."""

    timeout = 5
    heads: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        head = b""
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            head += line
        self.heads.append(head)
        if b"Proxy-Authorization: Basic " not in head:
            self.wfile.write(b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n")
            return
        port = int(head.split()[1].rpartition(b":")[2])
        client = self.connection
        with socket.create_connection(("127.0.0.1", port)) as server, suppress(OSError):
            self.wfile.write(TUNNEL)
            while True:
                for source in select.select([client, server], [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    (server if source is client else client).sendall(data)


@pytest.fixture
def fresh_contexts() -> Iterator[None]:
    """Have certificates read again before and after a test."""
    connections._tls_context.cache_clear()
    yield
    connections._tls_context.cache_clear()


@pytest.mark.usefixtures("fresh_contexts")
@pytest.mark.parametrize("named", ["127.0.0.1", "127.0.0.2"])
def test_certificates_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """An unknown authority and another host are errors at once; SSL_CERT_FILE names one's own."""
    context, files = certified(tmp_path, named), partial(Files, directory=str(tmp_path))
    with serving(context, files) as server:
        url = f"https://{server}/own.pem"
        with raises(FetchError, "self-signed certificate"):
            fetch.Fetcher().read(url, 10_000)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
        connections._tls_context.cache_clear()
        if named == "127.0.0.1":
            assert fetch.Fetcher().read(url, 10_000) == (tmp_path / "own.pem").read_bytes()
        else:
            with raises(FetchError, "not valid for '127.0.0.1'"):
                fetch.Fetcher().read(url, 10_000)


@pytest.mark.usefixtures("fresh_contexts")
def test_a_tunnel_of_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files arrive by https inside it; it is used again, and has a user of its own."""
    context, files = certified(tmp_path, "127.0.0.1"), partial(Files, directory=str(tmp_path))
    (tmp_path / "a").write_bytes(DATA)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(Proxy, "heads", [])
    connections._tls_context.cache_clear()
    with serving(context, files) as server, serving(None, Proxy) as proxy:
        monkeypatch.setenv("https_proxy", f"http://who:pw@{proxy}")
        fetcher = Fetcher()
        for _ in range(2):
            assert fetcher.read(f"https://{server}/a", len(DATA)) == DATA
        assert [head.split()[:2] for head in Proxy.heads] == [[b"CONNECT", server.encode()]]
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        with raises(FetchError, "407 Who?"):
            Fetcher({"retry_s": 0}).read(f"https://{server}/a", len(DATA))


def test_a_proxy_that_is_reached_by_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS inside TLS is refused at once; the error says what to set, and not the password."""
    monkeypatch.setenv("https_proxy", "https://who:SECRET@proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    for read in (
        lambda url: Fetcher().read(url, 3),
        lambda url: Fetcher().range_reader(url, 9)(0, 3),
        lambda url: Fetcher().nbytes(url),
        saved,
    ):
        with raises(FetchError, "found https://proxy:3128; set $https_proxy") as caught:
            read("https://host/a")
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "answers",
    [
        [],
        pytest.param([TUNNEL], marks=pytest.mark.long),
        [TUNNEL, b"\x16\x03\x03\x40\x00", *[b"\0"] * 300],
    ],
    ids=["of the proxy", "of the server", "slow"],
)
def test_a_silent_tunnel_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, answers: list[bytes]
) -> None:
    """Silence, and a handshake that never ends; the error says so."""
    ended = threading.Event()

    class Silent(StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with suppress(OSError):
                for answer in answers:
                    self.wfile.write(answer)
                    if ended.wait(0.05):
                        return
            ended.wait(LONG_S)

    monkeypatch.setenv("no_proxy", "")
    with serving(None, Silent) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        started_s = time.monotonic()
        with raises(TimeoutError, "within 1.0 s (deadline_s)"):
            Fetcher({"deadline_s": 1, "retry_s": 0}).read("https://127.0.0.1:1/a", 3)
        assert time.monotonic() - started_s < 10  # the time-out is 15 s
        ended.set()


class Contested(list[Any]):
    """Idle connections, of which another thread takes the last one first."""

    def pop(self, *_: Any) -> Any:
        self.clear()
        return super().pop()


def test_a_connection_that_another_thread_takes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one is opened, if the only idle one goes between a look at them and its use."""
    transport = Http()
    monkeypatch.setattr(http, "transport_for", lambda *_: transport)
    reader = Fetcher().range_reader(server.page("/a", b"abc"), 3)
    assert reader(0, 3) == b"abc"
    [(key, idle)] = transport._idle.items()
    assert len(idle) == 1
    transport._idle[key] = Contested(idle)
    idle.clear()
    assert reader(0, 3) == b"abc"


def test_proxies(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through http_proxy, except to the hosts in no_proxy."""
    server.page("http://example.invalid/a", b"by proxy")
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert fetch.Fetcher().read("http://me:pw@example.invalid/a", 10) == b"by proxy"
    assert server.log[-1].path == "http://example.invalid/a"
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://who:pw@"))
    assert fetch.Fetcher().read("http://example.invalid/a", 10) == b"by proxy"
    assert server.log[-1].headers["proxy-authorization"].startswith("Basic ")
    monkeypatch.setenv("http_proxy", server.url.replace("http://", ""))
    assert fetch.Fetcher().read("http://example.invalid/a", 10) == b"by proxy"
    assert fetch.Fetcher().read(server.page("/b", b"direct"), 10) == b"direct"
    monkeypatch.setenv("no_proxy", server.url.removeprefix("http://"))  # with its port
    assert Fetcher().read(server.url + "/b", 10) == b"direct"
    assert server.log[-1].path == "/b"
