"""Limits: which files are evicted, and which stay."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from cache_parts import DATA, file_names, fill, make_cache, own_path, read_copy
from loopback import Fault, Server

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.cache import leases
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.eviction import (
    CacheFile,
    clear,
    clearable,
    held_files,
    in_order,
    sum_nbytes,
)


def a_file(name: str, nbytes: int = 100, used_ns: int = 0) -> CacheFile:
    """Return a file of the cache, or one that is being written if its name begins with a dot."""
    return CacheFile(f"/{name}", name, nbytes, used_ns, is_temporary=name.startswith("."))


COPIES = [a_file("a", used_ns=3), a_file("b", used_ns=1), a_file("c", used_ns=2)]
INDEXES = [a_file(f"{name}.index", 10) for name in "abc"]
ORPHANS = [a_file(f"{name}.index", 10, used_ns) for name, used_ns in (("y", 9), ("x", 8))]


def victims(files: Iterable[CacheFile], limit_nbytes: int) -> list[CacheFile]:
    """Return what may be deleted if the files exceed the limit."""
    held = held_files(list(files))
    return in_order(held, limit_nbytes) if sum_nbytes(held) > limit_nbytes else []


@pytest.mark.parametrize(
    ("files", "limit_nbytes", "expected"),
    [
        pytest.param([], 0, "", id="an empty cache"),
        pytest.param(COPIES, 300, "", id="the limit itself is kept"),
        pytest.param(COPIES, 299, "b c a", id="the least recently used first, as many as needed"),
        pytest.param(COPIES + INDEXES, 300, "", id="indexes beside their copies do not count"),
        pytest.param(COPIES + INDEXES, 0, "b c a", id="nor are they chosen"),
        pytest.param([*COPIES, a_file(".t")], 399, "b c a", id="unfinished files count"),
        pytest.param(ORPHANS, 20, "", id="indexes without copies may fill the limit"),
        pytest.param(COPIES + ORPHANS, 319, "b c a x.index y.index", id="orphans within a tenth"),
        pytest.param(COPIES + ORPHANS, 110, "x.index b c a y.index", id="one beyond a tenth"),
        pytest.param(COPIES + ORPHANS, 99, "x.index y.index b c a", id="both beyond a tenth"),
    ],
)
def test_victims(files: list[CacheFile], limit_nbytes: int, expected: str) -> None:
    """The choice is a function of lengths, times of use and names alone (CACHE-8)."""
    chosen = victims(files, limit_nbytes)
    assert [file.name for file in chosen] == expected.split()
    assert victims(reversed(files), limit_nbytes) == chosen


def test_the_least_recently_used_copy_is_evicted(tmp_path: Path, server: Server) -> None:
    """The copy that was used longest ago is evicted, not the oldest one (CACHE-8)."""
    cache = make_cache(tmp_path, limit=350_000)
    files = fill(cache, server, 3)
    read_copy(cache, files[0])

    read_copy(cache, RemoteFile(server.page("/new.tar", DATA[:100_000]), 100_000))

    assert [cache.find(file) is not None for file in files] == [True, False, True]
    assert sum(path.stat().st_size for path in (tmp_path / "shards").iterdir()) <= 350_000


def test_a_leased_copy_stays(tmp_path: Path, server: Server) -> None:
    """An open copy is not evicted, even if it was used longest ago (CACHE-7)."""
    cache = make_cache(tmp_path, limit=250_000)
    files = fill(cache, server, 1)
    copy = make_cache(tmp_path).open(files[0])

    more = fill(cache, server, 5)

    assert cache.find(files[0]) == copy.path
    assert [cache.find(f) is not None for f in more] == [True, False, False, False, True]
    copy.file.close()
    fill(cache, server, 7)
    assert cache.find(files[0]) is None


def test_the_limit_is_exceeded_when_all_copies_are_leased(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """First the caller closes idle files; then one warning says the numbers (CACHE-8)."""
    cache = make_cache(tmp_path, limit=200_000)
    files = fill(cache, server, 2)
    held = [cache.open(file) for file in files]
    new = [RemoteFile(server.page(f"/new{n}.tar", DATA[:100_000]), 100_000) for n in range(3)]
    asked = []

    held.append(cache.open(new[0], make_room=lambda: asked.append(1)))
    held.append(cache.open(new[1]))

    assert asked == [1]
    (record,) = [r for r in caplog.records if "cache_size" in r.message]
    assert "200.0 kB" in record.message
    assert "300.0 kB" in record.message
    held.pop(0).file.close()
    close_one = lambda: held.pop(0).file.close()  # noqa: E731, PLW0108 - popped when it is called
    held.append(cache.open(new[2], make_room=close_one))
    assert cache.find(files[0]) is None
    for copy in held:
        copy.file.close()


@pytest.mark.usefixtures("quick_retries")
def test_a_claim_evicts_nothing(tmp_path: Path, server: Server) -> None:
    """A server that claims a length beyond the limit or the disk evicts nothing (CACHE-8)."""
    files = fill(make_cache(tmp_path, limit=250_000), server, 2)
    # The server is silent after its claim.
    fetcher = fetch.Fetcher({"timeout": 0.1, "retry_s": 1})
    cache = make_cache(tmp_path, limit=250_000, fetcher=fetcher)
    for claim in ("1" + "0" * 15, "9" * 25):
        headers = {"Content-Length": claim}
        url = server.page("/huge.tar", DATA, always=Fault(200, headers=headers, body=b"x"))
        with pytest.raises(FetchError):
            cache.open(RemoteFile(url))
        assert all(map(cache.find, files))
    assert read_copy(make_cache(tmp_path), files[0]) == DATA[:100_000]


def test_a_limit_below_one_file(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """If no length was stated, one file may exceed the limit, with a warning."""
    cache = make_cache(tmp_path, limit=1000)
    for number in range(3):
        assert read_copy(cache, RemoteFile(server.page(f"/{number}.tar", DATA))) == DATA
    assert len(file_names(tmp_path)) == 1
    assert len([r for r in caplog.records if "cache_size is 1.0 kB" in r.message]) == 1


def test_what_killed_processes_left_counts(tmp_path: Path, server: Server) -> None:
    """It is deleted when the limit is exceeded, also long after the first download (CACHE-10)."""
    cache = make_cache(tmp_path, limit=250_000)
    files = fill(cache, server, 2)
    left = tmp_path / "shards" / f".{'0' * 32}-0.tar.{'a' * 16}.tmp"
    left.write_bytes(bytes(200_000))
    os.utime(left, (time.time() - 100,) * 2)

    more = [RemoteFile(server.page(f"/new{n}.tar", DATA[:100_000]), 100_000) for n in range(2)]
    for file in more:
        read_copy(cache, file)

    assert not left.exists()
    assert [cache.find(file) is not None for file in files + more] == [False, False, True, True]


def test_clear_leaves_what_is_being_written(tmp_path: Path, server: Server) -> None:
    """A file that is not locked yet is not deleted under its writer; an old one is deleted."""
    cache = make_cache(tmp_path)
    fill(cache, server, 2)
    young, old = (tmp_path / "shards" / f".{'0' * 32}-0.tar.{n * 16}.tmp" for n in "ab")
    for path in (young, old):
        path.write_bytes(bytes(10))
    os.utime(old, (time.time() - 100,) * 2)

    assert clear(clearable(str(tmp_path))) == (3, 200_010, 1)
    assert file_names(tmp_path) == [young.name]


def test_clear_leaves_the_index_of_a_copy_in_use(tmp_path: Path, server: Server) -> None:
    """It shows whether the copy was changed, when the copy is opened again (CACHE-35)."""
    cache = make_cache(tmp_path)
    held, other = (RemoteFile(server.page(f"/{n}.tar", DATA[:n])) for n in (100, 200))
    read_copy(cache, other, lambda _: b"index")
    copy = cache.open(held, lambda _: b"index")
    try:
        assert clear(clearable(str(tmp_path))) == (2, 205, 2)
        name = os.path.basename(copy.path)
        assert file_names(tmp_path) == [name, f"{name}.index"]
    finally:
        copy.file.close()
    assert clear(clearable(str(tmp_path))) == (2, 105, 0)


def test_clear_does_not_count_what_another_process_deletes(tmp_path: Path, server: Server) -> None:
    """A file that has been deleted meanwhile is neither deleted nor in use."""
    cache = make_cache(tmp_path)
    fill(cache, server, 2)
    files = clearable(str(tmp_path))
    os.unlink(files[0].path)
    assert clear(files) == (1, files[1].nbytes, 0)


def test_no_limit_evicts_nothing(tmp_path: Path, server: Server) -> None:
    """Nothing is evicted without a limit (CACHE-8)."""
    cache = make_cache(tmp_path)
    files = fill(cache, server, 4)
    assert all(map(cache.find, files))


def test_only_what_was_fetched_is_deleted(tmp_path: Path, server: Server) -> None:
    """Other files in the folder are the user's, and stay (CACHE-9)."""
    (tmp_path / "shards").mkdir()
    for name in ("mine.tar", "train-000000.tar"):
        (tmp_path / "shards" / name).write_bytes(DATA)
        (tmp_path / name).write_bytes(DATA)
    cache = make_cache(tmp_path, limit=150_000)

    fill(cache, server, 3)

    for name in ("mine.tar", "train-000000.tar"):
        assert (tmp_path / "shards" / name).exists()
        assert (tmp_path / name).exists()
    assert len(file_names(tmp_path)) == 3


def test_indexes_outlive_their_files(tmp_path: Path, server: Server) -> None:
    """Indexes stay for reading by range, up to a tenth of the limit (CACHE-8)."""
    cache = make_cache(tmp_path, limit=250_000)
    for number in range(8):
        url = server.page(f"/{number}.tar", DATA[number : number + 100_000])
        read_copy(cache, RemoteFile(url, 100_000), lambda _: bytes(10_000))
        time.sleep(0.002)

    found = list((tmp_path / "shards").iterdir())
    tars = [path for path in found if path.suffix != ".index"]
    orphans = {p.name for p in found} - {t.name for t in tars} - {t.name + ".index" for t in tars}
    assert (len(tars), len(orphans)) == (2, 2)
    assert sum(path.stat().st_size for path in found) <= 250_000 + len(tars) * 10_000


def test_the_clock_may_move_backwards(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of use only order evictions; copies are found whatever the clock says."""
    cache = make_cache(tmp_path, limit=250_000)
    files = fill(cache, server, 2)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: 1e-9)

    more = fill(cache, server, 5)

    assert read_copy(cache, more[-1]) == DATA[4:100_004]
    assert read_copy(cache, files[0]) == DATA[:100_000]


def test_downloads_and_evictions_are_in_the_log(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The level INFO shows each of them, as docs/errors.md says, without a query (SEC-4)."""
    cache = make_cache(tmp_path, 250_000)
    with caplog.at_level(logging.INFO, "wids"):
        fill(cache, server, 3)
        read_copy(cache, RemoteFile(server.page("/s.tar", DATA[:10]) + "?SECRET", 10))
    lines = [record.getMessage() for record in caplog.records]
    downloads = [line for line in lines if "downloaded" in line]
    assert [line.partition(": downloaded, ")[0] for line in downloads] == [
        *(f"{server.url}/{number}.tar" for number in range(3)),
        f"{server.url}/s.tar?…",
    ]
    begins = [line for line in lines if ": downloading, " in line]
    assert [line.partition(",")[0] for line in begins] == [
        line.partition(",")[0].replace("downloaded", "downloading") for line in downloads
    ]
    assert len([line for line in lines if ": evicted, " in line]) == 1
    assert len(lines) == 9
    assert "SECRET" not in caplog.text


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_lease_that_is_lost(tmp_path: Path) -> None:
    """A lease that Ctrl-C takes from its owner ends with the object, not with the process."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"a copy")
    with pytest.raises(KeyboardInterrupt):
        raise KeyboardInterrupt(leases.lease(str(path)))
    gc.collect()
    assert leases.delete_if_unused(str(path))


def test_a_copy_that_is_evicted_before_its_lease(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched again, so that what is opened has a name that others find (CACHE-7)."""
    cache, (file,) = make_cache(tmp_path), fill(make_cache(tmp_path), server, 1)
    acquire, path = leases.locks.acquire, Path(own_path(cache, file))

    def acquire_after_eviction(handle: int, *, is_shared: bool = False) -> bool | None:
        if is_shared and len(server.log) == 1:
            path.unlink()
        return acquire(handle, is_shared=is_shared)

    monkeypatch.setattr(leases.locks, "acquire", acquire_after_eviction)
    with cache.open(file).file as opened:
        assert os.path.samestat(os.fstat(opened.fileno()), path.stat())
    assert len(server.log) == 2
