"""Write the samples of a task to its shard, publish it once, and describe it.

Runs on the workers of an executor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from wids.publish.describe import ShardRecord, record_of
from wids.publish.tar_writer import TarWriter
from wids.publish.threaded_tar import Publishing, ThreadedTar
from wids.shards.tars.index import TarIdentity
from wids.storage import fetch, upload
from wids.storage.digests import file_digest
from wids.storage.transport import urls

Writer = TypeVar("Writer", bound=ThreadedTar)
Sample = TypeVar("Sample")


@dataclass(frozen=True)
class ShardTask:
    """One shard to write.

    Attributes:
        path: Its absolute path, or its URL.
        nbytes: Its length in bytes, or a little more.
        num_samples: How many samples it will have; None where that is not known.
        source: Digest of what it is made from.
    """

    path: str
    nbytes: int
    num_samples: int | None
    source: str


def write_published(
    task: ShardTask,
    samples: Iterable[Sample],
    append: Callable[[Writer, Sample], object],
    writer_class: type[Writer],
    how: Publishing,
) -> ShardRecord:
    """Write a shard and return its description.

    Args:
        task: The shard.
        samples: Its samples.
        append: Writes one of them.
        writer_class: What writes.
        how: How it is published.

    Raises:
        FileExistsError: There is another file under the shard's name.
    """
    with ThreadPoolExecutor(1, "wids-write") as thread:
        writer = writer_class(task.path, thread, how)
        with _published_once(writer, task.path, how.storage_options):
            for sample in samples:
                append(writer, sample)
    identity = TarIdentity.of_file(os.stat(task.path)) if urls.is_local(task.path) else None
    return written_record(writer, task.path, identity, task.source)


def written_record(
    writer: TarWriter, url: str, identity: TarIdentity | None = None, source: str = ""
) -> ShardRecord:
    """Return the description of a shard that was written; for arguments see `ShardRecord`."""
    assert writer.index is not None  # noqa: S101 - as always, except for a stream
    return record_of(url, writer.index, writer.nbytes, writer.sha256, identity, source)


@contextmanager
def _published_once(writer: TarWriter, url: str, storage_options: upload.Options) -> Iterator[None]:
    """Open a writer for the block; a shard of the same bytes, published earlier, is no error.

    An interrupted run may have published a shard and not noted it.
    """
    try:
        with writer:
            yield
    except FileExistsError as error:
        if _is_same_file(writer, url, storage_options):
            return
        if error.errno is None:  # it already says what to do
            raise
        raise FileExistsError(
            f"{urls.redact(url)}: expected no file, or the shard that an interrupted run wrote, "
            "found another file; move it away and run again"
        ) from error


def _is_same_file(writer: TarWriter, url: str, storage_options: upload.Options) -> bool:
    """Whether a file, local or remote, has the bytes that were written."""
    try:
        with fetch.downloaded(fetch.Fetcher(storage_options), url) as path:
            return bool(writer.sha256) and file_digest(path, "sha256") == writer.sha256
    except OSError:
        return False
