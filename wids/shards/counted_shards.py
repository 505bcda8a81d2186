"""Make the reader of a spec, after counting its samples and checking that the fields exist.

Fields are checked when the first shard is opened. Otherwise samples would silently lack a field
whose name is misspelt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np

from wids.errors import SpecError, WidsError, warn
from wids.shards.policy import Wanted
from wids.shards.read_options import ReadOptions
from wids.shards.reader import ShardReader
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.raw_samples import TarShard
from wids.storage.cache.store import Cache
from wids.storage.shared_numbers import SharedNumber


def counted_shards(
    spec: DatasetSpec,
    store: Cache,
    options: ReadOptions,
    *,
    passes_over: bool = False,
    progress: bool | None = None,
) -> ShardReader:
    """Return the reader of a spec, after counting the shards without a stated number of samples.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        options: How to open shards and read samples.
        passes_over: Whether a shard that is broken has no samples if they have to be counted,
            instead of raising its error.
        progress: Whether to show a bar while shards are counted, as in `progress.Bar`.

    Raises:
        SpecError: The numbers of samples add up to 2**63 or more; or more than a gigabyte would
            have to be downloaded to count them.
        FetchError: A shard that has to be counted cannot be read.
        ShardFormatError: A shard that has to be counted is not a complete, plain tar.
    """
    reader = ShardReader(spec, store, options)
    if passes_over:
        reader.broken.begin()
    if options.fields:
        reader.check_opened = FieldCheck(options.fields)

    def open_length(number: int) -> int:
        return len(reader.open(number, Wanted.MOST))  # those of a small dataset stay open

    if isinstance(reader.counts, list):
        if None in reader.counts:
            from wids.shards.counting import count_samples  # 1 ms, with modules that ask servers

            count_samples(reader, reader.counts, open_length, progress)
        if sum(count or 0 for count in reader.counts) >= 1 << 63:
            raise SpecError(f"{spec.name or 'the spec'}: its counts add up to 2**63 or more")
        reader.note_counts()
    empty = np.flatnonzero(np.diff(reader.edges) == 0)
    if len(empty):
        from wids.shards.counting import check_empty

        broken = reader.broken.numbers
        check_empty(reader, [n for n in empty.tolist() if n not in broken], progress)
    return reader


_LOOK_S: Final = 2.0
"""How long to look for a field in the indexes of other shards. The indexes of a thousand shards are
read in this time; scanning as many tars without an index would take minutes."""

_MAX_SHOWN: Final = 12
"""Most names of fields in a message."""


class FieldCheck:
    """Compares the wanted fields with the first opened shard that has samples.

    Fields that this shard lacks are looked up in the indexes of other shards; nothing is fetched
    for that. Can be pickled, and used by any number of threads.

    Args:
        fields: The wanted fields, with their leading dots.
    """

    def __init__(self, fields: frozenset[str]) -> None:
        self._wanted = fields
        self._is_done = False
        self._warned = SharedNumber()

    def __call__(self, reader: ShardReader, number: int, shard: TarShard) -> None:
        """Check the fields, if that was not done yet.

        Raises:
            ValueError: No shard has one of the fields.
        """
        # Two threads may both check, with the same result. An empty shard has no fields and proves
        # nothing.
        if not self._is_done and len(shard):
            try:
                self._check(reader, number, frozenset(shard.index.fields))
            except BaseException:
                shard.close()  # a stored error should not keep a file open
                raise
            self._is_done = True

    def _check(self, reader: ShardReader, number: int, existing: frozenset[str]) -> None:
        missing = self._wanted - existing
        if not missing:
            return
        has_none = missing == self._wanted
        numbers = [other for other in range(len(reader.shards)) if other != number]
        # In a concatenation, often only some datasets have a field, so neighbours say little.
        random.Random(0).shuffle(numbers)  # noqa: S311 - any order will do
        until_s, is_proven = time.monotonic() + _LOOK_S, True
        for other in numbers:
            if time.monotonic() > until_s:
                is_proven = False  # the last shard may have a rare field
                break
            found = None
            with suppress(WidsError):  # reported when the shard is read
                found = _fields(reader, other)
            is_proven = is_proven and found is not None
            existing |= found or set()
            if existing >= self._wanted:
                return
        missing -= existing
        names, known_fields = _listed(sorted(missing)), _listed(_nearest_first(existing, missing))
        if is_proven:
            raise ValueError(
                f"fields: expected fields of the dataset, found {names}, which no shard has; the "
                f"shards have {known_fields}"
            )
        # If the first shard has some of the fields, the others may just be rare: no warning.
        if has_none and not self._warned.common[0]:
            self._warned.common[0] = 1  # for all processes
            warn(f"fields: no shard whose index is known has {names}; they have {known_fields}")


def _fields(reader: ShardReader, number: int) -> set[str] | None:
    """Return the fields of a shard; None if it would have to be fetched."""
    if not reader.has_index(number):
        return None
    # Apart, so that the check evicts no shard that is being read.
    with reader.open_apart(number, Wanted.PART) as shard:
        return set(shard.index.fields)


def _nearest_first(names: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Return names, those most similar to a wanted one first."""
    from difflib import SequenceMatcher  # 1 ms, for an error

    return sorted(
        names, key=lambda name: (-max(SequenceMatcher(None, name, w).ratio() for w in wanted), name)
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:_MAX_SHOWN])
    return f"{shown} and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else shown
