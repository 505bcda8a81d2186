"""PAX records whose numbers are padded with zeros, as some writers store them."""

from __future__ import annotations

import pytest
from conftest import raises
from tars_by_hand import END, FILE, extended, members_of, oracle, record

from wids.errors import ShardFormatError


def padded_record(width: int, key: str, value: str) -> bytes:
    """Return a record whose length is written in a number of digits."""
    rest = f" {key}={value}\n".encode()
    return str(width + len(rest)).zfill(width).encode() + rest


@pytest.mark.parametrize("size", ["03", "0000003", "0" * 30 + "3", "0" * 5000 + "3"])
def test_size_may_have_leading_zeros(size: str) -> None:
    """A size is a decimal number, however many zeros it begins with (TAR-2)."""
    data = extended(record("size", size)) + FILE + END
    assert members_of(data) == [(b"a.txt", b"abc")]


@pytest.mark.parametrize("width", [2, 7, 8, 19, 20])
def test_length_of_a_record_may_have_leading_zeros(width: int) -> None:
    """The length before a path or a size may be padded, as tarfile reads it too (TAR-2)."""
    records = padded_record(width, "path", "b.txt") + padded_record(width, "size", "3")
    data = extended(records) + FILE + END
    assert members_of(data) == oracle(data) == [(b"b.txt", b"abc")]


def test_equal_sizes_do_not_contradict_each_other() -> None:
    """One size written in two ways is one size; two sizes are refused (TAR-14)."""
    same = extended(record("size", "3")) + extended(record("size", "0003"))
    assert members_of(same + FILE + END) == [(b"a.txt", b"abc")]
    other = extended(record("size", "3")) + extended(record("size", "0004"))
    with raises(ShardFormatError, "one size for a member", '"3" and "4"'):
        members_of(other + FILE + END)


@pytest.mark.parametrize("size", ["+3", "-3", " 3", "3 ", "0x3", "0_3", "3.0", "٣", "9" * 19])
def test_other_sizes_are_refused(size: str) -> None:
    """What readers of tars disagree about stays an error (TAR-14)."""
    data = extended(record("size", size)) + FILE + END
    with raises(ShardFormatError, 'a PAX size for member "a.txt"'):
        members_of(data)
