"""Copy stored members to one new tar shard, many members at a time.

The bytes are those that `TarWriter.append` writes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from wids.publish.header_table import fit_table, header_table
from wids.publish.rewriting.stored_samples import StoredMembers
from wids.publish.threaded_tar import PIECE_NBYTES, ThreadedTar
from wids.shards.tars.archive import BLOCK_NBYTES
from wids.shards.tars.member_names import to_text
from wids.storage.array_types import IntArray

_JOINED_NBYTES: Final = 16 << 10
"""Copying longer members twice would take more time than a call for each."""

_PADDINGS: Final = [bytes(-size % BLOCK_NBYTES) for size in range(BLOCK_NBYTES)]


class CopyingTar(ThreadedTar):
    """A shard whose members are copied from others."""

    def append_stored(self, stored: StoredMembers) -> bool:
        """Append samples; return whether that was possible.

        It is not if a header takes several blocks or a key is repeated; then nothing is written.
        """
        keys = set(map(to_text, stored.keys))
        is_new = len(keys) == len(stored.keys) and self._keys.isdisjoint(keys)
        if not (is_new and fit_table(stored.names, stored.sizes)):
            return False
        self._check_no_partial_sample()
        self._has_partial_sample = True
        headers = memoryview(header_table(self._header("", 0), stored.names, stored.sizes))
        heads = [headers[at : at + BLOCK_NBYTES] for at in range(0, len(headers), BLOCK_NBYTES)]
        padded = stored.sizes + -stored.sizes % BLOCK_NBYTES + BLOCK_NBYTES
        starts = self.nbytes + np.cumsum(padded) - padded
        head_crcs = list(map(self._crc32, heads))
        self._members.extend(
            stored.names, starts, BLOCK_NBYTES, stored.sizes, head_crcs, stored.crcs
        )
        parts: list[bytes | memoryview] = [b""] * (3 * len(heads))
        parts[::3], parts[1::3] = heads, stored.contents
        parts[2::3] = [_PADDINGS[size] for size in (stored.sizes % BLOCK_NBYTES).tolist()]
        self._put_parts(parts, padded)
        self._has_partial_sample = False
        self._keys.update(keys)
        self.num_samples += len(keys)
        return True

    def _put_parts(self, parts: list[bytes | memoryview], sizes: IntArray) -> None:
        """Put headers, members and paddings, three for each member; join those of small ones."""
        if sizes.max() > _JOINED_NBYTES:
            for part in parts:
                self._put(part)
            return
        # As many as fill a piece, so that what was joined is in the processor's cache.
        edges = np.flatnonzero(np.diff(np.cumsum(sizes) // PIECE_NBYTES, prepend=0)).tolist()
        for start, stop in pairwise([0, *edges, len(sizes)]):
            self._put(b"".join(parts[3 * start : 3 * stop]))
