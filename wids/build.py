"""Shards → what is published beside them: the pack of their indexes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial

from wids import index, publish, tar
from wids.index import ShardIndex
from wids.keys import KeySplit
from wids.shard import Shard
from wids.spec import DatasetSpec


def build_pack(spec: DatasetSpec, path: str | os.PathLike[str]) -> None:
    """Index all shards of a dataset into one file, to be named in its spec as ``index``.

    With it no shard is scanned again, on any machine, and a key is found by a search. It holds good
    for tars of the same names, lengths and headers, wherever they are copied.

    Args:
        spec: The dataset; its shards have to be local files.
        path: The file to write, all at once.

    Raises:
        FetchError: A shard cannot be opened.
        ShardFormatError: A shard is not a complete, plain tar.
    """
    save_pack(path, _indexes(spec))


def save_pack(path: str | os.PathLike[str], indexes: Iterable[tuple[str, int, ShardIndex]]) -> None:
    """Write a pack of indexes with checksums; see `index.write_pack`."""
    with publish.replacing(path) as file:
        index.write_pack(file, indexes)


def _indexes(spec: DatasetSpec) -> Iterator[tuple[str, int, ShardIndex]]:
    for about in spec.shards:
        find_index = partial(_checked_index, about.key_split or "first")
        with Shard(about.local_path(), find_index=find_index) as shard:
            yield os.path.basename(shard.path), shard.nbytes, shard.index


def _checked_index(
    key_split: KeySplit, path: str, data: tar.TarBytes, _: index.TarIdentity
) -> ShardIndex:
    return index.with_checksums(index.build(tar.scan(data, path), key_split, path), data)
