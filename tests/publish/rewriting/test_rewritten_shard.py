"""Headers of copied members: the bytes that the standard library writes for each."""

from __future__ import annotations

import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st

from wids.publish.tar_writer import fits_one_block, header_function


@settings(max_examples=25, deadline=None)
@given(
    st.text(st.characters(max_codepoint=300, exclude_characters="\0"), max_size=120),
    st.integers(0, 8**11 + 2),
)
def test_headers_are_those_of_the_standard_library(name: str, size: int) -> None:
    """Those that fit into one block are as long, and of the others it is known that they do not."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o444, 0
    expected = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    assert header_function(0o444, "", "", 0)(name, size) == expected
    assert fits_one_block(name, size) == (len(expected) == tarfile.BLOCKSIZE)
