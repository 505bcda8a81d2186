"""The pages of a dataset, requested without a browser: what they show, to whom, at what cost."""

from __future__ import annotations

import gzip
import io
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from urllib.parse import quote

import pytest
from conftest import write_tar
from events import LONG_S, in_time, wait_for
from looks import HOSTILE, Client, browsing, picture, search, write
from loopback import Server
from PIL import Image

import wids
from wids.look.page import pages
from wids.look.page.answers import STATIC_ROUTES, error_answer
from wids.look.page.server import MAX_CONNECTIONS, allowed_hosts
from wids.shards.fields.encode import encode


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("looks"))


def test_page_and_script_are_self_contained(spec: Path) -> None:
    """The page loads its own files alone, and its headers forbid all others."""
    with browsing(spec) as client:
        status, headers, page = client.get()
        assert status == 200
        files = re.findall(r'(?:src|href)="([^"]+)"', page.decode())
        assert files == ["data:,", "page.css", "page.js"]
        scripts = [name for name in STATIC_ROUTES if name]
        loaded = {name: client.get(name) for name in scripts}
    for name, (status, _, body) in loaded.items():
        assert (status, b"http:" in body, b"https:" in body) == (200, False, False), name
        imports = re.findall(r'from "./([^"]+)"', body.decode())
        assert set(imports) <= set(scripts), name
    assert b"style=" not in page
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


def test_address_is_required(spec: Path) -> None:
    """Requests without the token, or under another host name, are not found (SEC-13)."""
    with browsing(spec) as client:
        token = client.parts.path
        assert len(token) > 20
        for path in (
            "/",
            "/about",
            "/x/about",
            token[:-2] + "/about",
            token.rstrip("/") + "x/about",
        ):
            status, headers, body = client.get(path)
            assert (status, headers["Content-Type"]) == (404, "text/html; charset=utf-8"), path
            assert b"open the address that it printed last" in body
        assert client.get("/x/about", Host="evil.example")[::2] == (404, body)
        # Whoever has the token learns what a forwarded port or a proxy changed.
        status, _, body = client.get("about", Host="hub.example:<8000>")
        assert status == 404
        assert f"to 127.0.0.1:{client.parts.port}, found one to hub.example:&lt;8000&gt;" in (
            body.decode()
        )
        assert client.get("about", Host=f"localhost:{client.parts.port}")[0] == 200
    with browsing(spec) as other:
        assert other.parts.path != token


def test_about(spec: Path) -> None:
    """The dataset is described by name, counts, and fields from the indexes."""
    with browsing(spec) as client:
        about = client.json("about")
    assert (about["name"], about["num_samples"], about["num_shards"]) == ("looks", 100, 3)
    fields = {field["name"]: field["share"] for field in about["fields"]}
    assert fields[".jpg"] == fields[".txt"] == "100%"
    assert fields[".npy"] == "15%"


def test_pages_of_samples(spec: Path) -> None:
    """A page begins at any sample and states where the next begins; the last page is short."""
    with browsing(spec) as client:
        first = client.json("samples?start=0&count=24")
        assert [card["index"] for card in first["cards"]] == list(range(24))
        assert first["next"] == 24
        last = client.json("samples?start=96&count=24")
        assert [card["index"] for card in last["cards"]] == [96, 97, 98, 99]
        assert last["next"] is None
        assert client.json("samples?start=500")["cards"] == []
        assert len(client.json("samples?count=100000")["cards"]) == 100
    assert "caption 1" in first["cards"][1]["html"]
    assert "data:image/png;base64," in first["cards"][1]["html"]


def test_filter_by_field(spec: Path) -> None:
    """Samples that have a field are found across shards, from indexes alone."""
    with browsing(spec) as client:
        assert search(client, "field=.npy")["found"] == 15
        found = client.json("samples?field=.npy&count=10")
        assert [card["index"] for card in found["cards"]] == list(range(0, 70, 7))
        rest = client.json(f"samples?field=.npy&count=10&start={found['next']}")
        assert [card["index"] for card in rest["cards"]] == [70, 77, 84, 91, 98]
        assert rest["next"] is None
        search(client, "field=.none")
        assert client.json("samples?field=.none&start=9")["cards"] == []


def test_previous_pages(spec: Path) -> None:
    """A page states where the previous one begins."""
    with browsing(spec) as client:
        assert client.json("samples?start=0")["previous"] is None
        assert client.json("samples?start=10&count=24")["previous"] == 0
        assert client.json("samples?start=72&count=24")["previous"] == 48


def test_media_can_be_read_by_range(spec: Path) -> None:
    """Players that jump to another time request a range."""
    with browsing(spec) as client:
        path = f"field/60/{quote('.mp4')}"
        status, headers, body = client.get(path, Range="bytes=10-19")
        assert (status, len(body)) == (206, 10)
        assert headers["Content-Range"] == "bytes 10-19/3000000"
        assert len(client.get(path, Range="bytes=2999990-")[2]) == 10
        assert client.get(path, Range="bytes=0-9999999")[1]["Content-Range"].endswith("9/3000000")
        assert (
            client.get(path, Range="bytes=-5")[1]["Content-Range"]
            == "bytes 2999995-2999999/3000000"
        )
        assert len(client.get(path, Range="bytes=-9999999")[2]) == 3_000_000
        assert client.get(path)[1]["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    "invalid",
    ["bytes=5-2", "bytes=", "bytes=-", "bytes=1-2,4-5", "lines=1-2", f"bytes={'9' * 5000}-"],
)
def test_invalid_ranges_are_ignored(spec: Path, invalid: str) -> None:
    """The answer is the whole field, as RFC 9110 has it; so it is for several ranges at once."""
    with browsing(spec) as client:
        status, headers, body = client.get(f"field/60/{quote('.mp4')}", Range=invalid)
    assert (status, len(body)) == (200, 3_000_000)
    assert "Content-Range" not in headers


@pytest.mark.parametrize("outside", ["bytes=3000000-", "bytes=5000000-6000000", "bytes=-0"])
def test_ranges_outside_a_field_are_refused(spec: Path, outside: str) -> None:
    """The answer is status 416 with the length of the field (RFC 9110)."""
    with browsing(spec) as client:
        status, headers, body = client.get(f"field/60/{quote('.mp4')}", Range=outside)
    assert (status, body) == (416, b"")
    assert headers["Content-Range"] == "bytes */3000000"


def test_a_range_costs_what_it_returns(server: Server, tmp_path: Path) -> None:
    """A player that jumps through a film does not read the film for each jump (SEC-53)."""
    write(tmp_path)
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with browsing(f"{server.url}/looks.json") as client:
        client.json("about")
        before = server.num_sent
        for start in (0, 1_000_000, 2_000_000):
            _, _, body = client.get(
                f"field/60/{quote('.mp4')}", Range=f"bytes={start}-{start + 99}"
            )
            assert body == bytes(100)
        assert server.num_sent - before < 100_000


def test_a_field_that_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    """A tar that was written again after its index is noticed before anything is sent."""
    spec = write(tmp_path, 61)
    tar = tmp_path / "looks-000001.tar"
    data = tar.read_bytes()
    with browsing(spec) as client:
        client.json("about")
        tar.write_bytes(data.replace(b"k/0060.mp4", b"k/0060.mp5"))
        status, _, body = client.get(f"field/60/{quote('.mp4')}", Range="bytes=0-9")
    assert status == 502
    assert "looks-000001.tar" in json.loads(body)["error"]


def test_idle_connections_are_closed(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends no request, or half of one, holds a thread for seconds only (SEC-53)."""
    with browsing(spec) as client:
        with monkeypatch.context() as patch:
            patch.setattr("wids.look.page.server._Handler.timeout", 0.2)
            for start in (b"", b"GET /", b"GET / HTTP/1.0\r\nHost: "):
                # The server may have closed it before anything is sent.
                with connected(client) as connection, suppress(ConnectionError):
                    connection.sendall(start)
                    assert connection.recv(10) == b""
        assert client.get("about")[0] == 200


def test_a_request_has_one_deadline(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then is closed like one that sends nothing (SEC-53)."""
    with browsing(spec) as client:

        def attempt() -> list[bytes] | None:
            """Return what was sent before the deadline; None if nothing was: that was too late."""
            sent: list[bytes] = []
            with connected(client) as connection:
                connection.sendall(b"GET /about HTTP/1.0\r\nX-Timeouts: ")
                thread = threading.Thread(target=send_slowly, args=(connection, sent))
                thread.start()
                with suppress(ConnectionResetError):  # a byte was on its way when it was closed
                    assert connection.recv(10) == b""
                thread.join()
            return sent or None

        with monkeypatch.context() as patch:
            patch.setattr("wids.look.page.server._Handler.timeout", 1)
            assert in_time(attempt)
        assert client.get("about")[0] == 200


def send_slowly(connection: socket.socket, sent: list[bytes]) -> None:
    """Send a byte every few milliseconds, as long as somebody reads them."""
    with suppress(OSError):
        while True:
            connection.sendall(b"x")
            sent.append(b"x")
            time.sleep(0.02)


@pytest.mark.long
def test_idle_connections_keep_nobody_out(spec: Path) -> None:
    """Of many connections without a request the oldest are closed; the page works (SEC-53)."""
    before = threading.active_count()
    with browsing(spec) as client, ExitStack() as stack:
        idle = [stack.enter_context(connected(client)) for _ in range(MAX_CONNECTIONS + 40)]
        for connection in idle[-20:]:
            connection.sendall(b"GET /")
        assert client.get("about")[0] == 200
        assert len(client.json("samples?count=100")["cards"]) == 100
        assert [connection.recv(1) for connection in idle[:40]] == [b""] * 40
        wait_for(lambda: threading.active_count() <= before + MAX_CONNECTIONS + 1)


def test_too_many_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all places are taken by requests, others have the answer 503 with a reason (SEC-53)."""
    monkeypatch.setattr("wids.look.page.server.MAX_CONNECTIONS", 3)
    monkeypatch.setattr("wids.look.page.server._REFUSAL_S", LONG_S)
    film = write_tar(tmp_path / "a.tar", [("a.mp4", bytes(30_000_000))])  # more than sockets buffer
    with browsing([(film, 1)]) as client:
        with ExitStack() as stack:
            for _ in range(3):
                connection = stack.enter_context(connected(client))
                path, host = client.parts.path, client.parts.netloc
                request = f"GET {path}field/0/.mp4 HTTP/1.0\r\nHost: {host}\r\n\r\n"
                connection.sendall(request.encode())
                assert connection.recv(4) == b"HTTP"
            status, headers, body = client.get("about")
            assert (status, headers["Content-Type"]) == (503, "application/json")
            assert "too many requests" in json.loads(body)["error"]

        def is_answered() -> bool:
            return client.get("about")[0] == 200

        wait_for(is_answered)


_SERVER = """
import resource, sys, threading
import wids
from wids.look.page.pages import Pages
from wids.look.page.server import Browser

with wids.ShardListDataset(sys.argv[1]) as dataset:
    browser = Browser(Pages(dataset))
    thread = threading.Thread(target=browser.serve)
    thread.start()
    print(browser.url, flush=True)
    for _ in sys.stdin:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)
    browser.close()
    thread.join()
"""


@pytest.mark.alone
def test_two_hundred_clients_that_ask_for_pictures(tmp_path: Path) -> None:
    """Each has its picture, two are made at a time, and nobody has a 503 (SEC-53).

    Meanwhile another person looks at pages and small pictures, before those that are large.
    """
    stream = io.BytesIO()
    Image.new("RGB", (1200, 1200), "green").save(stream, "PNG")
    members = [("a.png", stream.getvalue()), ("b.png", picture(1))]
    path = write_tar(tmp_path / "a.tar", members)
    with serving(path) as (client, megabytes):
        assert client.get("picture/0/.png?pixels=256")[0] == client.get("samples")[0] == 200
        before = megabytes()
        with ThreadPoolExecutor(200) as clients:
            asked = [clients.submit(client.get, "picture/0/.png?pixels=256") for _ in range(200)]
            wait_for(lambda: any(each.done() for each in asked))
            for path in ("", "page.js", "about", "samples?start=1", "sample/1"):
                assert client.get(path)[0] == 200
            is_early = not all(each.done() for each in asked)
            assert {each.result()[0] for each in asked} == {200}
        assert is_early
        assert megabytes() - before < 100  # 6 MB for each picture, and 0.1 MB for each client


@pytest.mark.alone
def test_large_pictures_at_once_take_the_memory_of_one(tmp_path: Path) -> None:
    """Six requests for a picture of 100 MB when decoded take no more than the first (SEC-53)."""
    stream = io.BytesIO()
    Image.new("RGBA", (5000, 5000), (9, 8, 7, 99)).save(stream, "PNG")
    with serving(write_tar(tmp_path / "a.tar", [("a.png", stream.getvalue())])) as server:
        client, megabytes = server
        assert client.get("picture/0/.png?pixels=512")[0] == 200
        before = megabytes()
        with ThreadPoolExecutor(6) as clients:
            answers = clients.map(client.get, ["picture/0/.png?pixels=512"] * 6)
            assert {status for status, *_ in answers} == {200}
        assert megabytes() - before < 60


@contextmanager
def serving(path: Path) -> Iterator[tuple[Client, Callable[[], int]]]:
    """Serve pages in a process of its own; also return what asks for the megabytes of its peak."""
    command = [sys.executable, "-c", _SERVER, str(path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as server:
        question, answer = server.stdin, server.stdout
        assert question is not None
        assert answer is not None

        def megabytes() -> int:
            question.write("\n")
            question.flush()
            return int(answer.readline())

        try:
            yield Client(answer.readline().strip()), megabytes
        finally:
            question.close()


def test_large_pictures_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While too many large pictures are waited for, the next is a 503, and pages work (SEC-53)."""
    monkeypatch.setattr("wids.look.field_facts._MAX_LARGE", 0)
    path = write_tar(tmp_path / "a.tar", [("a.png", picture(1))])
    with browsing([(path, 1)]) as client:
        status, _, body = client.get("picture/0/.png")
        assert status == 503
        assert "too many pictures" in json.loads(body)["error"]
        assert client.get("about")[0] == 200
        assert "<img" in client.json("samples")["cards"][0]["html"]


def connected(client: Client) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection((client.parts.hostname, client.parts.port), timeout=LONG_S)


def test_clients_that_stop_reading_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A player that is paused for minutes holds no thread, and no film in memory (SEC-53)."""
    monkeypatch.setattr("wids.look.page.server._SEND_TIMEOUT_S", 0.2)
    film = write_tar(tmp_path / "a.tar", [("a.mp4", bytes(30_000_000))])  # more than sockets buffer
    with browsing([(film, 1)]) as client, socket.socket() as connection:
        before = set(threading.enumerate())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((client.parts.hostname, client.parts.port))
        request = f"GET {client.parts.path}field/0/.mp4 HTTP/1.0\r\nHost: {client.parts.netloc}"
        connection.sendall(f"{request}\r\n\r\n".encode())
        assert connection.recv(4) == b"HTTP"
        wait_for(lambda: set(threading.enumerate()) <= before)
        assert client.get("about")[0] == 200


def test_host_names_of_a_server() -> None:
    """Browsers leave out port 80, which is the default of HTTP (SEC-13)."""
    assert allowed_hosts(8000) == {"127.0.0.1:8000", "localhost:8000"}
    assert allowed_hosts(80) == {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}


def test_odd_fields_are_shown_or_described(tmp_path: Path) -> None:
    """JSON keys that are not strings, text not in UTF-8, and a decompression bomb do no harm."""
    bomb = gzip.compress(b"[" + b"[]," * 10_000_000 + b"[]]")
    members = [
        ("a.mp", encode(".mp", {1: 2, b"x": [3] * 90})),
        ("a.json", b'{"text": "\\ud800"}'),
        ("a.big.json.gz", bomb),
        ("a.txt", b"x"),
        (b"a.\x80y".decode("utf-8", "surrogateescape"), b"z"),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    wids.build_spec([path], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    with browsing(tmp_path / "a.json") as client:
        html = client.json("sample/0")["html"]
        assert client.get(f"field/0/{quote(b'.' + bytes([0x80]) + b'y')}")[2] == b"z"
        assert len(client.json("samples")["cards"]) == 1
    assert "2 keys" in html
    assert "longer than 2000000 bytes" in html
    assert "\\ud800" in html
    assert "%80y" in html


def test_a_large_text_is_not_read(server: Server, tmp_path: Path) -> None:
    """Whether a field is small is decided for each sample, not by the median."""
    members = [(f"{n:03d}.txt", b"x" * (50 if n != 7 else 2_000_000)) for n in range(60)]
    path = write_tar(tmp_path / "a.tar", members)
    wids.build_spec([path], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with browsing(f"{server.url}/a.json") as client:
        before = server.num_sent
        card = client.json("samples?count=60")["cards"][7]
    assert ".txt 2.0 MB" in card["html"]
    assert f"<p>{'x' * 699}…</p>" in card["html"]
    assert server.num_sent - before < 200_000


def test_cards_say_what_a_value_is(tmp_path: Path) -> None:
    """A number has the name of its field; a long caption shows its beginning."""
    members = [
        ("a.cls", b"2"),
        ("b.cls", b"2"),
        ("b.txt", b"two"),
        ("c.cls", b"2"),
        ("c.txt", "日本語".encode() * 2000),
        ("d.txt", b"short"),
        ("d.long.txt", b"x" * 20_000),
    ]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        cards = [card["html"] for card in client.json("samples")["cards"]]
    assert "<p><small>.cls</small> 2</p>" in cards[0]
    assert '<p>two</p><p class="line"><small>.cls</small> 2</p>' in cards[1]
    assert "<p>日本語日本語" in cards[2]
    assert "…</p>" in cards[2]
    assert "<p>short</p>" in cards[3]
    assert "xx" not in cards[3]


def test_nothing_from_a_dataset_is_run(spec: Path) -> None:
    """Texts, field names and keys are escaped wherever they are shown (SEC-13)."""
    with browsing(spec) as client:
        shown = [card["html"] for card in client.json("samples?count=100")["cards"]]
        shown += [client.json(f"sample/{index}")["html"] for index in (3, 60)]
        _, headers, body = client.get(f"field/3/{quote('.txt')}")
    assert not [html for html in shown if "<script" in html]
    assert "&lt;script&gt;" in shown[3]
    assert headers["Content-Type"] == "application/octet-stream"
    assert body == HOSTILE.encode()


def test_a_sample(spec: Path) -> None:
    """Small fields are shown, large ones can be played and saved, corrupt ones are described."""
    with browsing(spec) as client:
        sample = client.json("sample/60")
        assert (sample["index"], sample["key"]) == (60, "k/0060")
        assert "<video" in sample["html"]
        assert (Path(sample["shard"]).name, sample["local_index"]) == ("looks-000001.tar", 20)
        status, headers, body = client.get(f"field/60/{quote('.mp4')}")
        assert (status, headers["Content-Type"], len(body)) == (200, "video/mp4", 3_000_000)
        bad = client.json("sample/5")["pictures"][0]
        assert bad["problem"].startswith("not a picture that can be shown, 10 B: its bytes are")
        assert "not a picture" in client.json("samples?start=5&count=1")["cards"][0]["html"]
        assert "ndarray (16, 16) float32" in client.json("sample/7")["html"]


def test_find(spec: Path) -> None:
    """A key leads to its index; an unknown key is an error that says so."""
    with browsing(spec) as client:
        assert client.json("find?key=k/0077") == {"index": 77}
        status, _, body = client.get("find?key=none")
    assert status == 404
    assert "no sample has the key 'none'" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "path",
    ["sample/100", "sample/-1", "sample/x", "field/0/.none", "field/0", "none", "samples?start=x"],
)
def test_wrong_addresses_are_answered(path: str, spec: Path) -> None:
    """No address stops the server or leaves a request unanswered."""
    with browsing(spec) as client:
        status, _, body = client.get(path)
        assert status == 404
        error = json.loads(body)["error"]
        assert " " in error
        assert "int()" not in error
        assert client.get("about")[0] == 200


def test_errors_are_sentences() -> None:
    """Those that only Python words say that they are unexpected, and of which type."""
    cases = [
        (KeyError("x"), 404, "an unexpected error: KeyError 'x'"),
        (KeyError("no such field"), 404, "no such field"),
        (IndexError(), 404, "an unexpected error: IndexError ''"),
        (AttributeError("x is y"), 500, "this could not be shown: x is y"),
        (FileNotFoundError(2, "No such file", "a.tar"), 502, "a.tar: No such file"),
    ]
    for error, status, text in cases:
        found, _, body = error_answer(error, "sample/3")
        assert (found, json.loads(body)["error"]) == (status, text)


def test_odd_requests(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Malformed requests and clients that disconnect early do no harm and print nothing."""
    with browsing(spec) as client:
        for line in (b"GET * HTTP/1.0", b"GET //[ HTTP/1.0", b"GET \xff/about HTTP/1.0", b"GET"):
            with socket.create_connection((client.parts.hostname, client.parts.port)) as connection:
                connection.sendall(line + b"\r\n\r\n")
                connection.recv(10)
        with socket.create_connection((client.parts.hostname, client.parts.port)) as connection:
            connection.sendall(f"GET {client.parts.path}samples?count=100 HTTP/1.0\r\n".encode())
        assert client.get("about")[0] == 200
    assert capsys.readouterr().err == ""


def test_a_broken_shard_does_not_break_the_page(tmp_path: Path) -> None:
    """The reason is stated once for all of its samples; others show their fields."""
    spec = write(tmp_path, 60)
    (tmp_path / "looks-000000.tar").write_bytes(b"?" * 10240)
    with browsing(spec) as client:
        page = client.json("samples?start=38&count=4")
        cards = page["cards"]
        assert client.get("sample/0")[0] == 502
    assert "caption 41" in cards[3]["html"]
    assert 'class="bad"' in cards[0]["html"]
    ((problem, count),) = page["problems"].items()
    assert ("looks-000000.tar" in problem, count) == (True, 2)


def test_remote_pages_cost_what_they_show(server: Server, tmp_path: Path) -> None:
    """Only the fields of a page are fetched from remote shards, not the video beside them.

    The server counts the bytes that it sends.
    """
    write(tmp_path)
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    small = sum(len(picture(n)) + 2048 for n in range(24))

    with browsing(f"{server.url}/looks.json") as client:
        client.json("about")
        before = server.num_sent
        client.json("samples?start=0&count=24")
        first = server.num_sent - before
        client.json("samples?start=48&count=24")
        second = server.num_sent - before - first
        client.json("sample/7")
        sample = server.num_sent - before - first - second

    assert first < 2 * small + 24 * 2048
    assert second < 2 * small + 24 * 2048, "one of the samples has a video of 3 MB"
    assert sample < 8000
    assert not [r for r in server.log if r.path.endswith(".tar") and r.range is None]


def test_remote_shards_without_an_index_are_not_fetched(server: Server, tmp_path: Path) -> None:
    """The page says that the index is missing, and how to make one."""
    spec = write(tmp_path, 10)
    document = json.loads(spec.read_text())
    del document["index"]
    url = server.page("/looks.json", document)
    server.page("/looks-000000.tar", (tmp_path / "looks-000000.tar").read_bytes())
    with browsing(url) as client:
        assert client.json("about")["fields"] == []
        assert "wids create" in client.json("sample/0")["error"]
        assert "wids create" in next(iter(client.json("samples")["problems"]))
    assert [r.path for r in server.log] == ["/looks.json"]


def test_memory_does_not_grow_with_fields_and_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sample with many large fields 60 MB are read, and of one sample at a time."""
    fields = [(f"a.f{number}.txt", b"x" * 25_000_000) for number in range(4)]
    write_tar(tmp_path / "a.tar", [*fields, ("a.txt", b"small")])
    wids.build_spec([tmp_path / "a.tar"], dataset_index=tmp_path / "a.index").save(
        tmp_path / "a.json"
    )
    at_once, most = 0, 0

    def body(*arguments: object) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        found = original(*arguments)  # type: ignore[arg-type]
        at_once -= 1
        return found

    original = pages._body
    monkeypatch.setattr(pages, "_body", body)
    with browsing(tmp_path / "a.json") as client, ThreadPoolExecutor(3) as threads:
        for answer in threads.map(lambda _: client.json("sample/0"), range(3)):
            assert answer["html"].count("too large to show") == 2
            assert "small" in answer["html"]
    assert most == 1
