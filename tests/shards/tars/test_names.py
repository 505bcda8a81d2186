"""Member name ↔ (key, field), as in the table of specs/tar-shards.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wids.shards.tars.headers import KeySplit, split_name, split_names, to_bytes, to_text

TABLE = [
    # name, at the first dot, at the last dot
    ("a.jpg", ("a", ".jpg"), ("a", ".jpg")),
    ("a.seg.png", ("a", ".seg.png"), ("a.seg", ".png")),
    ("a.b/c.jpg", ("a.b/c", ".jpg"), ("a.b/c", ".jpg")),
    ("./a.jpg", ("./a", ".jpg"), ("./a", ".jpg")),
    ("/abs/a.jpg", ("/abs/a", ".jpg"), ("/abs/a", ".jpg")),
    ("v1.0/README", None, None),
    ("./README", None, None),
    ("README", None, None),
    (".hidden", None, None),
    ("d/.hidden", None, None),
    (".hidden.txt", None, (".hidden", ".txt")),
    ("._a.jpg", None, None),
    ("d/._a.b.jpg", None, None),
    ("d/a._b.jpg", ("d/a", "._b.jpg"), ("d/a._b", ".jpg")),
    ("a.", None, None),
    ("a..", ("a", ".."), None),
    ("a..b", ("a", "..b"), ("a.", ".b")),
    ("d.x/", None, None),
    ("a b.c d", ("a b", ".c d"), ("a b", ".c d")),
    ("猫.txt", ("猫", ".txt"), ("猫", ".txt")),
    ("a.JPG", ("a", ".JPG"), ("a", ".JPG")),
    ("__meta__/info.json", None, None),
    ("__a__/b/c.jpg", None, None),
    ("__x.y__", None, None),
    ("__meta__.json", ("__meta__", ".json"), ("__meta__", ".json")),
    ("a/__meta__/b.jpg", ("a/__meta__/b", ".jpg"), ("a/__meta__/b", ".jpg")),
    ("./__a__/b.jpg", ("./__a__/b", ".jpg"), ("./__a__/b", ".jpg")),
    ("___/a.jpg", ("___/a", ".jpg"), ("___/a", ".jpg")),
    ("", None, None),
]


@pytest.mark.parametrize(("name", "first", "last"), TABLE)
def test_name_is_split_in_its_last_part(
    name: str, first: tuple[str, str] | None, last: tuple[str, str] | None
) -> None:
    """The table of awkward names holds for both rules (KEY-1, KEY-2, KEY-5)."""
    for expected, rule in ((first, "first"), (last, "last")):
        found = split_name(name.encode(), rule)  # type: ignore[arg-type]
        assert found == (expected and (expected[0].encode(), expected[1].encode()))


NAMES = st.lists(st.text(st.sampled_from("ab./"), max_size=9).map(str.encode))


@given(NAMES, st.sampled_from(["first", "last"]))
def test_many_names_are_split_as_one_by_one(names: list[bytes], rule: KeySplit) -> None:
    """The vectorised rule equals three lines of plain Python."""
    joined, starts, dots, ends = split_names(names, rule)

    for name, start, dot, end in zip(names, starts, dots, ends, strict=True):
        folder, slash, last = name.rpartition(b"/")
        head, _, tail = last.partition(b".") if rule == "first" else last.rpartition(b".")
        if head and tail:
            assert joined[start:dot] == folder + slash + head
            assert joined[dot:end] == b"." + tail
        else:
            assert dot == 0


@given(st.binary())
def test_any_bytes_survive_as_text(name: bytes) -> None:
    """A name that is not UTF-8 becomes text and back without loss."""
    assert to_bytes(to_text(name)) == name
