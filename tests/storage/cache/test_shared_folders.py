"""Cache folders that several users share: what another user stored there is verified."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from cache_parts import DATA, SHA, make_cache, own_path, read_copy
from conftest import in_child, need
from loopback import Server

from wids.storage.cache import cache_names, verified
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache
from wids.storage.files import read_or_map

NOBODY = 65534


@pytest.fixture(autouse=True)
def as_root() -> None:
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to plant files of another user")


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that are hashed."""
    hashed: list[str] = []
    file_digest = verified.file_digest
    monkeypatch.setattr(
        verified,
        "file_digest",
        lambda path, name: (hashed.append(path), file_digest(path, name))[1],
    )
    return hashed


def plant(cache: Cache, remote_file: RemoteFile, data: bytes) -> Path:
    """Store a file under the name of the cache's own copy, as another user."""
    path = Path(own_path(cache, remote_file))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.chown(path, NOBODY, NOBODY)
    return path


def test_a_planted_copy_is_not_served(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, digests: list[str]
) -> None:
    """A file of the right name and length is compared with the stated digest (CACHE-20, SEC-40)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
    cache = make_cache(tmp_path)
    planted = plant(cache, remote_file, b"x" * len(DATA))

    assert [cache.find(remote_file) for _ in range(3)] == [None] * 3
    assert len(digests) == 1
    assert read_copy(cache, remote_file) == DATA
    assert "not the one that the spec states" in caplog.text
    assert planted.stat().st_uid == os.geteuid()


def test_a_copy_that_another_user_replaces_is_compared(
    tmp_path: Path, server: Server, digests: list[str]
) -> None:
    """Also if length and time are those of what was fetched (SEC-40)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
    cache = make_cache(tmp_path)
    assert read_copy(cache, remote_file) == DATA
    path = Path(own_path(cache, remote_file))
    time_ns = path.stat().st_mtime_ns
    path.unlink()
    os.utime(plant(cache, remote_file, b"x" * len(DATA)), ns=(time_ns, time_ns))

    assert cache.find(remote_file) is None
    assert digests == [str(path)]
    assert read_copy(cache, remote_file) == DATA


def test_a_good_copy_of_another_user_is_verified_once(
    tmp_path: Path, server: Server, digests: list[str]
) -> None:
    """Users who share a folder share copies, and each hashes those of others once (CACHE-20)."""
    remote_file = RemoteFile(server.page("/0.tar", b"not asked"), len(DATA), sha256=SHA)
    plant(make_cache(tmp_path), remote_file, DATA)
    for _ in range(3):
        assert read_copy(make_cache(tmp_path), remote_file) == DATA
    assert len(digests) == 1
    assert server.log == []


def test_own_copies_are_not_hashed(tmp_path: Path, server: Server, digests: list[str]) -> None:
    """They were compared while they were fetched (CACHE-3)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
    for _ in range(2):
        assert read_copy(make_cache(tmp_path), remote_file) == DATA
    assert digests == []


def test_notes_of_a_user_who_may_not_write_there(
    tmp_path: Path, server: Server, own_cache: Path
) -> None:
    """They go to the user's own cache folder, so that later processes find them (CACHE-20)."""
    remote_file = RemoteFile(server.page("/0.tar", b"not asked"), len(DATA), sha256=SHA)
    path = plant(make_cache(tmp_path / "c"), remote_file, DATA)
    for folder in (tmp_path / "c", path.parent):
        folder.chmod(0o755)
    tmp_path.chmod(0o755)
    own_cache.mkdir()
    os.chown(own_cache, 1234, 1234)

    def read_twice() -> bool:
        os.chdir(tmp_path)  # the folders above are closed to others
        os.environ["WIDS_CACHE"] = "/proc/self/fd/" + str(handle)
        os.setuid(1234)
        assert read_copy(make_cache(Path("c")), remote_file) == DATA
        verified.file_digest = lambda *_: pytest.fail("hashed again")
        return read_copy(make_cache(Path("c")), remote_file) == DATA

    handle = os.open(own_cache, os.O_RDONLY)
    try:
        assert in_child(read_twice)
    finally:
        os.close(handle)
    assert len(list((own_cache / "indexes").iterdir())) == 1


def test_a_copy_without_a_stated_digest(tmp_path: Path, server: Server) -> None:
    """It is trusted by its length, whoever fetched it: nothing else is known of it (SEC-41)."""
    remote_file = RemoteFile(server.page("/0.tar", b"not asked"), len(DATA))
    cache = make_cache(tmp_path)
    plant(cache, remote_file, DATA[::-1])
    assert read_copy(cache, remote_file) == DATA[::-1]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_copy_is_a_regular_file(tmp_path: Path, server: Server, kind: str) -> None:
    """A link to another file is not followed, and nothing waits for a named pipe (SEC-40)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    cache = make_cache(tmp_path)
    path = Path(own_path(cache, remote_file))
    path.parent.mkdir()
    (tmp_path / "elsewhere").write_bytes(b"secret")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)

    assert read_copy(cache, remote_file) == DATA
    assert (tmp_path / "elsewhere").read_bytes() == b"secret"


def test_a_planted_note_is_not_believed(tmp_path: Path, server: Server, digests: list[str]) -> None:
    """That a copy was verified counts only if this user noted it (CACHE-20, SEC-41)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
    cache = make_cache(tmp_path)
    planted = plant(cache, remote_file, b"x" * len(DATA))
    proof = verified._proof(str(planted), remote_file)
    note = Path(verified.note_path(cache.folder, str(planted)))
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(verified._note(proof))
    assert cache.find(remote_file) == str(planted)  # the note is the right one

    os.chown(note, NOBODY, NOBODY)
    assert make_cache(tmp_path).find(remote_file) is None
    assert digests == [str(planted)]


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_what_another_user_puts_in_place_of_an_index(tmp_path: Path, kind: str) -> None:
    """It is as none: neither followed, nor waited for, nor believed (SEC-40, INDEX-3)."""
    path, planted = tmp_path / "a.index", zlib.crc32(b"planted").to_bytes(4, "little") + b"planted"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(planted)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(planted)
        os.chown(path, NOBODY, NOBODY)
    assert read_or_map(str(path), is_own=True) is None
    for _ in range(2):
        assert cache_names.saved_or_made(str(path), lambda: b"made") == b"made"
    assert cache_names.saved_or_made(str(path), lambda: b"again") == b"made"
