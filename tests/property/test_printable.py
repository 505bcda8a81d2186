"""Whatever tars, specs and servers name themselves, terminals get text that they only show."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from conftest import raises, write_tar
from hypothesis import example, given, settings
from loopback import Fault, Server
from torch.utils.data import DataLoader

import wids
from wids import errors
from wids.errors import printable
from wids.shards.tars.shard import Shard
from wids.storage.transport import urls

CONTROLS = "\x00\x07\x08\n\r\t\x1b\x7f\x84\x9b\u2028\u202e\ufeff\udc80\U000e0001"
"""Bell, backspace, escape sequences of 7 and 8 bits, other lines, reversed text, no UTF-8."""

names = st.text(st.sampled_from(CONTROLS + "[2Jab"), min_size=1, max_size=6)


@given(st.text(st.characters() | st.sampled_from(CONTROLS)))
def test_text_becomes_printable_once(text: str) -> None:
    """One line, with escapes for all that is not shown; what is printable stays as it is."""
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize(
    "kind",
    [c for c in vars(errors).values() if isinstance(c, type) and c.__module__ == "wids.errors"],
)
@given(text=names)
@settings(max_examples=10, deadline=None)
def test_errors_of_wids_are_printable(kind: type[Exception], text: str) -> None:
    """The message is one line that terminals show, also after pickling (SEC-52)."""
    error = kind(f"17{text}.jpg: not found")
    for found in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - made here
        assert str(found).isprintable()
        assert all(line[:-1].isprintable() for line in traceback.format_exception_only(found))


def test_errors_of_workers_keep_their_lines(tmp_path: Path) -> None:
    """A DataLoader rebuilds an error from a text with the worker's traceback, which has lines."""
    path = write_tar(tmp_path / "a.tar", [("\x1b[2J.json", b"{")])
    with wids.ShardListDataset([(path, 1)]) as dataset:
        loader = DataLoader(dataset, num_workers=1, batch_size=None)
        with raises(errors.DecodeError) as caught:
            next(iter(loader))
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("Caught DecodeError in DataLoader worker process 0")
    assert len(lines) > 5
    assert all(line.isprintable() for line in lines)


def header(name: bytes, kind: bytes = b"0", size: bytes = b"00000000000\0") -> bytes:
    """Return the header of a member that links to its own name."""
    block = bytearray(512)
    values = (name, *[b"0000644\0"] * 3, size, b"0" * 12, b" " * 8, kind, name)
    struct.pack_into("100s8s8s8s12s12s8sc100s", block, 0, *values)
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def broken_tars(name: str) -> Iterator[bytes]:
    """Yield tars that are wrong in several ways, each with a hostile name."""
    data = name.encode("utf-8", "surrogateescape").replace(b"\0", b"?")[:90]
    end = bytes(1024)
    yield header(data, size=b"%011o\0" % 5000) + end  # longer than the file
    yield header(data, size=b"9" * 12) + end
    yield header(data, b"1") + end  # a hard link to what is not there
    yield header(data, b"3", b"%011o\0" % 10) + bytes(512) + end
    for keyword in (b"size", b"GNU.sparse.major", b"path", b"linkpath"):
        record = keyword + b"=" + data + b"\n"
        record = b"%d %s" % (len(record) + 3, record)
        extended = header(data, b"x", b"%011o\0" % len(record)) + record.ljust(512, b"\0")
        yield extended + header(data) + end
        second = header(data, b"x", b"%011o\0" % 12) + b"12 path=abc\n".ljust(512, b"\0")
        yield extended + second + header(data) + end
    yield data.ljust(512, b"\x1b")


def reads(name: str, folder: Path) -> Iterator[Callable[[], Any]]:
    """Yield calls that fail, each naming something hostile in another place."""
    for number, data in enumerate(broken_tars(name)):
        broken = folder / f"{number}.tar"
        broken.write_bytes(data)
        yield lambda broken=broken: Shard(broken)
        yield lambda broken=broken: wids.build_spec([broken])
        yield lambda broken=broken: [*wids.ShardListDataset([(broken, 1)])]
    field = name.replace("\0", "?").replace("/", "?").replace(".", "?")
    member = f"{field}.{field}.json"
    path = write_tar(folder / "good.tar", [(member, b"{")], tarfile.GNU_FORMAT)
    dataset = wids.ShardListDataset([(path, 1)])
    yield lambda: dataset[0]
    yield lambda: dataset.get_by_key(name)
    yield lambda: dataset[7]
    yield lambda: wids.ShardListDataset([(path, 1)], transformations=[fail])[0]
    yield lambda: wids.ShardListDataset([(path, 2)], transformations=None)[0]
    spec = {"wids_version": 1, "name": name, "shardlist": [{"url": "good.tar", "nsamples": 9}]}
    (folder / "good.json").write_text(json.dumps(spec))
    yield lambda: wids.ShardListDataset(folder / "good.json")[0]
    with wids.TarWriter(folder / "new.tar") as writer:
        yield lambda: writer.write({"__key__": name, name: 3})
        yield lambda: writer.write({"__key__": "a", f".{name}": object()})
        yield lambda: writer.write({"__key__": "a", f".{name}.json": object()})
        yield lambda: writer.write({"__key__": name})


def fail(_: Any) -> Any:
    raise RuntimeError("two\nlines\x1b[2J")


def specs(name: str, folder: Path) -> Iterator[Any]:
    """Yield arguments of `load_spec` that are refused or lead nowhere."""
    shard = {"url": "a.tar", "nsamples": 1}
    for document in (
        {name: 1},
        {"wids_version": name, "shardlist": [shard]},
        {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": name}]},
        {"wids_version": 1, "shardlist": [{"url": f"{name}://h/a.tar", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [{"url": f"https://h{name}/a.tar", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [{"url": f"file://h{name}/a.tar", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [{"url": f"{name}{{0..a.tar", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [{"url": f"pipe:{name}", "nsamples": 1}]},
        {"wids_version": 1, "shardlist": [shard], "base_path": f"pipe:{name}"},
        {"wids_version": 1, "shardlist": [{**shard, "key_split": name}]},
        {"wids_version": 1, "shardlist": [{**shard, "filesize": name}]},
        {"wids_version": 1, "shardlist": [{name: 1}]},
        {"wids_version": 1, "datasets": [{"name": name, "source_url": f"{name}.json"}]},
        {"wids_version": 1, "datasets": [{"name": name, "shardlist": name}]},
        {"wids_version": 1, "name": name, "shardlist": []},
        [name],
        name,
    ):
        path = folder / "spec.json"
        path.write_text(json.dumps(document))
        yield path
        yield io.StringIO(json.dumps(document))
        if isinstance(document, dict):
            yield document
    yield f"{folder}/{name}.json"
    yield [(f"{folder}/{name}.tar", name)]
    yield f"{name}://h/a.json"


def assert_printable(call: Callable[[], Any]) -> bool:
    """Check that an error of a call, if there is one, is a printable line; return whether."""
    found = error_of(call)
    if found is not None:
        for text in (str(found), *(line[:-1] for line in traceback.format_exception_only(found))):
            assert text.isprintable(), (type(found), text)
    return found is not None


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it may reach a terminal
        return error
    return None


@pytest.mark.long
@given(names)
@example("\x1b[2J")
@example("\n")
@example("\udc80")
@settings(max_examples=1, deadline=None)  # and the examples above
def test_errors_of_reading_are_printable(name: str) -> None:
    """Names of members, keys, fields and datasets appear in errors with escapes (SEC-52)."""
    with TemporaryDirectory() as folder:
        num_failed = sum(map(assert_printable, reads(name, Path(folder))))
    assert num_failed > 20


@given(names)
@example("\x1b[2J")
@example("\n")
@settings(max_examples=12, deadline=None)
def test_errors_of_specs_are_printable(name: str) -> None:
    """What a spec says appears in errors with escapes (SEC-52)."""
    with TemporaryDirectory() as folder:
        num_failed = sum(
            assert_printable(lambda shards=shards: wids.load_spec(shards))
            for shards in specs(name, Path(folder))
        )
        missing = [(f"{folder}/{name}.tar", 1)]
        assert assert_printable(lambda: wids.ShardListDataset(missing)[0])
    assert num_failed > 20


def test_errors_of_servers_are_printable(server: Server) -> None:
    """What a server sends in a header, and what a URL names, appear with escapes (SEC-52)."""
    hostile = "\x1b[2J\x9b\u202e"
    headers = [
        {"Location": f"http://h/{hostile}"},
        {"Location": f"ftp://h/{hostile}"},
        {"Content-Encoding": hostile},
        {"Content-Range": f"bytes {hostile}"},
    ]
    num_failed = 0
    for number, header_ in enumerate(headers):
        latin = {name: text.encode().decode("latin-1") for name, text in header_.items()}
        url = server.page(f"/{number}.json", {"wids_version": 1, "shardlist": []})
        for status in (200, 206, 302, 404, 503):
            server.pages[f"/{number}.json"].faults.append(Fault(status, headers=latin, body=b"{}"))
            num_failed += assert_printable(lambda url=url: wids.load_spec(url))
        num_failed += assert_printable(lambda url=url: wids.load_spec(f"{url}/{hostile}"))
    assert num_failed > 10


@given(names)
@settings(max_examples=25, deadline=None)
def test_urls_in_messages_are_printable(name: str) -> None:
    """Also in logs and progress bars, whose texts are made of what `redact` returns (SEC-52)."""
    for url in (name, f"https://h/{name}", f"pipe:{name} {name}", f"{name}://h/{name}?{name}"):
        assert urls.redact(url).isprintable()
