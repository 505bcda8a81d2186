"""Compare the samples of two datasets by the keys, fields and checksums in their indexes.

No shard is opened, so that millions of samples, and remote ones, are compared in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import add
from struct import iter_unpack
from typing import Any, Final

import numpy as np

from wids.errors import MismatchError
from wids.shards.dataset_indexes import DatasetIndexes
from wids.shards.indexes.dataset_index import key_hash
from wids.shards.read_options import cache_folder
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import DatasetSpec, common_classes
from wids.shards.tars.headers import to_bytes, to_text
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import WordArray
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls

_COLUMNS: Final = ("sizes", "field_ids", "blocks", "head_crcs", "payload_crcs", "member_starts")
_WORD_NBYTES: Final = 8
# Odd numbers of 64 bits, which spread the bits of what they are multiplied with.
_MIXERS: Final = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))


@dataclass(frozen=True)
class SpecDiff:
    """What two datasets do not have in common.

    Attributes:
        removed: Keys of the samples that only the old one has, in its order.
        changed: Keys of the samples that have other fields, or other bytes in one of them.
        added: Keys of the samples that only the new one has, in its order.
        num_same: Number of samples that both have.
    """

    removed: list[str]
    changed: list[str]
    added: list[str]
    num_same: int

    @property
    def is_empty(self) -> bool:
        """Whether both have the same samples."""
        return not (self.removed or self.changed or self.added)


def diff_specs(
    old: Shards,
    new: Shards,
    *,
    allow_pipe: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> SpecDiff:
    """Compare the samples of two datasets by keys, fields, lengths and CRC-32, from their indexes.

    Shards, the order of samples and that of the fields of a sample are not compared. A key that
    several shards have is compared as often as it occurs. No shard is opened: `verify_spec` tells
    whether shards are what their dataset indexes state. Samples of shards that both have, and that
    differ in nothing, take no memory; the others of the old dataset take about 150 bytes each.

    Args:
        old: A dataset, in any form that a dataset takes.
        new: Another one.
        allow_pipe: Whether documents may name ``pipe:`` commands; none is run.
        storage_options: As for `ShardListDataset`.

    Returns:
        The keys of what differs.

    Raises:
        MismatchError: A dataset index with the checksums of a shard is missing.
        SpecError: ``old`` or ``new`` is malformed, or their classes differ, so that equal numbers
            are different classes.
        FetchError: A document cannot be read.

    Example:
        >>> import wids
        >>> for name, text in (("old", "a cat"), ("new", "a lynx")):
        ...     with wids.ShardWriter(f"{name}-%06d.tar") as writer:
        ...         _ = writer.write({"__key__": "0001", "txt": text})
        ...         _ = writer.write({"__key__": f"{name}-2", "txt": "a dog"})
        >>> wids.diff_specs("old.json", "new.json")
        SpecDiff(removed=['old-2'], changed=['0001'], added=['new-2'], num_same=0)
    """
    sides = [_Side(shards, allow_pipe, storage_options) for shards in (old, new)]
    names = ("the old dataset", "the new dataset")
    common_classes(zip(names, (side.spec.classes for side in sides), strict=True))
    _leave_out_same_shards(*sides)
    old_entries = Counter(sides[0].entries())
    added: list[bytes] = []
    for entry in sides[1].entries():
        count = old_entries.pop(entry, 0)
        if not count:
            added.append(entry[:-_WORD_NBYTES])
        elif count > 1:
            old_entries[entry] = count - 1
    removed = [entry[:-_WORD_NBYTES] for entry in old_entries.elements()]
    changed = Counter(removed) & Counter(added)
    num_same = sides[0].num_samples - len(removed)
    only_old, only_new = (_texts((Counter(keys) - changed).elements()) for keys in (removed, added))
    return SpecDiff(only_old, _texts(changed.elements()), only_new, num_same)


class _Side:
    """One of the datasets.

    Attributes:
        spec: The dataset.
        numbers: Its shards that are compared, in order.
        num_samples: Number of samples of the shards that were read, or left out.
    """

    def __init__(
        self, shards: Shards, allow_pipe: bool, storage_options: Mapping[str, Any] | None
    ) -> None:
        fetcher = Fetcher(storage_options)
        self.spec: DatasetSpec = load_with(fetcher, shards, None, allow_pipe=allow_pipe)
        self.numbers = dict.fromkeys(range(len(self.spec.shards)))
        self.num_samples = 0
        self._dataset_indexes = DatasetIndexes(self.spec, Cache(cache_folder(None), fetcher))

    def index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard in a dataset index, if there is one."""
        self._dataset_indexes.release()  # of the shard before
        shard = self.spec.shards[number]
        found = self._dataset_indexes.index(number, shard.nbytes, shard.key_split or "first")
        return None if found is None else found[0]

    def entries(self) -> Iterator[bytes]:
        """Yield the key of each sample with a word that stands for its fields and their bytes.

        Raises:
            MismatchError: A shard has no checksums.
        """
        for number in self.numbers:
            shard_index = self.index(number)
            if shard_index is None or len(shard_index.payload_crcs) != len(shard_index.sizes):
                url = urls.redact(self.spec.shards[number].url)
                raise MismatchError(
                    f"{url}: expected a dataset index with the checksums of its samples, found "
                    f"{'none' if shard_index is None else 'one without them'}; describe the shards "
                    "again with `wids create --digests`, which reads them once"
                )
            self.num_samples += len(shard_index)
            words = iter_unpack(f"{_WORD_NBYTES}s", _words(shard_index).tobytes())
            yield from map(add, shard_index.stored_keys(), (word for (word,) in words))


def _words(shard_index: ShardIndex) -> WordArray:
    """Return a word for each sample: the sum of the hashes of its fields, lengths and checksums."""
    names = np.array([key_hash(to_bytes(field)) for field in shard_index.fields], np.uint64)
    words = names[shard_index.field_ids] if len(names) else np.zeros(0, np.uint64)
    for column in (shard_index.sizes, shard_index.payload_crcs):
        words = (words ^ column) * _MIXERS[0]
        words ^= words >> np.uint64(32)
    # As in SplitMix64: a sum of words that differ in few bits would hide changes of two fields.
    words = (words ^ words >> np.uint64(30)) * _MIXERS[1]
    words = (words ^ words >> np.uint64(27)) * _MIXERS[2]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    return np.diff(sums[shard_index.member_starts])


def _leave_out_same_shards(old: _Side, new: _Side) -> None:
    """Leave out shards of one URL that are the same by their indexes.

    A shard whose dataset index has no checksums of members is so too, unless its headers have
    changed.
    """
    numbers = {new.spec.shards[number].url: number for number in new.numbers}
    for number in list(old.numbers):
        other = numbers.get(old.spec.shards[number].url)
        if other not in new.numbers:  # one shard may be listed twice
            continue
        before, after = old.index(number), new.index(other)
        if before is not None and after is not None and _is_same(before, after):
            del old.numbers[number], new.numbers[other]
            old.num_samples += len(before)


def _is_same(before: ShardIndex, after: ShardIndex) -> bool:
    columns = ((getattr(before, name), getattr(after, name)) for name in _COLUMNS)
    is_same = before.fields == after.fields and all(np.array_equal(*both) for both in columns)
    return is_same and before.stored_keys() == after.stored_keys()


def _texts(keys: Iterable[bytes]) -> list[str]:
    return list(map(to_text, keys))
