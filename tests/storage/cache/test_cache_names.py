"""Names of copies: what makes two files one copy, and what makes two."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cache_parts import DATA, MD5, SHA, make_cache, own_path, read_copy
from loopback import Server

from wids.storage.cache.cache_names import RemoteFile


def test_names(tmp_path: Path, server: Server) -> None:
    """A name is a hash and a readable tail, and the same for all URLs of a digest (CACHE-2)."""
    cache = make_cache(tmp_path)
    url = server.page("/a/train-000003.tar", DATA)
    plain = own_path(cache, RemoteFile(url))
    assert plain.endswith("-train-000003.tar")
    different = [
        RemoteFile(url + "?v=2"),
        RemoteFile(server.url + "/b/train-000003.tar"),
        RemoteFile(url, nbytes=5),
        RemoteFile(url, sha256=SHA),
        RemoteFile(url, md5sum=MD5),
        RemoteFile(url, version="2"),
    ]
    assert len({plain, *(own_path(cache, file) for file in different)}) == 1 + len(different)
    signed = [RemoteFile(f"{url}?sig={n}", 300_000, sha256=SHA) for n in (1, 2)]
    assert own_path(cache, signed[0]) == own_path(cache, signed[1])
    assert "SECRET" not in own_path(cache, RemoteFile("s3://me:SECRET@b/x.tar?SECRET"))
    assert own_path(cache, RemoteFile("pipe:cat SECRET.tar")).endswith("-file")


def test_two_shards_of_one_base_name_are_two_files(tmp_path: Path, server: Server) -> None:
    """Shards of equal base name from two folders do not share a copy."""
    cache = make_cache(tmp_path)
    first = RemoteFile(server.page("/a/0.tar", DATA))
    second = RemoteFile(server.page("/b/0.tar", b"other"))

    assert (read_copy(cache, first), read_copy(cache, second)) == (DATA, b"other")
    assert (read_copy(cache, first), read_copy(cache, second)) == (DATA, b"other")


def test_a_new_version_of_a_file_is_another_copy(tmp_path: Path, server: Server) -> None:
    """A new spec for the same URL does not get the old copy (CACHE-2)."""
    cache = make_cache(tmp_path)
    url = server.page("/0.tar", DATA)
    assert read_copy(cache, RemoteFile(url, len(DATA))) == DATA
    server.page("/0.tar", b"new")
    assert read_copy(cache, RemoteFile(url, 3)) == b"new"
    server.page("/0.tar", b"NEW")
    new_sha = hashlib.sha256(b"NEW").hexdigest()
    assert read_copy(cache, RemoteFile(url, 3, sha256=new_sha)) == b"NEW"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have no numbers here")
def test_a_user_without_a_home(tmp_path: Path) -> None:
    """Its cache is a private temporary folder, and no folder ``~`` appears (CACHE-1)."""
    code = (
        "import os, pwd; del os.environ['HOME']; pwd.getpwuid = {}.__getitem__; import wids;"
        "from wids.storage.cache import cache_names;"
        "print(cache_names.default_folder(), cache_names.default_folder())"
    )
    temporary, here = tmp_path / "tmp", tmp_path / "here"
    for folder in (temporary, here):
        folder.mkdir()

    def folder_used() -> str:
        variables = {"TMPDIR": str(temporary), "HOME": "", "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=here,
            env=variables,
            check=True,
            capture_output=True,
            text=True,
        )
        assert ran.stderr.count("this user has no home; set WIDS_CACHE or HOME") == 1
        first, second = ran.stdout.split()
        assert first == second
        assert stat.S_IMODE(os.stat(first).st_mode) == 0o700
        return first

    usual = str(temporary / f"wids-{os.getuid()}")
    assert folder_used() == folder_used() == usual
    os.chmod(usual, 0o722)  # noqa: S103 - as another user may have made it
    assert folder_used() != usual
    assert not list(here.iterdir())
