"""Keep the shards of a spec that is not saved yet: many of them in a table without a name."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from wids.shards.specs.model import ShardSpec
from wids.shards.specs.shard_sequences import ShardTable
from wids.shards.specs.shard_table import SHA256_NBYTES, State, TableFile
from wids.shards.specs.shard_table_writer import TableWriter
from wids.shards.specs.trust import Context
from wids.storage.transport import urls

_MAX_LISTED: Final = 10_000


def unsaved_shards(
    shards: Iterable[ShardSpec], output: str | os.PathLike[str] | None
) -> Sequence[ShardSpec]:
    """Return shards as a tuple, or as a table in a temporary file if there are many.

    Args:
        shards: The shards.
        output: The path that has space for the file beside it; for a URL, a path in a folder that
            does not exist, or None, the file is in the system's folder of temporary files.
    """
    left = iter(shards)
    first = tuple(islice(left, _MAX_LISTED))
    shard = next(left, None)
    if shard is None:
        return first
    name = os.fspath(output or "")
    folder = os.path.dirname(os.path.abspath(name)) if name and urls.is_local(name) else None
    if folder is not None and not os.path.isdir(folder):
        folder = None  # the error comes from the code that writes the output, which names it
    with tempfile.TemporaryFile(dir=folder) as file, TableWriter(file, folder) as writer:
        for each in chain(first, (shard,), left):
            writer.add(each.entry())
        writer.finish({}, bytes(SHA256_NBYTES), State(0, ""))
        file.flush()
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    context = Context("the described shards", os.getcwd(), allow_pipe=True)
    return ShardTable(TableFile("", data), context)
