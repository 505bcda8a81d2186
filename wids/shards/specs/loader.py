"""Load a frozen `DatasetSpec` from any form in which a caller may name shards.

A spec is resolved once: nested documents are read, references are made absolute and every value is
checked, so that the rest of the library can trust it. No shard is opened, and the input is not
modified. The format, the base of each reference, and which document may name which files are
specified in specs/shard-spec.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from wids.errors import SpecError, WidsError
from wids.shards.specs.documents import (
    Component,
    Documents,
    ReadDocument,
    as_component,
    assembled,
    classes_of,
    combined,
    is_document,
    is_list,
)
from wids.shards.specs.entries import shard_of
from wids.shards.specs.model import INFO, DatasetSpec, IndexedShards, ShardSpec
from wids.shards.specs.parsing import MAX_DOCUMENT_NBYTES, no_collections
from wids.shards.specs.shard_columns import columns_of, joined, named
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.specs.naming import Folder
    from wids.storage.transport.listing import Named

_WILD: Final = frozenset("{}*?[")
"""Characters of names that may stand for several files, as `::` between names does."""

_logger = logging.getLogger(__name__)

Path: TypeAlias = "str | os.PathLike[str]"
Shards: TypeAlias = (
    "Path | IO[str] | IO[bytes] | Mapping[str, Any] | DatasetSpec"
    " | Iterable[Path | tuple[Path, int] | Mapping[str, Any] | ShardSpec | DatasetSpec]"
)
Join: TypeAlias = Callable[[str], str]
"""Resolves a reference to an absolute path or URL, or raises `SpecError`."""


def load_spec(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    read: ReadDocument | None = None,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Load a spec from any form in which a caller may name shards.

    Args:
        shards: Path or URL of a JSON document, an open file or a parsed document; a ``.txt`` file
            with the path or URL of a shard on each line; one ``.tar``; a brace pattern
            (``train-{000000..000146}.tar``); wildcards (``s3://bucket/train-*.tar``,
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
    read: ReadDocument | None = None,
    split: str | None = None,
) -> DatasetSpec:
    """Load a spec as `load_spec` does, with the fetcher that will read its shards.

    From then on, the fetcher sends options without a URL prefix only to the server that the first
    document came from, even if another fetcher read the document earlier (SEC-9).
    """
    documents = Documents(fetcher, read, allow_pipe=allow_pipe)
    loader = _Loader(fetcher, documents)
    if isinstance(shards, DatasetSpec):
        documents.bind(shards)
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
    return replace(spec, shards=columns_of(spec.shards), origin=documents.origin)


class _Loader:
    """Loads one spec by the form in which a caller names its shards."""

    def __init__(self, fetcher: Fetcher, documents: Documents) -> None:
        self.fetcher = fetcher
        self.documents = documents

    def load(self, shards: Any, base: str | None) -> DatasetSpec:
        """Load ``shards`` by its form."""
        if isinstance(shards, Mapping):
            return self.documents.document(
                shards, self.documents.context_at("the document", os.getcwd(), base)
            )
        if hasattr(shards, "read"):
            return self.file(shards, base)
        if isinstance(shards, str | os.PathLike):
            url = os.fspath(shards)
            return (
                self.documents.url(url, base) if _is_one_document(url) else self.items([url], base)
            )
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
        from wids.shards.foreign.foreign_counts import split_of  # few datasets have splits

        return split_of(spec, split, self.documents.infos, self.fetcher.read)

    def items(self, items: Iterable[Any], base: str | None) -> DatasetSpec:
        """Load a caller's list, which may name any file and any command."""
        join = urls.joiner(urls.join(os.getcwd(), base or ""))
        match items:
            case [str() | os.PathLike() as path]:
                # Keeps the name of its document; in a longer list, only its shards have it.
                return self.named(os.fspath(path), join)
            case [DatasetSpec() as spec]:
                self.documents.bind(spec)
                return spec
        shards: list[Sequence[ShardSpec]] = []
        num_items = num_shards = 0
        parts: list[Component] = []
        dataset_indexes: list[IndexedShards] = []
        for are_tars, group in groupby(items, _is_tar):
            some = list(group)
            num_items += len(some)
            if are_tars:  # together, since there may be 100,000
                shards.append(named([*map(join, map(os.fspath, some))]))
                num_shards += len(some)
                continue
            for number, item in enumerate(some, num_items - len(some)):
                part = self.item(item, f"shards[{number}]", join)
                if isinstance(part, DatasetSpec):
                    parts.append(Component(part, label=_label_of(item, number)))
                    dataset_indexes += part.all_dataset_indexes(num_shards)
                    part = part.shards
                shards.append(part)
                num_shards += len(part)
        classes = classes_of(parts)
        if sum(len(part.spec.shards) for part in parts) < num_shards:  # others state none
            classes = {}
        return DatasetSpec(
            joined(shards),
            extras=classes,
            weights=combined(parts),
            dataset_indexes=tuple(dataset_indexes),
        )

    def item(self, item: Any, label: str, join: Join) -> DatasetSpec | Sequence[ShardSpec]:
        """Return the dataset, or the shards, that one item of a caller's list names."""
        match item:
            case ShardSpec():
                return (item,)
            case DatasetSpec():
                self.documents.bind(item)
                return as_component(item, None)
            case str() | os.PathLike():
                return self.named(os.fspath(item), join, is_part=True)
            case (str() | os.PathLike() as path, count):
                url = os.fspath(path)
                if not _is_one_name(url):
                    url = _only_name(url, label, count, join)
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
            specs = [self.documents.url(join(name))]
        else:
            from wids.shards.specs.naming import Folder, resolve  # most names are of one document

            specs = [
                self.folder(item) if isinstance(item, Folder) else self.found(item)
                for item in resolve(name, join, self.fetcher)
            ]
        if len(specs) == 1 and not is_part:
            return specs[0]
        return assembled(
            [Component(as_component(spec, None), label=spec.name or name) for spec in specs]
        )

    def found(self, item: Named) -> DatasetSpec:
        """Load a file that a caller's name stands for."""
        if is_document(item.url) or is_list(item.url):
            return self.documents.url(item.url)
        return DatasetSpec((ShardSpec(item.url, nbytes=item.nbytes),))

    def folder(self, folder: Folder) -> DatasetSpec:
        """Load a folder, by the spec beside its tars if that names exactly these (SPEC-23)."""
        tars = DatasetSpec(tuple(ShardSpec(tar.url, nbytes=tar.nbytes) for tar in folder.tars))
        if folder.document is None:
            return tars
        name = urls.redact(folder.document)
        try:
            spec = self.documents.url(folder.document)
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
        context = self.documents.context_at(str(name or "the open file"), folder, base)
        data = file.read(MAX_DOCUMENT_NBYTES + 1)
        return self.documents.document(self.documents.parsed(data, context.name), context)


def _is_tar(item: Any) -> bool:
    """Whether an item of a caller's list is the name of one tar."""
    if not isinstance(item, str | os.PathLike):
        return False
    name = os.fspath(item)
    return name.endswith(".tar") and _is_one_name(name)


def _is_one_name(name: str) -> bool:
    """Whether a name surely stands for one file, as nearly every name does."""
    return _WILD.isdisjoint(name) and "::" not in name


def _only_name(name: str, label: str, count: object, join: Join) -> str:
    """Return the one name that a caller's name with a count stands for."""
    from wids.shards.specs.naming import names_in
    from wids.storage.transport.listing import is_pattern

    (url, *more) = names_in(name)
    if more or is_pattern(join(url)):
        number = f" of {1 + len(more)}" if more else ""
        raise SpecError(
            f"{label}: expected one shard for the count {count!r}, found a pattern{number}: "
            f"{urls.redact(name)}; pass a count for each shard"
        )
    return url


def _is_one_document(name: str) -> bool:
    if not (is_document(name) or is_list(name)):
        return False
    if _is_one_name(name):
        return True
    from wids.shards.specs.naming import names_in
    from wids.storage.transport.listing import is_pattern

    return ("::" not in name or names_in(name) == [name]) and not is_pattern(name)


def _label_of(item: Any, number: int) -> str:
    """Return the name of a dataset in a caller's list."""
    if isinstance(item, str | os.PathLike):
        return urls.redact(os.fspath(item))
    return item.name or f"shards[{number}]"


def _name_of(shards: Shards) -> str:
    if isinstance(shards, str | os.PathLike):
        return urls.redact(os.fspath(shards))
    return str(getattr(shards, "name", None) or "shards")
