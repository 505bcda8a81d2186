"""Users, passwords and signatures of URLs stay out of all that wids says and writes (SEC-4)."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli.command import run
from conftest import optional, write_shards
from loopback import Fault, Request, Server
from servers import free_port

import wids
from wids.cli import main as cli
from wids.shards.specs.model import SavedTable

pytestmark = pytest.mark.usefixtures("quick_retries")

SECRET = "SECRET"  # noqa: S105 - part of all that must not be seen
QUERY = "?X-Amz-Signature=signature%2FSECRET&token=token-SECRET"
USER = "user-SECRET:password-SECRET@"
NAMES = ["train-000000.tar", "train-000001.tar"]


def signed(url: str) -> str:
    """Return a URL with a user, a password and a signature."""
    return url.replace("://", f"://{USER}") + QUERY


Scene = Callable[[Server, Path], str]
"""Serves something, and returns the URL of a spec without its secrets."""


def served(server: Server, folder: Path) -> str:
    """A dataset that is as it should be, without an index."""
    (folder / "site").mkdir(exist_ok=True)
    spec = write_shards(folder / "site", [4, 3])
    for path in (folder / "site").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/{spec.name}"


def indexed(server: Server, folder: Path) -> str:
    """The same with a dataset index."""
    url = served(server, folder)
    spec = folder / "site" / "train.json"
    assert run("create", *sorted((folder / "site").glob("*.tar")), "-o", spec, "-j", 1)[0] == 0
    for path in (folder / "site").iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    return url


def _changed(**options: Any) -> Scene:
    """Return the scene of a dataset in which one file is served in another way."""

    def scene(server: Server, folder: Path, name: str = "train.json", **how: Any) -> str:
        url = indexed(server, folder)
        for option, value in {**options, **how}.items():
            setattr(server.pages[f"/{name}"], option, value)
        return url

    return scene


def spec_page(**options: Any) -> Scene:
    return _changed(**options)


def shard_page(name: str = NAMES[1], **options: Any) -> Scene:
    def scene(server: Server, folder: Path) -> str:
        url = served(server, folder)
        for option, value in options.items():
            setattr(server.pages[f"/{name}"], option, value)
        return url

    return scene


def with_document(change: Callable[[dict[str, Any], str], object]) -> Scene:
    """Return the scene of a dataset whose document was changed, given it and its server."""

    def scene(server: Server, folder: Path) -> str:
        url = served(server, folder)
        document = json.loads(server.pages["/train.json"].body)
        change(document, server.url)
        server.page("/train.json", document)
        return url

    return scene


def _names_dataset_index(document: dict[str, Any], server: str) -> None:
    document["index"] = f"{server}/gone.index?token=other-SECRET"


def _names_shards(template: str) -> Callable[[dict[str, Any], str], None]:
    def change(document: dict[str, Any], _: str) -> None:
        for entry in document["shardlist"]:
            entry["url"] = template.replace("NAME", entry["url"])

    return change


def _counts(document: dict[str, Any], _: str) -> None:
    document["shardlist"][1]["nsamples"] = 9


SCENES: dict[str, Scene] = {
    "as it is": served,
    "with a dataset index": indexed,
    "no spec": lambda server, _: f"{server.url}/train.json",
    "forbidden": spec_page(always=Fault(403)),
    "busy": spec_page(always=Fault(503)),
    "redirected to a file": spec_page(location="file:///etc/passwd?token=other-SECRET"),
    "redirected to ftp": spec_page(location="ftp://a:b-SECRET@127.0.0.1/x?token=other-SECRET"),
    "redirected to nothing": spec_page(location="/gone?token=other-SECRET"),
    "redirected to nowhere": spec_page(location="http://a:x-SECRET@[/gone?token=other-SECRET"),
    "redirected in a circle": spec_page(location="/train.json?token=other-SECRET"),
    "not JSON": spec_page(body=b"<html>"),
    "a JSON list": spec_page(body=b"[1]"),
    "cut spec": spec_page(always=Fault(after_nbytes=20)),
    "missing dataset index": with_document(_names_dataset_index),
    "wrong counts": with_document(_counts),
    "missing shard": shard_page(status=404),
    "forbidden shard": shard_page(always=Fault(403)),
    "first shard forbidden": shard_page(NAMES[0], always=Fault(403)),
    "shard redirected": shard_page(location="file:///etc/passwd?token=other-SECRET"),
    "not a tar": shard_page(body=b"<html>no tar</html>" * 100),
    "first not a tar": shard_page(NAMES[0], body=b"<html>no tar</html>" * 100),
    "cut shard": shard_page(always=Fault(after_nbytes=700)),
    "short shard": shard_page(always=Fault(after_nbytes=700, how="short")),
    "nobody": lambda *_: f"http://127.0.0.1:{free_port()}/train.json",
    "no driver": lambda *_: "nodriver://host/train.json",
    "chained drivers": lambda *_: "simplecache::http://127.0.0.1/train.json",
    "no bucket": lambda *_: "s3://bucket-of-nobody/train.json",
    "odd server": lambda *_: "http://127.0.0.1#.example/train.json",
    "shards without a driver": with_document(_names_shards(f"nodriver://{USER}h/NAME{QUERY}")),
    "shards of a command": with_document(_names_shards("pipe:TOKEN=token-SECRET cat NAME")),
    "local shards": with_document(_names_shards("file:///tmp/NAME?token=token-SECRET")),
}

COMMANDS: dict[str, list[str]] = {
    "info": ["info", "SPEC"],
    "info of two": ["info", "SPEC", "SPEC"],
    "info --table": ["info", "--table", "SPEC"],
    "info --json": ["info", "--json", "SPEC"],
    "info --columns": ["info", "SPEC", "--columns", "label=.cls"],
    "info of a shard": ["info", "SHARD"],
    "info of a pattern": ["info", "PATTERN"],
    "info of a folder": ["info", "FOLDER"],
    "verify": ["verify", "SPEC", "-j", "1"],
    "verify --decode": ["verify", "--decode", "SPEC", "-j", "1"],
    "verify a pattern": ["verify", "PATTERN", "-j", "1"],
    "table": ["table", "SPEC", "-c", "label=.cls", "-o", "out.parquet", "-j", "1"],
    "table of bad values": ["table", "SPEC", "-c", "n=.txt/a", "-o", "out.parquet", "-j", "1"],
    "table -o": ["table", "SPEC", "-c", "label=.cls", "-o", "OUTPUT.parquet", "-j", "1"],
    "bench": ["bench", "SPEC", "--workers", "0", "--batches", "1"],
    "prefetch": ["prefetch", "SPEC"],
    "prefetch a pattern": ["prefetch", "PATTERN"],
    "sample": ["sample", "SPEC", "5"],
    "sample far": ["sample", "SPEC", "500"],
    "sample --key": ["sample", "SPEC", "--key", "s00005"],
    "sample no key": ["sample", "SPEC", "--key", "nothing"],
    "sample --cat": ["sample", "SPEC", "5", "--cat", ".txt"],
    "sample --cat nothing": ["sample", "SPEC", "5", "--cat", ".nothing"],
    "sample --python": ["sample", "SPEC", "5", "--python"],
    "sample of a shard": ["sample", "SHARD", "1", "--cat", ".nothing"],
    "browse": ["browse", "SPEC"],
    "browse a pattern": ["browse", "PATTERN"],
    "create": ["create", "SPEC", "-o", "made.json", "-j", "1"],
    "create of a pattern": ["create", "PATTERN", "-o", "made.json", "-j", "1"],
    "create of a folder": ["create", "FOLDER", "-o", "made.json", "-j", "1"],
    "create a part": ["create", "PATTERN", "-o", "made.json", "--part", "1/2", "-j", "1"],
    "create merged": ["create", "PATTERN", "-o", "made.json", "--merge"],
    "create --append": ["create", "PATTERN", "--append", "-o", "made.json", "-j", "1"],
    "create -o": ["create", "PATTERN", "-o", "OUTPUT.json", "-j", "1"],
    "create --base": ["create", "PATTERN", "--base", "FOLDER", "-o", "made.json", "-j", "1"],
    "update": ["update", "SPEC", "--name", "new"],
    "rewrite": ["rewrite", "SPEC", "out/train", "-j", "1"],
    "rewrite --where": ["rewrite", "SPEC", "out/train", "--where", ".cls == 1", "-j", "1"],
    "rewrite --where bad": ["rewrite", "SPEC", "out/train", "--where", ".no == 1", "-j", "1"],
    "rewrite to a server": ["rewrite", "SPEC", "OUTPUT", "-j", "1"],
    "rewrite old shards": ["rewrite", "OLD", "out/train", "--where", ".cls == 1"],
    "rewrite old shards plainly": ["rewrite", "OLD", "out/train"],
    "pack -o": ["pack", "SPEC", "-o", "OUTPUT"],
    "pack a folder": ["pack", "folder", "-o", "OUTPUT"],
}


class Said:
    """All output: what was printed, logs, warnings, and errors that became a line of text."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.texts: list[str] = []
        self._caplog = caplog
        caplog.set_level(logging.INFO)
        caplog.set_level(logging.DEBUG, "wids")
        failed = cli._failed

        def noted(error: Exception) -> int:
            self.note(error)
            return failed(error)

        patch.setattr(cli, "_failed", noted)

    def note(self, error: BaseException) -> None:
        """Note an error with all errors behind it."""
        self.texts.append("".join(traceback.format_exception(error)))

    def run(self, *arguments: str) -> None:
        """Run a command and note what it prints."""
        _, out, err = run(*arguments)
        self.texts += [out, err]

    def call(self, work: Callable[[], object]) -> None:
        """Call a function of the library, and note what it returns, raises and warns of."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            try:
                self.texts.append(str(work()))
            except Exception as error:  # noqa: BLE001 - whatever is wrong is what is looked at
                self.note(error)
        self.texts += [str(warning.message) for warning in found]

    def leaks(self) -> list[str]:
        """Return the lines with secrets since the latest call."""
        for record in self._caplog.records:
            if record.levelno > logging.DEBUG or record.name.startswith("wids"):
                self.texts.append(logging.Formatter().format(record))
        lines = [line for text in self.texts for line in text.splitlines()]
        self.texts.clear()
        self._caplog.clear()
        return [line for line in lines if SECRET in line]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Said:
    return Said(monkeypatch, caplog)


def filled(arguments: Iterable[str], url: str) -> list[str]:
    """Return arguments in which names stand for signed URLs beside that of the spec."""
    folder = url.rpartition("/")[0] + "/"
    values = {
        "SPEC": signed(url),
        "SHARD": signed(folder + NAMES[0]),
        "PATTERN": signed(folder + "train-{000000..000001}.tar"),
        "FOLDER": signed(folder),
        "OLD": signed(folder + "old.tgz"),
        "OUTPUT": signed(folder + "out"),
        "OUTPUT.json": signed(folder + "out.json") + ".json",
        "OUTPUT.parquet": signed(folder + "out.parquet") + ".parquet",
    }
    return [values.get(argument, argument) for argument in arguments]


def looked_at(browser: Any) -> None:
    """Write what a page of `wids browse` consists of, and end it."""
    for path in ("about", "samples", "sample/1", "shard/0/about", "shard/0/sample/1", "nothing"):
        status, _, body = browser.site.answer(path, {})
        sys.stdout.write(f"{path} {status} ")
        sys.stdout.write(body if isinstance(body, str) else bytes(body).decode())
    raise KeyboardInterrupt


ALWAYS = ("as it is", "forbidden", "redirected to a file", "missing shard", "local shards")
"""Scenes of each run of the tests. The others repeat failed requests, or are like these."""


def scenes() -> list[Any]:
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in SCENES]


@pytest.fixture(params=scenes())
def url(
    request: pytest.FixtureRequest,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The URL of the spec in each of the scenes."""
    if request.param == "no bucket":
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    (tmp_path / "folder" / "cat" / "a.txt").write_text("a cat")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WIDS_RETRY_S", "10")  # a few requests of each read say all that many do
    return SCENES[request.param](server, tmp_path)


def test_commands(
    url: str, said: Said, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command prints or logs a secret, whatever it is named and whatever fails.

    Neither do names of files, dataset indexes, tables and copies have one; specs and journals have
    URLs.
    """
    monkeypatch.setattr("wids.look.page.server.Browser.serve", looked_at)

    leaks = {}
    for command, arguments in COMMANDS.items():
        said.run(*filled(arguments, url))
        if found := said.leaks():
            leaks[command] = found

    assert not leaks, json.dumps(leaks, indent=1)
    for path in (*tmp_path.rglob("*"), *own_cache.rglob("*")):
        assert SECRET not in str(path)
        if path.is_file() and path.suffix != ".json" and ".partial" not in path.parent.name:
            assert SECRET.encode() not in path.read_bytes(), path


def _opened(work: Callable[[wids.ShardListDataset], object]) -> Callable[[str], object]:
    def opened(url: str) -> object:
        with wids.ShardListDataset(url) as dataset:
            return work(dataset)

    return opened


def _written(url: str) -> None:
    with wids.ShardWriter(url.rpartition("/")[0] + "/out-%06d.tar") as writer:
        writer.write({"__key__": "a", "cls": 1})


def _tar_written(url: str) -> None:
    with wids.TarWriter(url) as writer:
        writer.write({"__key__": "a", "cls": 1})


def _pattern(url: str) -> str:
    return url.replace("train.json", "train-{000000..000001}.tar")


CALLS: dict[str, Callable[[str], object]] = {
    "a dataset": _opened(lambda d: [repr(d), str(d), repr(d.spec), d._repr_html_()]),
    "a sample": _opened(lambda d: [d[5]["__key__"], repr(d[4:])]),
    "a batch": _opened(lambda d: len(d.__getitems__([0, 6]))),
    "no sample": _opened(lambda d: d[1000]),
    "a key": _opened(lambda d: d.get_by_key("s00006")["__key__"]),
    "no key": _opened(lambda d: d.get_by_key("no")),
    "keys": _opened(lambda d: list(d.keys())),
    "a table": _opened(lambda d: d.table({"label": ".cls"})),
    "no column": _opened(lambda d: d.table({"label": ".nothing"})),
    "another type": _opened(lambda d: d.table({"label": ".txt/a"})),
    "joined": _opened(lambda d: d.join(d, prefix="b")[3]["__key__"]),
    "joined by its URL": lambda url: _opened(lambda d: d.join(url))(url),
    "joined with files": _opened(lambda d: d.join("{shard}.captions.json", prefix="b")[3]),
    "rewritten": _opened(lambda d: wids.rewrite(d, "new-%06d.tar")),
    "rewritten there": lambda url: _opened(lambda d: wids.rewrite(d, url))(url),
    "a failing map": _opened(lambda d: d.map(lambda sample: sample["nothing"])[5]),
    "by range": lambda url: wids.ShardListDataset(url, access="range")[6]["__key__"],
    "with a cache": lambda url: wids.ShardListDataset(url, cache_dir="own", verify="always")[6][
        "__key__"
    ],
    "a pattern": lambda url: len(wids.ShardListDataset(_pattern(url))),
    "two": lambda url: len(wids.ShardListDataset([url, url])),
    "with a base": lambda url: len(wids.ShardListDataset(url, base=url)),
    "a loaded spec": lambda url: repr(wids.load_spec(url)),
    "its parts": lambda url: [
        (s := wids.load_spec(url)),
        str(s.shards),
        s.shards[0],
        s.all_dataset_indexes(),
    ],
    "its table": lambda url: str(wids.DatasetSpec((), table=SavedTable(url, "1")).table),
    "a shard's values": lambda url: f"{wids.ShardSpec('a.tar', index=url, extras={'from': url})}",
    "a saved table": wids.load_table,
    "a look": lambda url: [repr(look := wids.peek(url)), look[0]["__key__"], look._repr_html_()],
    "verified": lambda url: [str(problem) for problem in wids.verify_spec(url)],
    "built": lambda url: repr(wids.build_spec(_pattern(url), dataset_index="new.index")),
    "built there": lambda url: repr(wids.build_spec(_pattern(url), dataset_index=url)),
    "appended": lambda url: wids.append_shards(url, _pattern(url)),
    "packed": lambda url: wids.pack_folder("folder", url),
    "a folder there": lambda url: wids.pack_folder(url, "new"),
    "shards written": _written,
    "a tar written": _tar_written,
    "a shard": wids.Shard,
    "a prefetcher": _opened(lambda d: repr(wids.Prefetcher(wids.ChunkedSampler(d), d))),
}


def test_calls(url: str, said: Said) -> None:
    """Neither does an error of the library, with all that led to it, a warning, or a repr."""
    leaks = {}
    for name, work in CALLS.items():
        said.call(lambda work=work: work(signed(url)))  # type: ignore[misc]
        if found := said.leaks():
            leaks[name] = found

    assert not leaks, json.dumps(leaks, indent=1)


def part_of(body: bytes, asked: str) -> tuple[bytes, dict[str, str], int]:
    """Return a part of a file, with the headers and the status of the response."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start, stop = int(first), min(len(body), int(last or len(body)) + 1)
    return body[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}, 206


class Echo:
    """A server that repeats what was requested, path and query, in a header or in the file.

    Args:
        header: The header; ``""`` for the beginning of an HTML page, ``"name"`` for the name of a
            dataset.
        name: The end of the path of the file for which it does; others are as they should be.
        files: The files, by path.
        location: Prefix of the address to which it leads first, by a redirect.
    """

    def __init__(self, header: str, name: str, files: Path, location: str) -> None:  # noqa: C901
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if location and not path.startswith("/SECRET"):
                    self.answer(302, b"", {"Location": f"{location}{path}?Sig=hidden-SECRET"})
                    return
                file = files / path.rpartition("/")[2]
                body, headers, status = b"", {}, 404
                if file.exists():
                    body, status = file.read_bytes(), 200
                if status == 200 and "Range" in self.headers:
                    body, headers, status = part_of(body, self.headers["Range"])
                if path.endswith(name):
                    if header == "name":
                        own = {"name": self.path, "info": self.path, "classes": [self.path]}
                        body = json.dumps(json.loads(body) | own).encode()
                    elif header:
                        self.server.num_requests += 1  # type: ignore[attr-defined]
                        number = self.server.num_requests  # type: ignore[attr-defined]
                        headers[header] = f'"{self.path}-{number}"'
                    else:
                        body, headers, status = f"<p>{self.path}</p>".encode() * 99, {}, 200
                self.answer(status, body, headers)

            def do_HEAD(self) -> None:
                self.do_GET()

            def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Clients may close a connection while it is sending; a traceback has lines of this file.
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.http.daemon_threads = True
        self.http.num_requests = 0  # type: ignore[attr-defined]
        threading.Thread(target=self.http.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/train.json"


@pytest.mark.parametrize(
    "location", ["/SECRET-in-the-path", pytest.param("", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("name", "train.json"),
        *(("", name) for name in ("train.json", "train.index", NAMES[1])),
        *(
            pytest.param(header, name, marks=() if name == NAMES[1] else pytest.mark.long)
            for header in ("Content-Encoding", "Content-Range", "ETag", "Location")
            for name in ("train.json", "train.index", NAMES[1])
        ),
    ],
)
def test_a_server_that_repeats_the_request(
    header: str, name: str, location: str, said: Said, tmp_path: Path, own_cache: Path
) -> None:
    """Nothing of the path and query of a request is shown, also not without a host (SEC-38).

    A page in place of a dataset index is not stored.
    """
    files = tmp_path / "site"
    files.mkdir()
    write_shards(files, [4, 3])
    if name.endswith(".index"):
        tars = sorted(files.glob("*.tar"))
        assert run("create", *tars, "-o", files / "train.json", "-j", 1)[0] == 0
    server = Echo(header, name, files, location)
    leaks = {}
    url = f"{server.url}{QUERY}"
    try:
        for what in ("a dataset", "a batch", "by range", "a look", "verified", "a shard"):
            said.call(lambda what=what: CALLS[what](url))  # type: ignore[misc]
            if found := said.leaks():
                leaks[what] = found
        for command in ("info", "info --json", "verify", "sample --cat nothing", "prefetch"):
            said.run(*filled(COMMANDS[command], server.url))
            if found := said.leaks():
                leaks[command] = found
    finally:
        server.http.shutdown()
        server.http.server_close()

    assert not leaks, json.dumps(leaks, indent=1)
    if header == "name":
        return  # a copy of the document is kept as it is, and is the user's own
    stored = [path for path in own_cache.rglob("*") if path.is_file()]
    assert not [path for path in stored if SECRET.encode() in path.read_bytes()]


@pytest.mark.long
def test_a_store_that_does_not_answer(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver quotes the signed URL as it would have sent it, with other characters encoded."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    said.call(lambda: wids.load_spec(f"s3://bucket/train.json{QUERY}"))

    assert "EndpointConnectionError" in said.texts[0]
    assert said.leaks() == []


def test_signatures_of_buckets(
    server: Server, said: Said, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says or writes what a request to a bucket is signed with, whatever it answers.

    The server repeats the request in its refusals.
    """
    optional("obstore")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-SECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "password-SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/SECRET")
    indexed(server, tmp_path)
    for path in list(server.pages):
        server.pages[f"/bucket{path}"] = server.pages.pop(path)
    shard, calls = server.pages[f"/bucket/{NAMES[1]}"], ("a dataset", "a batch", "by range")

    def refuse(request: Request, _: Fault | None) -> Any:
        return 403, request.path.encode(), 0, len(request.path), {"ETag": request.path}

    leaks, as_usual = {}, shard.answer
    for answer in (as_usual, refuse):
        shard.answer = answer  # type: ignore[method-assign]
        for name in (*calls, "with a cache", "verified", "no sample"):
            said.call(lambda name=name: CALLS[name]("s3://bucket/train.json"))  # type: ignore[misc]
            if found := said.leaks():
                leaks[name] = found
    assert not leaks, json.dumps(leaks, indent=1)
    assert any("X-Amz-Signature=" in path and "SECRET" in path for path in server.requests)
    for path in (*tmp_path.rglob("*"), *own_cache.rglob("*")):
        assert not path.is_file() or b"X-Amz" not in path.read_bytes(), path
        assert "X-Amz" not in str(path)


@pytest.mark.parametrize(
    "url", ["s3://key:password-SECRET@no-bucket/out", "memory://u:password-SECRET@h/out"]
)
def test_places_to_write(
    url: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a URL with a password never shows the password, whether it fails or not."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path, [4, 3])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("a cat")
    tars = sorted(map(str, tmp_path.glob("*.tar")))

    for command in (
        ["create", *tars, "-o", f"{url}.json", "-j", "1"],
        ["create", *tars, "-o", f"{url}.json", "--part", "1/2", "-j", "1"],
        ["create", *tars, "-o", "made.json", "--base", f"{url}/", "-j", "1"],
        ["create", *tars, "--append", "-o", f"{url}.json", "-j", "1"],
        ["pack", "folder", "-o", url],
        ["rewrite", "train.json", url, "-j", "1"],
        ["update", "train.json", "--base", f"{url}?token=token-SECRET"],
        ["update", "train.json", "--dir", f"{url}?token=token-SECRET"],
        ["update", "train.json", "--rebase"],
    ):
        said.run(*command)
        assert said.leaks() == [], command
    said.call(lambda: _written(f"{url}/x"))
    said.call(lambda: _tar_written(f"{url}.tar"))
    said.call(lambda: wids.pack_folder("folder", url))
    assert said.leaks() == []


def _modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("part", [(), ("--part", "1/1")])
def test_new_files_with_secrets_are_their_owners(
    part: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    """Specs and journals have URLs, and can be read by nobody else (SEC-66)."""
    served(server, tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    shards = [signed(f"{server.url}/{name}") for name in NAMES]
    before = os.umask(0o022)
    create = ["create", *shards, "-o", out / "a.json", "-j", 1, "--digests", *part]
    page, body = server.pages[f"/{NAMES[1]}"], server.pages[f"/{NAMES[1]}"].body
    try:
        page.body = b"<html>no tar</html>" * 600
        assert run(*create)[0] == 1
        assert _modes(out) == {"a.partial": 0o700}
        assert set(_modes(out / "a.partial").values()) == {0o600}
        page.body = body
        assert run(*create)[0] == 0
        spec = wids.DatasetSpec(tuple(wids.ShardSpec(url, 1) for url in shards))
        spec.save(out / "saved.json")
        wids.DatasetSpec((wids.ShardSpec("/a.tar", 1),)).save(out / "plain.json")
        modes = _modes(out)
        assert modes.pop("plain.json") == 0o644
        modes.pop("a.index", None)  # has no URLs
        assert modes.pop("a.partial", 0o700) == 0o700
        assert set(modes.values()) == {0o600}
        assert "saved.json" in modes

        (out / "plain.json").chmod(0o640)  # as the owner wants it, also of a document that changes
        spec.save(out / "plain.json")
        assert _modes(out)["plain.json"] == 0o640
    finally:
        os.umask(before)
