"""How a shard is read: each cell of the table in `wids.shards.policy`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from wids.shards.policy import Wanted, Way, wanted_instead, way_to_read
from wids.shards.read_options import AccessMode

PART, SAMPLES, MOST, FILE = Wanted
MODES: tuple[AccessMode, ...] = ("auto", "download", "range")


@dataclass(frozen=True)
class Known:
    """What is known of a shard: one that has all that reading by range needs."""

    access: AccessMode
    path: str | None = None
    has_copy: bool = False
    sends_ranges: bool = True
    is_spent: bool = False
    has_index: bool = True


def way(wanted: Wanted, shard: Any, *, supposes_index: bool = False) -> Way:
    return way_to_read(wanted, shard, supposes_index=supposes_index)


@pytest.mark.parametrize(("access", "wanted"), [*product(MODES, Wanted)])
def test_files_and_copies_are_mapped(access: AccessMode, wanted: Wanted) -> None:
    """Whatever is wanted, and allowed."""
    assert way(wanted, Known(access, path="a.tar")) is Way.MAP
    assert way(wanted, Known(access, has_copy=True)) is Way.COPY


@pytest.mark.parametrize(
    ("access", "by_range"),
    [("range", [PART, SAMPLES, MOST]), ("download", [PART]), ("auto", [PART, SAMPLES])],
)
@pytest.mark.parametrize("wanted", [*Wanted])
def test_what_is_read_by_range(access: AccessMode, by_range: list[Wanted], wanted: Wanted) -> None:
    """The rows of the table, where nothing speaks against ranges."""
    expected = Way.RANGE if wanted in by_range else Way.FETCH
    assert way(wanted, Known(access)) is expected


@pytest.mark.parametrize(
    "lacks", [{"has_index": False}, {"sends_ranges": False}, {"is_spent": True}]
)
@pytest.mark.parametrize(("access", "wanted"), [*product(MODES, Wanted)])
def test_what_speaks_against_ranges(
    access: AccessMode, wanted: Wanted, lacks: dict[str, Any]
) -> None:
    """Such a shard is fetched, unless it must not be: then opening it is an error."""
    may_fetch = access != "range" or wanted is FILE
    shard = replace(Known(access), **lacks)
    assert way(wanted, shard) is (Way.FETCH if may_fetch else Way.RANGE)


def test_an_index_can_be_supposed() -> None:
    """A batch asks for the indexes of many shards at once, after asking which it may need."""
    shard = replace(Known("auto"), has_index=False)
    assert way(SAMPLES, shard, supposes_index=True) is Way.RANGE
    spent = replace(shard, is_spent=True)
    assert way(SAMPLES, spent, supposes_index=True) is Way.FETCH


def test_facts_are_looked_up_when_they_decide() -> None:
    """An index may take a request, and a copy a look at the disk."""

    class Asked:
        access, path, has_copy = "auto", None, False

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return name != "is_spent"

    asked: list[str] = []
    shard: Any = Asked()
    assert way(MOST, shard) is Way.FETCH
    assert asked == []
    assert way(SAMPLES, shard, supposes_index=True) is Way.RANGE
    assert asked == ["sends_ranges", "is_spent"]
    asked.clear()
    assert way(SAMPLES, shard) is Way.RANGE
    assert asked == ["sends_ranges", "is_spent", "has_index"]


def test_what_is_wanted_when_ranges_fail() -> None:
    """Most of the shard, once, unless it must not be fetched."""
    assert {wanted_instead(wanted, "range") for wanted in Wanted} == {None}
    for access in ("auto", "download"):
        assert [wanted_instead(w, access) for w in Wanted] == [MOST, MOST, None, None]
