"""What the tests of packing share: folders of files, and the members of tars by `tarfile`."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path


def make_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by path; return the folder."""
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def members(*paths: Path) -> dict[str, bytes]:
    """Return the members of tars by name, in order."""
    found = {}
    for path in paths:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                assert member.name not in found
                found[member.name] = file.read()
    return found


def packed(folder: Path, stem: str = "out") -> dict[str, bytes]:
    """Return the members of all shards of an output."""
    return members(*sorted(folder.glob(f"{stem}-*.tar")))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their paths in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
