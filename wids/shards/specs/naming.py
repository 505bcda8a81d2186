"""Resolve a caller's name (a path, URL, brace pattern, wildcards, folder) to the URLs of files.

Names in documents are not resolved here: each names one file (SEC-55).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wids.errors import NotFoundError, SpecError
from wids.shards.specs.braces import expand
from wids.shards.specs.model import ENERGON, INFO
from wids.storage.fetch import Fetcher
from wids.storage.transport import listing, urls
from wids.storage.transport.listing import Named
from wids.storage.transport.stream import Entry

_TAR: Final = (".tar",)
_COLONS: Final = re.compile(r"::(?![^\[\]]*\])")  # and not those of an address, `[::1]`
_CONTAINERS: Final = ("zip", "tar", "libarchive", "dir", "reference")
"""Schemes of fsspec whose URL continues, after two colons, with the file that they are in."""
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


class Folder(NamedTuple):
    """A listed folder that has tars.

    Attributes:
        url: The folder, with a trailing slash.
        tars: The tars in it, sorted by name, without those in subfolders.
        document: The URL of the JSON document that seems to be their spec, or None; that of Energon
            names tars in subfolders too.
    """

    url: str
    tars: list[Named]
    document: str | None


def names_in(name: str) -> list[str]:
    """Return the names that a list of webdataset, ``a.tar::b.tar``, and braces stand for.

    Chains of fsspec, commands and addresses keep their colons.

    Raises:
        SpecError: The braces are unbalanced, or stand for too many names.
    """
    if "::" not in name:  # each of up to 100,000 names
        return expand(name)
    if urls.is_local(name) and os.path.lexists(urls.local_path(name)):
        return [name]
    found: list[str] = []
    for part in _COLONS.split(name):
        if found and _goes_on(found[-1], part):
            found[-1] += f"::{part}"
        else:
            found.append(part)
    return [one for part in found for one in expand(part)]


def _goes_on(before: str, part: str) -> bool:
    """Return whether the colons between two parts belong to one name."""
    if urls.scheme(before) == "pipe":
        return not part.startswith("pipe:")
    link = before.rpartition("::")[2]
    return urls.scheme(link) in _CONTAINERS or (link.isalpha() and "://" in part)


def is_document(url: str) -> bool:
    """Whether a path or URL names a JSON document, by its extension."""
    return urls.path_of(url).lower().endswith(".json")


def is_list(url: str) -> bool:
    """Whether a path or URL names a text file with the name of a shard on each line."""
    return urls.path_of(url).lower().endswith(".txt")


def resolve(name: str, join: Callable[[str], str], fetcher: Fetcher) -> list[Named | Folder]:
    """Return the files and folders that a name stands for, in the order of brace expansion.

    Args:
        name: The name.
        join: Resolves a relative name.
        fetcher: Lists folders.

    Raises:
        SpecError: A name is empty, or the braces are unbalanced or stand for too many names.
        NotFoundError: Wildcards match nothing, or a folder has no tars.
        FetchError: A folder cannot be listed.
    """
    found: list[Named | Folder] = []
    for part in names_in(name):
        if not part:  # as a reference, it would be the current folder
            raise SpecError(
                "shards: expected a path, URL or pattern, found an empty text; the current folder "
                'is "."'
            )
        url = join(part)
        # `join` removes the trailing slash of a path, so `is_folder` asks the disk about paths.
        if listing.is_pattern(url):
            found += listing.matching(fetcher.entries, url)
        elif listing.is_folder(url):
            found.append(open_folder(url, fetcher))
        else:
            found.append(Named(url))
    return found


def open_folder(url: str, fetcher: Fetcher) -> Folder:
    """List the tars of a folder.

    Raises:
        NotFoundError: The folder has no tars, or does not exist.
        FetchError: The folder cannot be listed.
    """
    folder = listing.folder_of(url)
    entries = fetcher.entries(folder)
    tars = listing.files_in(entries, folder, _TAR)
    document = _energon_document(entries, folder, fetcher) or _document(entries, folder, tars)
    if not tars and document is None:
        raise _no_tars(folder, entries)
    return Folder(folder, tars, document)


def dataset_name(url: str) -> str:
    """Derive the name of a dataset from its first shard: ``train`` from ``train-000000.tar``."""
    stem = os.path.splitext(os.path.basename(urls.path_of(url)))[0]
    words = [word for word in re.split(r"[^A-Za-z0-9_]+", stem) if not word.isdecimal()]
    return "-".join(dict.fromkeys(words)) or stem


def tar_urls(names: Sequence[str], fetcher: Fetcher) -> list[str]:
    """Return the tars that names stand for, each once, sorted; specs of folders are not used.

    Raises:
        SpecError, NotFoundError, FetchError: As `resolve`.
    """
    join = urls.joiner(os.getcwd())
    found = set()
    for name in names:
        for item in resolve(name, join, fetcher):
            if isinstance(item, Folder) and not item.tars:
                raise NotFoundError(
                    f"{urls.redact(item.url)}: expected a folder with .tar files, found those of "
                    f"Energon in folders inside it; pass {urls.redact(item.document or '')}"
                )
            found |= {item.url} if isinstance(item, Named) else {tar.url for tar in item.tars}
    return sorted(found)


def _energon_document(entries: Sequence[Entry], folder: str, fetcher: Fetcher) -> str | None:
    """Return the document in which Energon names all shards of a dataset, by its root folder."""
    if not any(entry.is_folder and entry.name == ENERGON for entry in entries):
        return None
    inside = fetcher.entries(f"{folder}{ENERGON}/")
    return folder + INFO if any(INFO.endswith(f"/{entry.name}") for entry in inside) else None


def _document(entries: Sequence[Entry], folder: str, tars: Sequence[Named]) -> str | None:
    """Return the JSON document that seems to be the spec of all tars, by names alone.

    It is the only document with a pack beside it (``train.index``) or with a name that begins the
    names of all tars.
    """
    if not tars:
        return None
    names = {entry.name for entry in entries if not entry.is_folder}
    found = [
        name
        for name in names
        if name.endswith(".json")
        and (
            f"{name.removesuffix('.json')}.index" in names
            or all(tar.url.startswith(folder + name.removesuffix(".json")) for tar in tars)
        )
    ]
    return folder + found[0] if len(found) == 1 else None


def _no_tars(folder: str, entries: Sequence[Entry]) -> NotFoundError:
    message = (
        f"{urls.redact(folder)}: expected a folder with .tar files, found "
        f"{listing.content_text(entries)}"
    )
    documents = [e.name for e in entries if e.name.endswith(".json") and not e.is_folder]
    folders = listing.folders_in(entries)
    if any(entry.name.lower().endswith(_COMPRESSED) for entry in entries):
        message += "; compressed tars have no random access: decompress them first"
    elif folders:
        pack = "make shards of files with `wids pack`, or " if urls.is_local(folder) else ""
        message += (
            f"; {pack}name a folder inside it, such as {urls.redact(folder)}{folders[0]}/, or the "
            f"tars of all with {urls.redact(folder)}**/*.tar"
        )
    elif len(documents) == 1:
        message += f"; if {documents[0]} is a spec, pass its name"
    elif entries and urls.is_local(folder):
        message += "; `wids pack` makes shards of files"
    return NotFoundError(message)
