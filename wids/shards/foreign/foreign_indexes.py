"""Convert the indexes of other programs: DALI's ``.idx``, and Energon's ``index.sqlite``.

Both state where the bytes of members are, and no checksums: reads compare the headers of each
member with its name and length instead (INDEX-40).
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import Final, TypeAlias

import numpy as np

from wids.errors import MismatchError, NotFoundError
from wids.shards.foreign.statements import by_shard_counts, counts_in, disagreement, has_names
from wids.shards.side_files import local_file, open_file, read_file
from wids.shards.specs.model import COUNTS_FROM, INFO, SQLITE, ShardSpec
from wids.shards.tars.archive import BLOCK_NBYTES, TarMembers, padded
from wids.shards.tars.index import Repeated, ShardIndex, build_index
from wids.shards.tars.member_names import KeySplit, to_bytes, to_text
from wids.storage.array_types import IntArray
from wids.storage.cache.store import Cache
from wids.storage.transport import urls

_MAX_HEAD_NBYTES: Final = 16 * BLOCK_NBYTES
"""Most bytes between two members that are taken for headers; more contain files without a key."""

_PARTS: Final = (
    "SELECT s.sample_key || '.' || p.part_name, p.content_byte_offset, p.content_byte_size "
    "FROM sample_parts AS p JOIN samples AS s "
    "ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index "
    "WHERE p.tar_file_id = ?"
)

_TABLES: Final = (
    "SELECT count(*) FROM sqlite_master "
    "WHERE type = 'table' AND name IN ('samples', 'sample_parts')"
)

Place: TypeAlias = "tuple[str, int, int]"
"""Name of a member, where its bytes begin in the tar, and how many there are."""

_logger = logging.getLogger(__name__)


def foreign_index(
    store: Cache, shard: ShardSpec, key_split: KeySplit, repeated: Repeated = "error"
) -> tuple[ShardIndex, int] | None:
    """Return the index of a remote shard by the file of another program, and the tar's length.

    Returns:
        None if the file is missing or has no names, or if the length is unknown.

    Raises:
        MismatchError: The file is of another tar, or states another number of samples.
        FetchError: The file cannot be read.
    """
    url = shard.index or ""
    name = urls.redact(url)
    nbytes = shard.nbytes or store.fetcher.nbytes(shard.url)
    if nbytes is None:
        return None
    most = nbytes // BLOCK_NBYTES  # a member has a header, so more are none of this tar
    try:
        is_dali = urls.path_of(url).endswith(".idx")
        places = (
            _dali_places(store, url, nbytes)
            if is_dali
            else _energon_places(store, url, shard.url, most + 1)
        )
    except (NotFoundError, sqlite3.Error) as error:
        _logger.warning("%s: %s; going on without this index", name, str(error))
        return None
    if not places:
        return None
    tar = urls.redact(shard.url)
    if len(places) > most:
        raise MismatchError(
            f"{tar}: expected at most {most} members in its {nbytes} bytes, found more in {name}, "
            "which is of another tar: make it again or remove it"
        )
    index = _converted(places, nbytes, key_split, name, tar, repeated)
    if shard.num_samples not in (None, len(index)):
        source = shard.extras.get(COUNTS_FROM, "the spec")
        raise disagreement(shard.url, source, shard.num_samples, name, len(index))
    return index, nbytes


def _dali_places(store: Cache, url: str, tar_nbytes: int) -> list[Place]:
    """Return the members in DALI's index; none if it states no names, or names with blanks."""
    with open_file(store, url) as file:
        data = file.read(tar_nbytes + 1)
    if len(data) > tar_nbytes or not has_names(data):  # a line is shorter than its member's header
        return []
    words = [to_text(line).split(" ") for line in data.split(b"\n")[1:] if line]
    if any(len(line) % 4 for line in words):
        return []
    try:
        # Each member as its field, start, length and name.
        return [
            (line[at + 3], int(line[at + 1]), int(line[at + 2]))
            for line in words
            for at in range(0, len(line), 4)
        ]
    except ValueError:  # a name with three blanks
        return []


def _energon_places(store: Cache, url: str, shard: str, most: int) -> list[Place]:
    """Return the members of a shard in Energon's index, which numbers shards as its info does."""
    info = url.replace(SQLITE, INFO)
    counts = counts_in(read_file(store, info), info, by_shard_counts)
    join = urls.joiner(urls.join(urls.parent(info), ".."))
    paths = [urls.path_of(join(name)) for name in counts]
    if urls.path_of(shard) not in paths:
        return []
    number = paths.index(urls.path_of(shard))
    with (
        local_file(store, url) as path,
        closing(sqlite3.connect(f"file:{urls.quoted(path)}?mode=ro&immutable=1", uri=True)) as base,
    ):
        if base.execute(_TABLES).fetchone() != (2,):  # a view could compute for hours
            return []
        return base.execute(_PARTS, (number,)).fetchmany(most)


def _converted(
    places: list[Place],
    nbytes: int,
    key_split: KeySplit,
    source: str,
    tar: str,
    repeated: Repeated,
) -> ShardIndex:
    """Return the index of members, after checking that they are inside the tar, one after another.

    Raises:
        MismatchError: They are not.
    """
    is_sound = all(_is_inside(place, nbytes) for place in places)
    columns = np.array([place[1:] for place in places if is_sound], np.int64).reshape(-1, 2)
    order = np.argsort(columns[:, 0], kind="stable")
    offsets, sizes = columns[order].T
    ends = np.concatenate(([0], offsets + padded(sizes)))
    is_apart = (offsets >= ends[:-1] + BLOCK_NBYTES).all()
    is_in_blocks = not (offsets % BLOCK_NBYTES).any()
    if not (is_sound and is_apart and is_in_blocks and (offsets + sizes)[-1] <= nbytes):
        raise MismatchError(
            f"{tar}: expected members one after another in its {nbytes} bytes, found others in "
            f"{source}, which is of another tar: make it again or remove it, or describe the "
            "shards with `wids create` and open that spec"
        )
    names = [to_bytes(places[at][0]) for at in order.tolist()]
    members = TarMembers(names, offsets, sizes, _heads(offsets, ends))
    return build_index(members, key_split, tar, repeated)


def _is_inside(place: Place, nbytes: int) -> bool:
    """Whether a member has a name, and its place is inside a tar of this length."""
    name, *numbers = place
    return type(name) is str and all(type(n) is int and 0 <= n <= nbytes for n in numbers)


def _heads(offsets: IntArray, ends: IntArray) -> IntArray:
    """Return where the headers of members begin: where the previous member ends."""
    is_near = offsets - ends[:-1] <= _MAX_HEAD_NBYTES
    # Between others there are files without a key, so that only one header is known to be there.
    return np.where(is_near, ends[:-1], offsets - BLOCK_NBYTES)
