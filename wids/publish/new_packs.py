"""Write the indexes of shards to a published or temporary pack, readable before it is published."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from io import FileIO
from typing import IO, Final

from wids.shards.indexes.pack import LocalPack, load_pack
from wids.shards.indexes.pack_writer import write_pack
from wids.shards.tars.index import ShardIndex
from wids.storage import upload
from wids.storage.transport import urls

_ANY: Final = 1 << 32
"""More shards than any pack has: nobody else claims a length for one that was just written."""


def new_pack(
    target: str | None,
    shards: Iterable[tuple[str, int, ShardIndex]],
    storage_options: upload.Options = None,
) -> AbstractContextManager[LocalPack]:
    """Provide a pack, which is published when the block ends.

    Args:
        target: Path or URL; None for a temporary pack, deleted when the block ends.
        shards: As for `write_pack`.
        storage_options: As for `ShardListDataset`.
    """
    return written_pack(target, lambda file: write_pack(file, shards), storage_options)


@contextmanager
def written_pack(
    target: str | None, write: Callable[[IO[bytes]], object], storage_options: upload.Options
) -> Iterator[LocalPack]:
    """Provide the pack that a function writes to a file; otherwise as `new_pack`."""
    with (
        tempfile.TemporaryFile()
        if target is None
        else upload.publishing(target, storage_options=storage_options)
    ) as file:
        write(file)
        file.flush()
        file.seek(0)
        name = "a temporary pack" if target is None else urls.redact(target)
        pack = load_pack(name, FileIO(file.fileno(), closefd=False), _ANY)
        if pack is None:
            raise OSError(f"{name}: expected the pack that was just written, found another file")
        with closing(pack):  # closed before the file gets its name
            yield pack
