"""Make the functions that read samples from an index and the bytes of its tar: the innermost loop.

Most shards are uniform: all samples have the same fields, which is checked once. Members are
compared with the index if it has checksums.

The functions are closures because local variables are faster than attributes, and they index
memoryviews because these return plain ints several times faster than arrays do. They calculate only
with these ints: an index may be a numpy integer, and 200 + 100 is 44 in 8 bits. They hold no shard:
that would be a reference cycle, which keeps the file open.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from wids.shards.tars.archive import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.mapped_file import advise
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    Raw,
    RawSample,
    changed_header_error,
    changed_payload_error,
    label,
)
from wids.storage.checksums import fastest_crc32
from wids.storage.stages import checked

ReadSample: TypeAlias = Callable[[int, "Labels | None"], RawSample]
"""Returns a sample by its index, which must be 0 or more, with labels if given."""

ReadSamples: TypeAlias = Callable[[Sequence[int], "Labels | None"], list[RawSample]]
"""Returns samples by their indices, with labels if given."""


Readers: TypeAlias = tuple[ReadSample, ReadSamples]
"""The functions that read one sample and several samples, with equal results."""

LARGE_NBYTES: Final = 16 << 10
"""Larger members get a separate hint, which costs little compared with the copy."""


def sample_reader(
    path: str,
    data: mmap.mmap,
    view: memoryview,
    index: ShardIndex,
    wanted: frozenset[str] | None,
    raw: Raw,
    *,
    verify: bool = False,
) -> Readers:
    """Return the functions that read samples of any shard, and compare them with the index.

    Args:
        path: The name of the tar in messages.
        data: Its bytes.
        view: The same bytes, of which slices are not copies.
        index: Where its samples are.
        wanted: The only fields to read, or None for all.
        raw: The form of a field.
        verify: Whether to compare members with their checksums.
    """
    starts, blocks, sizes = index.member_starts.data, index.blocks.data, index.sizes.data
    field_ids, names, key_starts = index.field_ids.data, index.fields, index.key_starts.data
    stops, key_stops = starts[1:], key_starts[1:]
    text, text_start = index.text, index.text_start
    source: mmap.mmap | memoryview = view if raw == "view" else data
    wrap, heads = WRAP[raw], index.head_blocks.data
    crcs = index.head_crcs.data if len(index.head_crcs) else None
    payload_crcs = index.payload_crcs.data if verify else None
    crc32 = zlib.crc32 if crcs is payload_crcs is None else fastest_crc32()

    def read(local_index: int, labels: Labels | None) -> RawSample:
        sample: RawSample = {}
        for member in range(starts[local_index], stops[local_index]):
            field = names[field_ids[member]]
            if wanted is not None and field not in wanted:
                continue
            offset, size = blocks[member] * BLOCK_NBYTES, sizes[member]
            if size > LARGE_NBYTES:
                advise(data, "WILLNEED", offset, size)
            if crcs is not None:
                head = offset - heads[member] * BLOCK_NBYTES
                if crc32(data[head:offset]) != crcs[member]:
                    raise changed_header_error(path, head, field)
            value = source[offset : offset + size]
            if payload_crcs is not None:
                computed = crc32(value) if size <= LARGE_NBYTES else checked(crc32, value)
                if computed != payload_crcs[member]:
                    raise changed_payload_error(path, index.member_name(member))
            sample[field] = value if wrap is None else wrap(value)
        start, stop = key_starts[local_index], key_stops[local_index] - 1
        key = text[text_start + start : text_start + stop]
        sample["__key__"] = key.decode("utf-8", "surrogateescape")
        if labels is not None:
            label(sample, local_index, labels)
        return sample

    def read_several(local_indices: Sequence[int], labels: Labels | None) -> list[RawSample]:
        return [read(local_index, labels) for local_index in local_indices]

    return read, read_several


def uniform_reader(
    source: mmap.mmap | memoryview, index: ShardIndex, wanted: frozenset[str] | None, raw: Raw
) -> Readers | None:
    """Return faster functions for shards in which all samples have the same fields.

    Reads the whole index. The functions compare no checksums and give no hints.

    Args:
        source: The bytes of the tar.
        index: Where its samples are.
        wanted: The only fields to read, or None for all.
        raw: The form of a field.

    Returns:
        The functions; None for other shards, or if members are large or headers are compared.
    """
    fields = _common_fields(index)
    if fields is None or not (wanted is None or wanted.issuperset(fields)):
        return None
    if len(index.head_crcs) or index.sizes.max(initial=0) > LARGE_NBYTES:
        return None
    starts, blocks, sizes = index.member_starts.data, index.blocks.data, index.sizes.data
    key_starts, key_stops = index.key_starts.data, index.key_starts.data[1:]
    text, text_start = index.text, index.text_start
    wrap = WRAP[raw]

    # Samples begin as copies of one with the labels that the shard's samples share: calling `label`
    # for each of them would take a tenth of the time. One tuple, so that threads with different
    # labels cannot mix them up.
    latest: tuple[Labels | None, Callable[[], RawSample]] = None, _blank(fields, None).copy

    def read(local_index: int, labels: Labels | None) -> RawSample:
        nonlocal latest
        known = latest
        if known[0] != labels:
            known = latest = labels, _blank(fields, labels).copy
        sample = known[1]()
        member = starts[local_index]
        for field in fields:
            offset = blocks[member] * BLOCK_NBYTES
            value = source[offset : offset + sizes[member]]
            sample[field] = value if wrap is None else wrap(value)
            member += 1
        start, stop = key_starts[local_index], key_stops[local_index] - 1
        key = text[text_start + start : text_start + stop]
        sample["__key__"] = key.decode("utf-8", "surrogateescape")
        if labels is not None:
            sample["__index__"] = labels[0] + local_index
            sample["__shardindex__"] = local_index
        return sample

    # The same code again, since a call for each sample would take a seventh of a batch.
    def read_several(local_indices: Sequence[int], labels: Labels | None) -> list[RawSample]:
        nonlocal latest
        known = latest
        if known[0] != labels:
            known = latest = labels, _blank(fields, labels).copy
        first = 0 if labels is None else labels[0]
        copy, samples = known[1], []
        for local_index in local_indices:
            sample = copy()
            member = starts[local_index]
            for field in fields:
                offset = blocks[member] * BLOCK_NBYTES
                value = source[offset : offset + sizes[member]]
                sample[field] = value if wrap is None else wrap(value)
                member += 1
            start, stop = key_starts[local_index], key_stops[local_index] - 1
            key = text[text_start + start : text_start + stop]
            sample["__key__"] = key.decode("utf-8", "surrogateescape")
            if labels is not None:
                sample["__index__"] = first + local_index
                sample["__shardindex__"] = local_index
            samples.append(sample)
        return samples

    return read, read_several


def _blank(fields: tuple[str, ...], labels: Labels | None) -> RawSample:
    """Return a sample with only the values that all samples of a shard share."""
    sample: RawSample = dict.fromkeys((*fields, "__key__"))
    if labels is not None:
        label(sample, 0, labels)
    return sample


def _common_fields(index: ShardIndex) -> tuple[str, ...] | None:
    """Return the fields of every sample, in the order of the archive; None if samples differ."""
    if not len(index):
        return None
    num_fields = int(index.member_starts[1])
    starts = np.arange(len(index) + 1) * num_fields
    numbers = index.field_ids[:num_fields]
    if (index.member_starts != starts).any():
        return None
    if numbers.tobytes() * len(index) != index.field_ids.tobytes():
        return None
    return tuple(index.fields[number] for number in numbers)
