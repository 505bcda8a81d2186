"""HTTP requests and responses: redirects, users, proxies, and hostile servers."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from conftest import need, raises
from loopback import Fault, Server
from transfers import DATA, saved, waited_s

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.fetch import Fetcher
from wids.storage.transport import connections

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


def test_endless_numbers_are_errors(server: Server) -> None:
    """A number of thousands of digits is refused, and so is a header of two lines."""
    headers = {"Content-Range": f"bytes 0-0/{'9' * 5000}"}
    fault = Fault(206, headers=headers, body=b"x")
    with raises(FetchError, "Content-Range"):
        Fetcher().range_reader(server.page("/a", b"", faults=[fault]), 5)(0, 1)
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


@pytest.mark.parametrize("named", ["127.0.0.1", "127.0.0.2"])
def test_certificates_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """An unknown authority and another host are errors at once; SSL_CERT_FILE names one's own."""
    need(shutil.which("openssl"), "openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", f"subjectAltName=IP:{named}", "-keyout", "key.pem", "-out", "own.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Files) as secure:
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        thread = threading.Thread(target=secure.serve_forever, args=(0.01,))
        thread.start()
        url = f"https://127.0.0.1:{secure.server_address[1]}/own.pem"
        try:
            connections._tls_context.cache_clear()
            with raises(FetchError, "self-signed certificate"):
                fetch.read(url, 10_000)
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
            connections._tls_context.cache_clear()
            if named == "127.0.0.1":
                assert fetch.read(url, 10_000) == (tmp_path / "own.pem").read_bytes()
            else:
                with raises(FetchError, "not valid for '127.0.0.1'"):
                    fetch.read(url, 10_000)
        finally:
            connections._tls_context.cache_clear()
            secure.shutdown()
            thread.join()


def test_proxies(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through http_proxy, except to the hosts in no_proxy."""
    server.page("http://example.invalid/a", b"by proxy")
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert fetch.read("http://me:pw@example.invalid/a", 10) == b"by proxy"
    assert server.log[-1].path == "http://example.invalid/a"
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://who:pw@"))
    assert fetch.read("http://example.invalid/a", 10) == b"by proxy"
    assert server.log[-1].headers["proxy-authorization"].startswith("Basic ")
    monkeypatch.setenv("http_proxy", server.url.replace("http://", ""))
    assert fetch.read("http://example.invalid/a", 10) == b"by proxy"
    assert fetch.read(server.page("/b", b"direct"), 10) == b"direct"
    monkeypatch.setenv("no_proxy", server.url.removeprefix("http://"))  # with its port
    assert Fetcher().read(server.url + "/b", 10) == b"direct"
    assert server.log[-1].path == "/b"
