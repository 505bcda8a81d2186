"""Resolve a caller's name (a path, URL, brace pattern, wildcards, folder) to the URLs of files.

Names in documents are not resolved here: each names one file (SEC-55).

Names are counted before they are made: a few bytes, such as ``{0..9999999999}`` or thirty pairs
``{a,b}`` in a row, stand for more names than fit in memory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wids.errors import NotFoundError, SpecError
from wids.shards.specs.model import ENERGON, INFO
from wids.storage.fetch import Fetcher
from wids.storage.transport import listing, urls
from wids.storage.transport.listing import Named
from wids.storage.transport.stream import Entry

MAX_NAMES: Final = 10_000_000
"""Most names of one pattern; the largest public datasets have about a hundredth as many shards."""
MAX_NAMES_NBYTES: Final = 1 << 30
"""Most characters of all the names of one pattern."""
MAX_BRACES_DEPTH: Final = 16
"""Most levels of nested braces, so that neither counting nor expanding exhausts the stack."""

_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?")


def expand(pattern: str) -> list[str]:
    """Expand ``{000..146}`` and ``{a,b}`` as a shell does; other braces stay as they are.

    Raises:
        SpecError: The braces are unbalanced, or stand for too many names.
    """
    if "{" not in pattern and "}" not in pattern:  # called for each of up to 100,000 names
        return [pattern]
    try:
        _check(_size_of_pattern(pattern, 0), pattern)
        from braceexpand import braceexpand  # most datasets have no pattern

        # Here a backslash is an ordinary character, not an escape as in a shell.
        return list(braceexpand(pattern, escape=False))
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{_shown(pattern)}: the braces are not balanced; write {{000..146}} or {{a,b}}, "
            "or pass the names as a list of dicts"
        ) from error


class Size(NamedTuple):
    """At most how many names a pattern stands for, and how many characters they have in total."""

    num_names: int
    nbytes: int


def _size_of_pattern(pattern: str, depth: int) -> Size:
    """Return the size of the product of texts and braces, parsed as `braceexpand` parses them."""
    sizes, start, level = [], 0, 0
    for position, character in enumerate(pattern):
        if character == "{":
            if level == 0:
                sizes.append(Size(1, position - start))
                start = position
            level += 1
        elif character == "}":
            level -= 1
            if level == 0:
                sizes.append(_size_of_braces(pattern[start + 1 : position], depth + 1))
                start = position + 1
    sizes.append(Size(1, len(pattern) - start))
    num_names = math.prod(size.num_names for size in sizes)
    return Size(num_names, sum(size.nbytes * (num_names // size.num_names) for size in sizes))


def _size_of_braces(text: str, depth: int) -> Size:
    """Return the size of the text between two braces: a range, a list, or a part of a name."""
    if depth > MAX_BRACES_DEPTH:
        raise SpecError(
            f"{{{_shown(text)}: expected at most {MAX_BRACES_DEPTH} braces inside one another, "
            "found more"
        )
    match = _RANGE.fullmatch(text)
    if match is not None:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
        num_names = abs(last - first) // step + 1
        return Size(num_names, num_names * max(len(match[1]), len(match[2])))
    if _LETTERS.fullmatch(text):
        return Size(52, 52)  # at most
    sizes, start, level = [], 0, 0
    for position, character in enumerate(text):
        level += (character == "{") - (character == "}")
        if character == "," and level == 0:
            sizes.append(_size_of_pattern(text[start:position], depth))
            start = position + 1
    sizes.append(_size_of_pattern(text[start:], depth))
    if len(sizes) == 1:  # `{local}`, with its braces
        return Size(sizes[0].num_names, sizes[0].nbytes + 2 * sizes[0].num_names)
    return Size(sum(size.num_names for size in sizes), sum(size.nbytes for size in sizes))


def _check(size: Size, pattern: str) -> None:
    if size.num_names > MAX_NAMES or size.nbytes > MAX_NAMES_NBYTES:
        raise SpecError(
            f"{_shown(pattern)}: expected a pattern of at most {MAX_NAMES} names and "
            f"{MAX_NAMES_NBYTES} characters, found {_number(size.num_names)} names and "
            f"{_number(size.nbytes)} characters"
        )


def _number(value: int) -> str:
    # Python refuses to print thousands of digits.
    return str(value) if value < 10**18 else "more than 10**18"


def _shown(pattern: str) -> str:
    return f"{urls.redact(pattern):.200}"


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
    parts: list[str] = []
    for part in _COLONS.split(name):
        if parts and _goes_on(parts[-1], part):
            parts[-1] += f"::{part}"
        else:
            parts.append(part)
    return [one for part in parts for one in expand(part)]


def _goes_on(before: str, part: str) -> bool:
    """Return whether the colons between two parts belong to one name."""
    if urls.scheme(before) == "pipe":
        return not part.startswith("pipe:")
    link = before.rpartition("::")[2]
    return urls.scheme(link) in _CONTAINERS or (link.isalpha() and "://" in part)


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
    items: list[Named | Folder] = []
    for part in names_in(name):
        if not part:  # as a reference, it would be the current folder
            raise SpecError(
                "shards: expected a path, URL or pattern, found an empty text; the current folder "
                'is "."'
            )
        url = join(part)
        # `join` removes the trailing slash of a path, so `is_folder` asks the disk about paths.
        if listing.is_folder(url):  # also one whose name looks like a pattern
            items.append(open_folder(url, fetcher))
        elif listing.is_pattern(url):
            items += listing.matching(fetcher.entries, url)
        else:
            items.append(Named(url))
    return items


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
    tars = set()
    for name in names:
        for item in resolve(name, join, fetcher):
            if isinstance(item, Folder) and not item.tars:
                raise NotFoundError(
                    f"{urls.redact(item.url)}: expected a folder with .tar files, found those of "
                    f"Energon in folders inside it; pass {urls.redact(item.document or '')}"
                )
            tars |= {item.url} if isinstance(item, Named) else {tar.url for tar in item.tars}
    return sorted(tars)


def _energon_document(entries: Sequence[Entry], folder: str, fetcher: Fetcher) -> str | None:
    """Return the document in which Energon names all shards of a dataset, by its root folder."""
    if not any(entry.is_folder and entry.name == ENERGON for entry in entries):
        return None
    inside = fetcher.entries(f"{folder}{ENERGON}/")
    return folder + INFO if any(INFO.endswith(f"/{entry.name}") for entry in inside) else None


def _document(entries: Sequence[Entry], folder: str, tars: Sequence[Named]) -> str | None:
    """Return the JSON document that seems to be the spec of all tars, by names alone.

    It is the only document with a dataset index beside it (``train.index``) or with a name that
    begins the names of all tars.
    """
    if not tars:
        return None
    names = {entry.name for entry in entries if not entry.is_folder}
    documents = [
        name
        for name in names
        if name.endswith(".json")
        and (
            f"{name.removesuffix('.json')}.index" in names
            or all(tar.url.startswith(folder + name.removesuffix(".json")) for tar in tars)
        )
    ]
    return folder + documents[0] if len(documents) == 1 else None


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
