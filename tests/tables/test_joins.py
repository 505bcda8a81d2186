"""Joins are what plain Python makes of the same tars and tables, and errors name both sides."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from conftest import num_open, raises, sample_members, write_shards, write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from join_shards import contents, fields, shards, shuffled, write_side

import wids
from wids.errors import JoinError, MismatchError, TransformError
from wids.shards.indexes import key_tables

ALPHABET = [f"k{number:02d}" for number in range(12)]
RAW = {"transformations": None, "raw": "bytes"}


@pytest.fixture
def captions(train: Path) -> Path:
    """The folder of the 20 samples' captions, in another order and in shards of 3, 12 and 5."""
    keys = shuffled(f"s{number:05d}" for number in range(20))
    return write_side(train.parent, "captions", keys, [3, 15], ".caption.txt")


@pytest.fixture
def joined(train: Path, captions: Path) -> Iterator[wids.ShardListDataset]:
    dataset = wids.ShardListDataset(train)
    with dataset.join(wids.ShardListDataset(shards(captions, "captions"), dataset_name="c")) as d:
        yield d


class Box(NamedTuple):
    """A value of a mapping that has a list inside."""

    corners: list[int]


sides = st.lists(st.sampled_from(ALPHABET), unique=True, min_size=1)
cuts = st.lists(st.integers(0, 12), max_size=3)
indices = st.lists(st.sampled_from([0, 2, 3]), max_size=6)  # 0 and 1 alone may be a mask
chosen = st.one_of(st.just(slice(None)), st.slices(4), indices)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)
@given(sides, cuts, chosen, sides, cuts, chosen, st.sampled_from(["error", "skip", "none"]))
def test_a_join_is_what_python_makes_of_the_tars(
    tmp_path_factory: pytest.TempPathFactory,
    left_keys: list[str],
    left_cuts: list[int],
    left_chosen: Any,
    right_keys: list[str],
    right_cuts: list[int],
    right_chosen: Any,
    missing: Any,
) -> None:
    """Any keys, any cuts, any views on both sides, each policy (JOIN-3)."""
    folder = tmp_path_factory.mktemp("sides")
    write_side(folder, "l", left_keys, [c for c in left_cuts if c <= len(left_keys)], ".txt")
    write_side(folder, "r", right_keys, [c for c in right_cuts if c <= len(right_keys)], ".cap")
    left, right = contents(shards(folder, "l")), contents(shards(folder, "r"))
    with (
        wids.ShardListDataset(shards(folder, "l"), **RAW) as a,
        wids.ShardListDataset(shards(folder, "r"), **RAW) as b,
    ):
        first, second = (
            side[[n for n in each if n < len(side)] if isinstance(each, list) else each]
            for side, each in ((a, left_chosen), (b, right_chosen))
        )
        samples = list(first)
        known = {sample["__key__"] for sample in second}
        expected = [
            {
                **sample,
                **(right[sample["__key__"]] if sample["__key__"] in known else {".cap": None}),
            }
            for sample in samples
            if sample["__key__"] in known or missing != "skip"
        ]
        if missing == "error" and any(sample["__key__"] not in known for sample in samples):
            with raises(JoinError, "expected the keys of all", 'missing="skip"'):
                first.join(second, missing="error")
            return
        for _ in range(2):  # made, and from the cache
            result = first.join(second, missing=missing)
            if missing == "none" and not len(second):
                expected = [{k: v for k, v in s.items() if k != ".cap"} for s in expected]
            assert list(result) == expected
            assert result.__getitems__(range(len(result))[::-1]) == expected[::-1]
            assert [result[index] for index in range(len(result))] == expected
        assert left[samples[0]["__key__"]] == fields(samples[0]) if samples else True


@pytest.mark.parametrize(
    "make",
    [
        pa.table,
        pl.DataFrame,
        pd.DataFrame,
        lambda columns: pd.DataFrame(columns).set_index("__key__"),
        lambda columns: pa.table(columns).to_batches()[0],
        lambda columns: {
            key: {"h": h, ".t": t}
            for key, h, t in zip(columns["__key__"], columns["h"], columns[".t"], strict=True)
        },
    ],
    ids=["arrow", "polars", "pandas", "pandas index", "record batch", "mapping"],
)
def test_rows_of_any_kind(train: Path, make: Callable[[Any], Any]) -> None:
    """Values come as Python's own, in batches and alone, with every policy."""
    keys = shuffled(f"s{number:05d}" for number in range(3, 30))
    columns = {
        "__key__": keys,
        "h": [int(key[1:]) for key in keys],
        ".t": [f"t {key}" for key in keys],
    }
    rows = make(columns)
    with wids.ShardListDataset(train) as dataset:
        with raises(
            JoinError, "found 3 of them missing: 's00000' (", "train-000000.tar, position 0"
        ):
            dataset.join(rows)
        skipped = dataset.join(rows, missing="skip")
        assert (len(skipped), skipped.lengths) == (17, [5, 5, 7])
        filled = dataset.join(rows, missing="none", prefix="b")
        for result, first, prefix in ((skipped, 3, ""), (filled, 0, ".b")):
            for samples in (list(result), result.__getitems__(range(len(result)))):
                for number, sample in enumerate(samples, first):
                    present = number >= 3
                    assert fields(sample) == {
                        ".txt": f"text {number}",
                        ".cls": number % 10,
                        f"{prefix}.h": number if present else None,
                        f"{prefix}.t": f"t s{number:05d}" if present else None,
                    }
                    assert sample["__index__"] == number
                    assert type(sample[f"{prefix}.h"]) in (int, type(None))
        again = pickle.loads(pickle.dumps(filled))  # noqa: S301 - made here
        assert again[7] == filled[7]


def test_values_that_are_no_mappings(train: Path) -> None:
    """They are one field, with a name of its own or the prefix."""
    values = {f"s{number:05d}": np.float32(number) for number in range(20)}
    with wids.ShardListDataset(train) as dataset:
        assert dataset.join(values)[3][".value"] == 3
        assert dataset.join(values, prefix="score")[3][".score"] == 3
        assert ".value" not in dataset.join(values, prefix="score")[3]


def test_labels_and_positions_are_those_of_the_first_side(joined: wids.ShardListDataset) -> None:
    """Index, shard, key and dataset too, in batches and alone."""
    for sample in (
        joined[9],
        joined.__getitems__([9])[0],
        list(joined)[9],
        joined.get_by_key("s00009"),
    ):
        assert sample["__key__"] == "s00009"
        assert (sample["__index__"], sample["__shardindex__"]) == (9, 1)
        assert sample["__shard__"].endswith("train-000001.tar")
        assert sample["__dataset__"] == "train"
        assert sample[".caption.txt"] == ".caption.txt of s00009"
    assert joined.lengths == [8, 5, 7]
    assert list(joined.keys()) == [f"s{number:05d}" for number in range(20)]
    assert joined.find_key("s00009") == 9
    assert joined[5:].find_key("s00009") == 4


@pytest.mark.parametrize("block", [1, 3, 7])
def test_keys_are_matched_block_by_block(
    block: int, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of a view finds its own entries."""
    monkeypatch.setattr("wids.tables.join_keys._BLOCK", block)
    view, rows = wids.ShardListDataset(train)[1::2], wids.ShardListDataset(train, fields=[".txt"])
    joined = view.join(rows, prefix="b")
    assert [sample[".b.txt"] for sample in joined] == [f"text {n}" for n in range(1, 20, 2)]


def test_views_of_one_shard_have_their_own_maps(train: Path) -> None:
    """On either side."""
    dataset, rows = wids.ShardListDataset(train), wids.ShardListDataset(train, fields=[".txt"])
    for start in (0, 4):
        expected = [f"text {n}" for n in range(start, start + 4)]
        left = dataset[start : start + 4].join(rows, prefix="b")
        assert [sample[".b.txt"] for sample in left] == expected
        right = dataset.join(rows[start : start + 4], prefix="b", missing="skip")
        assert [sample[".b.txt"] for sample in right] == expected


def test_views_and_joins_of_joins(train: Path, joined: wids.ShardListDataset) -> None:
    """A view of a join is one; a join joins again, on either side."""
    mask = np.arange(20) % 3 == 1
    view = joined[mask]
    assert [sample["__index__"] for sample in view] == list(range(1, 20, 3))
    assert all(sample[".caption.txt"].endswith(sample["__key__"]) for sample in view)
    plain = wids.ShardListDataset(train, fields=[".cls"])
    for again in (joined.join(plain, prefix="b"), plain.join(view, prefix="b", missing="skip")):
        batch = again.__getitems__(range(len(again)))
        assert [fields(s) for s in batch] == [fields(s) for s in again]
        assert len(batch) in (20, 7)
        for sample in batch:
            assert len(fields(sample)) == 4
            name = ".b.caption.txt" if ".b.caption.txt" in sample else ".caption.txt"
            assert sample[name].endswith(sample["__key__"])
    with plain:
        twice = joined.join(plain, prefix="b").join(dict.fromkeys(plain.keys(), 1), prefix="c")
        assert sorted(fields(twice[4])) == [".b.cls", ".c", ".caption.txt", ".cls", ".txt"]


def test_transformations_of_each_side_run_first(train: Path, captions: Path) -> None:
    """Each sees its own side with its own labels; those of the join run last."""
    seen: list[tuple[str, int, str]] = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        place = sample["__shard__"].rpartition("/")[2]
        seen.append((place, sample["__index__"], sample["__dataset__"]))
        return {**sample, "seen": True, "__own__": place}

    left = wids.ShardListDataset(train).map(note)
    right = wids.ShardListDataset(shards(captions, "captions"), dataset_name="c").map(note)
    result = left.join(right, prefix="b").map(lambda s: {**s, "fields": sorted(fields(s))})
    for sample in (result[9], result.__getitems__([9])[0]):
        assert sample["fields"] == [".b.caption.txt", ".cls", ".txt", "b.seen", "seen"]
        assert sample["__own__"] == "train-000001.tar"
    at = shuffled(range(20)).index(9)
    other = f"captions-{(at >= 3) + (at >= 15)}.tar"
    assert sorted(set(seen)) == sorted({("train-000001.tar", 9, "train"), (other, at, "c")})
    left.transformations.clear()
    assert result[9]["seen"], "a join has its own list"


def test_dicts_of_transformations_are_not_changed(train: Path) -> None:
    """What a transformation returns again and again stays as it is."""
    kept: dict[int, dict[str, Any]] = {}

    def remember(sample: dict[str, Any]) -> dict[str, Any]:
        return kept.setdefault(sample["__index__"], dict(sample))

    dataset = wids.ShardListDataset(train).map(remember)
    result = dataset.join(dataset, prefix="b")
    assert [sorted(fields(result[3])) for _ in range(2)] == [
        [".b.cls", ".b.txt", ".cls", ".txt"]
    ] * 2
    assert sorted(fields(kept[3])) == [".cls", ".txt"]


def test_transformations_with_other_results_are_an_error(train: Path) -> None:
    """Tuples cannot be joined; the error says to join first."""
    dataset = wids.ShardListDataset(train)
    tuples = dataset.to_tuple(".txt")
    for left, right in ((tuples, dataset), (dataset, tuples)):
        result = left.join(right, prefix="b")
        for read in (lambda r: r[3], lambda r: r.__getitems__([3, 4])):
            with raises(
                JoinError, "expected samples that are dicts", "tuple", "join the datasets first"
            ):
                read(result)
    assert dataset.join(dataset, prefix="b").to_tuple(".txt", ".b.cls")[3] == ("text 3", 3)


def test_a_field_on_both_sides(train: Path) -> None:
    """An error when it is read, with transformations and without, unless there is a prefix."""
    for options in ({}, RAW):
        with wids.ShardListDataset(train, **options) as dataset:
            for read in (lambda r: r[3], lambda r: r.__getitems__([3, 4]), list):
                with raises(
                    JoinError,
                    'sample "s0000',
                    "found .cls, .txt on both",
                    'join(other, prefix="b")',
                ):
                    read(dataset.join(dataset))
            assert sorted(fields(dataset.join(dataset, prefix="b")[3])) == [
                ".b.cls", ".b.txt", ".cls", ".txt",
            ]  # fmt: skip


def test_augmentations_of_each_side_follow_the_epoch(train: Path) -> None:
    """`set_epoch` of the joined dataset, as samplers call it, reaches both sides."""

    def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"noise": rng.random(), "key": sample["__key__"]}

    left = wids.ShardListDataset(train).map(noisy, seed=1)
    result = left.join(wids.ShardListDataset(train).map(noisy, seed=2), prefix="b")
    found = []
    for epoch in (0, 1, 0):
        result.set_epoch(epoch)
        sample = result[3]
        found.append((sample["noise"], sample["b.noise"]))
    assert found[0] == found[2]
    assert len({*found[0], *found[1]}) == 4


def test_errors_of_either_side_go_to_on_error_of_the_join(train: Path, captions: Path) -> None:
    """One bad sample of the other side costs that sample alone."""

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__key__"] == "s00009":
            raise ValueError("no")
        return sample

    left = wids.ShardListDataset(train)
    right = wids.ShardListDataset(shards(captions, "captions"), on_error=lambda _: {}).map(refuse)
    result = left.join(right)
    with raises(TransformError, "captions-", 'sample "s00009"', "raised ValueError"):
        result.__getitems__([8, 9, 10])
    with raises(TransformError, 'sample "s00009"'):
        result[9]
    result.on_error = str
    batch = result.__getitems__([8, 9, 10])
    assert [type(item) for item in batch] == [dict, str, dict]
    result.on_error = "skip"
    with pytest.warns(UserWarning, match="left out"):
        assert [s["__index__"] for s in result.__getitems__([8, 9, 10])] == [8, 10]
    left.on_error = lambda _: "stand-in"
    assert left.join(right)[9] == "stand-in"


class Doubled(wids.ShardListDataset):
    """A subclass that decides what a sample is."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return (
            {"doubled": sample[".cls"] * 2, "__key__": sample["__key__"]}
            if isinstance(sample, dict)
            else sample
        )


def test_subclasses_decide_what_their_samples_are(train: Path) -> None:
    """On either side, alone and in batches; the joined dataset is a plain one."""
    plain, doubled = wids.ShardListDataset(train), Doubled(train)
    for result in (
        plain.join(doubled),
        doubled.join(plain),
        doubled[4:].join(plain[:12], missing="skip"),
    ):
        assert type(result) is wids.ShardListDataset
        for sample in [*result, *result.__getitems__(range(len(result)))]:
            assert sample["doubled"] == 2 * sample[".cls"]
            assert sample["__index__"] == int(sample["__key__"][1:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_keys_that_are_not_unique(train: Path, side: str) -> None:
    """An error with both places, unless a view leaves one of them out (JOIN-4)."""
    write_tar(train.parent / "again.tar", sample_members(4, 5))
    paths = [*map(str, sorted(train.parent.glob("train-*.tar"))), str(train.parent / "again.tar")]
    twice, once = wids.ShardListDataset(paths), wids.ShardListDataset(train)
    left, right = (twice, once) if side == "left" else (once, twice)
    with raises(
        JoinError, "found 's00004' twice", "train-000000.tar, position 4", "again.tar, position 0"
    ):
        left.join(right, prefix="b")
    if side == "left":
        left = left[:20]
    else:
        right = right[5:]
    assert len(left.join(right, prefix="b", missing="skip")) in (16, 20)
    repeated = once[[3, 3, 3]].join(once[[3, 3, 0]], prefix="b")
    assert [sample[".b.txt"] for sample in repeated] == ["text 3"] * 3, "one sample, thrice"
    first, second, third = repeated.__getitems__([0, 1, 2])
    assert first is not second is not third


def test_sides_without_names_are_told_apart(tmp_path: Path) -> None:
    """Messages state which of the two datasets lacks a key, or has it twice (JOIN-3, JOIN-4)."""
    for prefix, keys in (("l", "abc"), ("r", "ab")):
        write_side(tmp_path, prefix, list(keys), [], f".{prefix}")
    write_side(tmp_path, "again", ["a"], [], ".r")
    with (
        wids.ShardListDataset(shards(tmp_path, "l")) as left,
        wids.ShardListDataset(shards(tmp_path, "r")) as right,
        wids.ShardListDataset(shards(tmp_path, "r") + shards(tmp_path, "again")) as twice,
    ):
        with raises(JoinError, "the dataset: expected", "samples in the other dataset, found 1"):
            left.join(right)
        with raises(JoinError, "the other dataset: expected each key once, found 'a'"):
            left.join(twice)
        with raises(JoinError, "the dataset: expected each key once, found 'a'"):
            twice.join(left)


def test_streams_are_not_shared_in_a_batch(train: Path) -> None:
    """The same sample twice in a batch has streams of its own each time."""
    with wids.ShardListDataset(train, transformations=None) as dataset:
        batch = dataset.join(dataset, prefix="b").__getitems__([3, 3])
        assert [sample[".b.txt"].read() for sample in batch] == [b"text 3"] * 2


def test_rows_with_repeated_or_other_keys(train: Path) -> None:
    """They are errors that name the rows (JOIN-4)."""
    with wids.ShardListDataset(train) as dataset:
        keys = [f"s{number:05d}" for number in range(20)]
        advice = "keep one of these rows"
        with raises(JoinError, "'s00003' twice: the table, row 3; and the table, row 20", advice):
            dataset.join(pa.table({"__key__": [*keys, "s00003"]}))
        for bad in (3, None, b"s00003", "a\0b"):
            for rows in (
                {**dict.fromkeys(keys, 1), bad: 1},
                pd.DataFrame({"__key__": [*keys, bad]}),
            ):
                with raises(JoinError, "expected keys that are text", "in row 20", "convert them"):
                    dataset.join(rows)
        table = pa.table({"name": keys, "x": range(20)})
        with raises(
            JoinError, "the table: expected the keys", "'__key__'", "found the columns 'name', 'x'"
        ):
            dataset.join(table)
        frame = table.to_pandas()
        with raises(JoinError, "or as the index of that name", "found the columns 'name', 'x'"):
            dataset.join(frame)
        both = frame.rename_axis("__key__").assign(__key__=keys)
        with raises(JoinError, "expected the keys of samples in one column"):
            dataset.join(both)
        with raises(JoinError, "expected columns with names", "found the column 7"):
            dataset.join(frame.rename(columns={"name": "__key__", "x": 7}))


def test_keys_that_no_sample_has_are_named(train: Path) -> None:
    """If nothing fits, the error shows keys of both sides; a wrong folder shows at once."""
    with wids.ShardListDataset(train) as dataset:
        with raises(JoinError, "found 20 of them missing", "'s00000'", "keys such as 'b/0', 'b/1'"):
            dataset.join({f"b/{number}": 1 for number in range(20)})
        with raises(JoinError, "The mapping has no such keys"):
            dataset.join({})
        assert len(dataset.join({}, missing="skip")) == 0
        assert fields(dataset.join({}, missing="none")[0]) == fields(dataset[0])


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        (
            {"other": 3},
            TypeError,
            ["expected a wids.ShardListDataset", "found int 3", "dataset[indices]"],
        ),
        ({"other": ["s00000"]}, TypeError, ["a pyarrow.Table", "found list"]),
        ({"other": pd.Series([1], ["s00000"])}, TypeError, ["found Series", "column.to_frame()"]),
        (
            {"other": {}, "missing": "drop"},
            ValueError,
            ['"error", "skip" or "none", found \'drop\''],
        ),
        ({"other": {}, "prefix": 3}, TypeError, ["prefix: expected a text, found int"]),
        ({"other": {}, "prefix": ".b"}, ValueError, ["prefix: expected a name such as"]),
        ({"other": {}, "prefix": "__b"}, ValueError, ["prefix: expected a name such as"]),
    ],
)
def test_wrong_arguments(
    train: Path, arguments: dict[str, Any], error: type[Exception], parts: list[str]
) -> None:
    """They name what was expected and what was found."""
    with wids.ShardListDataset(train) as dataset, raises(error, *parts):
        dataset.join(**arguments)


def test_nothing_is_read_to_join(train: Path, captions: Path) -> None:
    """Indexes alone are used; members can be damaged (JOIN-6)."""
    for path in captions.glob("captions-*.tar"):
        with tarfile.open(path) as tar:
            places = [member.offset_data for member in tar]
        data = bytearray(path.read_bytes())
        for place in places:
            data[place : place + 4] = b"\xff" * 4
        path.write_bytes(data)
    with (
        wids.ShardListDataset(train) as a,
        wids.ShardListDataset(shards(captions, "captions")) as b,
    ):
        assert len(a.join(b)) == 20


def test_a_join_is_made_of_what_is_there_now(train: Path, captions: Path) -> None:
    """Nothing is stored of it: a shard that was written again has other positions."""

    def join() -> list[Any]:
        with wids.ShardListDataset(train) as a:
            b = wids.ShardListDataset(shards(captions, "captions"))
            return [s[".caption.txt"] for s in a.join(b)]

    expected = [f".caption.txt of s{number:05d}" for number in range(20)]
    assert join() == expected
    path = shards(captions, "captions")[0]
    write_tar(Path(path), _members(path)[::-1])
    assert join() == expected


def _members(path: str) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(m.name, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar]


def test_fields_of_missing_samples_are_those_that_are_read(tmp_path: Path) -> None:
    """None stands for the fields of `fields=`, and of joins of the other side (JOIN-3)."""
    left = write_side(tmp_path, "l", ["a", "b"], [], ".txt") / "l-0.tar"
    right = write_tar(tmp_path / "r.tar", [("a.txt", b"t"), ("a.cap", b"c")])

    def names(**options: Any) -> list[str]:
        with wids.ShardListDataset(left) as first, wids.ShardListDataset(right, **options) as other:
            return sorted(fields(first.join(other, missing="none", prefix="b")[1]))

    def names_of_joined(field: str) -> list[str]:
        with wids.ShardListDataset(left) as first, wids.ShardListDataset(right) as other:
            wide = other.join({"a": {field: 1}}, missing="none")
            return sorted(fields(first.join(wide, missing="none", prefix="b")[1]))

    both = [".b.cap", ".b.txt", ".txt"]
    assert names(fields=[".txt"]) == [".b.txt", ".txt"]
    assert names() == both
    assert names(fields=[".cap"]) == [".b.cap", ".txt"]
    assert names_of_joined("x") == sorted([*both, ".b.x"])
    assert names_of_joined("y") == sorted([*both, ".b.y"])
    assert names() == both


def test_a_cache_that_cannot_be_written(train: Path, captions: Path, tmp_path: Path) -> None:
    """The join works without storing anything."""
    (tmp_path / "file").touch()
    a = wids.ShardListDataset(train, cache_dir=tmp_path / "file" / "c")
    assert len(list(a.join(wids.ShardListDataset(shards(captions, "captions"))))) == 20


def test_a_sample_never_has_the_fields_of_another(train: Path, captions: Path) -> None:
    """A shard that is replaced under a join is an error, alone and in batches (JOIN-7)."""
    with (
        wids.ShardListDataset(train) as a,
        wids.ShardListDataset(shards(captions, "captions")) as b,
    ):
        result = a.join(b)
        assert result[3][".caption.txt"].endswith("s00003")
        path = Path(shards(captions, "captions")[1])
        write_tar(path.with_name("new"), _members(str(path))[::-1])
        path.with_name("new").rename(path)
        result.close()
        moved = [int(name[1:6]) for name, _ in _members(str(path))]
        for number in range(20):
            for read in (lambda r, n: r[n], lambda r, n: r.__getitems__([n, (n + 1) % 20])[0]):
                try:
                    sample = read(result, number)
                except MismatchError:
                    assert {number, (number + 1) % 20} & set(moved)
                else:
                    assert sample[".caption.txt"].endswith(f"s{number:05d}")


def as_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def as_indexed_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(columns).set_index("__key__")


def as_mapping(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {k: {"cap": v} for k, v in zip(columns["__key__"], columns["cap"], strict=True)}


@pytest.mark.parametrize("make", [as_mapping, pa.table, as_frame, as_indexed_frame])
@pytest.mark.parametrize("missing", ["error", "none"])
def test_a_sample_never_has_the_row_of_another(
    tmp_path: Path, make: Callable[[Any], Any], missing: Any
) -> None:
    """A shard that is replaced under a join with rows is an error, whoever reads it (JOIN-7)."""
    keys = list("abcd")
    rows = make({"__key__": keys, "cap": [f"cap {key}" for key in keys]})
    path = write_side(tmp_path, "l", keys, [], ".txt") / "l-0.tar"
    with wids.ShardListDataset(path) as dataset:
        plain, named = (dataset.join(rows, missing=missing, prefix=p) for p in ("", "b"))
        few = named.only([".b.cap"])
        assert [plain[0][".cap"], few[0][".b.cap"]] == ["cap a", "cap a"]
        assert fields(named[0]) == {".txt": ".txt of a", ".b.cap": "cap a"}
        write_tar(tmp_path / "new.tar", _members(str(path))[::-1])
        (tmp_path / "new.tar").rename(path)
        for joined in (plain, named, few):
            joined.close()
            for read in (lambda d: d[0], lambda d: d.__getitems__([0, 3])):
                with raises(MismatchError, "the key 'd' on both sides", "found 'a'", "join them"):
                    read(joined)
        plain.on_error = "skip"
        with raises(MismatchError, "the key 'd' on both sides"):
            plain.__getitems__([0, 3])


@pytest.mark.parametrize("make", [as_frame, as_indexed_frame])
def test_a_frame_that_is_changed_later(train: Path, make: Callable[[Any], Any]) -> None:
    """A join has the rows as they were when it was made."""
    keys = [f"s{number:05d}" for number in range(20)]
    frame = make({"__key__": keys, "cap": [f"cap {key}" for key in keys]})
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join(frame)
        frame.iloc[:] = frame.iloc[::-1].to_numpy()
        assert frame["cap"].iloc[0] == "cap s00019"
        assert joined[3][".cap"] == "cap s00003"
        assert [s[".cap"] for s in joined.__getitems__([3, 0])] == ["cap s00003", "cap s00000"]


@pytest.mark.parametrize("make", [as_mapping, pa.table, as_frame])
def test_each_read_has_values_of_its_own(train: Path, make: Callable[[Any], Any]) -> None:
    """A transformation that changes containers in place changes no later sample."""
    keys = [f"s{number:05d}" for number in range(20)]
    boxes = [[[number], [number]] for number in range(20)]

    def grow(sample: Any) -> Any:
        sample[".cap"].append([9])
        sample[".cap"][0][0] += 100
        return sample

    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join(make({"__key__": keys, "cap": boxes})).map(grow)
        for _ in range(2):
            assert joined[3][".cap"] == [[103], [3], [9]]
            assert joined.__getitems__([3, 3])[1][".cap"] == [[103], [3], [9]]


def test_lists_of_texts_of_polars(train: Path) -> None:
    """They are joined in a batch as alone, where Arrow cannot take rows of them."""
    keys = [f"s{number:05d}" for number in range(20)]
    frame = pl.DataFrame({"__key__": keys, "tags": [[key, "é"] for key in keys]})
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join(frame)
        tags = [sample[".tags"] for sample in joined.__getitems__([3, 0, 3])]
        assert tags == [["s00003", "é"], ["s00000", "é"], ["s00003", "é"]]
        assert joined[3][".tags"] == tags[0]


def test_what_is_inside_arrays_and_named_tuples_is_copied(train: Path) -> None:
    """Arrays of lists, as pandas reads them from Parquet, and fields of tuples."""
    ragged = np.empty((1, 2), object)
    ragged[0, 0], ragged[0, 1] = np.array([1, 2]), [3]
    value = [ragged, Box([4]), torch.Size([5])]
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join({f"s{number:05d}": value for number in range(20)})
        for _ in range(2):
            array, box, size = joined[3][".value"]
            assert (array.shape, array[0, 0].tolist(), array[0, 1]) == ((1, 2), [1, 2], [3])
            assert (box, size) == (Box([4]), torch.Size([5]))
            assert type(size) is torch.Size
            array[0, 0][0], box.corners[0] = 9, 9
            array[0, 1].append(9)


def test_arrays_are_copied_and_other_objects_are_not(train: Path) -> None:
    """Arrays, tuples and dicts of a kind are the reader's own, other objects shared."""
    model = object()
    value = ({"a": [1]}, np.zeros(2), bytearray(b"a"), OrderedDict(b=[2]), model)
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join({f"s{number:05d}": value for number in range(20)})
        for _ in range(2):
            plain, array, data, ordered, shared = joined[3][".value"]
            assert (plain, array.tolist(), bytes(data)) == ({"a": [1]}, [0, 0], b"a")
            assert ordered == OrderedDict(b=[2])
            assert shared is model
            plain["a"][0] += 1
            array += 1
            data += b"b"
            ordered["b"] += [3]
        frame = pd.DataFrame({"__key__": [f"s{n:05d}" for n in range(20)]})
        joined = dataset.join(frame.assign(x=[np.zeros(2)] * 20))
        for _ in range(2):
            sample = joined[3]
            assert sample[".x"].tolist() == [0, 0]
            sample[".x"] += 1


def test_rows_of_one_key_become_a_list(train: Path) -> None:
    """The error of several rows for a sample says how, for a table, a frame and a file (JOIN-4)."""
    keys = [f"s{number // 2:05d}" for number in range(40)]
    frame = pd.DataFrame({"id": keys, "text": map(str, range(40))})
    path = train.parent / "all.jsonl"
    path.write_text(frame.to_json(orient="records", lines=True))
    with wids.ShardListDataset(train) as dataset:
        for rows in (frame, pa.table(frame), path):
            with raises(JoinError, "'s00000' twice", 'frame.groupby("__key__").agg(list)'):
                dataset.join(rows, on="id")
        joined = dataset.join(frame.groupby("id").agg(list), on="id")
        assert joined[3][".text"] == ["6", "7"]
    assert pickle.loads(pickle.dumps(joined))[19][".text"] == ["38", "39"]  # noqa: S301 - made here


@pytest.mark.parametrize("kind", ["numpy", "torch", "mapped"])
def test_rows_of_arrays_by_their_number(train: Path, kind: str) -> None:
    """Row ``i`` belongs to sample ``i`` of what the array is joined to."""
    rows = np.arange(60.0, dtype=np.float32).reshape(20, 3)
    array: Any = rows
    if kind == "torch":
        array = torch.from_numpy(rows)
    if kind == "mapped":
        np.save(train.parent / "rows.npy", rows)
        array = np.load(train.parent / "rows.npy", mmap_mode="r")
    with wids.ShardListDataset(train) as dataset:
        joined = pickle.loads(pickle.dumps(dataset.join(array, prefix="emb")))  # noqa: S301 - made here
        for _ in range(2):
            sample = joined[7]
            assert (sample[".txt"], sample[".emb"].tolist()) == ("text 7", [21, 22, 23])
            sample[".emb"] += 1  # its own
        assert [s[".emb"][0] for s in joined.__getitems__([19, 0, 7])] == [57, 0, 21]
        assert joined[5:][0][".emb"][0] == 15
        view = dataset[[9, 2, 17]]
        assert [s[".value"][0] for s in view.join(array[:3])] == [0, 3, 6]
        assert [s[".txt"] for s in view.join(array[:3])] == ["text 9", "text 2", "text 17"]
        labels = dataset.join(array[:, 0], prefix="label")
        assert [s[".label"] for s in labels] == rows[:, 0].tolist()
        assert labels.only([".label"])[4][".label"] == 12
        assert labels.table({"label": ".label"})["label"].to_pylist() == rows[:, 0].tolist()
        with raises(JoinError, "each of the 20 samples, in their order, found the shape (3, 3)"):
            dataset.join(array[:3])
        with raises(JoinError, "each sample once"):
            dataset[[1, 1, 2]].join(array[:3])
        with raises(ValueError, "on, columns: expected a table"):
            dataset.join(array, on="x")


def test_columns_that_become_one_field(train: Path) -> None:
    """They are an error that names them, whatever the rows are in."""
    keys = [f"s{number:05d}" for number in range(20)]
    with wids.ShardListDataset(train) as dataset:
        for names in (["cap", "cap"], ["cap", ".cap"]):
            table = pa.table([keys, keys, keys], names=["__key__", *names])
            frame = pd.DataFrame(
                zip(keys, keys, keys, strict=True), columns=pd.Index(["__key__", *names])
            )
            for rows, what in ((table, "the table"), (frame, "the frame")):
                with raises(JoinError, f"{what}: expected one column for the field .cap, found "):
                    dataset.join(rows)
        entries = {key: {"cap": 1, ".cap": 2} for key in keys}
        with raises(JoinError, "the mapping: expected", "found 'cap' and '.cap'; rename"):
            dataset.join(entries)[0]
        labelled = {key: {"cap": 1, "__a": 2, ".__a": 3} for key in keys}
        assert dataset.join(labelled)[0][".cap"] == 1


def test_different_keys_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes that somebody has made equal lead to slower ones, and never to another sample."""
    monkeypatch.setattr(key_tables, "_BASE", 1)  # sums of bytes: "ab" and "ba" are equal
    monkeypatch.setattr(key_tables, "_INVERSE", 1)
    key_tables._powers.cache_clear()
    write_side(tmp_path, "l", ["ab", "ba", "c"], [1], ".txt")
    write_side(tmp_path, "r", ["ba", "c", "ab"], [2], ".cap")
    a, b = (
        wids.ShardListDataset(shards(tmp_path, "l")),
        wids.ShardListDataset(shards(tmp_path, "r")),
    )
    expected = [f".cap of {key}" for key in ("ab", "ba", "c")]
    assert [bytes(sample[".cap"].getvalue()).decode() for sample in a.join(b)] == expected
    values = a.join({"ba": 1, "c": 2, "ab": 3})
    assert [sample[".value"] for sample in values] == [3, 1, 2]
    assert [a.find_key(key) for key in ("ab", "ba", "c")] == [0, 1, 2]
    key_tables._powers.cache_clear()


def test_only_reads_the_side_that_has_a_field(joined: wids.ShardListDataset) -> None:
    """As bytes, without transformations, as of any dataset."""
    with joined.map(lambda _: 1 / 0).only([".caption.txt", ".cls"]) as view:
        for sample in (view[4], view.__getitems__([4])[0]):
            assert fields(sample) == {".cls": b"4", ".caption.txt": b".caption.txt of s00004"}
    with joined.only(None) as view:
        assert fields(view[4]) == fields(joined[4])


def test_only_leaves_out_fields_that_are_missing(train: Path) -> None:
    """A sample without an entry has None for the named fields alone (JOIN-3)."""
    (train.parent / "train-000000.json").write_text('{"s00001": {"x": 1, "y": 2}}')
    with wids.ShardListDataset(train) as dataset:
        for other in ({"s00001": {"x": 1, "y": 2}}, "{shard}.json"):
            with dataset.join(other, missing="none").only([".cls", ".x"]) as view:
                for samples in ([view[0], view[1]], view.__getitems__([0, 1])):
                    assert [fields(sample) for sample in samples] == [
                        {".cls": b"0", ".x": None},
                        {".cls": b"1", ".x": 1},
                    ]


def test_closing_a_join_releases_both_sides(train: Path, captions: Path) -> None:
    """And a later read opens them again."""
    result = wids.ShardListDataset(train).join(wids.ShardListDataset(shards(captions, "captions")))
    list(result)
    assert num_open(train.parent) > 0
    result.close()
    assert num_open(train.parent) == 0
    assert result[3]["__key__"] == "s00003"
    result.close()


def test_each_shard_of_a_batch_is_opened_once(tmp_path: Path) -> None:
    """On both sides, however they are cut against each other."""
    spec = write_shards(tmp_path, [10] * 6)
    keys = shuffled(f"s{number:05d}" for number in range(60))
    write_side(tmp_path, "r", keys, range(7, 60, 7), ".cap")
    with (
        wids.ShardListDataset(spec, lru_size=1) as a,
        wids.ShardListDataset(shards(tmp_path, "r"), lru_size=1) as b,
    ):
        result = a.join(b)
        result.close()
        before = a.get_stats()[1], b.get_stats()[1]
        batch = result.__getitems__(shuffled(range(60)))
        assert len(batch) == 60
        assert (a.get_stats()[1] - before[0], b.get_stats()[1] - before[1]) == (6, 9)


def test_a_key_that_no_sample_can_have(train: Path) -> None:
    """A lone surrogate in one row does not hide the others (JOIN-3)."""
    with wids.ShardListDataset(train) as dataset:
        rows = {key: {"row": number} for number, key in enumerate(dataset.keys())}
        joined = dataset.join({**rows, "\ud800": {"row": 99}}, missing="none")
        assert [sample[".row"] for sample in joined] == list(range(20))
