"""Tables have what plain Python finds in the same tars, whatever is in them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wids
from wids import TableError

KEYS = st.text("ab/.~é", min_size=1, max_size=3)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=6,
)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {".txt": st.text(st.characters(exclude_categories=["Cs"]), max_size=9)},
        optional={".cls": st.integers(-(2**63), 2**63 - 1), ".json": DOCUMENTS},
    ),
    min_size=1,
    max_size=8,
)
MISSING = object()


def part(value: Any, steps: list[str]) -> Any:
    """Return what a path leads to, as plain Python has it."""
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            return MISSING
    return value


def shape(value: Any) -> Any:
    """Return the type of a column that has only this value; lists are nested tuples."""
    if isinstance(value, list):
        items = [shape(item) for item in value if item is not None]
        return "object" if "object" in items else merged([("list", None), *zip_lists(items)])
    types = {bool: "bool", int: "number", float: "number", str: "string", dict: "object"}
    return types[type(value)]


def zip_lists(items: list[Any]) -> list[Any]:
    return [("list", item) for item in items]


def merged(shapes: list[Any]) -> Any:
    """Return the type that holds values of all these types; that of objects if none does."""
    lists = [inner for shape in shapes if isinstance(shape, tuple) for inner in shape[1:]]
    if len(lists) < len(shapes):
        return shapes[0] if len(set(shapes)) == 1 else "object"
    inner = merged([shape for shape in lists if shape is not None]) if any(lists) else None
    return "object" if inner == "object" else ("list", inner)


def read_with_tarfile(paths: list[Path]) -> dict[str, dict[str, bytes]]:
    """Return the fields of all samples by key, by the standard library."""
    samples: dict[str, dict[str, bytes]] = {}
    for path in paths:
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, field = member.name.partition(".")
                content = archive.extractfile(member)
                assert content is not None
                samples.setdefault(key, {})["." + field] = content.read()
    return samples


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shards=st.lists(SAMPLES, min_size=1, max_size=3),
    steps=st.lists(KEYS | st.sampled_from(["0", "-1", "1"]), max_size=2),
    data=st.data(),
)
def test_a_table_has_what_plain_python_finds(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[dict[str, Any]]],
    steps: list[str],
    data: st.DataObject,
) -> None:
    """TABLE-1: texts, classes and parts of JSON, in the rows of any view."""
    folder = tmp_path_factory.mktemp("law")
    paths, number = [], 0
    for shard, samples in enumerate(shards):
        members = []
        for fields in samples:
            for field, value in fields.items():
                text = json.dumps(value) if field == ".json" else str(value)
                members.append((f"s{number:03d}{field}", text.encode()))
            number += 1
        paths.append(write_tar(folder / f"{shard}.tar", members))
    stored = read_with_tarfile(paths)
    found = [
        part(json.loads(fields[".json"]), steps) if ".json" in fields else MISSING
        for fields in stored.values()
    ]
    escaped = [step.replace("~", "~0").replace("/", "~1") for step in steps]
    path = "/".join([".json", *escaped])
    indices = data.draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=10))
    with wids.ShardListDataset([str(path) for path in paths]) as dataset:
        table = dataset.table({"caption": ".txt"})
        assert table["__key__"].to_pylist() == list(stored)
        expected = [fields[".txt"].decode() for fields in stored.values()]
        assert table["caption"].to_pylist() == expected
        view = dataset[indices]
        if any(".cls" in stored[f"s{i:03d}"] for i in indices):
            labels = [stored[f"s{i:03d}"].get(".cls") for i in indices]
            assert view.table({"c": ".cls"})["c"].to_pylist() == [
                None if label is None else int(label) for label in labels
            ]
        check_parts(view, path, [found[index] for index in indices])


def check_parts(view: wids.ShardListDataset, path: str, found: list[Any]) -> None:
    """Compare a column with the values that plain Python found."""
    if all(value is MISSING for value in found):
        with pytest.raises(TableError, match="which no sample has"):
            view.table([path])
        return
    values = [None if value is MISSING else value for value in found]
    shapes = [shape(value) for value in values if value is not None]
    if shapes and merged(shapes) == "object" and set(shapes) != {"object"}:
        with pytest.raises(TableError, match="expected values of one type"):
            view.table([path])
        return
    column = view.table([path])[path].to_pylist()
    if "object" in shapes:
        column = [None if text is None else json.loads(text) for text in column]
    assert column == values
