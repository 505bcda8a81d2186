"""Write a part of a view to one new shard. Runs on the workers of an executor.

Samples are read a few at a time, in the order in which they are written, so that memory does not
grow with the shard. Members of local shards are copied many at a time, after they were compared
with the checksums of their index. Samples that are stored elsewhere, or that a tar of this library
would not have, are written one by one. The bytes are those that `TarWriter.append` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import chain, pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from wids.errors import PackError, WidsError
from wids.publish.describe import ShardRecord
from wids.publish.journal import ShardTask
from wids.publish.new_shard import PIECE_NBYTES, Publishing, ThreadedTar, write_published
from wids.publish.rewriting.rewrite_plan import (
    Rename,
    SampleOrigin,
    SomeSamples,
    listed,
    origin_text,
    repeated_key_error,
)
from wids.publish.tar_writer import ToMembers, member_encoder, members_as_read
from wids.shards.policy import Wanted
from wids.shards.positions import select_batch
from wids.shards.reader import ShardReader, read_from
from wids.shards.sample_access import IndexedDataset
from wids.shards.tars.headers import BLOCK_NBYTES, to_bytes, to_text
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import ReadableShard, changed_payload_error
from wids.shards.tars.shard import Shard
from wids.storage.arrays import IntArray
from wids.storage.files import fastest_crc32
from wids.storage.transport import urls


@dataclass(frozen=True, eq=False)
class StoredMembers:
    """The members of some samples, sample by sample.

    Attributes:
        keys: The keys of the samples.
        counts: How many members each has.
        names: The names of the members.
        contents: Their bytes.
        crcs: Their checksums.
    """

    keys: list[bytes]
    counts: IntArray
    names: list[bytes]
    contents: list[memoryview]
    crcs: list[int]


def stored_members(view: IndexedDataset, start: int, stop: int) -> StoredMembers | None:
    """Return the members of the samples ``start`` to ``stop`` of a view.

    Returns:
        None if some are not in local shards, have other keys than in a tar of this library, or no
        member is left of one.

    Raises:
        ShardFormatError: A member, or its header, is not the one that was indexed.
    """
    reader = view.reader
    if reader.joint is not None:
        return None
    parts: list[StoredMembers] = []
    samples: list[int] = []
    for number, places, local_indices in reader.groups(
        select_batch(view.positions, np.arange(start, stop))
    ):
        read = partial(_of_shard, reader, local_indices)
        part = read_from(reader, number, Wanted.MOST, read)
        if part is None:
            return None
        parts.append(part)
        samples += places
    counts = np.concatenate([part.counts for part in parts])
    members = np.argsort(np.repeat(samples, counts), kind="stable").tolist()
    in_order = np.argsort(samples)
    return StoredMembers(
        _picked([part.keys for part in parts], in_order.tolist()),
        counts[in_order],
        *(
            _picked([getattr(part, name) for part in parts], members)
            for name in ("names", "contents", "crcs")
        ),
    )


def _picked(lists: list[list[Any]], numbers: list[int]) -> list[Any]:
    found = [*chain.from_iterable(lists)]
    return [found[number] for number in numbers]


def _of_shard(
    reader: ShardReader, local_indices: Sequence[int], shard: ReadableShard
) -> StoredMembers | None:
    if not isinstance(shard, Shard):
        return None
    index, local = shard.index, np.array(local_indices)
    members, counts = _members_of(index, local, reader.fields)
    if not counts.all() or index.key_split != "first":
        return None
    contents = shard.views(members, local_indices)
    crcs = list(map(fastest_crc32(), contents))
    if reader.verifies_decoded and len(index.payload_crcs):
        for at in np.flatnonzero(index.payload_crcs[members] != np.array(crcs))[:1]:
            raise changed_payload_error(shard.path, index.member_name(int(members[at])))
    begins = (index.key_starts[local].astype(np.int64) + index.text_start).tolist()
    ends = (index.key_starts[local + 1].astype(np.int64) + index.text_start - 1).tolist()
    keys = [index.text[start:stop] for start, stop in zip(begins, ends, strict=True)]
    fields = [to_bytes(field) for field in index.fields]
    owners, numbers = np.repeat(np.arange(len(local)), counts), index.field_ids[members]
    names = [keys[a] + fields[b] for a, b in zip(owners.tolist(), numbers.tolist(), strict=True)]
    return StoredMembers(keys, counts, names, contents, crcs)


def _members_of(
    index: ShardIndex, local: IntArray, wanted: frozenset[str] | None
) -> tuple[IntArray, IntArray]:
    """Return the members of samples, sample by sample, and how many each has."""
    members, counts = index.members_in(local)
    if wanted is None:
        return members, counts
    is_wanted = np.array([field in wanted for field in index.fields])[index.field_ids[members]]
    ends, sums = np.cumsum(counts), np.concatenate(([0], np.cumsum(is_wanted)))
    return members[is_wanted], sums[ends] - sums[ends - counts]


_JOINED_NBYTES: Final = 16 << 10
"""Copying longer members twice would take more time than a call for each."""

_PADDINGS: Final = [bytes(-size % BLOCK_NBYTES) for size in range(BLOCK_NBYTES)]


class CopyingTar(ThreadedTar):
    """A shard whose members are copied from others."""

    def append_stored(self, stored: StoredMembers) -> bool:
        """Append samples; return whether that was possible.

        It is not if a header takes several blocks or a key is repeated; then nothing is written.
        """
        keys, nbytes = set(map(to_text, stored.keys)), list(map(len, stored.contents))
        heads = list(map(self._header, map(to_text, stored.names), nbytes))
        is_new = len(keys) == len(stored.keys) and self._keys.isdisjoint(keys)
        if not is_new or any(len(head) > BLOCK_NBYTES for head in heads):
            return False
        self._check_no_partial_sample()
        self._has_partial_sample = True
        sizes = np.array(nbytes)
        padded = sizes + -sizes % BLOCK_NBYTES + BLOCK_NBYTES
        starts = self.nbytes + np.cumsum(padded) - padded
        head_crcs = list(map(self._crc32, heads))
        self._members.extend(stored.names, starts, BLOCK_NBYTES, sizes, head_crcs, stored.crcs)
        parts: list[bytes | memoryview] = [b""] * (3 * len(heads))
        parts[::3], parts[1::3] = heads, stored.contents
        parts[2::3] = [_PADDINGS[size] for size in (sizes % BLOCK_NBYTES).tolist()]
        self._put_parts(parts, padded)
        self._has_partial_sample = False
        self._keys.update(keys)
        self.num_samples += len(keys)
        return True

    def _put_parts(self, parts: list[bytes | memoryview], sizes: IntArray) -> None:
        """Put headers, members and paddings, three for each member; join those of small ones."""
        if sizes.max() > _JOINED_NBYTES:
            for part in parts:
                self._put(part)
            return
        # As many as fill a piece, so that what was joined is in the processor's cache.
        edges = np.flatnonzero(np.diff(np.cumsum(sizes) // PIECE_NBYTES, prepend=0)).tolist()
        for start, stop in pairwise([0, *edges, len(sizes)]):
            self._put(b"".join(parts[3 * start : 3 * stop]))


_BATCH_NBYTES: Final = 8 << 20
"""About how many bytes of samples are read at a time."""
_MAX_BATCH: Final = 1024

Sample: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class RewriteTask(ShardTask):
    """One shard to write.

    Attributes:
        num_samples: How many samples it will have; None if a map decides. Then values may have to
            be encoded; otherwise stored bytes are copied, also those under ``.gz`` that are not
            gzip data.
        samples: The samples. What is read may also be None, or several samples.
        rename: Returns the new key of a sample; None to keep its key.
        stored: All samples of a shard of the input, as they are stored: if these are what would be
            written, that shard is kept. None to write in any case.
    """

    samples: SomeSamples
    rename: Rename | None
    stored: SomeSamples | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether samples pass through a map."""
        return self.num_samples is None


def rewrite_shard(task: RewriteTask, *, how: Publishing) -> ShardRecord:
    """Write a shard and return its description; one without samples, or kept, is not written.

    Args:
        task: The shard.
        how: How it is published.

    Raises:
        PackError: Two samples have the same key, or a sample cannot be stored.
        WidsError: A sample cannot be read.
    """
    if task.stored is not None and _is_same(task, task.stored):
        count = task.stored.stop - task.stored.start
        return ShardRecord(task.path, "first", None, count, 0, None, b"", task.source)
    view: IndexedDataset = task.samples.view()
    first: dict[str, SampleOrigin] = {}
    samples: Iterator[Any] = iter(_batches(task, len(view)))
    append: Callable[[CopyingTar, Any], object] = partial(_copy, task, view, first)
    if task.is_mapped:
        samples = chain.from_iterable(_renamed(task, view, batch, first) for batch in samples)
        append = partial(_append, member_encoder(None))
    head = next(samples, None)
    if head is None:
        return ShardRecord(task.path, "first", None, 0, 0, None, b"", task.source)
    return write_published(task, chain((head,), samples), append, CopyingTar, how)


def _copy(
    task: RewriteTask,
    view: IndexedDataset,
    first: dict[str, SampleOrigin],
    writer: CopyingTar,
    batch: range,
) -> None:
    """Append stored samples as they are, or, where that is not possible, one by one."""
    if task.rename is None:
        stored = stored_members(view, batch.start, batch.stop)
        if stored is not None and writer.append_stored(stored):
            return
    for sample in _renamed(task, view, batch, first):
        _append(members_as_read, writer, sample)


def _is_same(task: RewriteTask, stored: SomeSamples) -> bool:
    """Whether all samples are written as they are stored."""
    if not task.is_mapped and task.rename is None:
        return True
    before = replace(task, samples=stored, rename=None, num_samples=stored.stop - stored.start)
    view, stored_view = task.samples.view(), stored.view()
    try:
        return all(
            _members(task, view, batch) == _members(before, stored_view, batch)
            for batch in _batches(task, len(view))
        )
    except (TypeError, ValueError):  # writing the sample raises it again, with its place
        return False


def _members(
    task: RewriteTask, view: IndexedDataset, batch: range
) -> list[tuple[str, dict[str, bytes]]]:
    to_members = member_encoder(None) if task.is_mapped else members_as_read
    return [to_members(sample) for _, sample in _renamed(task, view, batch, {})]


def _append(
    to_members: ToMembers, writer: ThreadedTar, placed: tuple[SampleOrigin, Sample]
) -> None:
    place, sample = placed
    try:
        writer.append(*to_members(sample))
    except WidsError:
        raise
    except (TypeError, ValueError) as error:
        raise PackError(
            f"{origin_text(place)}: {error}; pass rename= for other keys, map= for other fields"
        ) from error


def _renamed(
    task: RewriteTask, view: IndexedDataset, batch: range, first: dict[str, SampleOrigin]
) -> Iterator[tuple[SampleOrigin, Sample]]:
    """Yield samples under their new keys, each key once, with their places.

    Args:
        task: The shard.
        view: Its samples.
        batch: Which of them.
        first: Where the keys so far come from.
    """
    for sample in _samples(task.path, view, batch):
        place = sample.get("__shard__", task.path), sample.get("__index__", -1)
        key = sample.get("__key__") if task.rename is None else task.rename(dict(sample))
        if not isinstance(key, str) or not key:
            raise PackError(
                f'{origin_text(place)}: expected a sample with a text under "__key__", found '
                f"{key!r:.80}; keep the key or return a new one"
            )
        if first.setdefault(key, place) is not place:
            raise repeated_key_error(key, first[key], place)
        # The bytes of a field that was not decoded, and any other value as it is.
        fields = {
            name: value.getvalue() if isinstance(value, BytesIO) else value
            for name, value in sample.items()
            if not name.startswith("__")
        }
        if not fields:
            raise PackError(
                f'{origin_text(place)}: sample "{key}": expected at least one field to write, '
                "found none; choose fields that all samples have, or leave this one out"
            )
        yield place, {"__key__": key} | fields


def _batches(task: RewriteTask, length: int) -> Iterator[range]:
    """Yield the samples of a shard in batches."""
    mean_nbytes = max((task.nbytes or 0) // max(length, 1), 1)
    width = max(1, min(_MAX_BATCH, _BATCH_NBYTES // mean_nbytes))
    for start in range(0, length, width):
        yield range(start, min(start + width, length))


def _samples(path: str, view: IndexedDataset, batch: range) -> Iterator[Sample]:
    for found in view.__getitems__(list(batch)):
        for sample in listed(found):
            if not isinstance(sample, Mapping):
                raise PackError(
                    f"{urls.redact(path)}: expected on_error, or a dataset of another class, "
                    "to return a sample, None or several samples, found "
                    f"{type(sample).__name__} {sample!r:.80}"
                )
            yield sample
