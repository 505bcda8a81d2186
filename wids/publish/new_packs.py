"""Write the indexes of shards to a published or temporary pack, readable before it is published."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from typing import IO

from wids.shards.indexes.pack import LocalPack, load_pack
from wids.shards.indexes.pack_writer import join_packs, write_pack
from wids.shards.tars.index import ShardIndex
from wids.storage import upload
from wids.storage.transport import urls


@contextmanager
def new_pack(
    target: str | None,
    shards: Iterable[tuple[str, int, ShardIndex]],
    storage_options: upload.Options = None,
) -> Iterator[LocalPack | None]:
    """Yield a pack, which is published when the block ends.

    Args:
        target: Path or URL; None for a temporary pack, deleted when the block ends.
        shards: As for `write_pack`.
        storage_options: As for `ShardListDataset`.
    """
    with _file(target, storage_options) as file:
        write_pack(file, shards)
        with _loaded(file, target) as pack:
            yield pack


@contextmanager
def joined_pack(
    target: str | None,
    packs: Sequence[tuple[LocalPack, int]],
    storage_options: upload.Options = None,
) -> Iterator[LocalPack | None]:
    """Yield a pack of the first shards of others, which is published when the block ends.

    Args:
        target: As for `new_pack`.
        packs: As for `join_packs`.
        storage_options: As for `ShardListDataset`.

    Raises:
        ValueError: One of the others is damaged.
    """
    with _file(target, storage_options) as file:
        join_packs(file, packs)
        with _loaded(file, target) as pack:
            yield pack


def _file(target: str | None, storage_options: upload.Options) -> AbstractContextManager[IO[bytes]]:
    if target is None:
        return tempfile.TemporaryFile()
    return upload.publishing(target, storage_options=storage_options)


@contextmanager
def _loaded(file: IO[bytes], target: str | None) -> Iterator[LocalPack | None]:
    file.flush()
    file.seek(0)
    name = "a temporary pack" if target is None else urls.redact(target)
    pack = load_pack(name, FileIO(os.dup(file.fileno())))
    try:
        yield pack
    finally:
        if pack is not None:  # before the file gets its name
            pack.close()
