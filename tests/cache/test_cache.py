"""The folder of copies: names, verification, eviction, and what happens when things fail."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pickle
import random
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from conftest import in_child, need, raises
from loopback import Fault, Server

from wids.cache import store as cache
from wids.cache.store import Cache, Limits, RemoteFile
from wids.errors import FetchError, MismatchError, NotFoundError, ShardFormatError
from wids.files import locks, progress
from wids.files.sizes import parse_nbytes
from wids.transport import fetch

DATA = random.Random(1).randbytes(300_000)
SHA = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA).hexdigest()  # noqa: S324 - a checksum


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another without much waiting."""
    monkeypatch.setattr(fetch, "_FIRST_WAIT_S", 0.01)


def make(folder: Path, limit: int | None = None, **about: Any) -> Cache:
    """Give a cache."""
    keep = about.pop("keep", False)
    fetcher = about.pop("fetcher", None) or fetch.Fetcher()
    return Cache(str(folder), fetcher, limits=Limits(limit, keep), **about)


def opened(store: Cache, about: RemoteFile, prepare: Any = None) -> bytes:
    """Open a copy, close it, and give its bytes."""
    copy = store.open(about, prepare)
    with open(copy.handle, "rb") as file:
        return file.read()


def in_threads(count: int, store: Cache, about: RemoteFile) -> list[bytes]:
    """Open a copy in many threads at once."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: opened(store, about), range(count)))


def names(folder: Path) -> list[str]:
    """Give the names of what is in the folder of copies."""
    return sorted(path.name for path in (folder / "shards").iterdir())


# Names and places.


def test_fetched_once(tmp_path: Path, server: Server) -> None:
    """The second time it is there; nothing is asked of the server (CACHE-4)."""
    about = RemoteFile(server.page("/train-0.tar", DATA))

    assert opened(make(tmp_path / "c"), about) == DATA
    assert opened(make(tmp_path / "c"), about) == DATA
    assert server.requests == ["/train-0.tar"]


def test_folders_are_made_when_needed_and_private(tmp_path: Path, server: Server) -> None:
    """Nobody else can look into a folder that was made here (CACHE-1)."""
    store = make(tmp_path / "a" / "c")
    assert not (tmp_path / "a").exists()

    opened(store, RemoteFile(server.page("/x.tar", DATA)))

    for folder in ("", "shards", "locks"):
        assert stat.S_IMODE((tmp_path / "a" / "c" / folder).stat().st_mode) == 0o700


def test_a_folder_of_the_users_stays_as_open_as_it_is(tmp_path: Path, server: Server) -> None:
    """A group that shares a folder shares what comes into it (CACHE-1)."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o755)
    before = os.umask(0o022)
    try:
        opened(make(tmp_path / "c"), RemoteFile(server.page("/x.tar", DATA)))
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "c" / "shards").stat().st_mode) == 0o755
    (copy,) = (tmp_path / "c" / "shards").iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o644
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o2770)
    opened(make(tmp_path / "group"), RemoteFile(server.page("/x.tar", DATA)))
    for folder, mode in (("shards", 0o660), ("locks", 0o660)):
        (file,) = (tmp_path / "group" / folder).iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == mode
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o2770


def test_names(tmp_path: Path, server: Server) -> None:
    """A hash and a readable tail; with a digest, whatever the URL (CACHE-2)."""
    store = make(tmp_path)
    url = server.page("/a/train-000003.tar", DATA)
    plain = store._own_path(RemoteFile(url))
    assert plain.endswith("-train-000003.tar")
    different = [
        RemoteFile(url + "?v=2"),
        RemoteFile(server.url + "/b/train-000003.tar"),
        RemoteFile(url, nbytes=5),
        RemoteFile(url, sha256=SHA),
        RemoteFile(url, md5sum=MD5),
        RemoteFile(url, version="2"),
    ]
    assert len({plain, *map(store._own_path, different)}) == 1 + len(different)
    signed = [RemoteFile(f"{url}?sig={n}", 300_000, sha256=SHA) for n in (1, 2)]
    assert store._own_path(signed[0]) == store._own_path(signed[1])
    assert "SECRET" not in store._own_path(RemoteFile("s3://me:SECRET@b/x.tar?SECRET"))
    assert store._own_path(RemoteFile("pipe:cat SECRET.tar")).endswith("-file")


def test_two_shards_of_one_base_name_are_two_files(tmp_path: Path, server: Server) -> None:
    """As they were not in the old library."""
    store = make(tmp_path)
    first = RemoteFile(server.page("/a/0.tar", DATA))
    second = RemoteFile(server.page("/b/0.tar", b"other"))

    assert (opened(store, first), opened(store, second)) == (DATA, b"other")
    assert (opened(store, first), opened(store, second)) == (DATA, b"other")


def test_published_anew_is_another_file(tmp_path: Path, server: Server) -> None:
    """An updated spec of the same URL does not get the old copy (CACHE-2)."""
    store = make(tmp_path)
    url = server.page("/0.tar", DATA)
    assert opened(store, RemoteFile(url, len(DATA))) == DATA
    server.page("/0.tar", b"new")
    assert opened(store, RemoteFile(url, 3)) == b"new"
    server.page("/0.tar", b"NEW")
    new_sha = hashlib.sha256(b"NEW").hexdigest()
    assert opened(store, RemoteFile(url, 3, sha256=new_sha)) == b"NEW"


# Verified, indexed, published.


def test_a_wrong_file_is_fetched_once_more_then_refused(tmp_path: Path, server: Server) -> None:
    """The error says which digest, and nothing stays (CACHE-13)."""
    url = server.page("/0.tar", DATA)
    for about, text in (
        (RemoteFile(url, sha256="0" * 64), "expected the sha256 000"),
        (RemoteFile(url, md5sum="0" * 32), "expected the md5 000"),
        (RemoteFile(url, nbytes=7), "expected 7 bytes (filesize), found 300000"),
    ):
        server.log.clear()
        with raises(MismatchError, text):
            make(tmp_path).open(about)
        assert len(server.log) == 2
        assert names(tmp_path) == []


def test_a_file_mixed_up_once_is_mended(tmp_path: Path, server: Server) -> None:
    """The second try counts (CACHE-13)."""
    wrong = Fault(200, body=b"x" * len(DATA))
    url = server.page("/0.tar", DATA, faults=[wrong])

    assert opened(make(tmp_path), RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert len(server.log) == 2


def test_what_cannot_be_indexed_is_not_published(tmp_path: Path, server: Server) -> None:
    """The caller's word on the complete file counts: an error page of status 200 (CACHE-3)."""
    seen = []

    def prepare(file: IO[bytes]) -> bytes:
        file.seek(0)
        seen.append(file.read())
        raise ShardFormatError("this is no tar")

    with raises(ShardFormatError, "no tar"):
        make(tmp_path).open(RemoteFile(server.page("/0.tar", b"<html>")), prepare)
    assert (seen, names(tmp_path)) == ([b"<html>"] * 2, [])


def test_the_index_is_there_before_the_file(tmp_path: Path, server: Server) -> None:
    """Whoever finds the copy finds its index beside it (CACHE-3)."""
    store = make(tmp_path)
    about = RemoteFile(server.page("/0.tar", DATA))

    def prepare(_: IO[bytes]) -> bytes:
        assert store.find(about) is None
        return b"index"

    copy = store.open(about, prepare)
    os.close(copy.handle)
    assert copy.is_own
    assert Path(copy.index_path).read_bytes() == b"index"
    assert copy.index_path == copy.path + ".index"


def test_errors_of_the_server_leave_nothing(tmp_path: Path, server: Server) -> None:
    """A 404 is not cached, as page or as absence (CACHE-10)."""
    url = server.page("/0.tar", DATA, faults=[Fault(404)])
    with raises(NotFoundError, "404"):
        make(tmp_path).open(RemoteFile(url))
    assert names(tmp_path) == []

    assert opened(make(tmp_path), RemoteFile(url)) == DATA


def test_a_copy_of_another_length_is_replaced(tmp_path: Path, server: Server) -> None:
    """What somebody cut short in the cache is noticed by its length (CACHE-14)."""
    about = RemoteFile(server.page("/0.tar", DATA), len(DATA))
    store = make(tmp_path)
    opened(store, about)
    os.truncate(store._own_path(about), 1000)

    assert opened(store, about) == DATA


# Files of the user's own.


def test_a_placed_file_is_used_if_it_fits(tmp_path: Path, server: Server) -> None:
    """Under its base name, offered, stated and equal: all four are needed (CACHE-4)."""
    url = server.page("/train.tar", b"remote")
    (tmp_path / "train.tar").write_bytes(DATA)
    offered = frozenset(["train.tar"])

    assert opened(make(tmp_path, offered=offered), RemoteFile(url, len(DATA))) == DATA
    assert opened(make(tmp_path, offered=offered), RemoteFile(url, sha256=SHA)) == DATA
    assert opened(make(tmp_path, offered=offered), RemoteFile(url, md5sum=MD5.upper())) == DATA
    assert server.log == []
    # Not offered, not stated, or not equal:
    assert opened(make(tmp_path), RemoteFile(url, 6)) == b"remote"
    assert opened(make(tmp_path, offered=offered), RemoteFile(url)) == b"remote"
    sha = hashlib.sha256(b"remote").hexdigest()
    assert opened(make(tmp_path, offered=offered), RemoteFile(url, 6, sha256=sha)) == b"remote"
    assert (tmp_path / "train.tar").read_bytes() == DATA


def test_a_placed_file_of_the_right_length_and_wrong_digest(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its bytes are compared, not only its length (CACHE-4)."""
    url = server.page("/train.tar", DATA)
    (tmp_path / "train.tar").write_bytes(b"x" * len(DATA))
    store = make(tmp_path, offered=frozenset(["train.tar"]))

    assert opened(store, RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert "not what its spec says" in caplog.text


def test_two_digests_of_one_placed_file(tmp_path: Path, server: Server) -> None:
    """What was verified for one spec is not so for another (CACHE-4)."""
    url = server.page("/train.tar", b"x" * len(DATA))
    other = hashlib.sha256(b"x" * len(DATA)).hexdigest()
    store = make(tmp_path / "c", localname=lambda _: tmp_path / "one.tar")
    (tmp_path / "one.tar").write_bytes(DATA)

    assert opened(store, RemoteFile(url, len(DATA), sha256=SHA)) == DATA
    assert opened(store, RemoteFile(url, len(DATA), sha256=other)) == b"x" * len(DATA)


def test_a_placed_file_is_compared_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a while, so a note is kept, until the file changes."""
    about = RemoteFile(server.page("/train.tar", DATA), sha256=SHA)
    (tmp_path / "train.tar").write_bytes(DATA)
    compared = []
    digest = cache.file_digest
    monkeypatch.setattr(cache, "file_digest", lambda *a: (compared.append(a), digest(*a))[1])
    for _ in range(3):
        assert opened(make(tmp_path, offered=frozenset(["train.tar"])), about) == DATA
    assert len(compared) == 1

    (tmp_path / "train.tar").write_bytes(b"y" * len(DATA))
    assert make(tmp_path, offered=frozenset(["train.tar"])).find(about) is None
    assert len(compared) == 2


def test_localname(tmp_path: Path, server: Server) -> None:
    """Used in place when present and fitting, else fetched to (CACHE-4)."""
    url = server.page("/a/train.tar", DATA)

    def localname(url: str) -> Path:
        return tmp_path / "mine" / url.rpartition("/")[2]

    store = make(tmp_path / "c", limit=1, localname=localname)
    assert opened(store, RemoteFile(url, sha256=SHA)) == DATA
    assert (tmp_path / "mine" / "train.tar").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path / "mine")) == ["train.tar"]
    assert opened(store, RemoteFile(url, sha256=SHA)) == DATA
    assert len(server.log) == 1

    (tmp_path / "mine" / "train.tar").write_bytes(b"mine")
    assert opened(store, RemoteFile(url)) == b"mine"
    assert opened(store, RemoteFile(url, len(DATA))) == DATA
    none = make(tmp_path / "c", localname=lambda _: None)
    opened(none, RemoteFile(url))
    assert len(names(tmp_path / "c")) == 1


# Limits.


def fill(store: Cache, server: Server, count: int) -> list[RemoteFile]:
    """Fetch files of 100 kB, one after the other."""
    files = []
    for number in range(count):
        body = DATA[number : number + 100_000]
        files.append(RemoteFile(server.page(f"/{number}.tar", body), 100_000))
        opened(store, files[-1])
        time.sleep(0.002)  # so that times of use differ
    return files


def test_the_least_recently_used_goes(tmp_path: Path, server: Server) -> None:
    """Use counts, not age (CACHE-8)."""
    store = make(tmp_path, limit=350_000)
    files = fill(store, server, 3)
    opened(store, files[0])

    opened(store, RemoteFile(server.page("/new.tar", DATA[:100_000]), 100_000))

    assert [store.find(file) is not None for file in files] == [True, False, True]
    assert sum(path.stat().st_size for path in (tmp_path / "shards").iterdir()) <= 350_000


def test_a_leased_copy_stays(tmp_path: Path, server: Server) -> None:
    """What is open is not evicted, though it was used longest ago (CACHE-7)."""
    store = make(tmp_path, limit=250_000)
    files = fill(store, server, 1)
    copy = make(tmp_path).open(files[0])

    more = fill(store, server, 5)

    assert store.find(files[0]) == copy.path
    assert [store.find(f) is not None for f in more] == [True, False, False, False, True]
    os.close(copy.handle)
    fill(store, server, 7)
    assert store.find(files[0]) is None


def test_when_all_is_leased_the_limit_gives_way(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """First the caller is asked to close what is idle; then one warning, and on (CACHE-8)."""
    store = make(tmp_path, limit=200_000)
    files = fill(store, server, 2)
    held = [store.open(file) for file in files]
    new = [RemoteFile(server.page(f"/new{n}.tar", DATA[:100_000]), 100_000) for n in range(3)]
    asked = []

    held.append(store.open(new[0], make_room=lambda: asked.append(1)))
    held.append(store.open(new[1]))

    assert asked == [1]
    (record,) = [r for r in caplog.records if "cache_size" in r.message]
    assert "200000 bytes" in record.message
    assert "300000" in record.message
    os.close(held.pop(0).handle)
    held.append(store.open(new[2], make_room=lambda: os.close(held.pop(0).handle)))
    assert store.find(files[0]) is None
    for copy in held:
        os.close(copy.handle)


def test_a_claim_evicts_nothing(tmp_path: Path, server: Server) -> None:
    """A server that claims a length beyond the limit, or the disk, empties nothing (CACHE-8)."""
    store = make(tmp_path, limit=250_000, fetcher=fetch.Fetcher({"timeout": 0.1}))
    files = fill(store, server, 2)
    for claim in ("1" + "0" * 15, "9" * 25):
        headers = {"Content-Length": claim}
        url = server.page("/huge.tar", DATA, always=Fault(200, headers=headers, body=b"x"))
        with pytest.raises(FetchError):
            store.open(RemoteFile(url))
        assert all(map(store.find, files))
    assert opened(make(tmp_path), files[0]) == DATA[:100_000]


def test_a_limit_below_one_file(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no length was stated, the limit gives way to the file that is read, with a warning."""
    store = make(tmp_path, limit=1000)
    for number in range(3):
        assert opened(store, RemoteFile(server.page(f"/{number}.tar", DATA))) == DATA
    assert len(names(tmp_path)) == 1
    assert len([r for r in caplog.records if "cache_size is 1000 bytes" in r.message]) == 1


def test_keep_and_no_limit_evict_nothing(tmp_path: Path, server: Server) -> None:
    """Neither without a limit nor with keep=True (CACHE-8)."""
    for store in (make(tmp_path), make(tmp_path, limit=1, keep=True)):
        files = fill(store, server, 4)
        assert all(map(store.find, files))


def test_only_what_was_fetched_is_deleted(tmp_path: Path, server: Server) -> None:
    """Other files in the folder are the user's (CACHE-9)."""
    (tmp_path / "shards").mkdir()
    for name in ("mine.tar", "train-000000.tar"):
        (tmp_path / "shards" / name).write_bytes(DATA)
        (tmp_path / name).write_bytes(DATA)
    store = make(tmp_path, limit=150_000)

    fill(store, server, 3)

    for name in ("mine.tar", "train-000000.tar"):
        assert (tmp_path / "shards" / name).exists()
        assert (tmp_path / name).exists()
    assert len(names(tmp_path)) == 3


def test_indexes_outlive_their_files(tmp_path: Path, server: Server) -> None:
    """For reading by range, up to a tenth of the limit (CACHE-8)."""
    store = make(tmp_path, limit=250_000)
    for number in range(8):
        url = server.page(f"/{number}.tar", DATA[number : number + 100_000])
        opened(store, RemoteFile(url, 100_000), lambda _: bytes(10_000))
        time.sleep(0.002)

    found = list((tmp_path / "shards").iterdir())
    tars = [path for path in found if path.suffix != ".index"]
    orphans = {p.name for p in found} - {t.name for t in tars} - {t.name + ".index" for t in tars}
    assert (len(tars), len(orphans)) == (2, 2)
    assert sum(path.stat().st_size for path in found) <= 250_000 + len(tars) * 10_000


def test_the_clock_may_move_backwards(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of use only choose what goes; copies are found whatever the clock says."""
    store = make(tmp_path, limit=250_000)
    files = fill(store, server, 2)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: 1e-9)

    more = fill(store, server, 5)

    assert opened(store, more[-1]) == DATA[4:100_004]
    assert opened(store, files[0]) == DATA[:100_000]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 << 39), ("17", 17), (5, 5), (2e9, 2 * 10**9),
     ("10kb", 10_000), ("", None), (None, None), ("0B", 0)],
)  # fmt: skip
def test_sizes(text: Any, nbytes: int | None) -> None:
    """Sizes are written as people write them."""
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["many", "-5", "5 XB", "GB", -1, 0.5, True, float("inf")])
def test_sizes_that_are_none(text: Any) -> None:
    """The error names the argument."""
    with raises(ValueError, "cache_size"):
        parse_nbytes(text)


# What fails.


def test_broken_locks(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that fail, or succeed for everyone, change nothing but the work (CACHE-6)."""

    def refuse(number: int) -> Callable[..., None]:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return flock

    for name, flock in (
        ("ENOLCK", refuse(errno.ENOLCK)),
        ("ENOSYS", refuse(errno.ENOSYS)),
        ("for everyone", lambda *_: None),
    ):
        monkeypatch.setattr(locks.fcntl, "flock", flock)
        folder = tmp_path / name
        about = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
        assert in_threads(8, make(folder), about) == [DATA] * 8
        assert len(names(folder)) == 1
        store = make(folder, limit=250_000)
        files = fill(store, server, 6)
        assert opened(store, files[0]) == DATA[:100_000]


def test_locks_of_this_file_system(tmp_path: Path) -> None:
    """A second opening is kept out, a shared one is not, and letting go is at once."""
    path = tmp_path / "lock"
    path.touch()
    assert locks.work(str(path))
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    assert locks.acquire(first, shared=True)
    assert locks.acquire(second, shared=True)
    assert locks.acquire(first) is False
    assert not locks.work(str(path))
    locks.release(second)
    assert locks.acquire(first)
    os.close(first)
    os.close(second)
    assert locks.acquire(first) is None
    assert not locks.work(str(tmp_path / "absent"))


def test_threads_fetch_once(tmp_path: Path, server: Server) -> None:
    """Sixteen threads, one request (CACHE-5)."""
    about = RemoteFile(server.page("/0.tar", DATA))

    assert in_threads(16, make(tmp_path), about) == [DATA] * 16
    assert len(server.log) == 1


def test_an_errand_does_not_wait(tmp_path: Path, server: Server) -> None:
    """What another process fetches already is left to it; what is here is not fetched."""
    about = RemoteFile(server.page("/0.tar", DATA))
    store = make(tmp_path)
    with store._turn(store._own_path(about), None):
        errand = cache.Errand()
        make(tmp_path).fetch(about, None, errand)
        assert errand.begun.is_set()
    assert server.log == []
    for _ in range(2):
        store.fetch(about, None, cache.Errand())
    assert len(server.log) == 1
    assert opened(store, about) == DATA


def test_litter_is_swept(tmp_path: Path, server: Server) -> None:
    """Temporary files of the dead go after a minute; those of the living stay (CACHE-10)."""
    folder = tmp_path / "shards"
    folder.mkdir()
    old, young, alive = (folder / f".{'0' * 32}-0.tar.{n * 16}.tmp" for n in "abc")
    for path in (old, young, alive):
        path.write_bytes(b"half")
    mine = folder / ".notes.tmp"  # (CACHE-9)
    mine.touch()
    pipe = folder / ".pipe-abc.tmp"
    pipe.mkdir()
    for path in (old, alive, mine):
        os.utime(path, (time.time() - 100, time.time() - 100))
    os.utime(pipe, (0, 0))
    handle = os.open(alive, os.O_RDWR)
    locks.acquire(handle)

    opened(make(tmp_path), RemoteFile(server.page("/0.tar", DATA)))

    assert [p.exists() for p in (old, young, alive, mine, pipe)] == [False, True, True, True, False]
    os.close(handle)


def test_a_full_disk(tmp_path: Path, server: Server) -> None:
    """The error names cache_dir and cache_size; nothing half stays (CACHE-11)."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    need(mounted.returncode == 0, "the right to mount a small tmpfs")
    try:
        store = make(folder)
        small = RemoteFile(server.page("/small.tar", DATA))
        assert opened(store, small) == DATA
        large = server.page("/large.tar", DATA * 5)
        with raises(FetchError, "/large.tar", "No space left", "cache_size", str(folder)):
            store.open(RemoteFile(large))
        assert len(names(folder)) == 1
        assert opened(store, small) == DATA
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_read_only_cache(tmp_path: Path, server: Server) -> None:
    """What is there is read; what is not cannot be stored, and the error says where (CACHE-11)."""
    there = RemoteFile(server.page("/there.tar", DATA), len(DATA))
    absent = RemoteFile(server.page("/absent.tar", DATA))
    opened(make(tmp_path / "c"), there)
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to become another user")
    tmp_path.chmod(0o755)
    for path in [tmp_path / "c", *(tmp_path / "c").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def read_as_nobody() -> bool:
        os.chdir(tmp_path)  # the folders above are closed to others
        os.setuid(65534)
        store = make(Path("c"))
        assert opened(store, there) == DATA
        with raises(FetchError, "cannot be stored", "cache_dir"):
            store.open(absent)
        return True

    assert in_child(read_as_nobody)


def test_a_folder_deleted_meanwhile(tmp_path: Path, server: Server) -> None:
    """It is made again, also when it goes in the middle of a download."""
    import shutil

    store = make(tmp_path / "c")
    about = RemoteFile(server.page("/0.tar", DATA))
    opened(store, about)
    shutil.rmtree(tmp_path / "c")
    assert opened(store, about) == DATA
    shutil.rmtree(tmp_path / "c")
    times = []

    def prepare(_: IO[bytes]) -> bytes:
        if not times:
            shutil.rmtree(tmp_path / "c")
        times.append(1)
        return b"index"

    assert opened(store, about, prepare) == DATA
    assert len(times) == 2


def test_a_turn_is_not_waited_for_for_ever(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who holds the lock and does not get on is passed by (CACHE-6)."""
    monkeypatch.setattr(cache, "_PATIENCE_S", 0.5)
    about = RemoteFile(server.page("/0.tar", DATA))
    store = make(tmp_path)
    lock_path = store._lock_path(os.path.basename(store._own_path(about)), "")
    os.makedirs(os.path.dirname(lock_path))
    handle = os.open(lock_path, os.O_RDWR | os.O_CREAT)
    locks.acquire(handle)

    assert opened(store, about) == DATA
    assert "does not get on" in caplog.text
    os.close(handle)


def test_can_be_pickled(tmp_path: Path, server: Server) -> None:
    """As datasets are, for workers that are spawned."""
    store = make(tmp_path, limit=1 << 20)
    about = RemoteFile(server.page("/0.tar", DATA))
    opened(store, about)

    assert opened(pickle.loads(pickle.dumps(store)), about) == DATA  # noqa: S301 - made here
    assert len(server.log) == 1


def test_progress_is_for_who_waits(
    tmp_path: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bar where a person waits, none for a fetch ahead, none when it is off."""
    monkeypatch.setattr(progress, "DELAY_S", 0)
    url = server.page("/train-7.tar", DATA)
    for wanted, is_errand, shown in (
        (True, False, True),
        (False, False, False),
        (None, False, False),
        (True, True, False),
    ):
        store = make(tmp_path / f"{wanted}-{is_errand}", wants_progress=wanted)
        if is_errand:
            store.fetch(RemoteFile(url), None, cache.Errand())
        else:
            opened(store, RemoteFile(url))
        assert ("fetching train-7.tar" in capsys.readouterr().err) is shown


def test_logging_names_no_secrets(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does anything under the cache folder (SEC-4)."""
    caplog.set_level(logging.DEBUG, "wids")
    url = server.page("/0.tar", DATA, faults=[Fault(503)]) + "?token=SECRET"
    opened(make(tmp_path), RemoteFile(url), lambda _: b"index")
    with pytest.raises(MismatchError):
        make(tmp_path).open(RemoteFile(url, 7))

    assert "SECRET" not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if "SECRET" in str(path)]
