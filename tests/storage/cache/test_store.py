"""Copies of remote files: fetched once, verified, indexed and published."""

from __future__ import annotations

import logging
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from cache_parts import DATA, SHA, file_names, make_cache, own_path, read_copy
from conftest import raises
from loopback import Fault, Server

from wids.errors import MismatchError, NotFoundError, ShardFormatError
from wids.storage import progress
from wids.storage.cache.cache_names import RemoteFile


def test_fetched_once(tmp_path: Path, server: Server) -> None:
    """A second dataset finds the copy and asks the server nothing (CACHE-4)."""
    remote_file = RemoteFile(server.page("/train-0.tar", DATA))

    assert read_copy(make_cache(tmp_path / "c"), remote_file) == DATA
    assert read_copy(make_cache(tmp_path / "c"), remote_file) == DATA
    assert server.requests == ["/train-0.tar"]


def test_a_copy_says_whether_it_was_fetched_to_open_it(tmp_path: Path, server: Server) -> None:
    """A caller who finds damage knows whether another fetch may help."""
    cache, remote_file = make_cache(tmp_path), RemoteFile(server.page("/0.tar", DATA))
    for was_fetched in (True, False):
        copy = cache.open(remote_file)
        copy.file.close()
        assert copy.was_fetched is was_fetched
    cache.discard(remote_file)
    copy = cache.open(remote_file)
    copy.file.close()
    assert copy.was_fetched


def test_folders_are_made_when_needed_and_private(tmp_path: Path, server: Server) -> None:
    """A cache folder that the library makes is closed to other users (CACHE-1)."""
    cache = make_cache(tmp_path / "a" / "c")
    assert not (tmp_path / "a").exists()

    read_copy(cache, RemoteFile(server.page("/x.tar", DATA)))

    for folder in ("", "shards", "locks"):
        assert stat.S_IMODE((tmp_path / "a" / "c" / folder).stat().st_mode) == 0o700


def test_files_are_as_open_as_a_folder_of_the_users(tmp_path: Path, server: Server) -> None:
    """Files in a group's folder are the group's too, copies read-only (CACHE-1, CACHE-21)."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o755)
    before = os.umask(0o022)
    try:
        read_copy(make_cache(tmp_path / "c"), RemoteFile(server.page("/x.tar", DATA)))
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "c" / "shards").stat().st_mode) == 0o755
    (copy,) = (tmp_path / "c" / "shards").iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o444
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o2770)
    read_copy(make_cache(tmp_path / "group"), RemoteFile(server.page("/x.tar", DATA)))
    for folder, mode in (("shards", 0o440), ("locks", 0o660)):
        (file,) = (tmp_path / "group" / folder).iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == mode
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o2770


def test_a_wrong_file_is_fetched_once_more_then_refused(tmp_path: Path, server: Server) -> None:
    """The error names the digest, and no file stays."""
    url = server.page("/0.tar", DATA)
    for remote_file, text in (
        (RemoteFile(url, sha256="0" * 64), "expected the sha256 000"),
        (RemoteFile(url, md5sum="0" * 32), "expected the md5 000"),
        (RemoteFile(url, nbytes=7), "expected 7 bytes (filesize), found 300000"),
    ):
        server.log.clear()
        with raises(MismatchError, text):
            make_cache(tmp_path).open(remote_file)
        assert len(server.log) == 2
        assert file_names(tmp_path) == []


def test_a_file_mixed_up_once_is_repaired(tmp_path: Path, server: Server) -> None:
    """A second try repairs a file that was mixed up on the way."""
    wrong = Fault(200, body=b"x" * len(DATA))
    url = server.page("/0.tar", DATA, faults=[wrong])

    assert read_copy(make_cache(tmp_path), RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert len(server.log) == 2


def test_what_cannot_be_indexed_is_not_published(tmp_path: Path, server: Server) -> None:
    """If `prepare` raises, as for an error page of status 200, nothing is published (CACHE-3)."""
    seen = []

    def prepare(file: IO[bytes]) -> bytes:
        file.seek(0)
        seen.append(file.read())
        raise ShardFormatError("expected a tar")

    with raises(ShardFormatError, "expected a tar"):
        make_cache(tmp_path).open(RemoteFile(server.page("/0.tar", b"<html>")), prepare)
    assert (seen, file_names(tmp_path)) == ([b"<html>"] * 2, [])


def test_the_index_is_there_before_the_file(tmp_path: Path, server: Server) -> None:
    """A copy that can be found has its index beside it (CACHE-3)."""
    cache = make_cache(tmp_path)
    remote_file = RemoteFile(server.page("/0.tar", DATA))

    def prepare(_: IO[bytes]) -> bytes:
        assert cache.find(remote_file) is None
        return b"index"

    copy = cache.open(remote_file, prepare)
    copy.file.close()
    assert copy.is_own
    assert Path(copy.index_path).read_bytes() == b"index"
    assert copy.index_path == copy.path + ".index"


def test_errors_of_the_server_leave_nothing(tmp_path: Path, server: Server) -> None:
    """A 404 is not cached, neither as a file nor as an absence (CACHE-10)."""
    url = server.page("/0.tar", DATA, faults=[Fault(404)])
    with raises(NotFoundError, "404"):
        make_cache(tmp_path).open(RemoteFile(url))
    assert file_names(tmp_path) == []

    assert read_copy(make_cache(tmp_path), RemoteFile(url)) == DATA


def test_a_copy_of_another_length_is_replaced(tmp_path: Path, server: Server) -> None:
    """A copy that was cut short in the cache is fetched again."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA))
    cache = make_cache(tmp_path)
    read_copy(cache, remote_file)
    os.truncate(own_path(cache, remote_file), 1000)

    assert read_copy(cache, remote_file) == DATA


def test_can_be_pickled(tmp_path: Path, server: Server) -> None:
    """A cache can be pickled, for workers that are spawned."""
    cache = make_cache(tmp_path, limit=1 << 20)
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    read_copy(cache, remote_file)

    assert read_copy(pickle.loads(pickle.dumps(cache)), remote_file) == DATA  # noqa: S301 - made here
    assert len(server.log) == 1


def test_progress_is_for_a_waiting_person(
    tmp_path: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bar appears where a person waits: not for a background fetch, and not if disabled."""
    monkeypatch.setattr(progress, "DELAY_S", 0)
    url = server.page("/train-7.tar", DATA)
    for wanted, is_background, shown in (
        (True, False, True),
        (False, False, False),
        (None, False, False),
        (True, True, False),
    ):
        cache = make_cache(tmp_path / f"{wanted}-{is_background}", wants_progress=wanted)
        if is_background:
            cache.fetch(RemoteFile(url), None, lambda *_: None)
        else:
            read_copy(cache, RemoteFile(url))
        assert ("fetching train-7.tar" in capsys.readouterr().err) is shown


@pytest.mark.usefixtures("quick_retries")
def test_logging_names_no_secrets(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither do the names of files in the cache folder (SEC-4)."""
    caplog.set_level(logging.DEBUG, "wids")
    url = server.page("/0.tar", DATA, faults=[Fault(503)]) + "?token=SECRET"
    read_copy(make_cache(tmp_path), RemoteFile(url), lambda _: b"index")
    with pytest.raises(MismatchError):
        make_cache(tmp_path).open(RemoteFile(url, 7))

    assert "SECRET" not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if "SECRET" in str(path)]


def test_reading_a_copy_imports_no_filelock(tmp_path: Path, server: Server) -> None:
    """Its import takes as long as opening hundreds of copies, so only fetching pays for it."""
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    read_copy(make_cache(tmp_path), remote_file)
    code = (
        "import os, sys\n"
        "from wids.storage.cache.cache_names import RemoteFile\n"
        "from wids.storage.cache.store import Cache\n"
        "from wids.storage.fetch import Fetcher\n"
        f"copy = Cache({str(tmp_path)!r}, Fetcher()).open(RemoteFile({remote_file.url!r}))\n"
        "print(os.fstat(copy.file.fileno()).st_size, 'filelock' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(DATA)} False\n"


def test_a_copy_and_its_index_are_discarded_at_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill at any point both are there, or neither.

    An index that outlives its copy would serve reads by range of other bytes. A copy that outlives
    its index would be believed (CACHE-35).
    """
    cache, remote_file = make_cache(tmp_path), RemoteFile(server.page("/a.tar", DATA))
    read_copy(cache, remote_file, lambda _: b"index")
    path, left = own_path(cache, remote_file), []

    def look_after(name: str) -> None:
        call = getattr(os, name)

        def call_and_look(*paths: str) -> None:
            call(*paths)
            left.append({p.name: p.read_bytes() for p in (tmp_path / "shards").iterdir()})

        monkeypatch.setattr(os, name, call_and_look)

    for name in ("replace", "rename", "unlink"):
        look_after(name)
    cache.discard(remote_file)
    name = os.path.basename(path)
    assert left[-1] == {}
    for found in left:
        assert name not in found
        assert found.get(f"{name}.index") != b"index"
