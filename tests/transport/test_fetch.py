"""Reading URLs: documents, files and ranges, from servers that fail in every way."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import in_child, raises
from loopback import Fault, Server

from wids.errors import FetchError, MismatchError, NotFoundError, SpecError
from wids.transport import fetch, transports
from wids.transport.fetch import Expected, Fetcher, RangeError

DATA = random.Random(1).randbytes(5_000_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another without much waiting."""
    monkeypatch.setattr(fetch, "_FIRST_WAIT_S", 0.01)


def saved(url: str, expected: Expected | None = None, **about: object) -> bytes:
    """Give what arrives in a file."""
    file = io.BytesIO()
    Fetcher(**about).save(url, file, expected or Expected())
    return file.getvalue()


def test_reads_paths_file_urls_and_http(tmp_path: Path, server: Server) -> None:
    """Whatever names the document, its bytes are the same."""
    (tmp_path / "a b.json").write_bytes(b"{}")
    url = server.page("/a.json", b"{}")

    for name in (str(tmp_path / "a b.json"), f"file://{tmp_path}/a%20b.json", url):
        assert fetch.read(name, 10) == b"{}"
        assert saved(name) == b"{}"


def test_missing_is_not_found(tmp_path: Path, server: Server) -> None:
    """Nothing there is a FileNotFoundError that names the thing, and is not asked for again."""
    with raises(NotFoundError, "no such file", "check the path"):
        fetch.read(str(tmp_path / "nope"), 10)
    with raises(NotFoundError, "/nope", "404"):
        fetch.read(server.url + "/nope", 10)
    assert len(server.log) == 1


def test_errors_of_a_server_are_errors(server: Server) -> None:
    """An error page is never a document, nor part of a file. What cannot help is not repeated."""
    for status, number in ((403, 1), (401, 1), (400, 1), (500, 5), (503, 5)):
        url = server.page(f"/{status}", b"<html>", status)
        with raises(FetchError, f"expected HTTP status 200, found {status}"):
            saved(url)
        assert server.requests.count(f"/{status}") == number


def test_messages_have_no_secrets(server: Server) -> None:
    """Queries and passwords do not appear, whatever the failure (SEC-4)."""
    url = server.page("/x", b"", 403) + "?token=SECRET"
    for bad in (
        *(url, url.replace("http://", "http://me:SECRET@"), "http://127.0.0.1:9/x?SECRET"),
        *("pipe:TOKEN=SECRET false", "pipe:false\t-u\tme:SECRET"),
    ):
        with pytest.raises(FetchError) as caught:
            fetch.read(bad, 10)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__cause__ is None or "SECRET" not in str(caught.value.__cause__)


def test_too_long_is_refused(tmp_path: Path, server: Server) -> None:
    """A document has a limit."""
    (tmp_path / "a").write_bytes(b"12345")
    for url in (str(tmp_path / "a"), server.page("/a", b"12345")):
        assert fetch.read(url, 5) == b"12345"
        with raises(FetchError, "expected at most 4 bytes, found more"):
            fetch.read(url, 4)


def test_a_folder_is_no_document(tmp_path: Path) -> None:
    """What is there and cannot be read says what it is."""
    with raises(FetchError, "found: a folder"):
        fetch.read(str(tmp_path), 5)


# Servers that fail and recover.


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_a_passing_failure_passes(server: Server, status: int) -> None:
    """A server that is busy for a moment is asked again (CACHE-12)."""
    url = server.page("/a", DATA, faults=[Fault(status), Fault(status)])

    assert saved(url) == DATA
    assert len(server.log) == 3


def test_an_error_is_not_remembered(server: Server) -> None:
    """Forbidden or missing today, there tomorrow."""
    url = server.page("/a", DATA, faults=[Fault(404), Fault(403)])
    fetcher = Fetcher()
    for _ in range(2):
        with pytest.raises(FetchError):
            fetcher.read(url, 1 << 30)

    assert fetcher.read(url, 1 << 30) == DATA


def test_the_server_says_how_long_to_wait(server: Server) -> None:
    """Retry-After is followed."""
    url = server.page("/a", b"x", faults=[Fault(503, headers={"Retry-After": "1"})])
    started_s = time.monotonic()

    assert saved(url) == b"x"
    assert time.monotonic() - started_s >= 1


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_cut_is_gone_on_with(server: Server, how: str) -> None:
    """After a cut only the rest is asked for: at most 1.2 times the size is sent (CACHE-12)."""
    faults = [Fault(after_nbytes=2_000_000, how=how), Fault(after_nbytes=1_500_000, how=how)]
    url = server.page("/a", DATA, faults=faults)

    assert saved(url) == DATA
    assert [request.range is None for request in server.log] == [True, False, False]
    assert server.num_sent <= 1.2 * len(DATA)


def test_a_stall_is_noticed(server: Server) -> None:
    """Silence for longer than the time-out is a failure like others."""
    url = server.page("/a", DATA, faults=[Fault(after_nbytes=1_000_000, how="stall")])

    assert saved(url, storage_options={"timeout": 0.5}) == DATA
    assert len(server.log) == 2


def test_without_ranges_it_starts_over(server: Server) -> None:
    """A server that cannot go on sends all of it again, and no byte comes twice."""
    fault = Fault(after_nbytes=2_000_000)
    url = server.page("/a", DATA, has_ranges=False, faults=[fault])

    assert saved(url) == DATA
    assert server.num_sent == 2_000_000 + len(DATA)


def test_without_a_tag_it_starts_over(server: Server) -> None:
    """Nobody could say that the rest belongs to the beginning, unless a digest is stated."""
    url = server.page("/a", DATA, has_tag=False, faults=[Fault(after_nbytes=2_000_000)])
    assert saved(url) == DATA
    assert [request.range for request in server.log] == [None, None]

    server.pages["/a"].faults.append(Fault(after_nbytes=2_000_000))
    assert saved(url, Expected(sha256=hashlib.sha256(DATA).hexdigest())) == DATA
    assert server.log[-1].range is not None


def test_a_file_that_changes_in_between_is_not_mixed(server: Server) -> None:
    """The rest of another file is never appended (CACHE-12)."""
    url = server.page("/a", DATA, faults=[Fault(after_nbytes=2_000_000)])
    other = random.Random(2).randbytes(len(DATA))
    file = io.BytesIO()

    def change(received_nbytes: int, _: int | None) -> None:
        if received_nbytes >= 1_500_000:
            server.pages["/a"].body = other

    Fetcher().save(url, file, report=change)

    assert file.getvalue() == other


def test_a_short_answer_without_a_length_is_found_by_the_stated_one(server: Server) -> None:
    """Where the server claims that it was all, the spec knows better."""
    fault = Fault(after_nbytes=1000, how="short")
    url = server.page("/a", DATA, always=fault)

    with raises(MismatchError, f"expected {len(DATA)} bytes (filesize), found 1000"):
        saved(url, Expected(nbytes=len(DATA)))
    server.pages["/a"].has_length = False
    with raises(MismatchError, f"expected {len(DATA)} bytes (filesize), found 1000"):
        saved(url, Expected(nbytes=len(DATA)))


def test_digests_are_compared(server: Server) -> None:
    """The error says which digest differs, and how."""
    url = server.page("/a", DATA)
    md5, sha = hashlib.md5(DATA).hexdigest(), hashlib.sha256(DATA).hexdigest()  # noqa: S324

    assert saved(url, Expected(len(DATA), md5.upper(), sha)) == DATA
    with raises(MismatchError, f"expected the md5 {'0' * 32}, found {md5}"):
        saved(url, Expected(md5sum="0" * 32))
    with raises(MismatchError, f"expected the sha256 {'0' * 64}, found {sha}"):
        saved(url, Expected(sha256="0" * 64))


def test_the_stated_length_bounds_what_is_written() -> None:
    """An answer without an end does not fill the disk."""
    with raises(MismatchError, "expected 1000 bytes (filesize)"):
        saved("pipe:yes", Expected(nbytes=1000))


def test_a_cut_behind_the_last_byte(server: Server) -> None:
    """The rest is empty, and the server says 416: all is fetched again (CACHE-12)."""
    url = server.page("/a", DATA, is_chunked=True, faults=[Fault(after_nbytes=len(DATA))])

    assert saved(url) == DATA
    assert [request.range for request in server.log] == [None, f"bytes={len(DATA)}-", None]


def test_a_part_that_says_more_than_the_whole(server: Server) -> None:
    """A chunked answer has no length, its continuation has one: it is the same file."""
    url = server.page("/a", DATA, is_chunked=True, faults=[Fault(after_nbytes=2_000_000)])

    assert saved(url) == DATA
    assert [request.range for request in server.log] == [None, "bytes=2000000-"]


def test_claims_without_end_are_errors(server: Server) -> None:
    """Numbers as long as pages are not numbers."""
    headers = {"Content-Range": f"bytes 0-0/{'9' * 5000}"}
    fault = Fault(206, headers=headers, body=b"x")
    with raises(FetchError, "Content-Range"):
        Fetcher().read_range(server.page("/a", b"", faults=[fault]), 0, 1, 5)
    with pytest.raises(FetchError) as caught:
        saved(server.page("/b", DATA), storage_options={"headers": {"a": "SECRET\nc"}})
    assert "mend the headers" in str(caught.value)
    assert "SECRET" not in str(caught.value)  # (SEC-4)


def test_a_connection_that_breaks_in_the_handshake() -> None:
    """Is tried again, as every failed connection; a wrong certificate is not."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while len(accepted) < fetch.MAX_FAILURES:
                connection, _ = listener.accept()
                accepted.append(connection.recv(10))
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with raises(FetchError, "tried 5 times"):
            saved(f"https://127.0.0.1:{listener.getsockname()[1]}/a")
        thread.join()
    assert len(accepted) == 5


def test_a_server_that_never_recovers_is_given_up(server: Server) -> None:
    """Five failures without getting on are enough."""
    url = server.page("/a", DATA, always=Fault(after_nbytes=1000, how="reset"))

    with raises(FetchError, "the connection failed", "tried 5 times"):
        saved(url)


def test_a_server_that_gets_on_slowly_is_not_given_up(server: Server) -> None:
    """Failures are forgotten when a megabyte came since."""
    faults = [Fault(after_nbytes=1_200_000 if n % 2 else 1000) for n in range(8)]
    url = server.page("/a", DATA, faults=faults)

    assert saved(url) == DATA


def test_redirects(server: Server) -> None:
    """They are followed; a circle is an error at once; another scheme is refused."""
    target = server.page("/b", DATA)
    assert saved(server.page("/a", b"", location=target)) == DATA

    loop = server.page("/loop", b"", location="/loop")
    with raises(FetchError, "more than 10 redirects"):
        saved(loop)
    with raises(FetchError, "/evil", "found a redirect to file:///etc/passwd"):
        saved(server.page("/evil", b"", location="file:///etc/passwd"))
    server.page("/relative/b", b"there")
    assert saved(server.page("/relative/a", b"", location="b")) == b"there"
    # What has the word in its name is not one.
    with raises(FetchError, "the connection failed", "tried 5 times"):
        saved("http://redirect.invalid/x")


def test_signed_urls_arrive_as_they_are(server: Server) -> None:
    """Ampersands, percent signs and equal signs reach the server untouched."""
    query = "?X-Amz-Signature=a%2Fb%3D&Expires=1&x=$(id)"
    url = server.page("/a b;c.tar".replace(" ", "%20"), DATA) + query

    assert saved(url) == DATA
    assert server.requests == ["/a%20b;c.tar" + query]


def test_compressed_transfers_are_refused(server: Server) -> None:
    """Bytes that are not those of the file have other offsets."""
    fault = Fault(200, body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    with raises(FetchError, "Content-Encoding gzip"):
        saved(server.page("/a", DATA, faults=[fault]))
    assert server.log[0].headers["accept-encoding"] == "identity"


# Who is told what.


def test_options_are_sent(server: Server) -> None:
    """Headers open what needs a token; without them the error says what to pass."""
    url = server.page("/a", DATA, needs=("Authorization", "Bearer T"))
    with raises(FetchError, "403", "storage_options"):
        saved(url)

    headers = {"headers": {"Authorization": "Bearer T"}}
    assert saved(url, storage_options=headers) == DATA
    assert saved(url, storage_options={server.url: headers, "s3://": {}}) == DATA


def test_a_user_in_the_url_is_authorized(server: Server) -> None:
    """http://user:password@host works as in curl."""
    url = server.page("/a", DATA, needs=("Authorization", "Basic bWU6YSBi"))

    assert saved(url.replace("http://", "http://me:a%20b@")) == DATA


def test_tokens_go_to_no_other_server(server: Server) -> None:
    """Neither by a redirect, nor by a document from elsewhere, nor by a look-alike (SEC-9)."""
    options = {"headers": {"Authorization": "T", "X-Token": "T"}}
    other = Server()
    try:
        target = other.page("/b/c", DATA)
        assert saved(server.page("/a", b"", location=target), storage_options=options) == DATA
        # A document from `server` names a file of `other`.
        fetcher = Fetcher(options)
        fetcher.read(server.page("/spec.json", {}), 100)
        fetcher.save(target, io.BytesIO())
        for prefix in (server.url, other.url + "/a", other.url + "/b/cc", "https://"):
            assert saved(target, storage_options={prefix: options}) == DATA
        other.page("/b/e", DATA)
        assert saved(other.url + "/d/../b/e", storage_options={other.url + "/d/": options})
        for trick in ("#", "\\", "%23"):
            url = f"{other.url}{trick}@{server.url.partition('//')[2]}/b/c"
            with pytest.raises(FetchError):
                saved(url, storage_options={server.url: options})
        for request in other.log:
            assert not {"authorization", "x-token"} & set(request.headers)
        fetcher.save(server.page("/c", DATA), io.BytesIO())
        for prefix in (other.url, other.url + "/", other.url + "/b", other.url + "/b/c", "http://"):
            saved(target, storage_options={prefix: options})
            assert other.log[-1].headers["x-token"] == "T"
    finally:
        other.close()
    assert server.log[-1].headers["x-token"] == "T"


def test_mixed_options_are_refused() -> None:
    """Options, or options by prefix: which is meant has to be plain."""
    with raises(ValueError, "found both", "headers"):
        Fetcher({"headers": {}, "s3://": {}})


# Ranges.


def test_a_range_is_all_that_is_sent(server: Server) -> None:
    """One request, and no byte more than asked for."""
    url = server.page("/a", DATA)

    assert Fetcher().read_range(url, 1000, 1500, len(DATA)) == DATA[1000:1500]
    assert Fetcher().read_range(url, 0, 7, len(DATA)) == DATA[:7]
    assert (server.num_sent, server.log[0].range) == (507, "bytes=1000-1499")


def test_a_range_of_another_file_is_refused(server: Server) -> None:
    """The length of the whole, which each answer states, has to be the expected one."""
    url = server.page("/a", DATA)

    with raises(MismatchError, f"expected a file of 9 bytes, as its index says, found {len(DATA)}"):
        Fetcher().read_range(url, 1, 5, 9)


def test_a_server_without_ranges_says_so(server: Server) -> None:
    """It is not read to the end for a few bytes."""
    url = server.page("/a", DATA * 10, has_ranges=False)

    with raises(RangeError, "whole files only", 'access="download"'):
        Fetcher().read_range(url, 1000, 1500, 10 * len(DATA))
    # What lies at the beginning can be read all the same.
    assert Fetcher().read_range(url, 0, 500, 10 * len(DATA)) == DATA[:500]


def test_ranges_are_asked_for_again(server: Server) -> None:
    """A cut or a busy server is no reason to fail."""
    url = server.page("/a", DATA, faults=[Fault(503), Fault(after_nbytes=100, how="reset")])

    assert Fetcher().read_range(url, 1000, 5000, len(DATA)) == DATA[1000:5000]


def test_connections_are_kept(server: Server) -> None:
    """Many ranges cost one connection."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    accepted = []
    finish = server.http.finish_request
    server.http.finish_request = lambda *a: (accepted.append(1), finish(*a))  # type: ignore[method-assign]

    for start in range(0, 20_000, 1000):
        fetcher.read_range(url, start, start + 100, len(DATA))

    assert len(accepted) == 1


def test_fetchers_can_be_pickled_and_forked(server: Server) -> None:
    """Another process has connections of its own."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    fetcher.read(url, 1 << 30)

    assert pickle.loads(pickle.dumps(fetcher)).read(url, 1 << 30) == DATA  # noqa: S301 - made here
    assert in_child(lambda: fetcher.read(url, 1 << 30) == DATA)
    assert fetcher.read(url, 1 << 30) == DATA


def test_cancel_ends_a_fetch(server: Server) -> None:
    """In the middle of the bytes, and while waiting for the next try."""
    cancel = threading.Event()
    server.rate_nbytes = 1_000_000
    threading.Timer(0.3, cancel.set).start()
    started_s = time.monotonic()

    with raises(fetch.CancelledError):
        Fetcher().save(server.page("/a", DATA), io.BytesIO(), cancel=cancel)
    assert time.monotonic() - started_s < 2
    with raises(fetch.CancelledError):
        Fetcher().save(server.page("/b", DATA, 503), io.BytesIO(), cancel=cancel)


# Other schemes.


def test_handlers_of_the_callers_own(tmp_path: Path) -> None:
    """A callable that opens a URL is all that a scheme needs; ranges too, where it can seek."""
    (tmp_path / "a").write_bytes(DATA)
    opened = []

    def open_mine(url: str) -> io.BufferedReader:
        opened.append(url)
        return (tmp_path / url.partition("://")[2]).open("rb")

    handlers = {"mine": open_mine}
    assert saved("mine://a", handlers=handlers) == DATA
    assert Fetcher(handlers=handlers).read_range("mine://a", 5, 10, len(DATA)) == DATA[5:10]
    with raises(NotFoundError, "mine://b"):
        saved("mine://b", handlers=handlers)
    assert opened == ["mine://a", "mine://a", "mine://b"]


def test_fsspec_file_systems() -> None:
    """Every scheme that fsspec knows: whole, in part, missing."""
    import fsspec

    with fsspec.open("memory://bucket/a.tar", "wb") as file:
        file.write(DATA)

    assert saved("memory://bucket/a.tar", Expected(len(DATA))) == DATA
    assert Fetcher().read_range("memory://bucket/a.tar", 7, 99, len(DATA)) == DATA[7:99]
    with raises(MismatchError, "found 5000000"):
        Fetcher().read_range("memory://bucket/a.tar", 7, 99, 100)
    with raises(NotFoundError, "memory://bucket/b.tar"):
        saved("memory://bucket/b.tar")


def test_unknown_schemes_and_missing_drivers_say_what_to_install() -> None:
    """The error names the extra."""
    with raises(FetchError, 'expected a driver for "gopher"', "handler"):
        saved("gopher://x/y")
    code = (
        "import sys; sys.modules['gcsfs'] = None\n"
        "from wids.transport import fetch\n"
        "try:\n    fetch.read('gs://bucket/x', 10)\n"
        "except fetch.FetchError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'wids[gcs]'" in done.stdout


@pytest.mark.parametrize(
    "url",
    [
        "local:///etc/passwd",
        "asynclocal:///etc/passwd",
        "reference://x/y",
        "dir://x",
        "git://x",
        "zip://a.txt::file:///x.zip",
        "s3://a::file:///x",
    ],
)
def test_no_detour_to_files_of_this_machine(url: str) -> None:
    """A scheme that leads to another URL could name what a document may not (SEC-10)."""
    with raises(FetchError, "found one that leads to another"):
        saved(url)


def test_pipes_to_stdout_and_to_a_file(tmp_path: Path) -> None:
    """Both forms that are in use; a relative redirect in the command is its own affair."""
    (tmp_path / "a b").write_bytes(DATA)

    assert saved(f"pipe:cat '{tmp_path}/a b'") == DATA
    assert saved(f"pipe:cat '{tmp_path}/a b' | cat") == DATA
    assert saved(f"pipe:cp '{tmp_path}/a b' {{local}}") == DATA
    assert saved(f"pipe: cat '{tmp_path}/a b'", scratch=str(tmp_path / "new")) == DATA


def test_pipes_that_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A status other than 0 is an error, whatever was written; arguments stay out of messages."""
    caplog.set_level(logging.DEBUG)
    for command in ("echo half; exit 3", "exit 3 # {local}"):
        with raises(FetchError, "expected the command to end with status 0, found 3"):
            saved(f"pipe:{command} --token=SECRET", scratch=str(tmp_path))
    assert "SECRET" not in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_is_left_is_ended(tmp_path: Path) -> None:
    """No command goes on when nobody reads it, with all that it has started."""
    mark = tmp_path / "mark"
    stream = transports.Pipe()(f"pipe:(sleep 1; touch {mark}) & yes", 0, None, None)

    with stream:
        next(stream.chunks)
    time.sleep(1.3)

    assert not mark.exists()


# What the environment says.


def test_rewriting(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """WDS_REWRITE sends URLs elsewhere: rules, one after the other."""
    (tmp_path / "a").write_bytes(b"local")
    server.page("/data/a", b"remote")
    monkeypatch.setenv("WDS_REWRITE", f"^s3://bucket={server.url}/data;^gs://.*/={tmp_path}/")

    assert fetch.read("s3://bucket/a", 10) == b"remote"
    assert fetch.read("gs://other/a", 10) == b"local"
    monkeypatch.setenv("WDS_REWRITE", "^s3://=pipe:echo ")
    assert fetch.read("s3://a/b=c", 10) == b"a/b=c\n"


@pytest.mark.parametrize("url", ["s3://a;id", "s3://a b", "s3://$(id)", "s3://a|b", "s3://a\nb"])
def test_rewriting_runs_nothing_of_the_url(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of somebody else's cannot become a command of the shell (SEC-11)."""
    monkeypatch.setenv("WDS_REWRITE", "^s3://=pipe:echo ")

    with raises(SpecError, "plain characters"):
        fetch.read(url, 10)


@pytest.mark.parametrize("url", ["s3://b/../x", "s3://b/%2e%2e/x", "s3://b\\..\\x"])
def test_rewriting_leads_nowhere_else(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of somebody else's that becomes a path stays below the folder (SEC-2)."""
    monkeypatch.setenv("WDS_REWRITE", "^s3://b=/data/mirror")

    with raises(SpecError, "without .."):
        fetch.where(url)


@pytest.mark.parametrize("rules", ["nothing", "(=x", "a=\\9"])
def test_rules_that_are_none(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the variable is named."""
    monkeypatch.setenv("WDS_REWRITE", rules)

    with raises(SpecError, "WDS_REWRITE"):
        fetch.read("s3://a/b", 10)


def test_aistore(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AIS_ENDPOINT serves ais: URLs, and those of the schemes in USE_AIS_FOR."""
    for provider in ("s3", "gs", "ais"):
        server.page(f"/{provider}/bucket/a%20b", provider.encode())
    monkeypatch.setenv("AIS_ENDPOINT", server.url + "/")
    monkeypatch.setenv("USE_AIS_FOR", "s3:gs")

    for scheme in ("s3", "gs", "ais"):
        assert fetch.read(f"{scheme}://bucket/a b", 10) == scheme.encode()


def test_proxies(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy is used, no_proxy is not."""
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
