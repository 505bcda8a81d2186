"""Any form in which a caller may name shards → a frozen `DatasetSpec`.

A spec is resolved once: nested documents are read, references are made absolute and every value is
checked, so that the rest of the library can trust it. Nothing here opens a shard or edits its
input. The format, the base of each reference, and which document may name which files are specified
in specs/shard-spec.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Final, TypeAlias

from wids.errors import SpecError
from wids.specs.braces import expand
from wids.specs.entries import key_split_of, kind_of, list_of, reference, shard_of, text
from wids.specs.model import VERSION, DatasetSpec, ShardSpec
from wids.specs.parsing import MAX_DOCUMENT_NBYTES, MAX_VALUES, num_values, parse
from wids.tars.names import KeySplit
from wids.transport import urls
from wids.transport.fetch import Fetcher

MAX_DEPTH: Final = 8
"""Most documents in a chain of references, and most inline datasets inside one another."""
MAX_DOCUMENTS: Final = 10_000
"""Most documents that one spec may consist of."""

_DOCUMENT_KEYS: Final = frozenset(
    (
        *("wids_version", "name", "base", "base_path"),
        *("shardlist", "datasets", "key_split", "index"),
    )
)

_logger = logging.getLogger("wids")

Path: TypeAlias = "str | os.PathLike[str]"
Shards: TypeAlias = (
    "Path | IO[str] | IO[bytes] | Mapping[str, Any] | DatasetSpec"
    " | Iterable[Path | tuple[Path, int] | Mapping[str, Any] | ShardSpec]"
)
Read: TypeAlias = Callable[[str, int], bytes]
"""``read(url, limit_nbytes)``: the bytes of a document."""
Join: TypeAlias = Callable[[str], str]
"""Resolves a reference to an absolute path or URL, or raises `SpecError`."""


def load_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    read: Read | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Load a spec from any form in which a caller may name shards.

    Args:
        shards: Path or URL of a JSON document, an open file or a parsed document; one ``.tar``; a
            brace pattern (``train-{000000..000146}.tar``); or a list of paths, of ``(path, count)``
            pairs, of entries as in a document, or of paths to documents.
        base: Folder or URL that relative references start from. It replaces the base that a
            document states and the folder that it is in.
        allow_pipe: Whether a document may name ``pipe:`` commands, which run on this machine. In
            other forms of ``shards`` they are the caller's own and always allowed.
        read: ``read(url, limit_nbytes)``, which returns the bytes of a document, in place of the
            transports of wids.
        storage_options: As for `ShardListDataset`.

    Returns:
        The spec, with absolute paths and URLs. No shard has been opened.

    Raises:
        SpecError: The document, or another form of ``shards``, is malformed or names a file that it
            must not name.
        FetchError: A document cannot be read.

    Example:
        >>> import wids
        >>> spec = wids.load_spec("train-{000000..000146}.tar", base="/data")
        >>> len(spec.shards), spec.shards[0].url
        (147, '/data/train-000000.tar')
        >>> document = {"name": "val", "shardlist": [{"url": "val.tar", "nsamples": 50}]}
        >>> wids.load_spec(document, base="https://example.com").shards[0].url
        'https://example.com/val.tar'
    """
    return load_with(Fetcher(storage_options), shards, base, allow_pipe=allow_pipe, read=read)


def load_with(
    fetcher: Fetcher,
    shards: Shards,
    base: str | os.PathLike[str] | None,
    *,
    allow_pipe: bool,
    read: Read | None = None,
) -> DatasetSpec:
    """Load a spec as `load_spec` does, with the fetcher that will read its shards.

    Afterwards the fetcher sends options without a URL prefix only to the server that the first
    document came from, even if the document was read earlier, by another fetcher (SEC-9).
    """
    if isinstance(shards, DatasetSpec):
        if shards.origin:
            fetcher.bind_options(shards.origin)
        return shards
    loader = _Loader(read or fetcher.read, allow_pipe)
    try:
        spec = loader.load(shards, None if base is None else os.fspath(base))
    except RecursionError as error:  # a value that is nested deeply, where a message shows it
        raise SpecError(f"{_name_of(shards)}: the values are nested too deeply") from error
    if not spec.shards:
        raise SpecError(
            f"{_name_of(shards)}: expected at least one shard, found an empty list; "
            "name shards under the key shardlist, or pass their paths"
        )
    return replace(spec, origin=loader.origin) if loader.origin else spec


class _Loader:
    """Reads one spec with all its nested documents."""

    def __init__(self, read: Read, allow_pipe: bool) -> None:
        self.read = read
        self.allow_pipe = allow_pipe
        self.origin = ""
        self.num_documents = 0
        self.num_values = 0

    def load(self, shards: Any, base: str | None) -> DatasetSpec:
        """Load ``shards`` by its form."""
        if isinstance(shards, Mapping):
            return self.document(shards, _Context.at("the document", os.getcwd(), base))
        if hasattr(shards, "read"):
            return self.file(shards, base)
        if isinstance(shards, str | os.PathLike):
            url = os.fspath(shards)
            return self.url(url, base) if _is_document(url) else self.items([url], base)
        if isinstance(shards, Iterable):
            return self.items(shards, base)
        raise SpecError(
            f"shards: expected a path, URL, pattern, file, document or list, "
            f"found {type(shards).__name__}"
        )

    def items(self, items: Iterable[Any], base: str | None) -> DatasetSpec:
        """Load a caller's list, which may name any file and any command."""
        join = urls.joiner(urls.join(os.getcwd(), base or ""))
        match items:
            case [str() | os.PathLike() as path] if _is_document(os.fspath(path)):
                # With its name and its pack, which a part of a longer list loses.
                return self.url(join(os.fspath(path)))
        shards: list[ShardSpec] = []
        for number, item in enumerate(items):
            shards += self.item(item, f"shards[{number}]", join)
        return DatasetSpec(tuple(shards))

    def item(self, item: Any, label: str, join: Join) -> Sequence[ShardSpec]:
        """Return the shards that one item of a caller's list names."""
        match item:
            case ShardSpec():
                return (item,)
            case str() | os.PathLike():
                url = os.fspath(item)
                if _is_document(url):
                    return _as_component(self.url(join(url)), None)
                return [ShardSpec(join(name)) for name in expand(url)]
            case (str() | os.PathLike() as path, count):
                (url, *more) = expand(os.fspath(path))
                if more:
                    raise SpecError(
                        f"{label}: expected one shard for the count {count!r}, found a pattern "
                        f"of {1 + len(more)}: {path}; pass a count for each shard"
                    )
                return (shard_of({"url": url, "nsamples": count}, label, join),)
            case Mapping():
                return (shard_of(item, label, join),)
        raise SpecError(
            f"{label}: expected a path, a (path, count) pair or a dict, "
            f"found {type(item).__name__} {item!r:.80}"
        )

    def file(self, file: Any, base: str | None) -> DatasetSpec:
        """Load an open file; if it has a name on disk, references start from its folder."""
        name = getattr(file, "name", None)
        folder = os.getcwd()
        if isinstance(name, str) and os.path.exists(name):
            folder = os.path.dirname(os.path.abspath(name))
        context = _Context.at(str(name or "the open file"), folder, base)
        return self.document(self.parsed(file.read(MAX_DOCUMENT_NBYTES + 1), context.name), context)

    def url(self, url: str, base: str | None = None, chain: tuple[str, ...] = ()) -> DatasetSpec:
        """Read and load the document at a URL, to which the documents in ``chain`` have led."""
        if urls.is_local(url):
            url = os.path.abspath(urls.local_path(url))
        name = urls.redact(url)
        # The chain and not all documents: two parts of a spec may refer to the same document.
        if url in chain:
            raise SpecError(f"{name}: refers to itself, through {_trail(chain)}")
        if len(chain) >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} documents that refer to one another, found "
                f"more: {_trail(chain)}"
            )
        self.num_documents += 1
        if self.num_documents > MAX_DOCUMENTS:
            raise SpecError(f"{name}: expected at most {MAX_DOCUMENTS} documents, found more")
        self.origin = self.origin or urls.origin(url)
        context = replace(
            _Context.at(name, urls.parent(url), base),
            # By its own URL, and not by the document that led here: trust is not inherited
            # (SPEC-12).
            is_trusted=urls.is_local(url),
            chain=(*chain, url),
        )
        return self.document(self.parsed(self.read(url, MAX_DOCUMENT_NBYTES), name), context)

    def parsed(self, document: str | bytes, name: str) -> Any:
        """Parse a document, if it and the previous ones are not too much for a spec."""
        self.num_values += num_values(document)
        if len(document) > MAX_DOCUMENT_NBYTES or self.num_values > MAX_VALUES:
            raise SpecError(
                f"{name}: expected at most {MAX_DOCUMENT_NBYTES} bytes in a document and "
                f"{MAX_VALUES} values in a spec, found more"
            )
        return parse(document, name)

    def document(self, document: Any, context: _Context) -> DatasetSpec:
        """Resolve a parsed document, or one of the inline datasets inside it."""
        label = context.name
        document = _normal_form(document, label)
        version = document.get("wids_version", VERSION)
        if version != VERSION:
            raise SpecError(
                f"{label}: expected wids_version {VERSION}, found {version!r:.80}; "
                "a newer version of wids may read it"
            )
        base = _base(document, context)
        name = text(document, "name", label) or ""
        key_split = key_split_of(document, label)
        join = self.guarded(urls.joiner(base), context)
        shards = [
            shard_of(entry, f"{label}: shardlist[{number}]", join, key_split)
            for number, entry in enumerate(list_of(document, "shardlist", label))
        ]
        for number, component in enumerate(list_of(document, "datasets", label)):
            shards += self.component(component, context.inside(number, base), join)
        index = reference(document, "index", label)
        extras = {key: value for key, value in document.items() if key not in _DOCUMENT_KEYS}
        return DatasetSpec(tuple(shards), name, index and join(index), extras)

    def component(self, component: Any, context: _Context, join: Join) -> list[ShardSpec]:
        """Resolve one of a document's ``datasets``: a reference to a document, or one inline."""
        label = context.name
        if not isinstance(component, Mapping):
            raise SpecError(f"{label}: expected an object, found {kind_of(component)}")
        if component.get("weight", 1) != 1:
            _logger.warning(
                "%s: the weight %.80r is not used: an epoch has every sample once",
                label,
                component["weight"],
            )
        name = text(component, "name", label)
        source = reference(component, "source_url", label)
        if source is None:
            spec = self.document(component, context)
        else:
            spec = self.url(join(source), chain=context.chain)
        return _as_component(spec, name, key_split_of(component, label))

    def guarded(self, join: Join, context: _Context) -> Join:
        """Return ``join``, made to refuse what the document may not name (SPEC-12, SPEC-13)."""
        if context.is_trusted and self.allow_pipe:
            return join

        def guarded_join(name: str) -> str:
            url = join(name)
            if context.is_trusted and url.startswith("/"):  # nearly every reference
                return url
            if urls.scheme(url) == "pipe" and not self.allow_pipe:
                raise SpecError(
                    f"{context.name}: names the command {urls.redact(url)}; commands in a document "
                    "run only with allow_pipe=True"
                )
            _check_local(url, name, context)
            return url

        return guarded_join


@dataclass(frozen=True)
class _Context:
    """What a document's references start from, and what the document may name.

    Attributes:
        name: The document in messages.
        base: The folder that its references start from, unless it states another.
        is_based: Whether the base is the caller's, which the document cannot change.
        is_trusted: Whether the document is a local file, and so may name local files.
        mirror: A local folder of the caller's in which any document may name files.
        depth: Number of inline datasets around this one.
        chain: URLs of the documents that led here, its own last.
    """

    name: str
    base: str
    is_based: bool = False
    is_trusted: bool = True
    mirror: str | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()

    @classmethod
    def at(cls, name: str, folder: str, base: str | None) -> _Context:
        """Return the context of a document in ``folder``, or at the caller's base instead."""
        if base is None:
            return cls(name, folder)
        base = urls.join(os.getcwd(), base)
        mirror = urls.local_path(base) if urls.is_local(base) else None
        return cls(name, base, is_based=True, mirror=mirror)

    def inside(self, number: int, base: str) -> _Context:
        """Return the context of a dataset inside this one, whose own base is ``base``."""
        name = f"{self.name}: datasets[{number}]"
        if self.depth >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} datasets inside one another, found more"
            )
        # The caller's base replaces that of the outermost document only (SPEC-6).
        return replace(self, name=name, base=base, is_based=False, depth=self.depth + 1)


def _is_document(url: str) -> bool:
    return urls.path_of(url).lower().endswith(".json")


def _normal_form(document: Any, name: str) -> Mapping[str, Any]:
    """Return a document with a ``shardlist`` from any of the forms in use."""
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
    raise SpecError(
        f"{name}: expected the key shardlist or datasets, found "
        f"{', '.join(sorted(map(str, document))) or 'nothing':.200}"
    )


def _base(document: Mapping[str, Any], context: _Context) -> str:
    stated = reference(document, "base", context.name)
    stated = stated or reference(document, "base_path", context.name)
    if context.is_based or not stated:
        return context.base
    base = urls.join(context.base, stated)
    _check_local(urls.join(base, "x"), stated, context)
    return base


def _check_local(url: str, name: str, context: _Context) -> None:
    """Refuse a local file in a document from elsewhere, unless it is in the caller's mirror."""
    if context.is_trusted or not urls.is_local(url):
        return
    if context.mirror is None or not urls.is_within(urls.local_path(url), context.mirror):
        raise SpecError(
            f"{context.name}: names {name!r}, a local file; a remote document must not do that: "
            "if you trust it, download it first or pass `base`"
        )


def _as_component(
    spec: DatasetSpec, name: str | None, key_split: KeySplit | None = None
) -> list[ShardSpec]:
    """Return the shards of a dataset that becomes a part of another one."""
    name = name or spec.name or None
    # dataclasses.replace() is five times slower: it looks up every field, for 100,000 shards.
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


def _trail(chain: tuple[str, ...]) -> str:
    return " → ".join(map(urls.redact, chain))


def _name_of(shards: Shards) -> str:
    if isinstance(shards, str | os.PathLike):
        return urls.redact(os.fspath(shards))
    return str(getattr(shards, "name", None) or "shards")
