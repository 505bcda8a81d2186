"""Decide how a shard is read: this is the only place that does.

A file of this machine is mapped, and so is a copy in the cache. For the others it depends on what
is wanted, on ``access``, and on what is known of the shard:

| ``access``               | `PART` | `SAMPLES` | `MOST` | `FILE` |
|--------------------------|--------|-----------|--------|--------|
| ``"range"``              | range  | range     | range  | fetch  |
| ``"download"``           | range* | fetch     | fetch  | fetch  |
| ``"auto"``               | range* | range*    | fetch  | fetch  |

(*) Fetched instead if it has no index, if its server sends whole files only, or, with ``"auto"``,
if enough of it was read by range (`wids.shards.range_budget`). With ``access="range"`` it is never
fetched for samples: without an index, opening it is an error.

One sample and a batch differ only in the bytes that are counted, and a pass is `MOST` where it
reads a quarter of a shard or more.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from wids.shards.read_options import AccessMode
from wids.shards.shard_facts import ShardFacts


class Wanted(Enum):
    """What a caller wants of a shard."""

    PART = auto()
    """Its index, its keys, or part of a field."""
    SAMPLES = auto()
    """Some samples: one, or those of a batch."""
    MOST = auto()
    """A quarter of its samples or more, as in a pass, or all bytes; or what ranges cannot give."""
    FILE = auto()
    """A file of this machine."""


class Way(Enum):
    """How a shard is read."""

    MAP = auto()
    """It is a file of this machine, which is mapped."""
    COPY = auto()
    """It has a copy in the cache, which is mapped."""
    RANGE = auto()
    """The bytes of members are requested from its server."""
    FETCH = auto()
    """It is downloaded into the cache, and the copy is mapped."""


def way_to_read(wanted: Wanted, shard: ShardFacts, *, supposes_index: bool = False) -> Way:
    """Return how to read a shard.

    Args:
        wanted: What is wanted of it.
        shard: What is known of it.
        supposes_index: Whether to answer, without a request, as if its index were known.
    """
    if shard.path is not None:
        return Way.MAP
    if shard.has_copy:
        return Way.COPY
    access = shard.access
    if access == "range":
        return Way.FETCH if wanted is Wanted.FILE else Way.RANGE
    may_range = wanted is Wanted.PART or (wanted is Wanted.SAMPLES and access == "auto")
    # Without ranges, each attempt would start the transfer of the whole file.
    if not may_range or not shard.sends_ranges or shard.is_spent:
        return Way.FETCH
    return Way.RANGE if supposes_index or shard.has_index else Way.FETCH


def wanted_instead(wanted: Wanted, access: AccessMode) -> Wanted | None:
    """Return what to want of a shard that cannot be read by range after all.

    None if the error stands: it was not read by range, or must not be fetched.
    """
    return Wanted.MOST if wanted in _BY_RANGE and access != "range" else None


_BY_RANGE: Final = Wanted.PART, Wanted.SAMPLES
