"""Tables of joined datasets have what their samples have, and no row of another sample."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import raises, write_tar
from join_shards import contents, shards, write_side

import wids
from wids.errors import JoinError, MismatchError, ShardFormatError

KEYS = list("abcd")


def opened(folder: Path, prefix: str) -> wids.ShardListDataset:
    return wids.ShardListDataset(shards(folder, prefix), transformations=None, raw="bytes")


def reverse(path: Path) -> None:
    """Replace a shard by one with the same samples in the opposite order."""
    members = [
        (key + field, data)
        for key, fields in contents([str(path)]).items()
        for field, data in fields.items()
    ]
    write_tar(path.with_name("new"), members[::-1])
    path.with_name("new").rename(path)


def as_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def as_mapping(columns: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in columns if name != "__key__"]
    rows = zip(*(columns[name] for name in names), strict=True)
    return {
        key: dict(zip(names, row, strict=True))
        for key, row in zip(columns["__key__"], rows, strict=True)
    }


@pytest.mark.parametrize(
    ("other", "changed"),
    [(pa.table, "l"), (as_frame, "l"), (as_mapping, "l"), (None, "l"), (None, "r")],
)
def test_a_table_never_has_the_row_of_another(
    tmp_path: Path, other: Callable[[Any], Any] | None, changed: str
) -> None:
    """A shard that is replaced under a join is an error of the table (JOIN-7)."""
    write_side(tmp_path, "l", KEYS, [], ".txt")
    write_side(tmp_path, "r", KEYS[::-1], [1], ".cap")
    if other is None:
        joined = opened(tmp_path, "l").join(opened(tmp_path, "r"))
    else:
        captions = [f".cap of {key}".encode() for key in KEYS]
        joined = opened(tmp_path, "l").join(other({"__key__": KEYS, "cap": captions}))
    with joined:
        expected = [{"key": key, "cap": f".cap of {key}".encode()} for key in KEYS]
        table = joined.table({"cap": ".cap"})
        assert table.rename_columns(["i", "key", "cap"]).drop(["i"]).to_pylist() == expected
        reverse(Path(shards(tmp_path, changed)[-1]))
        joined.close()
        with raises(MismatchError, "on both sides", "written again since"):
            joined.table({"cap": ".cap"}, errors="null")


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([3, None, 2**40, -1], "int64", None),
        ([0.5, None, -1.5, 1e300], "double", None),
        (["é", None, "", "b"], "string", None),
        ([True, None, False, True], "bool", None),
        ([[1, 2], [], None, [3]], "list<item: int64>", None),
        ([np.arange(2), np.arange(0), None, np.ones(1, int)], "list<item: int64>", None),
        ([{"b": 1}, None, {}, {"a": [1]}], "string", ['{"b":1}', None, "{}", '{"a":[1]}']),
        ([dt.date(2020, 1, 2), None] * 2, "string", ["2020-01-02", None] * 2),
        ([b"\xff", None, b"", b"a"], "binary", None),
    ],
)
def test_columns_of_rows_have_the_types_of_their_values(
    tmp_path: Path, values: list[Any], kind: str, found: list[Any] | None
) -> None:
    """A value of a row is the value of the column, and None is null (TABLE-2)."""
    write_side(tmp_path, "l", KEYS, [1], ".txt")
    with opened(tmp_path, "l") as dataset:
        joined = dataset.join({k: {"v": v} for k, v in zip(KEYS, values, strict=True)})
        table = joined[1:].table({"v": ".v", "text": ".txt"})
    assert str(table.schema.field("v").type).replace("element", "item") == kind
    plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
    assert table["v"].to_pylist() == (found or plain)[1:]
    assert table["text"].to_pylist() == [f".txt of {key}" for key in KEYS[1:]]


@pytest.mark.parametrize("dtype", ["str", "object", "string", "category"])
def test_texts_that_are_missing_in_a_frame(tmp_path: Path, dtype: str) -> None:
    """They are None or pandas' own null in samples, and null in a table."""
    write_side(tmp_path, "l", KEYS, [], ".txt")
    texts = pd.Series(["a", None, float("nan"), "d"]).astype(dtype)
    if texts.isna().sum() < 2:
        pytest.skip("before pandas 3, the type str made the texts 'None' and 'nan' of nulls")
    frame = pd.DataFrame({"__key__": KEYS, "cap": texts, "x": [0.5, None, 1, 2]})
    with opened(tmp_path, "l") as dataset:
        joined = dataset.join(frame)
        assert joined.table([".cap"])[".cap"].to_pylist() == ["a", None, None, "d"]
        missing = joined[2][".cap"]
        assert missing is (pd.NA if dtype == "string" else None)
        assert str(joined[1][".x"]) == "nan"  # a number as it is


def test_rows_of_each_kind_become_columns(tmp_path: Path) -> None:
    """Missing rows are null, nulls of pandas too, and paths lead into values (TABLE-2)."""
    write_side(tmp_path, "l", KEYS, [], ".txt")
    scores = pd.array([1, None, 3], dtype="Int64")
    frame = pd.DataFrame({"__key__": KEYS[:3], "cls": scores, "json": [{"x": [n]} for n in "abc"]})
    pattern = {key: {"tag": f"tag {key}"} for key in KEYS}
    (tmp_path / "l-0.tags.json").write_text(json.dumps(pattern))
    with opened(tmp_path, "l") as dataset:
        joined = dataset.join(frame, missing="none").join("{shard}.tags.json")
        table = joined.table({"n": ".cls", "x": ".json/x/0", "tag": ".tag"})
        again = joined[np.array(table["n"].to_numpy()) >= 0].join(dataset, prefix="b")
        assert again.table([".cls", ".b.txt"]).select([".cls", ".b.txt"]).to_pylist() == [
            {".cls": 1, ".b.txt": ".txt of a"},
            {".cls": 3, ".b.txt": ".txt of c"},
        ]
    assert table["n"].to_pylist() == [1, None, 3, None]
    assert table["x"].to_pylist() == ["a", "b", "c", None]
    assert table["tag"].to_pylist() == [f"tag {key}" for key in KEYS]


def test_a_search_compares_joined_values_as_a_table_does(tmp_path: Path) -> None:
    """Numbers as numbers, whatever the name of the column; words are found in their text."""
    write_side(tmp_path, "l", KEYS, [], ".txt")
    frame = pd.DataFrame(
        {"__key__": KEYS, "score": [1, 2, 3, 4], "json": [{"x": n} for n in "abca"]}
    )
    with opened(tmp_path, "l") as dataset:
        joined = dataset.join(frame)
        assert list(joined.search(where=".score >= 3").keys()) == KEYS[2:]
        assert list(joined.search(where='.json/x == "a" and .score != 1').keys()) == KEYS[3:]
        assert list(joined.search('"x": "b"').keys()) == [KEYS[1]]


def test_a_field_on_both_sides_is_no_column(tmp_path: Path) -> None:
    """It is an error, as where such a sample is read, and a view without one is not."""
    write_side(tmp_path, "l", KEYS, [], ".txt")
    with opened(tmp_path, "l") as dataset:
        others = {key: {"cap": key} for key in "abd"}
        joined = dataset.join({**others, "c": {"txt": "other"}})
        with raises(JoinError, 'sample "c"', ".txt on both", "pass a prefix"):
            joined.table([".txt"])
        assert joined[:2].table([".txt"])[".txt"].to_pylist() == [".txt of a", ".txt of b"]


@pytest.fixture
def damaged(tmp_path: Path) -> wids.ShardListDataset:
    """Two published sides joined, of which one sample each has a damaged field."""
    sides = []
    for prefix, field, bad in (("l", ".txt", "b"), ("r", ".cap.txt", "c")):
        with wids.ShardWriter(tmp_path / f"{prefix}-%06d.tar", maxcount=2) as writer:
            for key in KEYS:
                writer.write({"__key__": key, field: f"{field} of {key}"})
        for path in map(Path, shards(tmp_path, prefix)):
            text = f"{field} of {bad}".encode()
            path.write_bytes(path.read_bytes().replace(text, text[:-1] + b"X"))
        sides.append(wids.ShardListDataset(tmp_path / f"{prefix}.json"))
    return sides[0].join(sides[1])


def test_damaged_bytes_are_no_values(damaged: wids.ShardListDataset) -> None:
    """Checksums of either side are compared for a table."""
    with damaged:
        for field, key in ((".txt", "b"), (".cap.txt", "c")):
            with raises(ShardFormatError, f'member "{key}{field}"', "checksum"):
                damaged.table([field])
            found = damaged.table([field], errors="null")[field].to_pylist()
            assert found == [None if k == key else f"{field} of {k}" for k in KEYS]


def test_damaged_bytes_of_either_side_are_remarked(damaged: wids.ShardListDataset) -> None:
    """A gallery of a joined dataset names the field, whichever side has it."""
    values = {key: {"score": 1} for key in KEYS}
    with damaged.join(values) as joined:
        html = joined.show()._repr_html_()
    assert html.count("b.txt") == html.count("c.cap.txt") == 1
    assert html.count("cannot be read") == html.count("they were damaged") == 2
    assert ".txt of a" in html
