"""Define what an open shard offers, whether it is a local file or a tar read by range.

What reads samples needs a `ReadableShard`. `wids.shards.tars.shard.Shard` and
`wids.shards.range_shard.RemoteShard` are more: each is a `PooledShard`, which a pool keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wids.errors import WidsError
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, RawSample, changed_index_error, position
from wids.storage.array_types import IntArray

if TYPE_CHECKING:
    from typing_extensions import Self


class ReadableShard:
    """A shard whose samples can be read from any number of threads: a tar, or a joined one.

    Attributes:
        name: The shard in messages.
        index: Where the samples are.
        latest_labels: The name of the dataset for which a sample was read last, or None, and the
            labels of its samples. They stay the same nearly always.
    """

    name: str
    index: ShardIndex
    latest_labels: tuple[str | None, Labels] = None, (0, "", "")

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
        self,
        local_indices: Sequence[int],
        *,
        verify: bool = False,
        labels: Labels | None = None,
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

    def of_samples(
        self,
        local_indices: Sequence[int] | IntArray,  # noqa: ARG002 - of shards that have no such index
        on_damage: Callable[[WidsError], object] | None = None,  # noqa: ARG002 - the same
    ) -> ReadableShard:
        """Return a shard whose index has all fields of some samples: this one.

        A shard whose index lacks fields, as that of joined samples, reads the samples instead.

        Args:
            local_indices: The samples, ascending.
            on_damage: Takes the error of a damaged sample, which then has no fields; None to raise
                it.
        """
        return self

    def read_part(self, local_index: int, field: str, start: int, stop: int) -> bytes:
        """Return the bytes of one field from a start to a stop, or to its end."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ShardFormatError` if a mapped file has changed its length since it was opened."""
        if not self.index.is_intact():
            raise changed_index_error(self.name)


class PooledShard(ReadableShard):
    """An open tar: what a pool keeps, which is a sequence of raw samples.

    Attributes:
        nbytes: Length of the tar in bytes.
        is_local: Whether the whole tar is a file on this machine.
    """

    nbytes: int
    is_local: bool

    @property
    def is_spent(self) -> bool:
        """Whether to open the local file from now on instead of this shard."""
        return False

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}({self.name!r}: {len(self)} samples, {self.nbytes} bytes)"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.index)

    def __getitem__(self, local_index: int) -> RawSample:
        """Return one sample; negative indices count from the end."""
        return self.read(position(local_index, len(self), self.name))

    def __iter__(self) -> Iterator[RawSample]:
        """Iterate over all samples in order."""
        return map(self.read, range(len(self)))

    def find(self, key: str) -> int:
        """Return the local index of a key, or -1."""
        return self.index.find(key)

    def close(self) -> None:
        """Release what the shard holds; memoryviews that were handed out stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
