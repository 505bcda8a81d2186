"""Find the shards of the input that new ones replace, which are kept if nothing in them changes.

A kept shard is not copied: the new spec names it where it is. Reads no sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from wids.errors import PackError, ShardFormatError
from wids.publish.describe import describe_shard
from wids.publish.output import Output
from wids.publish.rewriting.orders import Order
from wids.publish.rewriting.rewrite_plan import Cut, index_of
from wids.publish.shard_job import FinalShard
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.member_names import KeySplit
from wids.shards.tars.shard import Shard
from wids.storage.transport import urls

_ADVICE: Final = "leave keep_shards out (--keep-shards)"


def input_numbers(reader: ShardReader, order: Order, cuts: Sequence[Cut]) -> list[int]:
    """Return the shard of the input that each new one replaces.

    Raises:
        PackError: The order returns to a shard, or the samples are those of a join.
    """
    if type(reader) is not ShardReader:
        raise PackError(
            f"keep_shards: expected the samples of one dataset, found joined ones; {_ADVICE}"
        )
    numbers = [reader.locate(int(order.positions(cut.start, cut.stop)[0]))[0] for cut in cuts]
    if len(set(numbers)) < len(numbers):
        again = Counter(numbers).most_common(1)[0][0]
        raise PackError(
            "keep_shards: expected the samples of each shard together, found some of "
            f"{urls.redact(reader.shards[again].url)} in several places of the order; {_ADVICE}"
        )
    return numbers


def original(reader: ShardReader, order: Order, cut: Cut, output: Output) -> FinalShard | None:
    """Return the shard that can be kept: the one that has just these samples, in their order.

    Raises:
        PackError: Readers of the new spec could not open it.
    """
    positions = order.positions(cut.start, cut.stop)
    number, _ = reader.locate(int(positions[0]))
    if not np.array_equal(positions, np.arange(reader.starts[number], reader.ends[number])):
        return None
    fields = reader.fields
    if fields is not None and not fields.issuperset(index_of(reader, number).fields):
        return None
    shard = reader.shards[number]
    if urls.is_local(shard.url) and not output.is_local:
        raise PackError(
            f"{urls.redact(output.spec_path)}: expected shards to keep that its readers can open, "
            f"found {shard.url}; upload the dataset and rewrite it there, or {_ADVICE}"
        )
    rule = reader.options.key_split or shard.key_split
    spec = replace(
        shard, num_samples=cut.stop - cut.start, key_split=rule, index=None, dataset=None
    )
    return FinalShard(spec, partial(_index, reader, number, rule or "first"))


def _index(reader: ShardReader, number: int, key_split: KeySplit) -> tuple[ShardIndex, int]:
    """Return the index with checksums of a shard, and its length; without a pack, read it."""
    reader.release_packs()  # of the shard before
    known = reader.opener.packs.index(number, reader.shards[number].nbytes, key_split)
    if known is not None and len(known[0].head_crcs):
        return known
    shard = reader.open(number)
    assert isinstance(shard, Shard)  # noqa: S101 - as always, unless by range
    record = describe_shard(shard.path, key_split, reader.options.repeated)
    stated = reader.shards[number].sha256
    if stated not in (None, record.sha256):
        raise ShardFormatError(
            f"{urls.redact(reader.shards[number].url)}: expected the sha256 {stated}, found "
            f"{record.sha256}; the shard is damaged or another one"
        )
    shard_index = record.index()
    assert shard_index is not None  # noqa: S101 - it was just made
    return shard_index, record.nbytes
