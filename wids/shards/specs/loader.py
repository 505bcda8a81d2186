"""Load a frozen `DatasetSpec` from any form in which a caller may name shards.

A spec is resolved once: nested documents are read, references are made absolute and every value is
checked, so that the rest of the library can trust it. No shard is opened, and the input is not
modified. The format, the base of each reference, and which document may name which files are
specified in specs/shard-spec.md.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from wids.errors import SpecError, WidsError
from wids.shards.specs.entries import (
    key_split_of,
    kind_of,
    list_of,
    normal_form,
    reference,
    shard_of,
    table_of,
    text,
)
from wids.shards.specs.model import INFO, VERSION, DatasetSpec, PackedShards, ShardSpec
from wids.shards.specs.named_parts import (
    Part,
    as_component,
    combined,
    packs_of,
    weight_of,
    weights_of,
)
from wids.shards.specs.naming import Folder, is_document, names_in, resolve
from wids.shards.specs.parsing import (
    MAX_DOCUMENT_NBYTES,
    MAX_VALUES,
    SHORT_NBYTES,
    no_collections,
    num_values,
    parse,
)
from wids.shards.specs.shard_sequences import Place, ShardTable, joined
from wids.shards.specs.trust import MAX_DEPTH, Context, base_of
from wids.shards.tars.member_names import KeySplit
from wids.storage.cache.cache_names import default_folder
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls
from wids.storage.transport.listing import Named, is_pattern
from wids.storage.transport.url_rewrite import rewritten

if TYPE_CHECKING:
    from wids.shards.specs.shard_table import TableFile

MAX_DOCUMENTS: Final = 10_000
"""Most documents of one spec."""

_DOCUMENT_KEYS: Final = frozenset(
    (
        *("wids_version", "name", "base", "base_path"),
        *("shardlist", "datasets", "key_split", "index", "table", "weights"),
    )
)

_WILD: Final = frozenset("{}*?[")
"""Characters of names that may stand for several files, as `::` between names does."""

_logger = logging.getLogger(__name__)

Path: TypeAlias = "str | os.PathLike[str]"
Shards: TypeAlias = (
    "Path | IO[str] | IO[bytes] | Mapping[str, Any] | DatasetSpec"
    " | Iterable[Path | tuple[Path, int] | Mapping[str, Any] | ShardSpec | DatasetSpec]"
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
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Load a spec from any form in which a caller may name shards.

    Args:
        shards: Path or URL of a JSON document, an open file or a parsed document; one ``.tar``; a
            brace pattern (``train-{000000..000146}.tar``); wildcards (``s3://bucket/train-*.tar``,
            ``data/**/*.tar``); several names as ``a.tar::b.tar``; a folder, or a remote one with a
            slash at its end; a spec; or a list of these, of
            ``(path, count)`` pairs and of entries as in a document.
        base: Folder or URL that relative references start from. It replaces the base that a
            document states and the folder that it is in.
        allow_pipe: Whether a document may name ``pipe:`` commands, which run on this machine. In
            other forms of ``shards`` they are the caller's own and always allowed.
        read: ``read(url, limit_nbytes)``, which returns the bytes of a document, in place of the
            transports of wids.
        split: The only split to load, by its name in Energon's ``.nv-meta/split.yaml`` (which needs
            the package PyYAML) or in ``_info.json``.
        storage_options: As for `ShardListDataset`.

    Returns:
        The spec, with absolute paths and URLs. No shard has been opened. Folders were listed only
        where ``shards`` names them, or has wildcards.

    Raises:
        SpecError: The document, or another form of ``shards``, is malformed or names a file that it
            must not name.
        NotFoundError: Wildcards or a folder stand for no shard.
        FetchError: A document cannot be read, or a folder cannot be listed.

    Example:
        >>> import wids
        >>> spec = wids.load_spec("train-{000000..000146}.tar", base="/data")
        >>> len(spec.shards), spec.shards[0].url
        (147, '/data/train-000000.tar')
        >>> document = {"name": "val", "shardlist": [{"url": "val.tar", "nsamples": 50}]}
        >>> wids.load_spec(document, base="https://example.com").shards[0].url
        'https://example.com/val.tar'
    """
    fetcher = Fetcher(storage_options)
    return load_with(fetcher, shards, base, allow_pipe=allow_pipe, read=read, split=split)


def load_with(
    fetcher: Fetcher,
    shards: Shards,
    base: str | os.PathLike[str] | None,
    *,
    allow_pipe: bool,
    read: Read | None = None,
    split: str | None = None,
    folder: str | None = None,
) -> DatasetSpec:
    """Load a spec as `load_spec` does, with the fetcher that will read its shards.

    Tables of large documents are in the cache folder ``folder``; None for the default one. From
    then on, the fetcher sends options without a URL prefix only to the server that the first
    document came from, even if another fetcher read the document earlier (SEC-9).
    """
    loader = _Loader(fetcher, allow_pipe, read or partial(_read, fetcher, folder))
    if isinstance(shards, DatasetSpec):
        loader.bind(shards)
        return loader.part(shards, split)
    try:
        with no_collections():
            spec = loader.load(shards, None if base is None else os.fspath(base))
    except RecursionError as error:  # a message shows a deeply nested value
        raise SpecError(f"{_name_of(shards)}: the values are nested too deeply") from error
    if not spec.shards:
        raise SpecError(
            f"{_name_of(shards)}: expected at least one shard, found an empty list; "
            "name shards under the key shardlist, or pass their paths"
        )
    spec = loader.part(spec, split)
    return replace(spec, origin=loader.origin) if loader.origin else spec


class _Loader:
    """Reads one spec with all its nested documents."""

    def __init__(
        self, fetcher: Fetcher, allow_pipe: bool, read: Callable[[str, int], bytes | TableFile]
    ) -> None:
        self.fetcher = fetcher
        self.read = read
        self.allow_pipe = allow_pipe
        self.origin = ""
        self.num_documents = 0
        self.num_values = 0
        self.infos: list[str] = []  # the documents of Energon

    def load(self, shards: Any, base: str | None) -> DatasetSpec:
        """Load ``shards`` by its form."""
        if isinstance(shards, Mapping):
            return self.document(shards, Context.at("the document", os.getcwd(), base))
        if hasattr(shards, "read"):
            return self.file(shards, base)
        if isinstance(shards, str | os.PathLike):
            url = os.fspath(shards)
            return self.url(url, base) if _is_one_document(url) else self.items([url], base)
        if isinstance(shards, Iterable):
            return self.items(shards, base)
        raise SpecError(
            f"shards: expected a path, URL, pattern, file, document or list, "
            f"found {type(shards).__name__}"
        )

    def part(self, spec: DatasetSpec, split: str | None) -> DatasetSpec:
        """Return the split of a name of what was loaded; None for all of it."""
        if split is None:
            return spec
        from wids.shards.foreign.named_splits import split_of  # few datasets have splits

        return split_of(spec, split, self.infos, self.fetcher.read)

    def items(self, items: Iterable[Any], base: str | None) -> DatasetSpec:
        """Load a caller's list, which may name any file and any command."""
        join = urls.joiner(urls.join(os.getcwd(), base or ""))
        match items:
            case [str() | os.PathLike() as path]:
                # Keeps the name of its document; in a longer list, only its shards have it.
                return self.named(os.fspath(path), join)
            case [DatasetSpec() as spec]:
                self.bind(spec)
                return spec
        shards: list[Sequence[ShardSpec]] = []
        num_shards = 0
        parts: list[Part] = []
        packs: list[PackedShards] = []
        for number, item in enumerate(items):
            part = self.item(item, f"shards[{number}]", join)
            if isinstance(part, DatasetSpec):
                parts.append(Part(part))
                packs += part.all_packs(num_shards)
                part = part.shards
            shards.append(part)
            num_shards += len(part)
        return DatasetSpec(joined(shards), weights=combined(parts), packs=tuple(packs))

    def bind(self, spec: DatasetSpec) -> None:
        """Send options without a prefix only to the server of the first document (SEC-9)."""
        if spec.origin:
            self.fetcher.bind_options(spec.origin)
            self.origin = self.origin or spec.origin

    def item(self, item: Any, label: str, join: Join) -> DatasetSpec | Sequence[ShardSpec]:
        """Return the dataset, or the shards, that one item of a caller's list names."""
        match item:
            case ShardSpec():
                return (item,)
            case DatasetSpec():
                self.bind(item)
                return as_component(item, None)
            case str() | os.PathLike():
                name = os.fspath(item)
                # Fast, for 100,000 names.
                if name.endswith(".tar") and _WILD.isdisjoint(name) and "::" not in name:
                    return (ShardSpec(join(name)),)
                return self.named(name, join, is_part=True)
            case (str() | os.PathLike() as path, count):
                (url, *more) = names_in(os.fspath(path))
                if more or is_pattern(join(url)):
                    number = f" of {1 + len(more)}" if more else ""
                    raise SpecError(
                        f"{label}: expected one shard for the count {count!r}, found a pattern"
                        f"{number}: {urls.redact(os.fspath(path))}; pass a count for each shard"
                    )
                return (shard_of({"url": url, "nsamples": count}, label, join),)
            case Mapping():
                return (shard_of(item, label, join),)
        raise SpecError(
            f"{label}: expected a path, a (path, count) pair, a dict or a DatasetSpec, "
            f"found {type(item).__name__} {item!r:.80}"
        )

    def named(self, name: str, join: Join, *, is_part: bool = False) -> DatasetSpec:
        """Load what a caller's name stands for.

        Args:
            name: A path, URL or pattern of tars or documents, or a folder.
            join: Resolves relative names.
            is_part: Whether the result becomes a part of another dataset, so that it needs a name.
        """
        if _is_one_document(name):
            specs = [self.url(join(name))]
        else:
            specs = [self.found(item) for item in resolve(name, join, self.fetcher)]
        if len(specs) == 1 and not is_part:
            return specs[0]
        parts = [Part(as_component(spec, None)) for spec in specs]
        shards = joined(part.spec.shards for part in parts)
        return DatasetSpec(shards, weights=combined(parts), packs=packs_of(parts))

    def found(self, item: Named | Folder) -> DatasetSpec:
        """Load a file or a folder that a caller's name stands for."""
        if isinstance(item, Folder):
            return self.folder(item)
        if is_document(item.url):
            return self.url(item.url)
        return DatasetSpec((ShardSpec(item.url, nbytes=item.nbytes),))

    def folder(self, folder: Folder) -> DatasetSpec:
        """Load a folder, by the spec beside its tars if that names exactly these (SPEC-23)."""
        tars = DatasetSpec(tuple(ShardSpec(tar.url, nbytes=tar.nbytes) for tar in folder.tars))
        if folder.document is None:
            return tars
        name = urls.redact(folder.document)
        try:
            spec = self.url(folder.document)
        except WidsError as error:
            if not folder.tars:
                raise
            _logger.warning("%s: it is not used as the spec of its folder", str(error))
            return tars
        wanted = {tar.url for tar in tars.shards}
        named = {shard.url for shard in spec.shards}
        if named == wanted or (folder.document.endswith(INFO) and named > wanted):
            _logger.info("%s: used as the spec of its folder", name)
            return spec
        num_named = len(wanted & named)
        _logger.warning(
            "%s: names %d of the %d tars of its folder and %d other files, so it is not used: pass "
            "its name to use it, or describe the folder with `wids create`",
            name,
            num_named,
            len(wanted),
            len(spec.shards) - num_named,
        )
        return tars

    def file(self, file: Any, base: str | None) -> DatasetSpec:
        """Load an open file; if it has a name on disk, references start from its folder."""
        name = getattr(file, "name", None)
        folder = os.getcwd()
        if isinstance(name, str) and os.path.exists(name):
            folder = os.path.dirname(os.path.abspath(name))
        context = Context.at(str(name or "the open file"), folder, base)
        return self.document(self.parsed(file.read(MAX_DOCUMENT_NBYTES + 1), context.name), context)

    def url(self, url: str, base: str | None = None, chain: tuple[str, ...] = ()) -> DatasetSpec:
        """Read and load the document at a URL that the documents in ``chain`` led to."""
        if urls.is_local(url):
            url = os.path.abspath(urls.local_path(url))
        name = urls.redact(url)
        # Only the chain, not all documents: two parts of a spec may refer to the same document.
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
            Context.at(name, urls.parent(url), base),
            # By its own URL, not by the document that led here: trust is not inherited (SPEC-12).
            is_trusted=urls.is_local(url),
            chain=(*chain, url),
        )
        found = self.read(url, MAX_DOCUMENT_NBYTES)
        if not isinstance(found, bytes):
            self.num_values += num_values(json.dumps(found.facts["document"]))
            return self.document({**found.facts["document"], "shardlist": found}, context)
        spec = self.document(self.parsed(found, name), context)
        return self.energon(spec, url) if urls.path_of(url).endswith(f"/{INFO}") else spec

    def energon(self, spec: DatasetSpec, url: str) -> DatasetSpec:
        """Return a dataset of Energon with the index beside its document, if it is remote."""
        from wids.shards.foreign.written_beside import energon_index

        self.infos.append(url)
        index = None if urls.is_local(url) else energon_index(url, self.fetcher)
        if index is None:
            return spec
        return replace(spec, shards=tuple(replace(shard, index=index) for shard in spec.shards))

    def parsed(self, document: str | bytes, name: str) -> Any:
        """Parse a document, unless it and the previous ones exceed the limits of a spec."""
        self.num_values += num_values(document)
        if len(document) > MAX_DOCUMENT_NBYTES or self.num_values > MAX_VALUES:
            raise SpecError(
                f"{name}: expected at most {MAX_DOCUMENT_NBYTES} bytes in a document and "
                f"{MAX_VALUES} values in a spec, found more"
            )
        return parse(document, name)

    def document(self, document: Any, context: Context) -> DatasetSpec:
        """Resolve a parsed document, or one of the inline datasets inside it."""
        label = context.name
        document = normal_form(document, label)
        version = document.get("wids_version", VERSION)
        if version != VERSION:
            raise SpecError(
                f"{label}: expected wids_version {VERSION}, found {version!r:.80}; "
                "a newer version of wids may read it"
            )
        base = base_of(document, context)
        name = text(document, "name", label) or ""
        key_split = key_split_of(document, label)
        place = Place(base, context, self.allow_pipe)
        join = place.join
        shards = self.shardlist(document, place, key_split)
        parts = [
            self.component(component, context.inside(number, base), join)
            for number, component in enumerate(list_of(document, "datasets", label))
        ]
        index = reference(document, "index", label)
        packs = packs_of(parts, len(shards)) if index is None else ()
        weights = {**combined(parts), **weights_of(document, label)}
        extras = {key: value for key, value in document.items() if key not in _DOCUMENT_KEYS}
        return DatasetSpec(
            joined((shards, *(part.spec.shards for part in parts))),
            name,
            index and join(index),
            extras,
            weights=weights,
            table=table_of(document, label, join),
            packs=packs,
        )

    def shardlist(
        self, document: Mapping[str, Any], place: Place, key_split: KeySplit | None
    ) -> Sequence[ShardSpec]:
        """Return the shards that a document lists, or those of its table."""
        listed = document.get("shardlist")
        if not isinstance(listed, list):
            from wids.shards.specs.shard_table import TableFile  # not for short documents

            if isinstance(listed, TableFile):
                table = ShardTable(listed, place, key_split)
                table.check()
                return table
        label, join = place.context.name, place.join
        return tuple(
            shard_of(entry, f"{label}: shardlist[{number}]", join, key_split)
            for number, entry in enumerate(list_of(document, "shardlist", label))
        )

    def component(self, component: Any, context: Context, join: Join) -> Part:
        """Resolve one of a document's ``datasets``: a reference to a document, or one inline."""
        label = context.name
        if not isinstance(component, Mapping):
            raise SpecError(f"{label}: expected an object, found {kind_of(component)}")
        weight = weight_of(component, label)
        name = text(component, "name", label)
        source = reference(component, "source_url", label)
        if source is None:
            spec = self.document(component, context)
        else:
            spec = self.url(join(source), chain=context.chain)
        return Part(as_component(spec, name, key_split_of(component, label)), weight, label)


def _read(fetcher: Fetcher, folder: str | None, url: str, limit_nbytes: int) -> bytes | TableFile:
    """Return the bytes of a document, or its table if it is large."""
    place = rewritten(url)
    with suppress(OSError, ValueError):
        if urls.is_local(place) and os.path.getsize(urls.local_path(place)) <= SHORT_NBYTES:
            return fetcher.read(url, limit_nbytes)
    # Ten modules, which most programs do not need.
    from wids.shards.specs.spec_tables import SpecTables

    return SpecTables(folder or default_folder(), fetcher).read(url, limit_nbytes)


def _is_one_document(name: str) -> bool:
    is_one = "::" not in name or names_in(name) == [name]
    return is_document(name) and is_one and not is_pattern(name)


def _trail(chain: tuple[str, ...]) -> str:
    return " → ".join(map(urls.redact, chain))


def _name_of(shards: Shards) -> str:
    if isinstance(shards, str | os.PathLike):
        return urls.redact(os.fspath(shards))
    return str(getattr(shards, "name", None) or "shards")
