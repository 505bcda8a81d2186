"""URLs that fsspec opens, and those that it must not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import raises
from transfers import DATA, saved

from wids.errors import FetchError, MismatchError, NotFoundError, UploadError
from wids.storage import upload
from wids.storage.download import Expected
from wids.storage.fetch import Fetcher
from wids.storage.transport.fsspec import Fsspec


def test_fsspec_file_systems() -> None:
    """A file of a scheme that fsspec knows can be read as a whole and by range, or be missing."""
    import fsspec

    with fsspec.open("memory://bucket/a.tar", "wb") as file:
        file.write(DATA)

    assert saved("memory://bucket/a.tar", Expected(len(DATA))) == DATA
    assert Fetcher().range_reader("memory://bucket/a.tar", len(DATA))(7, 99) == DATA[7:99]
    with raises(MismatchError, "found 5000000"):
        Fetcher().range_reader("memory://bucket/a.tar", 100)(7, 99)
    with raises(NotFoundError, "memory://bucket/b.tar"):
        saved("memory://bucket/b.tar")


def test_missing_drivers_are_errors_that_name_the_extra() -> None:
    """The error for an unknown scheme or a missing driver says what to install."""
    with raises(FetchError, 'expected a driver for "gopher"', "handler"):
        saved("gopher://x/y")
    code = (
        "import sys; sys.modules['gcsfs'] = sys.modules['obstore'] = None\n"
        "from wids.errors import FetchError\n"
        "from wids.storage import fetch\n"
        "try:\n    fetch.Fetcher().read('gs://bucket/x', 10)\n"
        "except FetchError as error:\n    print(error)\n"
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
def test_no_detour_to_local_files(url: str) -> None:
    """A scheme that leads to another URL could name what a document must not name (SEC-10)."""
    advice = "unpack the archive first" if url.startswith("zip:") else "name the file itself"
    with raises(FetchError, "found one that leads to another", advice):
        saved(url)


def test_a_file_that_cannot_be_positioned_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers hold sockets and temporary files, which an error must not leave open."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    opened: list[MemoryFile] = []

    class Unseekable(MemoryFile):  # type: ignore[misc]
        def seek(self, *_: object) -> int:
            raise OSError("the connection was lost")

        def close(self) -> None:
            if self in opened:  # it is closed once more when it is collected
                opened.remove(self)

    def open_file(*_: object, **__: object) -> MemoryFile:
        opened.append(Unseekable())
        return opened[-1]

    MemoryFileSystem().pipe_file("/bucket/seek.tar", DATA)
    monkeypatch.setattr(MemoryFileSystem, "_open", open_file)
    with raises(FetchError, "memory://bucket/seek.tar", "the connection was lost"):
        Fsspec().open("memory://bucket/seek.tar", 7, None, None)
    assert opened == []


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the natural built-in, names the server, and says what to pass."""
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    parts = ("memory://bucket/a: expected access to memory://bucket", "as storage_options")
    with raises(PermissionError, *parts):
        Fetcher().read("memory://bucket/a", 10)
    with raises(UploadError, *parts):
        upload.exists("memory://bucket/a")


def test_a_driver_that_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of what is read before it is written speaks of reading."""
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("not here")

    MemoryFileSystem().pipe_file("/bucket/spec.json", b"{}")
    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with raises(UploadError, "memory://bucket/spec.json: expected a readable file", "not here"):
        upload.read("memory://bucket/spec.json")
