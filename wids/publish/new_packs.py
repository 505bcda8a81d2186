"""Write the indexes of shards to a published or temporary pack, readable before it is published."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    with (
        tempfile.TemporaryFile()
        if target is None
        else upload.publishing(target, storage_options=storage_options)
    ) as file:
        write_pack(file, shards)
        yield _loaded(file, "a temporary pack" if target is None else urls.redact(target))


@contextmanager
def first_of(pack: LocalPack, num_shards: int) -> Iterator[LocalPack | None]:
    """Yield a temporary pack of the first shards of another.

    Raises:
        ValueError: The other one is damaged.
    """
    with tempfile.TemporaryFile() as file:
        join_packs(file, [(pack, num_shards)])
        yield _loaded(file, "a temporary pack")


def _loaded(file: IO[bytes], name: str) -> LocalPack | None:
    file.flush()
    file.seek(0)
    return load_pack(name, os.dup(file.fileno()))
