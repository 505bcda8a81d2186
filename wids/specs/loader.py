"""JSON ↔ frozen `DatasetSpec` and `ShardSpec`; every form in which a caller may name shards.

A spec is resolved once: nested documents read, references made absolute, every number checked. The
readers below this room trust it. It opens no shard and edits none of its inputs. The format, what
is resolved against what, and who may name what, is written down in specs/shard-spec.md.
"""

from __future__ import annotations

import json
import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Final, TypeAlias

from wids.errors import FetchError, SpecError
from wids.files import publish
from wids.tars.names import KEY_SPLITS, KeySplit
from wids.transport import fetch, urls

VERSION: Final = 1
KIND: Final = "wids-shard-index-v1"
MAX_DOCUMENT_NBYTES: Final = 1 << 30
MAX_DEPTH: Final = 8
"""Most documents that may refer to one another in a row."""
MAX_DOCUMENTS: Final = 10_000
"""Most documents that one spec may be made of."""

_logger = logging.getLogger("wids")

_MAX_COUNT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard, as a spec describes it.

    Attributes:
        url: Absolute path or URL.
        num_samples: How many samples it has; None where nobody counted yet.
        nbytes: Length of the tar file in bytes; None where it is not stated.
        md5sum: MD5 digest of the tar file, in hexadecimal digits.
        sha256: SHA-256 digest of the tar file, in hexadecimal digits.
        dataset: Name of the dataset that it belongs to, where that is stated for it alone.
        key_split: Where its member names are split; None for the default.
        index: Absolute path or URL of a pack that has the index of this shard alone, or None.
        extras: What else the document says of it, unread and kept.
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

    def local_path(self) -> str:
        """Give the path of a local shard.

        Raises:
            FetchError: It is a remote one.
        """
        if self.url.startswith("/"):  # as nearly all are, and shards are opened often
            return self.url
        if not urls.is_local(self.url):
            raise FetchError(
                f"{urls.redact(self.url)}: expected a local shard, found a URL; download it and "
                "pass `base`"
            )
        return urls.local_path(self.url)

    def entry(self, folder: str | None = None) -> dict[str, Any]:
        """Give the shard as it stands in a JSON document that lies in ``folder``."""
        known = {
            "url": _named(self.url, folder),
            "nsamples": self.num_samples,
            "filesize": self.nbytes,
            "md5sum": self.md5sum,
            "sha256": self.sha256,
            "dataset": self.dataset,
            "key_split": self.key_split,
            "index": self.index and _named(self.index, folder),
        }
        return {**{k: v for k, v in known.items() if v is not None}, **self.extras}


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A dataset: its shards in order, and what its JSON document says of it.

    Attributes:
        shards: At least one shard.
        name: Name of the dataset, or ``""``.
        index: Absolute path or URL of the dataset's pack of shard indexes, or None.
        extras: What else the document says (``__kind__``, ``info``, …), unread and kept.
    """

    shards: tuple[ShardSpec, ...]
    name: str = ""
    index: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    def document(self, folder: str | None = None) -> dict[str, Any]:
        """Give the JSON document; what is inside ``folder`` is named relative to it."""
        known = {"name": self.name, "index": self.index and _named(self.index, folder)}
        return {
            "__kind__": KIND,
            "wids_version": VERSION,
            **{key: value for key, value in known.items() if value},
            **self.extras,
            "shardlist": [shard.entry(folder) for shard in self.shards],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON document, all at once: a reader sees the old file or the new one."""
        save_document(path, self.document(os.path.dirname(os.path.abspath(os.fspath(path)))))


def save_document(
    path: str | os.PathLike[str], document: Mapping[str, Any], mode: int = 0o666
) -> None:
    """Write a JSON document, all at once; names that are no UTF-8 are escaped."""
    try:
        data = json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        data = json.dumps(document, indent=1).encode("ascii")
    with publish.replacing(path, mode) as file:
        file.write(data + b"\n")


def _named(url: str, folder: str | None) -> str:
    return url if folder is None else urls.relative(url, folder)


Path: TypeAlias = "str | os.PathLike[str]"
Shards: TypeAlias = (
    "Path | IO[str] | IO[bytes] | Mapping[str, Any] | DatasetSpec"
    " | Iterable[Path | tuple[Path, int] | Mapping[str, Any] | ShardSpec]"
)
Read: TypeAlias = Callable[[str, int], bytes]


def load_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    read: Read = fetch.read,
) -> DatasetSpec:
    """Load a spec from any form in which a caller may name shards.

    Args:
        shards: Path or URL of a JSON document, an open file or a parsed document; one ``.tar``; a
            brace pattern (``train-{000000..000146}.tar``); or a list of paths, of ``(path, count)``
            pairs, of dicts such as stand in a document, or of paths to documents.
        base: Folder or URL that relative references start from, instead of what a document says and
            of the folder that it lies in.
        allow_pipe: Whether a document may name ``pipe:`` commands, which run on this machine. In
            other forms of ``shards`` they are the caller's own and always allowed.
        read: ``read(url, limit_nbytes)``, which gives the bytes of a document.

    Raises:
        SpecError: The document, or another form of ``shards``, is malformed or names what it may
            not name.
        FetchError: A document cannot be read.
    """
    if isinstance(shards, DatasetSpec):
        return shards
    loader = _Loader(read, allow_pipe)
    base = None if base is None else os.fspath(base)
    if isinstance(shards, Mapping):
        spec = loader.document(shards, _place("the document", os.getcwd(), base))
    elif hasattr(shards, "read"):
        spec = loader.file(shards, base)
    elif isinstance(shards, str | os.PathLike):
        text = os.fspath(shards)
        spec = loader.load(text, base) if _is_document(text) else loader.items([text], base)
    elif isinstance(shards, Iterable):
        spec = loader.items(shards, base)
    else:
        raise SpecError(
            f"shards: expected a path, URL, pattern, file, document or list, "
            f"found {type(shards).__name__}"
        )
    if not spec.shards:
        raise SpecError(
            f"{_name_of(shards)}: expected at least one shard, found an empty list; "
            "name shards under the key shardlist, or pass their paths"
        )
    return spec


@dataclass(frozen=True)
class _Place:
    """Where a document stands: how it is called, what may be said there, what it starts from.

    Attributes:
        name: How messages name the document.
        base: The folder that its references start from, unless it states another.
        is_based: Whether the base is the caller's, which what the document states cannot change.
        is_trusted: Whether it lies on this machine, and so may name files of this machine.
        mirror: A local folder of the caller's choice in which any document may name files.
        depth: How many datasets this one is inside of, inline or by reference.
        chain: URLs of the documents that led here, itself last.
    """

    name: str
    base: str
    is_based: bool = False
    is_trusted: bool = True
    mirror: str | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()


def _place(
    name: str,
    folder: str,
    base: str | None,
    *,
    is_trusted: bool = True,
    chain: tuple[str, ...] = (),
) -> _Place:
    """Give the place of a document that lies in ``folder``; the caller's base is another start."""
    if base is None:
        return _Place(name, folder, is_trusted=is_trusted, chain=chain)
    base = urls.join(os.getcwd(), base)
    mirror = urls.local_path(base) if urls.is_local(base) else None
    return _Place(name, base, is_based=True, is_trusted=is_trusted, mirror=mirror, chain=chain)


class _Loader:
    """The reading of one spec with all its nested documents."""

    def __init__(self, read: Read, allow_pipe: bool) -> None:
        self.read = read
        self.allow_pipe = allow_pipe
        self.num_documents = 0

    # The forms of `shards`.

    def items(self, items: Iterable[Any], base: str | None) -> DatasetSpec:
        """Take a caller's list; every item is the caller's own word, so all of it is trusted."""
        join = urls.joiner(urls.join(os.getcwd(), base or ""))
        shards: list[ShardSpec] = []
        for number, item in enumerate(items):
            where = f"shards[{number}]"
            match item:
                case ShardSpec():
                    shards.append(item)
                case str() | os.PathLike():
                    text = os.fspath(item)
                    if _is_document(text):
                        inner = self.load(join(text))
                        if isinstance(items, Sequence) and len(items) == 1:
                            return inner
                        shards += _named_shards(inner, None)
                    else:
                        shards += [ShardSpec(join(name)) for name in urls.expand(text)]
                case (str() | os.PathLike() as path, count):
                    (url, *more) = urls.expand(os.fspath(path))
                    if more:
                        raise SpecError(
                            f"{where}: expected one shard for the count {count!r}, found a pattern "
                            f"of {1 + len(more)}: {path}; give each shard its count"
                        )
                    shards.append(_shard({"url": url, "nsamples": count}, where, join))
                case Mapping():
                    shards.append(_shard(item, where, join))
                case _:
                    raise SpecError(
                        f"{where}: expected a path, a (path, count) pair or a dict, "
                        f"found {type(item).__name__} {item!r:.80}"
                    )
        return DatasetSpec(tuple(shards))

    def file(self, file: Any, base: str | None) -> DatasetSpec:
        """Take an open file; its name, where it has one on disk, is where references start."""
        name = getattr(file, "name", None)
        folder = os.getcwd()
        if isinstance(name, str) and os.path.exists(name):
            folder = os.path.dirname(os.path.abspath(name))
        place = _place(str(name or "the open file"), folder, base)
        text = file.read()
        return self.document(_parse(text, place.name), place)

    def load(self, url: str, base: str | None = None, chain: tuple[str, ...] = ()) -> DatasetSpec:
        """Read and resolve the document at a URL."""
        if urls.is_local(url):
            url = os.path.abspath(urls.local_path(url))
        name = urls.redact(url)
        if url in chain:
            raise SpecError(f"{name}: refers to itself, by way of {_trail(chain)}")
        if len(chain) >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} documents that refer to one another, found "
                f"more: {_trail(chain)}"
            )
        self.num_documents += 1
        if self.num_documents > MAX_DOCUMENTS:
            raise SpecError(f"{name}: expected at most {MAX_DOCUMENTS} documents, found more")
        is_trusted = urls.is_local(url)
        place = _place(name, urls.parent(url), base, is_trusted=is_trusted, chain=(*chain, url))
        return self.document(_parse(self.read(url, MAX_DOCUMENT_NBYTES), name), place)

    # A document and what stands in it.

    def document(self, document: Any, place: _Place) -> DatasetSpec:
        """Resolve a parsed document, or one of the inline datasets inside it."""
        document = _normal_form(document, place.name)
        version = document.get("wids_version", VERSION)
        if version != VERSION:
            raise SpecError(
                f"{place.name}: expected wids_version {VERSION}, found {version!r:.80}; "
                "a newer wids may read it"
            )
        base = _base(document, place)
        name = _text(document, "name", place.name) or ""
        key_split = _key_split(document, place.name)
        join = self.guard(urls.joiner(base), place)
        shards = [
            _shard(entry, f"{place.name}: shardlist[{number}]", join, key_split)
            for number, entry in enumerate(_list(document, "shardlist", place.name))
        ]
        for number, component in enumerate(_list(document, "datasets", place.name)):
            name_of_component = f"{place.name}: datasets[{number}]"
            if place.depth >= MAX_DEPTH:
                raise SpecError(
                    f"{name_of_component}: expected at most {MAX_DEPTH} datasets inside one "
                    "another, found more"
                )
            inner = replace(
                place, name=name_of_component, base=base, is_based=False, depth=place.depth + 1
            )
            shards += self.component(component, inner, join)
        index = _reference(document, "index", place.name)
        extras = {key: value for key, value in document.items() if key not in _DOCUMENT_KEYS}
        return DatasetSpec(tuple(shards), name, index and join(index), extras)

    def component(
        self,
        component: Any,
        place: _Place,
        join: Callable[[str], str],
    ) -> list[ShardSpec]:
        """Resolve one of a document's ``datasets``: a reference to a document, or one inline."""
        if not isinstance(component, Mapping):
            raise SpecError(f"{place.name}: expected an object, found {_kind(component)}")
        if component.get("weight", 1) != 1:
            _logger.warning(
                "%s: the weight %r is not used: an epoch has every sample once",
                place.name,
                component["weight"],
            )
        name = _text(component, "name", place.name)
        source = _reference(component, "source_url", place.name)
        if source is None:
            inner = self.document(component, place)
        else:
            inner = self.load(join(source), chain=place.chain)
        return _named_shards(inner, name, _key_split(component, place.name))

    def guard(self, join: Callable[[str], str], place: _Place) -> Callable[[str], str]:
        """Refuse references that a document may not make, for want of the caller's trust."""
        if place.is_trusted and self.allow_pipe:
            return join

        def guarded(reference: str) -> str:
            url = join(reference)
            if place.is_trusted and url.startswith("/"):  # as nearly all are
                return url
            if urls.scheme(url) == "pipe" and not self.allow_pipe:
                raise SpecError(
                    f"{place.name}: names the command {urls.redact(url)}; commands in a document "
                    "run only with allow_pipe=True"
                )
            _check_local(url, reference, place)
            return url

        return guarded


def _check_local(url: str, reference: str, place: _Place) -> None:
    """Refuse a file of this machine in a document from elsewhere."""
    if place.is_trusted or not urls.is_local(url):
        return
    if place.mirror is None or not urls.is_within(urls.local_path(url), place.mirror):
        raise SpecError(
            f"{place.name}: names {reference!r}, a file of this machine; a document from "
            "elsewhere may not, so download it first if you trust it, or pass `base`"
        )


def _is_document(url: str) -> bool:
    return urls.path_of(url).lower().endswith(".json")


def _parse(text: str | bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        head = text[:40] if isinstance(text, str) else text[:40].decode("latin-1")
        raise SpecError(
            f"{name}: expected a JSON document, found text that begins with {head!r} ({error})"
        ) from error


def _normal_form(document: Any, name: str) -> Mapping[str, Any]:
    """Give a document with a ``shardlist``, from the other forms that are found in the wild."""
    if not isinstance(document, Mapping):
        raise SpecError(
            f"{name}: expected a JSON object with a shardlist, found {_kind(document)}; "
            "a plain count or list of names can be passed as [(path, count), …]"
        )
    if "shardlist" in document or "datasets" in document:
        return document
    if "files" in document:  # before there was a wids_version
        return {
            **{k: v for k, v in document.items() if k != "files"},
            "shardlist": document["files"],
        }
    if "url" in document:  # a sidecar that describes a single shard
        return {"shardlist": [document]}
    counted = [isinstance(v, Mapping) and "num_samples" in v for v in document.values()]
    if counted and all(counted):  # a map from path to description
        return {"shardlist": [{"url": path, **about} for path, about in document.items()]}
    raise SpecError(
        f"{name}: expected the key shardlist or datasets, found "
        f"{', '.join(sorted(map(str, document))) or 'nothing'}"
    )


_DOCUMENT_KEYS = frozenset(
    (
        *("wids_version", "name", "base", "base_path"),
        *("shardlist", "datasets", "key_split", "index"),
    )
)
_SHARD_KEYS = frozenset(
    (
        "url",
        "nsamples",
        "num_samples",
        "filesize",
        "size",
        "md5sum",
        "sha256",
        "dataset",
        "key_split",
        "index",
    )
)


def _shard(
    entry: Any,
    where: str,
    join: Callable[[str], str],
    key_split: KeySplit | None = None,
) -> ShardSpec:
    """Check one entry of a shardlist."""
    # Plain types first: there are up to 100,000 entries, and to ask an ABC takes a microsecond.
    if isinstance(entry, str):
        entry = {"url": entry}
    elif type(entry) is not dict and not isinstance(entry, Mapping):
        raise SpecError(f"{where}: expected an object with a url, found {_kind(entry)}")
    url = entry.get("url")
    if type(url) is not str and isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str) or not url:
        raise SpecError(f"{where}.url: expected a path or URL, found {_kind(url)}")
    if not url.isascii() or "\0" in url:
        _check_text(url, f"{where}.url")
    index = _reference(entry, "index", where) if "index" in entry else None
    return ShardSpec(
        join(url),
        _count(entry, "nsamples" if "nsamples" in entry else "num_samples", where),
        _count(entry, "filesize" if "filesize" in entry else "size", where),
        _text(entry, "md5sum", where),
        _text(entry, "sha256", where),
        _text(entry, "dataset", where),
        _key_split(entry, where) or key_split,
        index and join(index),
        {k: v for k, v in entry.items() if k not in _SHARD_KEYS}
        if not _SHARD_KEYS.issuperset(entry)
        else {},
    )


def _named_shards(
    spec: DatasetSpec, name: str | None, key_split: KeySplit | None = None
) -> list[ShardSpec]:
    """Give the shards of a dataset that becomes a part of another one."""
    name = name or spec.name or None
    # dataclasses.replace looks every field up by name: five times slower, for 100,000 shards.
    return [
        ShardSpec(
            shard.url,
            shard.num_samples,
            shard.nbytes,
            shard.md5sum,
            shard.sha256,
            shard.dataset or name,
            shard.key_split or key_split,
            shard.index,
            shard.extras,
        )
        for shard in spec.shards
    ]


def _count(entry: Mapping[str, Any], key: str, where: str) -> int | None:
    value = entry.get(key)
    if value is None or (type(value) is int and 0 <= value <= _MAX_COUNT):
        return value
    try:  # numpy's integers, from a caller's list
        if not isinstance(value, bool) and 0 <= operator.index(value) <= _MAX_COUNT:
            return operator.index(value)
    except TypeError:
        pass
    raise SpecError(
        f"{where}.{key}: expected a whole number from 0 to 2**63 - 1, found {value!r:.80}"
    )


def _text(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    raise SpecError(f"{where}.{key}: expected text, found {_kind(value)}")


def _reference(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = _text(entry, key, where)
    if value is not None:
        _check_text(value, f"{where}.{key}")
    return value


def _check_text(text: str, where: str) -> None:
    """Refuse what can be neither a path nor a URL."""
    try:
        is_text = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_text = False
    if not is_text:
        raise SpecError(f"{where}: expected a path or URL, found {text!r:.80}")


def _key_split(entry: Mapping[str, Any], where: str) -> KeySplit | None:
    value = entry.get("key_split")
    if value is None or value in KEY_SPLITS:
        return value
    raise SpecError(f'{where}.key_split: expected "first" or "last", found {value!r:.80}')


def _list(document: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise SpecError(f"{where}.{key}: expected a list, found {_kind(value)}")
    return list(value)


def _base(document: Mapping[str, Any], place: _Place) -> str:
    stated = _reference(document, "base", place.name)
    stated = stated or _reference(document, "base_path", place.name)
    if place.is_based or not stated:
        return place.base
    base = urls.join(place.base, stated)
    _check_local(urls.join(base, "x"), stated, place)
    return base


def _kind(value: Any) -> str:
    """Name a JSON value for a message."""
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.80}"


def _trail(chain: tuple[str, ...]) -> str:
    return " → ".join(map(urls.redact, chain))


def _name_of(shards: Shards) -> str:
    if isinstance(shards, str | os.PathLike):
        return urls.redact(os.fspath(shards))
    return str(getattr(shards, "name", None) or "shards")
