"""Hashes of many keys at once are those of each key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wids.shards.indexes import key_tables
from wids.shards.indexes.key_tables import key_hash, text_hashes
from wids.shards.tars.headers import TarMembers
from wids.shards.tars.index import build_index

KEYS = st.binary(min_size=1, max_size=300).map(lambda key: key.replace(b"\0", b"x"))


@given(st.lists(KEYS), st.sampled_from([1, 16, 1 << 17]))
def test_hashes_of_a_text_are_those_of_its_keys(keys: list[bytes], block_nbytes: int) -> None:
    """However the text is cut into blocks, and however long a key is."""
    text = np.frombuffer(b"\0".join([*keys, b""]), np.uint8)
    starts = np.concatenate(([0], np.cumsum([len(key) + 1 for key in keys]))).astype(np.int64)
    old, key_tables._BLOCK_NBYTES = key_tables._BLOCK_NBYTES, block_nbytes  # type: ignore[misc]
    try:
        hashes = text_hashes(text, starts)
    finally:
        key_tables._BLOCK_NBYTES = old  # type: ignore[misc]

    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [key_hash(key) for key in keys]


def test_hashes_of_an_index() -> None:
    """One for each sample, in order; different keys have different ones."""
    names = [f"{n:06d}.txt".encode() for n in range(50_000)]
    offsets = np.arange(1, 50_001) * 512
    index = build_index(TarMembers(names, offsets, np.zeros(50_000, np.int64), offsets - 512))
    hashes = key_tables.key_hashes(index)

    assert hashes[[0, 7, 49_999]].tolist() == [key_hash(names[n][:6]) for n in (0, 7, 49_999)]
    assert len(set(hashes.tolist())) == 50_000


def test_a_shard_without_samples_has_no_hashes() -> None:
    """Nor has one whose files belong to no sample."""
    empty = np.zeros(0, np.int64)
    assert key_tables.key_hashes(build_index(TarMembers([], empty, empty, empty))).shape == (0,)
