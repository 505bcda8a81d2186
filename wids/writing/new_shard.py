"""A writer of a shard → the shard, published once, and its description.

Does not know what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from wids.describing.describe import ShardRecord
from wids.files.digests import file_digest
from wids.tars.index import TarIdentity
from wids.tars.index_file import dump
from wids.transport import fetch, upload, urls
from wids.writing.tar_writer import TarWriter


@contextmanager
def published_once(
    writer: TarWriter, url: str, storage_options: upload.Options = None
) -> Iterator[TarWriter]:
    """Open a writer for the block; a shard of the same bytes, published earlier, is no error.

    An interrupted run may have published a shard and not noted it.

    Raises:
        FileExistsError: There is another file under the shard's name.
    """
    try:
        with writer:
            yield writer
    except FileExistsError:
        if not _is_same_file(writer, url, storage_options):
            raise


def record_of(writer: TarWriter, url: str, source: str) -> ShardRecord:
    """Return the description of a shard that was written.

    Args:
        writer: The writer, closed.
        url: Absolute path or URL of the shard.
        source: Digest of what it was made from.
    """
    # There always is an index, except for a stream.
    blob = b"" if writer.index is None else dump(writer.index, TarIdentity(writer.nbytes))
    mtime_ns = os.stat(url).st_mtime_ns if urls.is_local(url) else None
    return ShardRecord(
        *(url, "first", mtime_ns, writer.num_samples),
        *(writer.nbytes, writer.sha256, blob, source),
    )


def _is_same_file(writer: TarWriter, url: str, storage_options: upload.Options) -> bool:
    """Whether a file, local or remote, has the bytes that were written."""
    try:
        with fetch.downloaded(fetch.Fetcher(storage_options), url) as path:
            return bool(writer.sha256) and file_digest(path, "sha256") == writer.sha256
    except OSError:
        return False
