"""Files that the user placed: used if they fit, and hashed once."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
from cache_parts import DATA, MD5, SHA, file_names, make_cache, read_copy
from conftest import settle
from events import LONG_S
from loopback import Server

from wids.storage.cache import verified
from wids.storage.cache.cache_names import RemoteFile


def test_a_placed_file_is_used_if_it_fits(tmp_path: Path, server: Server) -> None:
    """It must be offered under its base name, and have a stated length or digest (CACHE-4)."""
    url = server.page("/train.tar", b"remote")
    (tmp_path / "train.tar").write_bytes(DATA)
    offered = frozenset(["train.tar"])

    assert read_copy(make_cache(tmp_path, offered=offered), RemoteFile(url, len(DATA))) == DATA
    assert read_copy(make_cache(tmp_path, offered=offered), RemoteFile(url, sha256=SHA)) == DATA
    assert (
        read_copy(make_cache(tmp_path, offered=offered), RemoteFile(url, md5sum=MD5.upper()))
        == DATA
    )
    assert server.log == []
    # Not offered, not stated, or not equal:
    assert read_copy(make_cache(tmp_path), RemoteFile(url, 6)) == b"remote"
    assert read_copy(make_cache(tmp_path, offered=offered), RemoteFile(url)) == b"remote"
    sha = hashlib.sha256(b"remote").hexdigest()
    assert (
        read_copy(make_cache(tmp_path, offered=offered), RemoteFile(url, 6, sha256=sha))
        == b"remote"
    )
    assert (tmp_path / "train.tar").read_bytes() == DATA


def test_a_placed_file_of_the_right_length_and_wrong_digest(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes are compared, not only the length (CACHE-4)."""
    url = server.page("/train.tar", DATA)
    (tmp_path / "train.tar").write_bytes(b"x" * len(DATA))
    cache = make_cache(tmp_path, offered=frozenset(["train.tar"]))

    assert read_copy(cache, RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert "not the one that the spec states" in caplog.text


def test_two_digests_of_one_placed_file(tmp_path: Path, server: Server) -> None:
    """A file that was verified for one spec is not verified for another (CACHE-4)."""
    url = server.page("/train.tar", b"x" * len(DATA))
    other = hashlib.sha256(b"x" * len(DATA)).hexdigest()
    cache = make_cache(tmp_path / "c", localname=lambda _: tmp_path / "one.tar")
    (tmp_path / "one.tar").write_bytes(DATA)

    assert read_copy(cache, RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert read_copy(cache, RemoteFile(url, len(DATA), sha256=other)) == b"x" * len(DATA)


def test_a_placed_file_is_compared_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing takes a while, so its result is noted until the file changes."""
    remote_file = RemoteFile(server.page("/train.tar", DATA), sha256=SHA)
    (tmp_path / "train.tar").write_bytes(DATA)
    settle(tmp_path / "train.tar")  # files of one moment may have the same time
    compared = []
    digest = verified.file_digest
    monkeypatch.setattr(verified, "file_digest", lambda *a: (compared.append(a), digest(*a))[1])
    for _ in range(3):
        assert (
            read_copy(make_cache(tmp_path, offered=frozenset(["train.tar"])), remote_file) == DATA
        )
    assert len(compared) == 1

    (tmp_path / "train.tar").write_bytes(b"y" * len(DATA))
    assert make_cache(tmp_path, offered=frozenset(["train.tar"])).find(remote_file) is None
    assert len(compared) == 2


def test_localname(tmp_path: Path, server: Server) -> None:
    """A file at that path is used in place if it fits, and else fetched there (CACHE-4)."""
    url = server.page("/a/train.tar", DATA)

    def localname(url: str) -> Path:
        return tmp_path / "mine" / url.rpartition("/")[2]

    cache = make_cache(tmp_path / "c", limit=1, localname=localname)
    assert read_copy(cache, RemoteFile(url, sha256=SHA)) == DATA
    assert (tmp_path / "mine" / "train.tar").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path / "mine")) == ["train.tar"]
    assert read_copy(cache, RemoteFile(url, sha256=SHA)) == DATA
    assert len(server.log) == 1

    (tmp_path / "mine" / "train.tar").write_bytes(b"mine")
    assert read_copy(cache, RemoteFile(url)) == b"mine"
    assert read_copy(cache, RemoteFile(url, len(DATA))) == DATA
    none = make_cache(tmp_path / "c", localname=lambda _: None)
    read_copy(none, RemoteFile(url))
    assert len(file_names(tmp_path / "c")) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_a_note(tmp_path: Path) -> None:
    """A pipe that another user made there is not waited for (SEC-40)."""
    placed = tmp_path / "train.tar"
    placed.write_bytes(DATA)
    note = Path(verified.note_path(str(tmp_path), str(placed)))
    note.parent.mkdir()
    os.mkfifo(note)
    cache, found = make_cache(tmp_path, offered=frozenset(["train.tar"])), list[str | None]()
    remote_file = RemoteFile("http://h/train.tar", sha256=SHA)
    thread = threading.Thread(target=lambda: found.append(cache.find(remote_file)), daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert found == [str(placed)]
