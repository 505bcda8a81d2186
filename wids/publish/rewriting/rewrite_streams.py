"""Write the samples of files without random access to new shards, with spec and pack.

The files are read one after another, each once, by `old_streams`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from wids.publish.journal import Journal
from wids.publish.members import stored_or_encoded
from wids.publish.output import Output
from wids.publish.rewriting.old_streams import stream_samples
from wids.publish.rewriting.rewrite import limits
from wids.publish.shard_job import no_sample_error
from wids.publish.shard_writer import ShardWriter
from wids.publish.unfinished_run import unfinished_run
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.index import TarIdentity
from wids.storage import fetch
from wids.storage.transport import urls


def rewrite_streams(
    names: Sequence[str],
    pattern: str | os.PathLike[str],
    *,
    maxcount: int | None = None,
    maxsize: int | str | None = None,
    fields: Collection[str] | None = None,
    name: str | None = None,
    resume: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Write the samples of old streams into plain tars, in their order.

    After an interruption, call it again with the same arguments: complete shards are kept, and the
    files are read again up to there.

    Args:
        names: Paths or URLs of the files.
        pattern: As for `rewrite`.
        maxcount: The same.
        maxsize: The same.
        fields: The only fields to keep; None for all.
        name: As for `rewrite`.
        resume: False to write the shards of an interrupted run again.
        storage_options: As for `ShardListDataset`.

    Returns:
        The spec of the new dataset.

    Raises:
        ShardFormatError: A file is damaged, incomplete or of another kind.
        FetchError: A file cannot be read.
        PackError: There is no sample.
        FileExistsError: Another dataset is there already.
        ValueError: Two samples of a shard have the same key, a value cannot be encoded, or an
            argument is invalid.
    """
    output = Output.for_pattern(pattern, "rewriting", name=name, storage_options=storage_options)
    fetcher = fetch.Fetcher(storage_options)
    count, limit = limits(maxcount, maxsize)
    wanted = None if fields is None else frozenset("." + field.lstrip(".") for field in fields)
    facts = (*map(_identity, names), maxcount, limit, "first", sorted(wanted or ()))
    source = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()
    output.make_folder()

    def unwanted(_: Journal) -> list[str] | None:
        return None if resume else output.existing_shards()

    with unfinished_run(output, source, unwanted) as (_, target):
        writer = ShardWriter(
            pattern,
            maxcount=count,
            maxsize=1 << 62 if limit is None else limit,
            name=output.name,
            encoder=False,
            if_exists="resume" if target.if_exists == "error" else "replace",
            storage_options=storage_options,
        )
        with writer:
            samples = _all_samples(fetcher, names, output, wanted)
            for sample in islice(samples, writer.num_samples, None):
                writer.write(sample)
            if not writer.num_samples:
                raise no_sample_error(output)
    return DatasetSpec(tuple(writer.shards), output.name, output.pack_path)


def _identity(name: str) -> tuple[Any, ...]:
    """Return what changes when a local file does; for a remote one its URL."""
    if not urls.is_local(name):
        return (name,)
    path = os.path.abspath(urls.local_path(name))
    return path, *TarIdentity.of_file(os.stat(path))


def _all_samples(
    fetcher: fetch.Fetcher, names: Sequence[str], output: Output, wanted: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield samples with the wanted fields, as bytes; bytes are copied as they are."""
    # The disk of the output has space for its shards.
    folder = output.names.folder if output.is_local else None
    for name in names:
        with fetch.downloaded(fetcher, name) as path:
            for sample in stream_samples(path, name, folder=folder):
                found = {"__key__": sample["__key__"]}
                for key, value in sample.items():
                    field = "." + key.lstrip(".")
                    if not key.startswith("_") and (wanted is None or field in wanted):
                        found[key] = stored_or_encoded(field, value)
                yield found
