"""Define raw samples, and what an open shard offers; local, remote and joined shards share this.

What reads samples needs a `ReadableShard`. `wids.shards.tars.shard.Shard` and
`wids.shards.remote_shard.RemoteShard` are more: each is a `TarShard`, whose members can be read.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from wids.errors import ShardFormatError, WidsError, printable
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import IntArray

Raw = Literal["stream", "bytes", "view"]
RawSample: TypeAlias = dict[str, Any]
"""The fields of a sample by their names with the leading dot, and its key under ``"__key__"``."""
Labels: TypeAlias = tuple[int, str, str]
"""What a dataset adds to the samples of a shard: the position of the first sample in the dataset,
the path or URL of the shard, and the name of the dataset."""
WRAP: Final[dict[str, Callable[[Any], Any] | None]] = {
    "bytes": None,
    "view": memoryview,
    "stream": io.BytesIO,
}
"""Converts the bytes of a field to its form; None if no conversion is needed."""


def label(sample: RawSample, local_index: int, labels: Labels) -> None:
    """Add labels to a sample that say where it is."""
    start, shard, dataset = labels
    sample["__index__"] = start + local_index
    sample["__shard__"] = shard
    sample["__shardindex__"] = local_index
    sample["__dataset__"] = dataset


def check_raw(raw: str) -> None:
    """Raise `ValueError` for an unknown value of ``raw``."""
    if raw not in WRAP:
        raise ValueError(f'raw: expected "stream", "bytes" or "view", found {raw!r}')


def position(local_index: int, length: int, name: str) -> int:
    """Return an index counted from the start; a negative one counts from the end.

    Args:
        local_index: The index.
        length: Number of samples in the shard.
        name: The name of the shard in messages.
    """
    try:
        at = operator.index(local_index)
    except TypeError:
        kind = type(local_index).__name__
        text = f"{name}: expected an index, found {kind} {local_index!r:.80}"
        raise TypeError(printable(text)) from None
    if not -length <= at < length:
        text = f"{name}: index {local_index} is out of range for {length} samples"
        raise IndexError(printable(text))
    return at % length


def changed_header_error(name: str, at: int, field: str) -> ShardFormatError:
    """Return the error for a header, at a byte of a shard, that differs from its index."""
    return ShardFormatError(
        f"{name}: at byte {at}: expected the header of a {field} as in the published index, found "
        "another; the tar was written again after its index: rebuild the index too, or remove it"
    )


def changed_payload_error(name: str, member: str) -> ShardFormatError:
    """Return the error for a member whose bytes differ from the indexed ones."""
    return ShardFormatError(
        f'{name}: member "{member}": expected bytes with the checksum that the index of the shard '
        "states, found others; they were damaged after they were indexed: restore the file from "
        "where it came (or, if it was written again on purpose, rebuild its index)"
    )


class ReadableShard:
    """A shard whose samples can be read from any number of threads.

    Attributes:
        name: The shard in messages.
        index: Where the samples are.
    """

    name: str
    index: ShardIndex

    def read(
        self, local_index: int, verify: bool = False, labels: Labels | None = None
    ) -> RawSample:
        """Return one sample.

        Args:
            local_index: Its index, which must be 0 or more.
            verify: Whether to compare its members with the checksums in the index, if it has any.
                Ranges are always compared.
            labels: What to add to the sample.

        Raises:
            ShardFormatError: A member is damaged, or the tar or its index has changed.
        """
        return self.read_many([local_index], verify=verify, labels=labels)[0]

    def read_many(
        self, local_indices: Sequence[int], *, verify: bool = False, labels: Labels | None = None
    ) -> list[RawSample]:
        """Return samples in the order of ``local_indices``; fastest if these ascend.

        Args:
            local_indices: Their indices.
            verify: As for `read`.
            labels: As for `read`.
        """
        raise NotImplementedError

    def read_members(self, members: IntArray, *, verify: bool = False) -> list[bytes]:
        """Return the bytes of members, given in ascending order.

        This is for bulk reading: one field of many samples, without a dict for each sample.

        Raises:
            ShardFormatError: A member is damaged, or the tar or its index has changed.
        """
        raise NotImplementedError

    def read_starts(self, members: IntArray, nbytes: int) -> list[bytes]:
        """Return the first bytes of members, given in ascending order, or all of shorter ones.

        Headers are compared as by `read_members`; no checksum covers a part of a member.

        Raises:
            ShardFormatError: The tar or its index has changed.
        """
        return [value[:nbytes] for value in self.read_members(members)]

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ShardFormatError` if a mapped file has changed its length since it was opened."""
        if not self.index.is_intact():
            raise ShardFormatError(
                f"{self.name}: expected its index as when it was opened, found one of another "
                "length; it was changed in place: open the dataset again, and replace files by "
                "renaming"
            )


def read_or_errors(
    read: Callable[[Any], Iterable[Any]],
    wanted: Any,
    caught: type[WidsError],
    on_failure: Callable[[Any], object] = lambda _: None,
) -> list[Any]:
    """Read items in bulk, or one by one if that fails.

    Args:
        read: Returns the items at some indices, in their order.
        wanted: The indices: a list, a range or an array.
        caught: The error of an item that cannot be read.
        on_failure: Takes the error of reading in bulk; raises if no item can be read.

    Returns:
        The items, with an error in place of each item that cannot be read.
    """
    try:
        return list(read(wanted))
    except caught as error:
        on_failure(error)
    found: list[Any] = []
    for at in range(len(wanted)):
        try:
            found += read(wanted[at : at + 1])
        except caught as error:
            found.append(error)
    return found
