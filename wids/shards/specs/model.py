"""Describe a dataset by frozen `ShardSpec` and `DatasetSpec` objects, and write them as JSON.

`loader` reads and checks documents; the rest of the library trusts what it built. The format is
specified in specs/shard-spec.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from wids.errors import FetchError, SpecError, printable, without_quoted_secrets
from wids.shards.tars.headers import KeySplit
from wids.storage.sizes import count_text, first_of
from wids.storage.transport import urls

VERSION: Final = 1
KIND: Final = "wids-shard-index-v1"

COUNTS_FROM: Final = "counts_from"
"""Key of an entry for the file of another program that states its number of samples (SPEC-50)."""

ENERGON: Final = ".nv-meta"
"""The folder of Energon, which is in the root of a dataset."""
INFO: Final = f"{ENERGON}/.info.json"


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard, as a spec describes it.

    Attributes:
        url: Absolute path or URL.
        num_samples: Number of samples; None if they have not been counted.
        nbytes: Length of the tar file in bytes; None if it is not stated.
        md5sum: MD5 digest of the tar file in hexadecimal digits, or None.
        sha256: SHA-256 digest of the tar file in hexadecimal digits, or None.
        dataset: Name of the dataset that the shard belongs to, or None for the name of the spec.
        key_split: The dot at which member names are split, ``"first"`` or ``"last"``; None for the
            default.
        index: Absolute path or URL of a dataset index with the index of this shard alone, or None.
        extras: Everything else in the shard's entry, preserved but not interpreted.

    Example:
        >>> import wids
        >>> shard = wids.ShardSpec("/data/train-000000.tar", num_samples=1000)
        >>> shard.entry("/data")
        {'url': 'train-000000.tar', 'nsamples': 1000}
    """

    url: str
    num_samples: int | None = None
    nbytes: int | None = None
    md5sum: str | None = None
    sha256: str | None = None
    dataset: str | None = None
    key_split: KeySplit | None = None
    index: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return its values; URLs are without user, password and query."""
        return _shown(self)

    def local_path(self) -> str:
        """Return the path of a local shard.

        Raises:
            FetchError: The shard is remote.
        """
        if self.url.startswith("/"):  # nearly every local URL, and shards are opened often
            return self.url
        if not urls.is_local(self.url):
            raise FetchError(
                f"{urls.redact(self.url)}: expected a local shard, found a URL; download it and "
                "pass `base`"
            )
        return urls.local_path(self.url)

    def entry(self, folder: str | None = None) -> dict[str, Any]:
        """Return the shard's entry in a JSON document that is in ``folder``."""
        entries = {
            "url": _relative(self.url, folder),
            "nsamples": self.num_samples,
            "filesize": self.nbytes,
            "md5sum": self.md5sum,
            "sha256": self.sha256,
            "dataset": self.dataset,
            "key_split": self.key_split,
            "index": self.index and _relative(self.index, folder),
        }
        return {**{k: v for k, v in entries.items() if v is not None}, **self.extras}


def _shown(part: ShardSpec | SavedTable | IndexedShards) -> str:
    """Return the repr of a value, with its URLs as messages show them (SEC-4)."""
    values = [(name, getattr(part, name)) for name in part.__match_args__]
    shown = (
        f"{name}={urls.redact(value)!r}"
        if isinstance(value, str)
        else f"{name}={without_quoted_secrets(repr(value))}"
        for name, value in values
    )
    return f"{type(part).__name__}({', '.join(shown)})"


class SavedTable(NamedTuple):
    """A table of columns that was saved beside a spec.

    Attributes:
        url: Absolute path or URL of the Parquet file.
        fingerprint: The fingerprint of the shards that it was made from.
        nbytes: Length in bytes of the file that the checksums belong to, or None.
        checksums: The CRC-32 of its footer, and one for each column; empty if unknown.
    """

    url: str
    fingerprint: str
    nbytes: int | None = None
    checksums: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Return its values; the URL is without user, password and query."""
        return _shown(self)

    def entry(self, folder: str | None = None) -> dict[str, Any]:
        """Return the table's entry in a JSON document that is in ``folder``."""
        known = {
            "url": _relative(self.url, folder),
            "fingerprint": self.fingerprint,
            "filesize": self.nbytes,
            "crc32": list(self.checksums),
        }
        return {key: value for key, value in known.items() if value}


class IndexedShards(NamedTuple):
    """Consecutive shards of a dataset that are the first shards of one dataset index.

    Attributes:
        url: Absolute path or URL of the dataset index.
        start: Number of the first of these shards in the dataset.
        stop: Number of the shard after the last of them.
    """

    url: str
    start: int
    stop: int

    def __repr__(self) -> str:
        """Return its values; the URL is without user, password and query."""
        return _shown(self)


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A dataset: its shards in order, and what its JSON document says about it.

    Attributes:
        shards: The shards, at least one if the spec was loaded. If so, they are in columns: a
            sequence that makes its items when they are asked for.
        name: Name of the dataset, or ``""``.
        index: Absolute path or URL of the dataset index, or None.
        extras: Everything else in the document (``__kind__``, ``info``, …), preserved but not
            interpreted.
        origin: Server that the first remote document came from (``https://host``), or ``""``.
            Options for servers that are passed without a URL prefix go to no other.
        weights: Weights of named datasets in a mix, if any are stated.
        table: The table that `load_table` reads, or None.
        dataset_indexes: If it has no dataset index itself, those of the datasets that it consists
            of, in the order of their shards.

    Example:
        >>> import wids
        >>> shards = (wids.ShardSpec("/data/train-000000.tar", 1000),)
        >>> spec = wids.DatasetSpec(shards, name="train")
        >>> spec.document("/data")["shardlist"]
        [{'url': 'train-000000.tar', 'nsamples': 1000}]
    """

    shards: Sequence[ShardSpec]
    name: str = ""
    index: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="", compare=False, repr=False)
    weights: Mapping[str, float] = field(default_factory=dict)
    table: SavedTable | None = None
    dataset_indexes: tuple[IndexedShards, ...] = ()
    _classes: list[str] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def classes(self) -> list[str]:
        """Names of the classes whose numbers are in the fields ``.cls``; empty if none are stated.

        It is the same list each time: copy it to change it.

        Example:
            >>> import wids
            >>> wids.DatasetSpec((), extras={"classes": ["cat", "dog"]}).classes
            ['cat', 'dog']
        """
        classes = self._classes
        if classes is None:
            names = self.extras.get("classes")
            classes = list(map(str, names)) if isinstance(names, list | tuple) else []
            object.__setattr__(self, "_classes", classes)
        return classes

    def __repr__(self) -> str:
        """Return its name and only the first and last of its shards, since there may be many."""
        ends = self.shards[:: max(1, len(self.shards) - 1)]
        shown = [repr(urls.redact(shard.url)) for shard in ends]
        shards = count_text(len(self.shards), "shard")
        return printable(f"<DatasetSpec {self.name!r}: {shards}, {' to '.join(shown)}>")

    def all_dataset_indexes(self, start: int = 0) -> tuple[IndexedShards, ...]:
        """Return the shards of the dataset index, or of those of parts, if there are any.

        Args:
            start: The number of its first shard in the dataset that it becomes a part of.
        """
        if self.index is not None:
            return (IndexedShards(self.index, start, start + len(self.shards)),)
        return tuple(
            IndexedShards(part.url, start + part.start, start + part.stop)
            for part in self.dataset_indexes
        )

    def without_counts(self) -> DatasetSpec:
        """Return the same spec with the number of samples of every shard unknown.

        For published specs whose counts are wrong, such as those that count files. A dataset made
        from the result counts the samples itself, by the indexes of the shards; if a shard has
        none, it opens or fetches the shard. `wids create` writes a spec with correct counts.

        Example:
            >>> import wids
            >>> spec = wids.load_spec([("/data/train-000000.tar", 999)])
            >>> spec.without_counts().shards[0].num_samples is None
            True
        """
        return replace(
            self, shards=tuple(replace(shard, num_samples=None) for shard in self.shards)
        )

    def document(self, folder: str | None = None) -> dict[str, Any]:
        """Return the JSON document; files inside ``folder`` are named relative to it."""
        document = self.lazy_document(folder)
        if "shardlist" in document:
            document["shardlist"] = list(document["shardlist"])
        return document

    def lazy_document(self, folder: str | None) -> dict[str, Any]:
        """Return the same document, for `save_document`: its shardlist makes entries on demand."""
        index = self.index and _relative(self.index, folder)
        table = self.table and self.table.entry(folder)
        known = {"name": self.name, "index": index, "table": table, "weights": dict(self.weights)}
        return {
            "__kind__": KIND,
            "wids_version": VERSION,
            **{key: value for key, value in known.items() if value},
            **self.extras,
            **self._shard_entries(folder),
        }

    def _shard_entries(self, folder: str | None) -> dict[str, Any]:
        """Return the shards as one list, or as datasets with a dataset index each."""
        from wids.storage.arrays import LazySequence

        lazy = LazySequence(partial(ShardSpec.entry, folder=folder), self.shards)
        if self.index is not None or not self.dataset_indexes:
            return {"shardlist": lazy}
        entries = list(lazy)
        parts: list[dict[str, Any]] = []
        start = 0
        for part in self.dataset_indexes:
            if start < part.start:
                parts.append({"shardlist": entries[start : part.start]})
            own = entries[part.start : part.stop]
            parts.append({"index": _relative(part.url, folder), "shardlist": own})
            start = part.stop
        rest = entries[start:]
        return {"datasets": [*parts, {"shardlist": rest}] if rest else parts}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the JSON document atomically: a reader sees the old file or the new one.

        A file that is replaced keeps its permissions. A new one can be read by its owner alone if
        URLs in it have a user or a query.

        Args:
            path: Path, or URL in an object store, or of a scheme that fsspec can write.
            storage_options: As for `ShardListDataset`.

        Raises:
            ValueError: The URL cannot be written, or the spec names local files.
            UploadError: The upload failed.
        """
        from wids.shards.specs.saved_document import private_mode, save_document
        from wids.storage import upload

        target = upload.absolute(path)
        document = self.lazy_document(urls.parent(target))
        check_references(
            target, map(attrgetter("url"), chain(self.shards, self.all_dataset_indexes()))
        )
        mode = private_mode(map(attrgetter("url"), chain(self.shards, self.all_dataset_indexes())))
        save_document(target, document, mode, storage_options=storage_options)


_MAX_DIGESTED: Final = 4096
"""Shards in the digests of a dataset; more are taken evenly spaced."""


def digests_of(spec: DatasetSpec) -> dict[str, str]:
    """Return name and number of shards of a dataset, and a digest of each fact of all shards.

    Names of shards are without their folders, so that a copy elsewhere has the same digests.
    """
    numbers = range(0, len(spec.shards), -(-len(spec.shards) // _MAX_DIGESTED) or 1)
    shards = [spec.shards[number] for number in numbers]
    facts: dict[str, list[Any]] = {
        "names": [os.path.basename(urls.path_of(shard.url)) for shard in shards],
        "filesize": [shard.nbytes for shard in shards],
        "md5sum": [shard.md5sum for shard in shards],
        "sha256": [shard.sha256 for shard in shards],
    }
    found = {"num_shards": str(len(spec.shards)), **({"name": spec.name} if spec.name else {})}
    for fact, values in facts.items():
        if None not in values:
            found[fact] = hashlib.sha256(json.dumps(values).encode("ascii")).hexdigest()[:16]
    return found


def check_references(target: str, references: Iterable[str]) -> None:
    """Raise ValueError if a remote document would name local files, which no reader would open."""
    if urls.is_local(target):
        return
    for url in references:
        if urls.is_local(url):
            raise ValueError(
                f"{urls.redact(target)}: expected remote shards and dataset index, found {url}, "
                "which readers of a remote spec do not have; upload the shards first, or state "
                "where they will be with `--base`"
            )


def _relative(url: str, folder: str | None) -> str:
    return url if folder is None else urls.relative(url, folder)


def common_classes(lists: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the names of the classes of several datasets: the longest of their lists.

    Args:
        lists: The name of each dataset and its list; an empty list states nothing.

    Raises:
        SpecError: Two of them have different names for one number (SPEC-62).
    """
    of_longest, longest = "", list[str]()
    for name, names in lists:
        for number, both in enumerate(zip(longest, names, strict=False)):
            if both[0] != both[1]:
                raise SpecError(
                    printable(
                        f"{name}: expected the classes of {of_longest}, {_classes_text(longest)}, "
                        f"found {_classes_text(names)}: number {number} is {both[0]!r} there and "
                        f"{both[1]!r} here; pack again with one list, `wids pack --classes`, or "
                        'state "classes": [] in one spec where the numbers are not used together'
                    )
                )
        if len(names) > len(longest):
            of_longest, longest = name, list(names)
    return longest


def _classes_text(names: Sequence[str]) -> str:
    return f"{len(names):,} ({first_of(names)})"


_COLUMNS: Final = frozenset(("cls", "class", "label", "category"))
_MAX_DIGITS: Final = 9


def is_of_classes(column: str) -> bool:
    """Return whether a field, or a column of a table, has numbers of classes, by its name."""
    return column.rpartition(".")[2].lower().lstrip("_") in _COLUMNS


def class_name(column: str, number: str, names: Sequence[str]) -> str:
    """Return the name of a class if a column is of classes and its number has a name; else ``""``.

    Args:
        column: The name of the field or column.
        number: The value, as text.
        names: Names of classes, by their numbers.
    """
    is_known = number.isdecimal() and len(number) <= _MAX_DIGITS and is_of_classes(column)
    return names[int(number)] if is_known and int(number) < len(names) else ""
