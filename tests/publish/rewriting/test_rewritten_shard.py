"""Headers of many members: the bytes that the standard library writes for each."""

from __future__ import annotations

import tarfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.publish.rewriting.rewritten_shard import fit_table, header_table


def header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o444, 0
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(max_codepoint=300, exclude_characters="\0"), max_size=120),
            st.integers(0, 8**11 + 2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_headers_are_those_of_the_standard_library(members: list[tuple[str, int]]) -> None:
    """All that fit into one block are equal; of the others it is known that they do not."""
    names = [name.encode() for name, _ in members]
    sizes = np.array([size for _, size in members])
    expected = [header(name, size) for name, size in members]
    fits = all(len(found) == tarfile.BLOCKSIZE for found in expected)
    assert fit_table(names, sizes) == fits
    if fits:
        assert header_table(header("", 0), names, sizes) == b"".join(expected)
