"""Check the entries of a document, and decide by its origin what they may refer to.

Functions take a ``label``, such as ``train.json: shardlist[3]``, with which their errors begin. The
rules of origins are in specs/shard-spec.md (SPEC-6, SPEC-11 to SPEC-13).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from wids.errors import SpecError
from wids.shards.specs.model import SavedTable, ShardSpec
from wids.shards.tars.headers import KEY_SPLITS, KeySplit
from wids.storage.transport import urls

# Counts become 64-bit numpy integers.
_MAX_COUNT: Final = (1 << 63) - 1

_SHARD_KEYS: Final = frozenset(
    (
        *("url", "nsamples", "num_samples", "filesize", "size", "md5sum", "sha256"),
        *("dataset", "key_split", "index"),
    )
)


def normal_form(document: Any, name: str) -> Mapping[str, Any]:
    """Return a document in any of the known forms as one with a ``shardlist`` or ``datasets``."""
    if not isinstance(document, Mapping):
        raise SpecError(
            f"{name}: expected a JSON object with a shardlist, found {kind_of(document)}; "
            "pass a plain list of names or counts as [(path, count), …]"
        )
    if "shardlist" in document or "datasets" in document:
        return document
    if "files" in document:  # documents older than wids_version
        return {
            **{k: v for k, v in document.items() if k != "files"},
            "shardlist": document["files"],
        }
    if "url" in document:  # the sidecar of a single shard
        return {"shardlist": [document]}
    counted = [isinstance(v, Mapping) and "num_samples" in v for v in document.values()]
    if counted and all(counted):  # paths, each with an object that describes it
        return {"shardlist": [{"url": path, **entry} for path, entry in document.items()]}
    from wids.shards.foreign.foreign_counts import as_spec  # few documents are of other programs

    foreign = as_spec(document, name)
    if foreign is not None:
        return foreign
    raise SpecError(
        f"{name}: expected the key shardlist or datasets, found "
        f"{', '.join(sorted(map(str, document))) or 'nothing':.200}"
    )


def shard_of(
    entry: Any, label: str, join: Callable[[str], str], key_split: KeySplit | None = None
) -> ShardSpec:
    """Return the shard that one entry of a shardlist describes.

    Args:
        entry: An object with a ``url``, or the URL alone.
        label: The entry's place in the document.
        join: Resolves a reference.
        key_split: The rule of the document, for entries without one.
    """
    # Plain types first: isinstance() with an ABC takes a microsecond, for up to 100,000 entries.
    if isinstance(entry, str):
        entry = {"url": entry}
    elif type(entry) is not dict and not isinstance(entry, Mapping):
        raise SpecError(f"{label}: expected an object with a url, found {kind_of(entry)}")
    url = entry.get("url")
    if type(url) is not str or not url or not url.isascii() or "\0" in url:
        url = _checked_url(url, label)
    nsamples = entry.get("nsamples", entry.get("num_samples"))
    filesize = entry.get("filesize", entry.get("size"))
    # The usual values are checked inline, and only others by a call.
    if type(nsamples) is not int or not 0 <= nsamples <= _MAX_COUNT:
        nsamples = _count(nsamples, "nsamples" if "nsamples" in entry else "num_samples", label)
    if type(filesize) is not int or not 0 <= filesize <= _MAX_COUNT:
        filesize = _count(filesize, "filesize" if "filesize" in entry else "size", label)
    index = reference(entry, "index", label) if "index" in entry else None
    return ShardSpec(
        join(url),
        nsamples,
        filesize,
        text(entry, "md5sum", label) if "md5sum" in entry else None,
        text(entry, "sha256", label) if "sha256" in entry else None,
        text(entry, "dataset", label) if "dataset" in entry else None,
        key_split_of(entry, label) or key_split if "key_split" in entry else key_split,
        index and join(index),
        {k: v for k, v in entry.items() if k not in _SHARD_KEYS}
        if not _SHARD_KEYS.issuperset(entry)
        else {},
    )


def reference(entry: Mapping[str, Any], key: str, label: str) -> str | None:
    """Return a path or URL as written in the document, or None if it is missing."""
    value = text(entry, key, label)
    if value is not None:
        _check_nameable(value, f"{label}.{key}")
    return value


def table_of(
    document: Mapping[str, Any], label: str, join: Callable[[str], str]
) -> SavedTable | None:
    """Return the saved table that a document names, or None."""
    entry = document.get("table")
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise SpecError(f"{label}.table: expected an object with a url, found {kind_of(entry)}")
    label = f"{label}.table"
    url = reference(entry, "url", label)
    fingerprint = text(entry, "fingerprint", label)
    if not url or not fingerprint:
        raise SpecError(
            f"{label}: expected a url and a fingerprint, found {', '.join(map(str, entry)):.80}; "
            "`wids table` writes both"
        )
    checksums = list_of(entry, "crc32", label)
    for value in checksums:
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise SpecError(f"{label}.crc32: expected CRC-32s, found {value!r:.80}")
    nbytes = _count(entry.get("filesize"), "filesize", label)
    return SavedTable(join(url), fingerprint, nbytes, tuple(checksums))


def text(entry: Mapping[str, Any], key: str, label: str) -> str | None:
    """Return a text, or None if it is missing."""
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    raise SpecError(f"{label}.{key}: expected text, found {kind_of(value)}")


def key_split_of(entry: Mapping[str, Any], label: str) -> KeySplit | None:
    """Return the ``key_split``, or None if it is missing."""
    value = entry.get("key_split")
    if value is None or value in KEY_SPLITS:
        return value
    raise SpecError(f'{label}.key_split: expected "first" or "last", found {value!r:.80}')


def list_of(document: Mapping[str, Any], key: str, label: str) -> list[Any]:
    """Return a list, empty if it is missing."""
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise SpecError(f"{label}.{key}: expected a list, found {kind_of(value)}")
    return list(value)


def kind_of(value: Any) -> str:
    """Return the type and text of a JSON value for a message."""
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.80}"


def _checked_url(value: Any, label: str) -> str:
    url = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(url, str) or not url:
        raise SpecError(f"{label}.url: expected a path or URL, found {kind_of(url)}")
    _check_nameable(url, f"{label}.url")
    return url


def _check_nameable(value: str, label: str) -> None:
    """Reject text that cannot be the name of a file, such as text with a lone surrogate."""
    try:
        is_nameable = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_nameable = False
    if not is_nameable:
        raise SpecError(f"{label}: expected a path or URL, found {value!r:.80}")


def _count(value: Any, key: str, label: str) -> int | None:
    if value is None:
        return None
    # True and False are ints in Python, but not counts.
    try:  # a numpy integer, from a caller's list
        if not isinstance(value, bool) and 0 <= operator.index(value) <= _MAX_COUNT:
            return operator.index(value)
    except TypeError:
        pass
    raise SpecError(
        f"{label}.{key}: expected a whole number from 0 to 2**63 - 1, found {value!r:.80}"
    )


MAX_DEPTH: Final = 8
"""Most documents in a chain of references, and most levels of nested inline datasets."""


class Context(NamedTuple):
    """What a document's references start from, and what the document may name.

    Attributes:
        name: The document in messages.
        base: The folder that its references start from.
        is_based: Whether the base is the caller's, which the document cannot change.
        is_trusted: Whether the document is a local file, and so may name local files.
        mirror: The caller's local folder in which any document may name files.
        depth: Number of inline datasets around this one.
        chain: URLs of the documents that led here, with its own last.
        allow_pipe: Whether it may name commands.
    """

    name: str
    base: str
    is_based: bool = False
    is_trusted: bool = True
    mirror: str | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    allow_pipe: bool = False

    @classmethod
    def at(cls, name: str, folder: str, base: str | None, *, allow_pipe: bool) -> Context:
        """Return the context of a document in ``folder``, or at the caller's base if given."""
        if base is None:
            return cls(name, folder, allow_pipe=allow_pipe)
        base = urls.join(os.getcwd(), base)
        mirror = urls.local_path(base) if urls.is_local(base) else None
        return cls(name, base, is_based=True, mirror=mirror, allow_pipe=allow_pipe)

    def of(self, document: Mapping[str, Any]) -> Context:
        """Return the same context with the base that the document states.

        Raises:
            SpecError: The document must not name the folder.
        """
        base_reference = reference(document, "base", self.name)
        base_reference = base_reference or reference(document, "base_path", self.name)
        if self.is_based or not base_reference:
            return self
        base = urls.join(self.base, base_reference)
        self._check_local(urls.join(base, "x"), base_reference)
        return self._replace(base=base)

    def inside(self, number: int) -> Context:
        """Return the context of a dataset inside this one."""
        name = f"{self.name}: datasets[{number}]"
        if self.depth >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} datasets inside one another, found more"
            )
        # The caller's base replaces that of the outermost document only (SPEC-6).
        return self._replace(name=name, is_based=False, depth=self.depth + 1)

    @property
    def join(self) -> Callable[[str], str]:
        """Resolves a reference to an absolute path or URL, or raises `SpecError`."""
        return urls.joiner(self.base, self._check)

    def _check(self, url: str, name: str) -> None:
        """Reject what a document may not name (SPEC-12, SPEC-13)."""
        if urls.scheme(url) == "pipe" and not self.allow_pipe:
            raise SpecError(
                f"{self.name}: names the command {urls.redact(url)}; commands in a document "
                "run only with allow_pipe=True"
            )
        self._check_local(url, name)

    def _check_local(self, url: str, name: str) -> None:
        """Reject a local file in a remote document, unless it is in the caller's mirror."""
        if self.is_trusted or not urls.is_local(url):
            return
        if self.mirror is None or not urls.is_within(urls.local_path(url), self.mirror):
            raise SpecError(
                f"{self.name}: names {urls.redact(name)!r}, a local file; a remote document must "
                "not do that: if you trust it, download it first or pass `base`"
            )

    def __getstate__(self) -> dict[str, Any]:  # without the function
        return {key: value for key, value in vars(self).items() if key != "join"}
