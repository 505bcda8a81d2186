"""Read a published dataset, and check that shards fit to be appended to it.

Reads the spec and looks at the pack; opens no shard and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wids.errors import SpecError
from wids.shards.indexes.pack import Pack
from wids.shards.specs.edit import name_with_query
from wids.shards.specs.loader import load_spec
from wids.shards.specs.model import DatasetSpec, ShardSpec, check_references
from wids.shards.specs.parsing import parse
from wids.shards.tars.member_names import KeySplit
from wids.storage import upload
from wids.storage.transport import urls


@dataclass(frozen=True)
class Published:
    """A published dataset, as it was when it was read.

    Attributes:
        target: Absolute path or URL of its spec.
        data: The bytes of the spec.
        version: Their version, if the server can compare it.
        document: The values of the spec.
        spec: The spec, resolved.
        base: Absolute path or URL that its references start from.
        key_split: Where all of its member names are split.
    """

    target: str
    data: bytes
    version: str | None
    document: Mapping[str, Any]
    spec: DatasetSpec
    base: str
    key_split: KeySplit

    @property
    def pack(self) -> str | None:
        """Absolute path or URL of its pack; None if it has none."""
        index = self.spec.index
        if index is None or urls.is_local(self.target) == urls.is_local(index):
            return index
        # The base is where the dataset will be, and the pack still lies beside the spec.
        return urls.join(urls.parent(self.target), os.path.basename(urls.path_of(index)))


def published(target: str, storage_options: upload.Options = None) -> Published:
    """Read a published dataset, to which shards can be appended.

    Args:
        target: Absolute path or URL of its spec.
        storage_options: As for `ShardListDataset`.

    Raises:
        FileNotFoundError: There is no spec.
        SpecError: Nothing can be appended to it.
    """
    name = urls.redact(target)
    try:
        data, version = upload.read(target, storage_options)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name}: expected the spec of a published dataset to append to, found none; create it "
            "without appending"
        ) from error
    document = parse(data, name)
    if not isinstance(document, Mapping) or not isinstance(document.get("shardlist"), list):
        raise SpecError(
            f"{name}: expected a shardlist of its own to append to; append to the spec that lists "
            "the shards, or write this one again with `wids create`"
        )
    if document.get("datasets"):
        raise SpecError(
            f"{name}: expected one dataset, found a spec that consists of others; append to the "
            "spec of the one that the shards belong to"
        )
    spec = load_spec(target, read=lambda _, __: data)
    for shard in spec.shards:
        if shard.num_samples is None:
            raise SpecError(
                f"{name}: expected the number of samples of every shard, found none for "
                f"{urls.redact(shard.url)}; run `wids create` for all shards"
            )
    rules = {shard.key_split or "first" for shard in spec.shards}
    if len(rules) > 1:
        raise SpecError(f"{name}: expected one key_split for all shards, found both")
    folder = urls.parent(target)
    stated = document.get("base") or document.get("base_path")
    base = urls.join(folder, stated) if stated else folder
    return Published(target, data, version, document, spec, base, rules.pop())


def num_fitting(pack: Pack, shards: Sequence[ShardSpec]) -> int:
    """Return how many of the first shards are in a pack, with their names, lengths and counts."""
    for number, shard in enumerate(shards):
        name = os.path.basename(urls.path_of(shard.url))
        is_fitting = (
            number < len(pack)
            and (pack.is_named(number, name) or pack.is_named(number, urls.unquoted(name)))
            and shard.nbytes in (None, pack.tar_nbytes(number))
            and shard.num_samples == pack.num_samples[number]
        )
        if not is_fitting:
            return number
    return len(shards)


def entries(
    old: Published, shards: Sequence[ShardSpec], base: str | os.PathLike[str] | None
) -> list[dict[str, Any]]:
    """Return the entries of new shards in the document of the old ones.

    Raises:
        ValueError: A shard is there already, or twice, or would be named by a local path.
    """
    name = urls.redact(old.target)
    if base is not None and urls.join(urls.parent(old.target), os.fspath(base)) != old.base:
        raise ValueError(
            f"{name}: expected its base {urls.redact(old.base)}, found "
            f"{urls.redact(os.fspath(base))!r}"
        )
    known = {shard.url for shard in old.spec.shards}
    is_default = old.key_split == (old.document.get("key_split") or "first")
    found = []
    for shard in shards:
        if base is None and urls.is_local(shard.url) and not urls.is_local(old.base):
            raise ValueError(
                f"{name}: expected shards in its base {urls.redact(old.base)}, found {shard.url}; "
                "state with --base (base=) that they will be there"
            )
        reference = name_with_query(shard.url) if base is not None else shard.url
        reference = urls.relative(reference, old.base)
        url = urls.join(old.base, reference)
        if url in known:
            raise ValueError(
                f"{name}: expected new shards, found {urls.redact(url)}, which it already lists"
            )
        known.add(url)
        rule = None if is_default else old.key_split
        found.append(replace(shard, key_split=rule, index=None).entry() | {"url": reference})
    check_references(old.target, [urls.join(old.base, entry["url"]) for entry in found])
    return found


def check_rules(old: Published, new: DatasetSpec) -> None:
    """Raise ValueError if the names of new shards are split at the other dot."""
    for shard in new.shards:
        if shard.key_split not in (None, old.key_split):
            raise ValueError(
                f'{urls.redact(shard.url)}: expected key_split="{old.key_split}" as in '
                f'{urls.redact(old.target)}, found "{shard.key_split}"'
            )
