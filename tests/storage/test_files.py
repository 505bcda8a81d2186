"""CRC-32 by whichever package is installed."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import in_child, need

from wids.storage import files
from wids.storage.files import fastest_crc32


@pytest.fixture(autouse=True)
def chosen_again() -> Iterator[None]:
    """Each test chooses for itself."""
    fastest_crc32.cache_clear()
    yield
    fastest_crc32.cache_clear()


@pytest.mark.parametrize("package", [*files._PACKAGES, "zlib"])
def test_packages_agree(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each package gives the checksum of zip and PNG, for bytes and views of any length."""
    if package != "zlib":
        try:
            __import__(package)
        except ImportError:
            need(None, f"{package} is not installed")
    monkeypatch.setattr(files, "_PACKAGES", (package,))
    crc32 = fastest_crc32()
    assert crc32.__module__.partition(".")[0] in (package.partition(".")[0], "isal")
    for data in (b"", b"a", b"123456789", bytes(range(256)) * 1000):
        assert crc32(data) == crc32(memoryview(data)) == zlib.crc32(data)
    assert crc32(b"123456789") == 0xCBF43926


def test_zlib_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fast packages, and with others of their names, zlib is used."""
    for package in files._PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    assert fastest_crc32() is zlib.crc32
    fastest_crc32.cache_clear()
    monkeypatch.setattr(files, "_PACKAGES", ("json",))
    assert fastest_crc32() is zlib.crc32


def test_a_link_that_leads_nowhere_hides_no_temporary_file(tmp_path: Path) -> None:
    """A process that waits for a download would see no progress."""
    path = tmp_path / "a.tar"
    (tmp_path / files.temporary_name("a.tar")).write_bytes(b"1234")
    (tmp_path / files.temporary_name("a.tar")).symlink_to(tmp_path / "nowhere")
    assert [nbytes for _, nbytes, _ in files.temporary_files(str(path))] == [4]


def test_a_forked_process_does_not_delete_what_its_parent_writes(tmp_path: Path) -> None:
    """At its end it deletes only what it has not finished itself."""
    path = tmp_path / "a"
    with files.replacing(path) as file:
        file.write(b"abc")
        assert in_child(lambda: files.delete_unfinished() is None)
    assert path.read_bytes() == b"abc"
