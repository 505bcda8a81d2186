"""Open one shard: as a mapped file, or to be read by range, and compare it with its spec.

A shard gets its index from a dataset index, from the cache folder, or by a scan of its tar; reading
by range requires one that exists. Every index is checked against its tar. Copies in the cache are
opened by `wids.shards.copied_shards`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING

from wids.errors import FetchError, MismatchError, NotFoundError
from wids.shards.indexes.index_file import index_paths, load_index, store_index
from wids.shards.policy import ShardFacts
from wids.shards.specs.model import COUNTS_FROM
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar
from wids.shards.tars.shard import FindIndex, Shard
from wids.storage.cache.cache_names import is_settled
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.remote_shard import RemoteShard


def open_file(facts: ShardFacts, path: str) -> Shard:
    """Map the file of a shard.

    Raises:
        NotFoundError: There is no such file.
        ShardFormatError: The file is not a complete, plain tar.
        MismatchError: The shard is not what the spec says.
    """
    try:
        shard = mapped(facts, path, partial(_index, facts))
    except NotFoundError as error:
        named = facts.store.named_path(facts.spec.url)
        if named is None:
            raise
        raise NotFoundError(
            f"{error}; localname returned {named}, where no file is either"
        ) from None
    stated = facts.spec.nbytes
    if stated is not None and shard.nbytes < stated:
        shard.close()
        raise MismatchError(
            f"{path}: expected {stated} bytes (filesize), found {shard.nbytes}; the file is "
            "incomplete, or the spec is of another version: fetch or write the shard again, or "
            "make the spec again with `wids create`"
        )
    check_count(facts, shard)
    return shard


def mapped(
    facts: ShardFacts, path: str, find_index: FindIndex, file: FileIO | None = None
) -> Shard:
    """Map a tar, as the options say."""
    options = facts.options
    return Shard(path, fields=options.fields, raw=options.raw, find_index=find_index, handle=file)


def _index(facts: ShardFacts, path: str, data: mmap.mmap, identity: TarIdentity) -> ShardIndex:
    """Return the index of a file: from a dataset index, the cache folder, or a scan."""
    known = stored_index(facts, path, identity)
    if known is not None:
        return known
    built = index_tar(data, facts.key_split, path, repeated=facts.options.repeated)
    # If a younger file changes again, its modification time may stay the same.
    if not is_settled(identity.mtime_ns):
        return built
    folder = facts.store.folder
    return store_index(folder, index_paths(folder, path, facts.key_split), built, identity)


def stored_index(facts: ShardFacts, path: str, identity: TarIdentity) -> ShardIndex | None:
    """Return the index of a file from a dataset index or the cache folder, or None."""
    key_split = facts.key_split
    indexed = facts.dataset_indexes.index(facts.number, identity.nbytes, key_split)
    if indexed is not None:
        return indexed[0]
    return load_index(index_paths(facts.store.folder, path, key_split), identity, key_split)


def open_ranges(
    facts: ShardFacts, watch: Callable[[], AbstractContextManager[None]]
) -> RemoteShard:
    """Return a shard to be read by range.

    Args:
        facts: The shard.
        watch: Returns a block that notes errors which concern the whole shard.

    Raises:
        FetchError: No index is known.
        MismatchError: The shard is not what the spec says.
    """
    from wids.shards.remote_shard import RemoteShard  # only remote shards need it

    url = facts.spec.url
    if facts.range_index is None:
        raise FetchError(
            f"{urls.redact(url)}: expected an index to read it by range, found none; make "
            'one for the dataset with `wids create`, or use access="download"'
        )
    index, nbytes = facts.range_index
    if facts.options.verify == "never":
        index = index.without_payload_crcs()
    range_reader = facts.store.fetcher.range_reader
    read_unchecked = range_reader(url, nbytes)
    # Mirrors state other versions of equal bytes, so checksums decide where they exist.
    is_compared = len(index.payload_crcs) > 0
    budget = facts.budget
    shard = RemoteShard(
        urls.redact(url),
        index,
        nbytes,
        range_reader(url, nbytes, is_compared=True) if is_compared else read_unchecked,
        read_unchecked=read_unchecked,
        fields=facts.options.fields,
        raw=facts.options.raw,
        takes=None if budget is None else partial(budget.takes, facts.number, nbytes),
        version=lambda: read_unchecked.version,
        watch=watch,
    )
    check_count(facts, shard)
    return shard


def check_count(facts: ShardFacts, shard: Shard | RemoteShard) -> None:
    """Close a shard that was just opened if it has another number of samples.

    Raises:
        MismatchError: The number of samples is not the known one.
    """
    expected = facts.num_samples
    if expected is not None and len(shard) != expected:
        with shard:  # close it now: a stored error should not keep a file open
            message = _count_message(facts, shard, expected)
        raise MismatchError(message)


def _count_message(facts: ShardFacts, shard: Shard | RemoteShard, expected: int) -> str:
    """Return the message for a shard with another number of samples, with the likely cause."""
    url = urls.redact(facts.spec.url)
    num_stated = facts.spec.num_samples
    if num_stated is None:
        return (
            f"{url}: expected {expected} samples as when the dataset was opened, found "
            f"{len(shard)}; it was written again since: open the dataset again"
        )
    # The two most common mistakes: the other rule, and counting files.
    other: KeySplit = "last" if facts.key_split == "first" else "first"
    source = facts.spec.extras.get(COUNTS_FROM)
    message = f"{url}: {source or 'the spec'} says {num_stated} samples, the shard has {len(shard)}"
    if isinstance(shard, Shard):
        with Shard(shard.path, key_split=other) as split_otherwise:
            if len(split_otherwise) == num_stated:
                return (
                    f"{message}, but {num_stated} when names are split at their {other} dot; pass "
                    f'key_split="{other}"'
                )
    if source is not None:
        members = num_stated == shard.index.num_files
        return (
            f"{message}{', and as many members' if members else ''}; correct or remove that file, "
            "or describe the shards with `wids create` and open that spec"
        )
    if num_stated == shard.index.num_files:
        return (
            f"{message}, and {num_stated} is its number of members: the spec counts files; pass "
            "spec.without_counts() to count samples when the dataset is opened, or make a correct "
            "spec with `wids create`"
        )
    return (
        f"{message}; if the spec is wrong, pass spec.without_counts(), or make a correct spec with "
        "`wids create`; otherwise fetch or write the shard again"
    )
