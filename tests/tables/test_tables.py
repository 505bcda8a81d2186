"""Fields of all samples as columns: which values, which types, which rows, and which errors."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from conftest import Member, raises, write_tar

from wids import DecodeError, ShardListDataset, TableError
from wids.tables import shard_fields

INT64, FLOAT64, STRING = pa.int64(), pa.float64(), pa.string()


def opened(folder: Path, *shards: list[Mapping[str, bytes]], **options: Any) -> ShardListDataset:
    """Return a dataset of shards, each a list of samples, each a dict of fields."""
    number, shardlist = 0, []
    for at, samples in enumerate(shards):
        members: list[Member] = []
        for fields in samples:
            members += [(f"s{number:03d}{field}", data) for field, data in fields.items()]
            number += 1
        path = write_tar(folder / f"part-{at}.tar", members)
        shardlist.append((path, len(samples)))
    return ShardListDataset(shardlist, dataset_name="parts", **options)


def documents(*values: Any) -> list[dict[str, bytes]]:
    """Return a sample with a field ``.json`` for each value."""
    return [{".json": json.dumps({"a": value}).encode()} for value in values]


@pytest.mark.parametrize(
    ("values", "arrow_type", "expected"),
    [
        ([1, -2, None], INT64, [1, -2, None]),
        ([True, False], pa.bool_(), [True, False]),
        ([1.5, 2], FLOAT64, [1.5, 2.0]),
        ([1, 2.5, None], FLOAT64, [1.0, 2.5, None]),
        (["é", "\0", ""], STRING, ["é", "\0", ""]),
        ([2**63, 7], pa.uint64(), [2**63, 7]),
        ([7, None, 2**64 - 1], pa.uint64(), [7, None, 2**64 - 1]),
        ([-(2**63), 2**63 - 1], INT64, [-(2**63), 2**63 - 1]),
        ([[2**63, 7], [7, None], []], pa.list_(pa.uint64()), [[2**63, 7], [7, None], []]),
        ([[[2**63]], [[7], []]], pa.list_(pa.list_(pa.uint64())), [[[2**63]], [[7], []]]),
        ([[1, 2], [], None], pa.list_(INT64), [[1, 2], [], None]),
        ([[1], [2.5, 3]], pa.list_(FLOAT64), [[1.0], [2.5, 3.0]]),
        ([["a", None]], pa.list_(STRING), [["a", None]]),
        ([[], [[1, 2], []], [[]]], pa.list_(pa.list_(INT64)), [[], [[1, 2], []], [[]]]),
        ([[1], [None], []], pa.list_(INT64), [[1], [None], []]),
        ([[True]], pa.list_(pa.bool_()), [[True]]),
        ([{"x": 1, "é": [2]}, {}], STRING, ['{"x":1,"é":[2]}', "{}"]),
        ([[{"x": 1}], [1, "a"], {"y": 2}], STRING, ['[{"x":1}]', '[1,"a"]', '{"y":2}']),
        ([[], [{"x": 1}], [[]], None], STRING, ["[]", '[{"x":1}]', "[[]]", None]),
        ([[1, [2]]], STRING, ["[1,[2]]"]),
        ([[1.5, True]], STRING, ["[1.5,true]"]),
        ([None, None], pa.null(), [None, None]),
    ],
    ids=str,
)
def test_a_column_has_the_type_that_all_values_fit(
    tmp_path: Path, values: list[Any], arrow_type: pa.DataType, expected: list[Any]
) -> None:
    """TABLE-4: whichever samples, shards and batches the values are in."""
    with opened(tmp_path, documents(*values)) as dataset:
        column = dataset.table({"a": ".json/a"})["a"]
        assert (column.type, column.to_pylist()) == (arrow_type, expected)
    apart = [documents(value) for value in values]
    with opened(tmp_path, *apart) as dataset:
        column = dataset.table({"a": ".json/a"})["a"]
        assert (column.type, column.to_pylist()) == (arrow_type, expected)


def test_fields_are_decoded_by_their_codecs(tmp_path: Path) -> None:
    """TABLE-2: texts, integers, arrays, MessagePack, JSON lines, compressed; others are bytes."""
    array = io.BytesIO()
    np.save(array, np.array([1.5, 2], np.float32))
    sample = {
        ".txt": "ünï".encode(),
        ".cls": b"17\n",
        ".JSON": b'{"size": [640, 480], "a/b": {"~": 1}}',
        ".meta.json.gz": gzip.compress(b"[3]"),
        ".jsonl": b'{"x": 1}\n{"x": 2}\n',
        ".mp": msgpack.packb({"n": 5, 7: "seven"}),
        ".npy": array.getvalue(),
        ".blob": b"\xff\0",
    }
    paths = {
        "caption": ".txt",
        "label": "cls",
        "width": ".JSON/size/0",
        "height": ".JSON/size/-1",
        "awkward": ".JSON/a~1b/~0",
        "zipped": ".meta.json.gz/0",
        "second": ".jsonl/1/x",
        "packed": ".mp/n",
        "numbered": ".mp/7",
        "vector": ".npy",
        "blob": ".blob",
        "all": ".meta.json.gz",
    }
    with opened(tmp_path, [sample]) as dataset:
        table = dataset.table(paths)
        assert table.column_names == ["__index__", "__key__", *paths]
        (row,) = table.to_pylist()
        assert dataset.table([".cls", ".txt"]).column_names[2:] == [".cls", ".txt"]
    assert row == {
        "__index__": 0,
        "__key__": "s000",
        "caption": "ünï",
        "label": 17,
        "width": 640,
        "height": 480,
        "awkward": 1,
        "zipped": 3,
        "second": 2,
        "packed": 5,
        "numbered": "seven",
        "vector": [1.5, 2.0],
        "blob": b"\xff\0",
        "all": [3],
    }


@pytest.fixture
def numbered(tmp_path: Path) -> Iterator[ShardListDataset]:
    """Shards of 3, 0, 4 and 5 samples; every third has no class."""
    samples = [{".txt": b"text", **({".cls": b"%d" % n} if n % 3 else {})} for n in range(12)]
    dataset = opened(tmp_path, samples[:3], [], samples[3:7], samples[7:])
    yield dataset
    dataset.close()


@pytest.mark.parametrize(
    "selection",
    [
        slice(None),
        slice(2, 8),
        slice(None, None, -1),
        slice(None, None, 5),
        [7, 3, 3, 11, -12],
        [1, 4, 5],
        np.arange(12) % 4 == 1,
        [],
    ],
    ids=str,
)
def test_rows_follow_the_view(numbered: ShardListDataset, selection: Any) -> None:
    """TABLE-1: in its order, with repeats; the index is the position in the whole dataset."""
    empty = isinstance(selection, list) and not selection
    model = [] if empty else np.arange(12)[selection].tolist()
    table = numbered[selection].table({"label": ".cls"})
    assert table["__index__"].to_pylist() == model
    assert table["__key__"].to_pylist() == [f"s{n:03d}" for n in model]
    assert table["label"].to_pylist() == [n if n % 3 else None for n in model]
    nested = numbered[selection][1::2].table({"label": ".cls"}) if len(model) > 2 else None
    if nested is not None:
        assert nested["__index__"].to_pylist() == model[1::2]


def test_what_was_asked_of_samples_is_ignored(tmp_path: Path) -> None:
    """TABLE-2: transformations, fields, raw and on_error are those of samples."""

    def fail(_: Any) -> Any:
        raise AssertionError

    options = {"transformations": [fail], "fields": [".txt"], "on_error": fail, "raw": "view"}
    samples = [{".cls": b"1", ".txt": b"a"}, {".cls": b"2", ".txt": b"b"}]
    with opened(tmp_path, samples, **options) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == [1, 2]


def open_shards() -> list[str]:
    """Return the tars that this process has open. Runs on a worker."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.endswith(".tar")]


def executors() -> list[Callable[[], Executor]]:
    return [
        lambda: ThreadPoolExecutor(2),
        lambda: ProcessPoolExecutor(2, mp_context=get_context("forkserver")),
    ]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(executors()[0], id="threads"),
        pytest.param(executors()[1], id="processes", marks=pytest.mark.long),
    ],
)
def test_any_executor_reads_the_same(
    numbered: ShardListDataset, make: Callable[[], Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are tasks, in groups where there are many of them."""
    expected = numbered[::-1].table({"label": ".cls", "text": ".txt"})
    monkeypatch.setattr("wids.tables.table._MAX_TASKS", 2)
    with make() as executor:
        table = numbered[::-1].table({"label": ".cls", "text": ".txt"}, executor=executor)
        assert table.equals(expected)
        with raises(TableError, "no sample has"):
            numbered.table([".json"], executor=executor)
        if isinstance(executor, ProcessPoolExecutor) and os.path.isdir("/proc/self/fd"):
            open_ones = [executor.submit(open_shards).result() for _ in range(4)]
            assert open_ones == [[]] * 4, "the cache cannot evict what a worker has open"


def test_progress_is_shown(
    numbered: ShardListDataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shards; only shards that have samples are read."""
    monkeypatch.setattr("wids.storage.progress.DELAY_S", 0)
    numbered.table([".cls"], progress=True)
    assert "reading columns" in (shown := capsys.readouterr().err)
    assert "/3" in shown


# Errors.


def test_a_path_that_no_sample_has_names_near_ones(tmp_path: Path) -> None:
    """TABLE-3: among fields, and among the parts of the field."""
    samples = [{".json": b'{"size": {"height": 1, "width": 2}, "n": null}', ".cls": b"1"}]
    samples[0][".null.json"] = b"null"
    with opened(tmp_path, samples, samples) as dataset:
        for path, near in (
            (".json/size/heigth", "near it: .json/size/height"),
            (".json/sise/height", "near it: .json/size"),
            (".jsn", "near it: .json"),
            (".jpeg/a", "columns: 'jpeg'"),
            (".json/n/deeper", "near it: .json/n"),
            (".cls2", "near it: .cls"),
            (".xyzzy", "the samples have: .json, .cls, .null.json"),
        ):
            if near.startswith("columns"):
                with raises(ValueError, "whose values are pictures"):
                    dataset.table([path])
            else:
                with raises(TableError, f"found {path}, which no sample has", near):
                    dataset.table([path])
        assert dataset.table([".json/n"])[".json/n"].to_pylist() == [None, None]
        assert dataset.table([".null.json"])[".null.json"].to_pylist() == [None, None]
        assert len(dataset[:0].table([".xyzzy"])) == 0
    samples = [{".json": b"1"}, {".json": b"1", ".cls": b"1"}]
    with opened(tmp_path, samples) as dataset, raises(TableError, "near it: .cls"):
        dataset[:1].table([".cls"])  # others of the shard have it


def test_a_field_that_cannot_be_decoded_names_the_sample(tmp_path: Path) -> None:
    """Or is null on request; a path into it, too."""
    samples = [{".cls": b"1", ".json": b"{}"}, {".cls": b"x", ".json": b'{"a": 1'}]
    good = [{".cls": b"2", ".json": b'{"a": 2}'}]
    with opened(tmp_path, good, samples) as dataset:
        for path in (".cls", ".json", ".json/a"):
            with raises(DecodeError, "part-1.tar", 'sample "s002" (index 2)') as caught:
                dataset.table([path])
            del caught
        table = dataset.table({"c": ".cls", "a": ".json/a"}, errors="null")
        assert table["c"].to_pylist() == [2, 1, None]
        assert table["a"].to_pylist() == [2, None, None]
        with pytest.raises(DecodeError) as error:
            dataset.table([".cls"])
        assert (error.value.key, error.value.index, error.value.field) == ("s002", 2, ".cls")


@pytest.mark.parametrize(
    ("values", "first", "second", "kept"),
    [
        ([1, 2, "3"], "2 of type int64, such as 1", "1 of type string, such as '3'", [1, 2, None]),
        (["3", 1, 2], "2 of type int64, such as 1", "1 of type string", [None, 1, 2]),
        ([True, False, 1], "2 of type bool, such as True", "1 of type int64", [True, False, None]),
        ([[1], [2], 3], "2 of type list<int64>", "1 of type int64", [[1], [2], None]),
        ([[1], ["a"], ["b"]], "2 of type list<string>", "list<int64>", [None, ["a"], ["b"]]),
        ([[1.5], [2.5], [True]], "2 of type list<float64>", "list<bool>", [[1.5], [2.5], None]),
        (
            [[], [[2]], [1], [3]],
            "3 of type list<int64>",
            "1 of type list<list",
            [[], None, [1], [3]],
        ),
        (
            [[[1]], [[]], [["a"]], [["b"]], [[], None]],
            "4 of type list<list<string>>",
            "1 of type list<list<int64>>",
            [None, [[]], [["a"]], [["b"]], [[], None]],
        ),
        ([{"x": 1}, {}, "{}"], "2 of type object", "1 of type string", ['{"x":1}', "{}", None]),
    ],
    ids=str,
)
def test_values_of_several_types_name_a_sample_of_each(
    tmp_path: Path, values: list[Any], first: str, second: str, kept: list[Any]
) -> None:
    """TABLE-4: or those that are not of the most frequent type are null, on request.

    Wherever they are: `[[]]` is of the type of the lists in its shard, and fits those of others.
    """
    halves = [documents(*values[:2]), documents(*values[2:])]
    for shards in ([documents(*values)], halves, [documents(value) for value in values]):
        with opened(tmp_path, *shards) as dataset:
            with raises(TableError, first, second, "expected values of one type", 'sample "s00'):
                dataset.table({"a": ".json/a"})
            assert dataset.table({"a": ".json/a"}, errors="null")["a"].to_pylist() == kept


@pytest.mark.parametrize(
    ("values", "message", "kept"),
    [
        ([2**53 + 1, 0.5], "9007199254740993", [None, 0.5]),
        ([2**64, 1], 'sample "s000"', [None, 1]),
        ([-1, 2**63], "-1", [None, 2**63]),
        (["\ud800", "a"], "is no string", [None, "a"]),
        ([[2**64], [1]], "is no list<int64>", [None, [1]]),
    ],
    ids=["float64", "integer", "sign", "surrogate", "list"],
)
def test_a_value_that_would_change_is_an_error(
    tmp_path: Path, values: list[Any], message: str, kept: list[Any]
) -> None:
    """TABLE-4: nothing is rounded, cut or wrapped; on request it is null."""
    for shards in ([documents(*values)], [documents(value) for value in values]):
        with opened(tmp_path, *shards) as dataset:
            with raises(TableError, message, 'errors="null"'):
                dataset.table({"a": ".json/a"})
            assert dataset.table({"a": ".json/a"}, errors="null")["a"].to_pylist() == kept


def test_lists_of_texts_and_of_bytes_are_several_types(tmp_path: Path) -> None:
    """TABLE-4: Arrow alone would make bytes of both, where they are in one batch."""
    samples = [{".mp": msgpack.packb(value)} for value in (["a"], [b"b"], [b"c"])]
    for shards in ([samples], [[sample] for sample in samples]):
        with opened(tmp_path, *shards) as dataset:
            with raises(TableError, "2 of type list<binary>", "1 of type list<string>"):
                dataset.table([".mp"])
            column = dataset.table([".mp"], errors="null")[".mp"]
            assert column.to_pylist() == [None, [b"b"], [b"c"]]


def test_a_value_that_would_change_names_its_sample(tmp_path: Path) -> None:
    """Not the first one of its type, although types are united when all shards were read."""
    with (
        opened(tmp_path, documents(1, 2), documents(3, 2**53 + 1), documents(0.5)) as dataset,
        raises(TableError, "found 9007199254740993", 'part-1.tar: sample "s003" (index 3)'),
    ):
        dataset.table({"a": ".json/a"})


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (".cls", TypeError, "expected a dict or a list of paths, found the text '.cls'"),
        ([7], TypeError, "expected texts"),
        ({"a": None}, TypeError, "expected texts"),
        ([".cls", ".cls"], ValueError, "found '.cls' twice"),
        ({"__key__": ".cls"}, ValueError, "__index__ and __key__"),
        ([""], ValueError, "expected a path such as .cls or .json/height"),
        ({"": ".cls"}, ValueError, "expected a name for the path '.cls', found none"),
        ([".json/"], ValueError, "expected a path such as"),
        ([".json//a"], ValueError, "~1 stands for /"),
        ([".jpg"], ValueError, "whose values are pictures"),
        ([".pkl"], ValueError, "pickles, which execute code"),
        ([".cls/a"], ValueError, "whose values have no parts"),
        ([".blob/a"], ValueError, "whose values have no parts"),
    ],
)
def test_columns_without_values_are_refused_before_anything_is_read(
    numbered: ShardListDataset, columns: Any, kind: type[Exception], message: str
) -> None:
    """TABLE-3: with the column and what was expected."""
    with raises(kind, message):
        numbered.table(columns)
    with raises(ValueError, 'errors: expected "raise" or "null"'):
        numbered.table([".cls"], errors="ignore")  # type: ignore[arg-type]
    assert numbered.get_stats() == (0, 0)


def test_without_pyarrow_the_error_names_the_extra(
    numbered: ShardListDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyarrow is imported when it is first needed."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises(ModuleNotFoundError, "pip install 'wids[table]'"):
        numbered.table([".cls"])


# Hostile and unusual bytes.


def test_no_document_can_pose_as_several(tmp_path: Path) -> None:
    """TABLE-2: never a value beside the wrong sample, although documents are parsed together."""
    texts = [b"1,2", b"[3", b"4]", b'"a', b'b"', b"", b"]", b"[", b"5],[6", b"7"]
    with opened(tmp_path, [{".json": text} for text in texts]) as dataset:
        column = dataset.table([".json"], errors="null")[".json"]
        assert column.to_pylist() == [None] * 9 + [7]


def test_json_is_read_as_the_codec_reads_it(tmp_path: Path) -> None:
    """TABLE-2: other encodings, a mark at the start, NaN, repeated keys, white space."""
    texts = [
        '{"a": 1}'.encode("utf-16"),
        b'\xef\xbb\xbf{"a": 2}',
        b'{"a": NaN}',
        b'{"a": 3, "a": 4}',
        b' \n{"a": 5}\t ',
    ]
    with opened(tmp_path, [{".json": text} for text in texts]) as dataset:
        values = dataset.table([".json/a"])[".json/a"].to_pylist()
        expected = [sample[".json"]["a"] for sample in dataset]
    assert repr(values) == repr([float(value) for value in expected])


def test_nested_values_are_an_error_and_no_crash(tmp_path: Path) -> None:
    """A document of a hundred thousand brackets, and one with keys of all kinds."""
    bomb = b"[" * 100_000
    sample = {".json": bomb, ".mp": msgpack.packb({1: b"\xff", "k": 2})}
    with opened(tmp_path, [sample]) as dataset:
        with raises(DecodeError, "RecursionError"):
            dataset.table([".json/0"])
        with raises(TableError, "bytes is not JSON serializable"):
            dataset.table([".mp"])
        assert dataset.table([".mp/1"])[".mp/1"].to_pylist() == [b"\xff"]


def test_keys_need_not_be_unicode(tmp_path: Path) -> None:
    """TABLE-1: bytes that are no UTF-8 are shown as escapes, since Arrow's texts are Unicode."""
    write_tar(tmp_path / "a.tar", [("ä.cls", b"1"), ("b\udcff.cls", b"2"), ("c.cls", b"3")])
    with ShardListDataset(str(tmp_path / "a.tar")) as dataset:
        keys = dataset.table([".cls"])["__key__"].to_pylist()
        assert keys == ["ä", "b\\udcff", "c"]
        assert dataset[[0, 2]].table([".cls"])["__key__"].to_pylist() == ["ä", "c"]


def test_members_out_of_order_are_read_right(tmp_path: Path) -> None:
    """TABLE-1: a key that returns later in the archive, and a field that is there twice."""
    members = [("a.txt", b"A"), ("b.cls", b"2"), ("a.cls", b"9"), ("c.cls", b"3"), ("a.cls", b"1")]
    write_tar(tmp_path / "a.tar", members)
    with ShardListDataset(str(tmp_path / "a.tar"), repeated="last") as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == [1, 2, 3]
        assert [sample[".cls"] for sample in dataset] == [1, 2, 3]


def test_a_shard_longer_than_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TABLE-1: rows stay beside their samples where batches end, also between missing fields."""
    monkeypatch.setattr(shard_fields, "_MAX_MEMBERS", 3)
    samples = [
        {".t": b"", **({".cls": b"%d" % n} if n % 5 not in (0, 3) else {})} for n in range(40)
    ]
    with opened(tmp_path, samples) as dataset:
        expected = [n if n % 5 not in (0, 3) else None for n in range(40)]
        assert dataset.table([".cls"])[".cls"].to_pylist() == expected
        some = [1, 2, 3, 9, 22, 23, 24, 39]
        assert dataset[some].table([".cls"])[".cls"].to_pylist() == [expected[n] for n in some]
    monkeypatch.setattr(shard_fields, "_MAX_NBYTES", 1)
    with opened(tmp_path, samples) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == expected


@pytest.mark.long
def test_a_million_bytes_of_payload_stay_out_of_memory(tmp_path: Path) -> None:
    """The memory of a table does not grow with what is beside its fields."""
    samples = [{".bin": bytes(100_000), ".cls": b"1"} for _ in range(500)]
    with opened(tmp_path, samples, samples, samples) as dataset:
        spec = dataset.spec
    spec.save(tmp_path / "parts.json")
    code = (
        "import resource, sys, pyarrow.compute, wids\n"
        "dataset = wids.ShardListDataset(sys.argv[1])\n"
        "dataset[:1].table(['.cls'])\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "assert len(dataset.table(['.cls'])) == 1500\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "parts.json")]
    done = subprocess.run(command, check=True, capture_output=True)
    assert int(done.stdout) < 20_000, "150 MB of shards"


def test_python_objects_of_all_rows_are_never_alive_at_once(tmp_path: Path) -> None:
    """The values of a few thousand rows are, as objects that take ten times their bytes."""
    value = {"tags": [f"tag{n}" for n in range(20)], "size": {"height": 1, "width": 2}}
    with opened(tmp_path, documents(*[value] * 20_000)) as dataset:
        dataset[:1].table({"a": ".json/a"})  # imports what it needs
        tracemalloc.start()
        table = dataset.table({"a": ".json/a"})
        peak_nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert json.loads(table["a"][-1].as_py()) == value
    assert peak_nbytes < 20e6, "42 MB where they are"


def test_lists_of_nulls(tmp_path: Path) -> None:
    """Arrow's own cast of such lists makes one item of several."""
    values = [b"[null, null]", b"[]", b"[null]", b"[[null, null]]"]
    for name, some in {"a": values[:1], "b": values[:3], "c": values[3:]}.items():
        members = [(f"{number}.json", value) for number, value in enumerate(some)]
        dataset = ShardListDataset([write_tar(tmp_path / f"{name}.tar", members)])
        column = dataset.table([".json"])[".json"]
        column.validate(full=True)
        assert column.to_pylist() == [json.loads(value) for value in some]
