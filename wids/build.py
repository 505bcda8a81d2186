"""Shards → what is published beside them: the pack of their indexes.

Nothing is published before it is complete.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from wids import index, tar, urls
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
    path = os.path.abspath(os.fspath(path))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            index.write_pack(file, _indexes(spec))
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would lock other users out of the dataset
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _indexes(spec: DatasetSpec) -> Iterator[tuple[str, int, ShardIndex]]:
    for about in spec.shards:
        path = urls.local_path(about.url)
        find_index = partial(_checked_index, about.key_split or "first")
        with Shard(path, find_index=find_index) as shard:
            yield os.path.basename(path), shard.nbytes, shard.index


def _checked_index(
    key_split: KeySplit, path: str, data: tar.TarBytes, _: index.TarIdentity
) -> ShardIndex:
    return index.with_checksums(index.build(tar.scan(data, path), key_split, path), data)
