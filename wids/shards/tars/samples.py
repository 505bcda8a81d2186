"""Make the loop that reads the samples of a tar, mapped or by range.

It slices its source: the map, or the bytes that arrived. The first read of a sample finds out its
fields, and compares its headers with the index if that has checksums of them. A number notes this,
so that later reads of the same map do neither.

The functions are closures because local variables are faster than attributes, and they index
memoryviews because these return plain ints several times faster than arrays do. They calculate only
with these ints: an index may be a numpy integer, and 200 + 100 is 44 in 8 bits. They hold no shard:
that would be a reference cycle, which keeps the file open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import (
    WRAP,
    Labels,
    Raw,
    RawSample,
    changed_header_error,
    changed_payload_error,
    label,
)
from wids.storage.files import fastest_crc32
from wids.storage.stages import checked


class Source(Protocol):
    """The bytes of a tar, or those that were requested of it."""

    def __getitem__(self, span: slice, /) -> Any:
        """Return the bytes of a span, which has a start and a stop."""


Append: TypeAlias = Callable[["RawSample"], None]

ReadSamples: TypeAlias = Callable[..., RawSample]
"""Reads samples by their indices, which must be 0 or more, with labels if given; passes each to a
callable if given; slices another source if given; and returns the last one."""

Members: TypeAlias = list[tuple[str, int]]
"""The fields to read of a sample, each with the number of its member in the sample."""

Shape: TypeAlias = tuple[Callable[[], RawSample], Members, bool]
"""A function that returns a new sample with its names, and with the labels that all samples of a
shard share, since setting these takes a tenth of the time; its members; and whether one is large.
"""

Look: TypeAlias = Callable[[int, "Labels | None", "list[Shape | None]", Source], Shape]
"""Returns the shape of a sample, and adds it to the shapes that have these labels."""

LARGE_NBYTES: Final = 16 << 10
"""Larger members get a separate hint, which costs little compared with the copy."""

# What is known of a sample: nothing; that its headers are right, but its shape has no number; only
# that it has the same fields as all samples; or, from 4 on, that its headers are right and that its
# shape has this number, an odd one if it has a large member.
UNREAD, _UNNUMBERED, _UNREAD_UNIFORM, _UNIFORM, _END = 0, 1, 2, 4, 32
_UNCOMPARED: Final = UNREAD, _UNREAD_UNIFORM


def sample_readers(
    name: str,
    source: Source,
    index: ShardIndex,
    wanted: frozenset[str] | None,
    raw: Raw,
    known: bytes | bytearray,
    hint: Callable[[int, int], object],
) -> tuple[ReadSamples, ReadSamples]:
    """Return the function that reads samples, and one that also compares members with the index.

    Args:
        name: The name of the tar in messages.
        source: Its bytes; a memoryview for views of them.
        index: Where its samples are.
        wanted: The only fields to read, or None for all.
        raw: The form of a field.
        known: What is known of each sample, which reads add to: `UNREAD` at first, or what
            `known_at_first` returns. `bytes` stay unread, for sources that differ.
        hint: Called with the start and the length of a large member before it is read.
    """
    starts, blocks, sizes = index.member_starts.data, index.blocks.data, index.sizes.data
    key_starts, key_stops = index.key_starts.data, index.key_starts.data[1:]
    text, text_start, text_stop = index.text, index.text_start, index.text_start - 1
    wrap = None if isinstance(source, memoryview) else WRAP[raw]
    crc32 = fastest_crc32()
    timed_crc32 = partial(checked, crc32)

    compare = _compare(name, index, blocks) if len(index.head_crcs) else None
    look = _look(index, wanted, known, (starts, blocks, sizes), compare, hint)

    def reader(crcs: memoryview | None) -> ReadSamples:
        # One tuple, so that threads with different labels cannot mix them up.
        last_shapes: tuple[Any, list[Shape | None]] = (), []

        def read(
            local_indices: Sequence[int],
            labels: Labels | None,
            append: Append | None = None,
            source: Source = source,
        ) -> RawSample:
            nonlocal last_shapes
            shared = last_shapes
            if shared[0] is not labels and shared[0] != labels:
                shared = last_shapes = labels, [None] * _END
            shapes = shared[1]
            for local_index in local_indices:
                shape = shapes[known[local_index]] or look(local_index, labels, shapes, source)
                new_sample, members, is_large = shape
                sample, first = new_sample(), starts[local_index]
                if is_large:
                    _hint(hint, blocks, sizes, first, members)
                for field, at in members:
                    member = first + at
                    offset = blocks[member] * BLOCK_NBYTES
                    value = source[offset : offset + sizes[member]]
                    if crcs is not None:
                        computed = timed_crc32(value) if is_large else crc32(value)
                        if computed != crcs[member]:
                            raise changed_payload_error(name, index.member_name(member))
                    sample[field] = value if wrap is None else wrap(value)
                start, stop = text_start + key_starts[local_index], key_stops[local_index]
                sample["__key__"] = text[start : text_stop + stop].decode(errors="surrogateescape")
                if labels is not None:
                    sample["__index__"] = labels[0] + local_index
                    sample["__shardindex__"] = local_index
                if append is not None:
                    append(sample)
            return sample

        return read

    plain = reader(None)
    return plain, reader(index.payload_crcs.data) if len(index.payload_crcs) else plain


def _hint(
    hint: Callable[[int, int], object],
    blocks: memoryview,
    sizes: memoryview,
    first: int,
    members: Members,
) -> None:
    """Hint at the large members of a sample."""
    for _, at in members:
        if sizes[first + at] > LARGE_NBYTES:
            hint(blocks[first + at] * BLOCK_NBYTES, sizes[first + at])


def _compare(
    name: str, index: ShardIndex, blocks: memoryview
) -> Callable[[int, Members, Source], None]:
    """Return the function that compares the headers of a sample with the index."""
    heads, crcs, crc32 = index.head_blocks.data, index.head_crcs.data, fastest_crc32()

    def compare(first: int, members: Members, source: Source) -> None:
        for field, at in members:
            body = blocks[first + at] * BLOCK_NBYTES
            head = body - heads[first + at] * BLOCK_NBYTES
            if crc32(source[head:body]) != crcs[first + at]:
                raise changed_header_error(name, head, field)

    return compare


def _look(
    index: ShardIndex,
    wanted: frozenset[str] | None,
    known: bytes | bytearray,
    columns: tuple[memoryview, memoryview, memoryview],
    compare: Callable[[int, Members, Source], None] | None,
    hint: Callable[[int, int], object],
) -> Look:
    """Return the function that is called for samples whose shape is not known with their labels."""
    starts, blocks, sizes = columns
    stops, field_ids, names = starts[1:], index.field_ids.data, index.fields
    numbers: dict[bytes, int] = {}
    new_number = count(_UNIFORM + 2, 2)

    def look(
        local_index: int, labels: Labels | None, shapes: list[Shape | None], source: Source
    ) -> Shape:
        state, first = known[local_index], starts[local_index]
        number = _UNIFORM if state == _UNREAD_UNIFORM else state & ~1
        if not number:
            ids = field_ids[first : stops[local_index]].tobytes()
            number = numbers.get(ids, 0) or next(new_number)
            if number < _END:
                numbers[ids] = number  # a shape that two threads meet may have two numbers
        shape = shapes[number] if number < _END else None
        if shape is None:
            fields = [names[i] for i in field_ids[first : stops[local_index]]]
            shape = _shape(fields, wanted, labels)
        members = shape[1]
        is_large = False
        for _, at in members:
            if sizes[first + at] > LARGE_NBYTES:
                is_large = True
        if compare is not None and state in _UNCOMPARED:
            if is_large:
                # So that the headers are not waited for alone.
                _hint(hint, blocks, sizes, first, members)
            compare(first, members, source)
        if number >= _END:
            number, shape = _UNNUMBERED, (shape[0], members, is_large)
        else:
            shapes[number] = shape
            if is_large:
                number += 1
                shape = shapes[number] = shape[0], members, True
        if isinstance(known, bytearray):
            known[local_index] = number
        return shape

    return look


def _shape(fields: list[str], wanted: frozenset[str] | None, labels: Labels | None) -> Shape:
    """Return the shape of a sample with these fields, as if it had no large member."""
    members = [(f, at) for at, f in enumerate(fields) if wanted is None or f in wanted]
    blank: RawSample = dict.fromkeys([*(field for field, _ in members), "__key__"])
    if labels is not None:
        label(blank, 0, labels)
    return blank.copy, members, False


def known_at_first(index: ShardIndex) -> int:
    """Return what is known of all samples before they are read; looks at the whole index."""
    if not len(index):
        return UNREAD
    num_fields = int(index.member_starts[1])
    if (index.member_starts != np.arange(len(index) + 1) * num_fields).any():
        return UNREAD
    if index.field_ids[:num_fields].tobytes() * len(index) != index.field_ids.tobytes():
        return UNREAD
    is_large = index.sizes.max(initial=0) > LARGE_NBYTES
    return _UNREAD_UNIFORM if is_large or len(index.head_crcs) else _UNIFORM
