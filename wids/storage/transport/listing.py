"""List the files that a caller's pattern or folder names.

Only what the caller wrote is listed, and all results are inside it: a name that leads elsewhere is
left out, whatever a server returns. No document is read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from wids.errors import NotFoundError
from wids.storage.sizes import count_text, first_of
from wids.storage.transport import urls
from wids.storage.transport.stream import Entry

_NUM_SHOWN: Final = 3
_WILD_IN_URL: Final = r"\*|\[[^/\\[]*\]"  # from the last `[`, since others would take a search each
_WILD_IN_PATH: Final = rf"{_WILD_IN_URL}|\?"
_HF_REPOSITORY: Final = re.compile(r"hf://(?:datasets|spaces|buckets)/[^/]+/[^/]+", re.IGNORECASE)

List: TypeAlias = Callable[[str], Sequence[Entry]]
"""``list_folder(url)``: what is in a folder, as `Fetcher.entries` returns it."""


class Named(NamedTuple):
    """A file that was named, or found.

    Attributes:
        url: Path or URL.
        nbytes: Its length, if a remote listing stated it; else None.
    """

    url: str
    nbytes: int | None = None


def is_pattern(url: str) -> bool:
    """Return whether a path or URL has wildcards: ``*``, ``[…]``, and ``?`` in a path.

    In a URL ``?`` begins the query; in an HTTP URL without a ``*``, brackets are literal.
    """
    if not ("*" in url or "[" in url or "?" in url):  # each of up to 100,000 names
        return False
    kind = urls.scheme(url)
    if kind in ("", "file"):
        # A file whose name happens to look like a pattern is itself.
        path = urls.local_path(url)
        return re.search(_WILD_IN_PATH, path) is not None and not os.path.lexists(path)
    wildcards = r"\*" if kind in ("http", "https") else _WILD_IN_URL
    return re.search(wildcards, urls.path_of(url)) is not None


def is_folder(url: str) -> bool:
    """Return whether a path or URL names a folder.

    A URL does if its path is empty or ends with a slash, or is that of a repository of ``hf:``.
    """
    if url.endswith((".tar", ".TAR")):  # each of up to 100,000 names
        return False
    kind = urls.scheme(url)
    if kind in ("", "file"):
        return os.path.isdir(urls.local_path(url))
    # With a query, a program on a server answers, and a slash means nothing.
    if kind == "pipe" or "?" in url:
        return False
    path = urls.path_of(url)
    return not path or path.endswith("/") or _HF_REPOSITORY.fullmatch(url) is not None


def matching(list_folder: List, pattern: str) -> list[Named]:
    """Return the files that a pattern names, sorted; a path component that exists is literal.

    ``**`` stands for any number of folders, also none. Names that begin with a dot match only
    patterns that do, and never ``**``.

    Raises:
        NotFoundError: There is none; the error lists what there is instead.
        FetchError: A folder cannot be listed.
    """
    if urls.is_local(pattern):
        pattern = urls.with_slashes(os.path.abspath(urls.local_path(pattern)))
    folder, parts, query = _split(pattern)
    list_once = cache(list_folder)
    found = sorted(set(_walk(list_once, folder, parts)))  # `**/**` finds a file in several ways
    if not found:
        raise _nothing_found(pattern, folder, list_once(folder), parts[0])
    return [Named(file.url + query, file.nbytes) for file in found]


def folder_of(url: str) -> str:
    """Return the URL, or for a local folder its absolute path, with a slash at its end."""
    if urls.is_local(url):
        return urls.with_slashes(os.path.join(os.path.abspath(urls.local_path(url)), ""))
    return url if url.endswith("/") else url + "/"


def files_in(entries: Sequence[Entry], folder: str, suffixes: tuple[str, ...]) -> list[Named]:
    """Return the files of a listed folder that have one of the suffixes, in any case, sorted."""
    return sorted(
        Named(folder + entry.name, entry.nbytes)
        for entry in entries
        if not entry.is_folder
        and entry.name.lower().endswith(suffixes)
        and not entry.name.startswith(".")
    )


def folders_in(entries: Sequence[Entry]) -> list[str]:
    """Return the names of the folders of a listed folder that are not hidden, sorted."""
    return sorted(e.name for e in entries if e.is_folder and not e.name.startswith("."))


def content_text(entries: Sequence[Entry]) -> str:
    """Describe what is in a folder: how many files of which kinds, and its folders."""
    kinds = Counter(
        os.path.splitext(entry.name)[1].lower() or "without extension"
        for entry in entries
        if not entry.is_folder
    )
    folders = folders_in(entries)
    texts = [f"{count:,} {kind}" for kind, count in kinds.most_common(_NUM_SHOWN)]
    if num_others := sum(count for _, count in kinds.most_common()[_NUM_SHOWN:]):
        texts.append(count_text(num_others, "other"))
    if folders:
        texts.append(f"{count_text(len(folders), 'folder')} ({first_of(folders)})")
    return ", ".join(texts) or "nothing"


def _split(pattern: str) -> tuple[str, list[str], str]:
    """Split a pattern into the folder before its first wildcard, the other parts, and the query."""
    if urls.is_local(pattern):
        start, path, query, wildcards = "", pattern, "", _WILD_IN_PATH
    else:
        (start, path, query), wildcards = urls.split(pattern), _WILD_IN_URL
    parts = path.split("/")
    first = next(n for n, part in enumerate(parts) if re.search(wildcards, part))
    return start + "/".join(parts[:first]) + "/", parts[first:], query


def _walk(list_folder: List, folder: str, parts: Sequence[str]) -> Iterator[Named]:
    """Yield the files below a folder whose names match the parts, each one level further down."""
    part, *rest = parts
    entries = list_folder(folder)
    if part == "**":
        yield from _walk(list_folder, folder, rest or ["*"])
        for name in folders_in(entries):
            if not _leads_back(folder, name):
                yield from _walk(list_folder, f"{folder}{name}/", parts)
        return
    found = [entry for entry in entries if entry.name == part] or [
        entry
        for entry in entries
        if fnmatchcase(entry.name, part) and entry.name.startswith(".") <= part.startswith(".")
    ]
    for entry in found:
        if rest and entry.is_folder:
            yield from _walk(list_folder, f"{folder}{entry.name}/", rest)
        elif not rest and not entry.is_folder:
            yield Named(folder + entry.name, entry.nbytes)


def _leads_back(folder: str, name: str) -> bool:
    """Return whether a folder is a symbolic link to the folder that has it, or to one above."""
    path = os.path.join(folder, name)
    if not urls.is_local(folder) or not os.path.islink(path):
        return False
    target, folder = os.path.realpath(path), os.path.realpath(folder)
    return target == folder or urls.is_within(folder, target)


def _nothing_found(pattern: str, folder: str, entries: Sequence[Entry], part: str) -> NotFoundError:
    from difflib import get_close_matches

    is_hidden = part.startswith(".")
    names = sorted(e.name for e in entries if e.name.startswith(".") <= is_hidden)
    near = sorted(get_close_matches(part, names, _NUM_SHOWN, 0.4)) or names[:_NUM_SHOWN]
    return NotFoundError(
        f"{urls.redact(pattern)}: expected files of this name, found none; {urls.redact(folder)} "
        f"has {content_text(entries)}"
        + (f"; the nearest names are {', '.join(near)}" if near else "")
    )
