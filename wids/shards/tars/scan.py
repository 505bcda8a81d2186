"""Find the members of a tar, and check each header once, so that readers can trust the result.

Two lanes share the work: the vectorised lane verifies runs of plain headers, the strict lane reads
everything else, one member at a time. specs/tar-shards.md says what is read, skipped and rejected.
"""

from __future__ import annotations

import numpy as np

from wids.shards.tars.archive import Archive, TarBytes, TarMembers
from wids.shards.tars.strict_lane import read_next
from wids.shards.tars.vectorised_lane import Batch, VectorisedLane


def scan(data: TarBytes, path: str = "tar") -> TarMembers:
    """Return the regular files of a tar without reading their contents.

    Hard links to an earlier member are members with that member's bytes. Folders, symbolic links
    and devices are skipped.

    Args:
        data: The complete tar; released after the call.
        path: Its name in messages.

    Raises:
        ShardFormatError: The tar breaks a rule of specs/tar-shards.md.

    The cost is one read of each header. Safe to call from any thread.
    """
    archive = Archive(data, path)
    lane = VectorisedLane(archive, data)
    try:
        position = 0
        # Each step advances by at least one block, so a hostile tar cannot make the scan endless.
        while position < archive.nbytes:
            batch = lane.next_batch(position)
            position = _add_batch(archive, batch) if batch else read_next(archive, position)
    finally:
        lane.release()  # or an error's traceback would keep the data mapped
    archive.remark_end()
    return archive.result()


def _add_batch(archive: Archive, batch: Batch) -> int:
    """Add the members of a batch in order, and return where the next header is."""
    offsets = batch.offsets
    done = 0
    for row in np.flatnonzero(batch.is_special).tolist():
        if row < done:
            continue  # the member of an extended header, read together with it
        # Plain members before the unusual one come first: samples keep the order of the archive
        # (KEY-3), and a hard link finds its target among earlier members (TAR-13).
        batch.add_plain(archive.members, done, row)
        position = read_next(archive, int(offsets[row]))
        done = int(np.searchsorted(offsets, position))
        # An extended header can change a size, so that the next guesses were not headers.
        if done >= len(offsets) or offsets[done] != position or archive.global_records:
            return position
    batch.add_plain(archive.members, done, len(offsets))
    return batch.stop
