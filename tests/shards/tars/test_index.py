"""Members → samples: grouping, order, duplicates, keys."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.errors import ShardFormatError
from wids.shards.tars.headers import KeySplit, TarMembers, split_name, to_bytes
from wids.shards.tars.index import ShardIndex, build_index

Samples = list[tuple[str, list[tuple[str, int]]]]


def tar_of(names: list[bytes]) -> TarMembers:
    """Return members such that member ``i`` begins at block ``i`` and has ``i`` bytes."""
    numbers = np.arange(len(names), dtype=np.int64)
    return TarMembers(names, numbers * 512, numbers, numbers * 512 - 512)


def samples_of(built: ShardIndex) -> Samples:
    """Return each sample's key, and the field and offset of each of its members."""
    return [
        (
            built.key(i),
            [
                (built.fields[built.field_ids[m]], int(built.blocks[m]))
                for m in range(built.member_starts[i], built.member_starts[i + 1])
            ],
        )
        for i in range(len(built))
    ]


def test_members_of_a_key_are_one_sample_wherever_they_are() -> None:
    """Interleaved keys give complete samples, in order of first appearance (KEY-3)."""
    built = build_index(tar_of([b"b.txt", b"a.txt", b"README", b"b.cls", b"a.cls"]))

    assert samples_of(built) == [
        ("b", [(".txt", 0), (".cls", 3)]),
        ("a", [(".txt", 1), (".cls", 4)]),
    ]
    assert built.num_files == 5


def test_metadata_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line says how many members are no samples, and names the first of them (KEY-5)."""
    caplog.set_level("INFO")
    built = build_index(tar_of([b"__m__/a.json", b"a.txt", b"__m__/b.json"]), path="x.tar")

    assert (samples_of(built), built.num_files) == ([("a", [(".txt", 1)])], 3)
    assert "x.tar: 2 members such as __m__/a.json belong to no sample" in caplog.text


def test_last_of_equal_names_counts() -> None:
    """A member that appears twice replaces the earlier one, as tar's update does, and no other.

    KEY-4.
    """
    built = build_index(tar_of([b"a.txt", b"a.txt", b"b.txt", b"c.txt"]))

    assert samples_of(built) == [("a", [(".txt", 1)]), ("b", [(".txt", 2)]), ("c", [(".txt", 3)])]
    assert built.num_files == 4


@pytest.mark.parametrize("names", [[], [b"README"]])
def test_shard_without_samples_has_length_zero(names: list[bytes]) -> None:
    """An empty tar, and one with orphans only, are shards of no samples."""
    built = build_index(tar_of(names))

    assert len(built) == 0
    assert built.find("a") == -1


def test_find_takes_complete_keys_only() -> None:
    """A part of a key, or two adjacent keys, are not found."""
    built = build_index(tar_of([b"aa.txt", b"a.txt", b"ba.txt", b"\xff.txt"]))

    assert [built.find(key) for key in ("aa", "a", "ba", "b", "", "aa\0a", "\udcff")] == [
        *(0, 1, 2),
        *(-1, -1, -1),
        3,
    ]


def test_unknown_rule_is_refused() -> None:
    """Only the two rules that exist are accepted."""
    with raises(ValueError, "key_split: expected", "first", "last", "middle"):
        build_index(tar_of([b"a.txt"]), "middle")  # type: ignore[arg-type]


def test_nul_in_a_name_is_refused() -> None:
    """NUL separates names in the index, so no name may contain one."""
    with raises(ShardFormatError, "x.tar: a member name has a NUL in it"):
        build_index(tar_of([b"a\0b.txt"]), path="x.tar")


NAMES = st.lists(st.text(st.sampled_from("ab./é"), max_size=6).map(str.encode), max_size=40)


@settings(max_examples=100, deadline=None)
@given(NAMES, st.sampled_from(["first", "last"]))
def test_index_equals_grouping_with_dicts(names: list[bytes], rule: KeySplit) -> None:
    """The columns are equal to a dict of dicts."""
    expected: dict[bytes, dict[bytes, int]] = {}
    for number, name in enumerate(names):
        parts = split_name(name, rule)
        if parts is not None:
            fields = expected.setdefault(parts[0], {})
            fields.pop(parts[1], None)
            fields[parts[1]] = number

    found = samples_of(build_index(tar_of(names), rule))

    assert [
        (to_bytes(key), [(to_bytes(field), offset) for field, offset in members])
        for key, members in found
    ] == [(key, list(fields.items())) for key, fields in expected.items()]
