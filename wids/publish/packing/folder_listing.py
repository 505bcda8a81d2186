"""List the files in a folder that can be packed, and what was left out and why.

Looks only at names, types and permissions; opens no file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wids.errors import NotFoundError, PackError
from wids.shards.tars.member_names import is_metadata
from wids.storage.sizes import first_of
from wids.storage.transport import urls

UNREADABLE: Final = "not readable"
"""The reason for files and folders that this user may not read."""

_OF_SYSTEMS: Final = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini"))
"""What desktops and archivers leave in folders, under names without a leading dot."""
_FOR_ALL: Final = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_MAX_NAMED: Final = 3


_Identity = tuple[int, int]
"""Device and inode of a folder."""
_Pending = list[tuple[str, tuple[_Identity, ...]]]
"""Folders to be listed, by path with a slash at the end, and those that they are in."""


class ListedFile(NamedTuple):
    """A file that can be packed.

    Attributes:
        path: Path in the folder, its parts separated by ``/``.
        nbytes: Its length in bytes.
        mtime_ns: Its modification time.
    """

    path: str
    nbytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Skipped:
    """Files that were left out for one reason.

    Attributes:
        reason: Why, as ``"hidden"``.
        count: How many files, or folders with all that is in them.
        names: Paths of the first three.
    """

    reason: str
    count: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.count:,} {self.reason}: {first_of(self.names, count=self.count)}"


@dataclass
class Listing:
    """What is in a folder.

    Attributes:
        root: Absolute path of the folder.
        files: The files that can be packed, sorted by path.
        folders: Names of the folders directly in it, sorted.
        outside: Links that lead out of the folder.
        left_out: Paths of what was left out, by reason.
    """

    root: str
    files: list[ListedFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, path: str, reason: str) -> None:
        """Note that a file is left out."""
        self.left_out.setdefault(reason, []).append(path)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return what was left out, by reason."""
        return tuple(
            Skipped(reason, len(paths), tuple(sorted(paths)[:_MAX_NAMED]))
            for reason, paths in sorted(self.left_out.items())
        )


def list_folder(folder: str | os.PathLike[str]) -> Listing:
    """Return the files in a folder and its subfolders, in an order that depends on names alone.

    Links to files and folders are followed. Hidden files and folders are left out, as are those
    that readers of tars skip as metadata, and what is not a regular file or cannot be read.

    Raises:
        NotFoundError: There is no such folder.
        PackError: It is a file, or a URL.
        OSError: It cannot be read.
    """
    name = os.fspath(folder)
    if not urls.is_local(name):
        raise PackError(
            f"{urls.redact(name)}: expected a local folder, found a URL; download the files first"
        )
    if not name:
        raise PackError(
            'folder: expected the path of a folder, found an empty text; the current folder is "."'
        )
    root = os.path.abspath(urls.local_path(name))
    if not os.path.isdir(root):
        raise _not_a_folder(name, root)
    found = Listing(root)
    status = os.stat(root)
    pending: _Pending = [("", ((status.st_dev, status.st_ino),))]
    while pending:
        prefix, ancestors = pending.pop()
        path = os.path.join(root, prefix)
        try:
            entries = os.scandir(path)
        except OSError:
            if not prefix:
                raise
            found.leave_out(prefix, UNREADABLE)
            continue
        with entries:
            for entry in entries:
                _list_entry(found, entry, prefix + entry.name, ancestors, pending)
    found.files.sort()
    found.folders.sort()
    return found


def _list_entry(
    found: Listing,
    entry: os.DirEntry[str],
    path: str,
    ancestors: tuple[_Identity, ...],
    pending: _Pending,
) -> None:
    """Add a file to the listing, or a subfolder to those still to be listed."""
    if entry.name.startswith(".") or entry.name in _OF_SYSTEMS:
        found.leave_out(path, "hidden")
        return
    if len(ancestors) == 1 and is_metadata(os.fsencode(entry.name)):
        found.leave_out(path, "named as metadata, __…__")
        return
    try:
        # What Windows lists has no inode numbers.
        status = os.stat(entry.path) if entry.is_dir() else entry.stat()
    except OSError:
        reason = "linked to nothing" if entry.is_symlink() else UNREADABLE
        found.leave_out(path, reason)
        return
    if entry.is_symlink() and not is_inside(entry.path, found.root):
        found.outside.append(path)
    if stat.S_ISDIR(status.st_mode):
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            found.leave_out(path, "linked to a folder above")
            return
        if len(ancestors) == 1:
            found.folders.append(entry.name)
        pending.append((path + "/", (*ancestors, identity)))
    elif not stat.S_ISREG(status.st_mode):
        found.leave_out(path, "not regular")
    # Asking the system what this user may read takes as long as everything else.
    elif status.st_mode & _FOR_ALL == _FOR_ALL or os.access(entry.path, os.R_OK):
        found.files.append(ListedFile(path, status.st_size, status.st_mtime_ns))
    else:
        found.leave_out(path, UNREADABLE)


def is_inside(path: str, folder: str) -> bool:
    """Whether a path leads into a folder, or to it, directly or through links."""
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path == folder or urls.is_within(path, folder)


def _not_a_folder(name: str, root: str) -> Exception:
    if not os.path.lexists(root):
        return NotFoundError(
            f"{name}: no such folder (the current folder is {os.getcwd()}); check the path"
        )
    advice = "; it is a shard already: use wids create" if root.endswith(".tar") else ""
    return PackError(f"{name}: expected a folder of files, found a file{advice}")
