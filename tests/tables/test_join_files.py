"""A file of JSON beside each shard is joined to its samples, local and remote."""

from __future__ import annotations

import gzip
import io
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from conftest import raises
from join_shards import fields
from loopback import Server
from remote_site import Site

import wids
from wids.errors import FetchError, JoinError, NotFoundError, SampleError
from wids.tables import join_rows

Entries = dict[str, Any]
SHARDS = [range(8), range(8, 13), range(13, 20)]


def as_object(entries: Entries) -> str:
    return json.dumps(entries)


def as_list(entries: Entries) -> str:
    return json.dumps([{"__key__": key, **value} for key, value in entries.items()])


def as_lines(entries: Entries) -> str:
    return "\n".join(json.dumps(item) for item in json.loads(as_list(entries))) + "\n\n"


def as_csv(entries: Entries, delimiter: str = ",") -> str:
    rows = [(key, f'"{value["text"]}"', value[".score"]) for key, value in entries.items()]
    return "\n".join(
        delimiter.join(map(str, row)) for row in [("__key__", "text", ".score"), *rows]
    )


def as_tsv(entries: Entries) -> str:
    return as_csv(entries, "\t")


def as_parquet(entries: Entries, key: str = "__key__") -> bytes:
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    file = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([{key: name, **value} for name, value in entries.items()]), file
    )
    return file.getvalue()


def captions(numbers: range) -> Entries:
    return {f"s{n:05d}": {"text": f"caption {n}", ".score": n / 2} for n in numbers}


def write_files(folder: Path, name: str, form: Callable[[Entries], str | bytes]) -> None:
    for number, numbers in enumerate(SHARDS):
        name_of_shard = name.replace("{shard}", f"train-{number:06d}")
        write_file(folder / name_of_shard.replace("{number}", f"{number:06d}"), form, numbers)


def write_file(file: Path, form: Callable[[Entries], str | bytes], numbers: range) -> None:
    data = form(captions(numbers))
    data = data.encode("utf-8-sig") if isinstance(data, str) else data
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)


@pytest.mark.parametrize(
    ("pattern", "form"),
    [
        ("{shard}.captions.json", as_object),
        ("{shard}.captions.json", as_list),
        ("{shard}.jsonl", as_lines),
        ("{shard}.lines.json", as_lines),  # as NeMo's manifests
        ("{shard}.lines.json.gz", as_lines),
        ("sub/{shard}.NDJSON", as_lines),
        ("{shard}.jsonl.gz", as_lines),
        ("cuts.{number}.json.gz", as_list),
        ("{shard}.csv", as_csv),
        ("{shard}.tsv.gz", as_tsv),
        ("{shard}.parquet", as_parquet),
    ],
)
def test_each_form_of_a_file(
    train: Path, pattern: str, form: Callable[[Entries], str | bytes]
) -> None:
    """All of them give the same samples, alone and in batches."""
    write_files(train.parent, pattern, form)
    with wids.ShardListDataset(train) as dataset:
        for place in (pattern, str(train.parent / pattern), Path(train.parent / pattern)):
            joined = dataset.join(place)
            for samples in (list(joined), joined.__getitems__(range(20))):
                for number, sample in enumerate(samples):
                    assert fields(sample) == {
                        ".txt": f"text {number}",
                        ".cls": number % 10,
                        ".text": f"caption {number}",
                        ".score": number / 2,
                    }
        named = pickle.loads(pickle.dumps(dataset.join(pattern, prefix="b")))  # noqa: S301 - made here
        assert sorted(fields(named[11])) == [".b.score", ".b.text", ".cls", ".txt"]


def test_files_are_read_when_they_are_needed(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each shard that is read, once while it is among the last."""
    files = [train.parent / f"train-{number:06d}.json" for number in range(3)]

    def publish(score: int) -> None:
        for file, numbers in zip(files, SHARDS, strict=True):
            file.write_text(json.dumps({f"s{n:05d}": {"score": score} for n in numbers}))

    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join("{shard}.json")  # there is no file yet
        publish(0)
        files[2].unlink()
        assert [s[".score"] for s in joined.__getitems__([9, 3, 10, 4])] == [0] * 4
        publish(1)
        assert [joined[n][".score"] for n in (12, 0)] == [0, 0], "what was read stays in memory"
        monkeypatch.setattr(join_rows, "_MAX_STORED_NBYTES", 1)
        assert joined[19][".score"] == 1
        publish(2)
        assert [joined[n][".score"] for n in (18, 0, 19)] == [1, 2, 2], "only the last file stays"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_where_json_says(train: Path, end: str) -> None:
    """Other characters that end lines elsewhere are part of a text."""
    texts = {f"s{n:05d}": f"a\u2028b\x85c\u2029 {n}" for n in SHARDS[0]}
    lines = [
        json.dumps({"__key__": key, "cap": text}, ensure_ascii=False) + end
        for key, text in texts.items()
    ]
    (train.parent / "train-000000.jsonl").write_bytes("".join(lines).encode("utf-8-sig"))
    with wids.ShardListDataset(train) as dataset:
        joined = dataset[:8].join("{shard}.jsonl")
        assert [sample[".cap"] for sample in joined] == list(texts.values())


def test_values_of_files_are_not_shared(train: Path) -> None:
    """A transformation that changes a list in place changes no later sample."""
    write_files(
        train.parent,
        "{shard}.json",
        lambda entries: json.dumps({key: {"boxes": [[1]]} for key in entries}),
    )
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join("{shard}.json")
        for _ in range(2):
            sample = joined[3]
            assert sample[".boxes"] == [[1]]
            sample[".boxes"][0].append(2)


def test_missing_keys_and_files(train: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error when they are read, or None, or left out (JOIN-3)."""
    write_files(train.parent, "{shard}.json", as_object)
    (train.parent / "train-000001.json").unlink()
    few = {key: value for key, value in captions(SHARDS[2]).items() if key != "s00014"}
    (train.parent / "train-000002.json").write_text(as_object(few))
    with wids.ShardListDataset(train) as dataset:
        joined = dataset.join("{shard}.json")
        assert joined[3][".score"] == 1.5
        with raises(
            NotFoundError, "train-000001.json: expected a file for each", "-000001.tar", "missing="
        ):
            joined[9]
        for read in (lambda: joined[14], lambda: joined.__getitems__([13, 14])):
            with raises(SampleError, 'sample "s00014": expected its key', 'missing="skip"'):
                read()
        joined.on_error = "skip"
        with pytest.warns(UserWarning, match="left out"):
            assert len(joined.__getitems__([13, 14, 15])) == 2
        caplog.set_level(logging.WARNING)
        skipped = dataset.join("{shard}.json", missing="skip")
        assert [s["__index__"] for s in skipped] == [*range(8), 13, *range(15, 20)]
        assert skipped.lengths == [8, 0, 6]
        assert caplog.text.count("no such file, so all its keys are missing") == 1
        filled = dataset.join("{shard}.json", missing="none")
        assert fields(filled[14]) == {".txt": "text 14", ".cls": 4, ".text": None, ".score": None}
        assert fields(filled[9]) == {".txt": "text 9", ".cls": 9}


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("{shard}.json", "{", ["train-000000.json: expected JSON, found"]),
        ("{shard}.jsonl", "{}x", ["train-000000.jsonl: expected JSON lines, found"]),
        ("{shard}.json", "3", ["expected an object from keys to values", "found int"]),
        ("{shard}.json", "[3]", ["expected objects with the text '__key__', found 3 as item 0"]),
        ("{shard}.jsonl", '{"__key__": 3}', ["found {'__key__': 3} as item 0"]),
        ("{shard}.json", '{"a": 1, "b": {"x": 1, "x": 2}, "a": 2}', ["found 'a' twice"]),
        (
            "{shard}.jsonl",
            '{"__key__": "a"}\n{"__key__": "a"}',
            ["'a' twice", "jsonl, row 0", "row 1"],
        ),
        ("{shard}.json", "[" * 100_000, ["expected JSON"]),
        (
            "{shard}.npy",
            "x",
            ["000000.npy: expected JSON, since its name does not end in .parquet"],
        ),
        ("{shard}.parquet", "{}", ["train-000000.parquet: expected Parquet, found"]),
        ("{shard}.jsonl.gz", "{}", ["train-000000.jsonl.gz: expected gzip data, found"]),
        ("{shard}.csv", "__key__,a\nx,1\nx,2", ["found 'x' twice", "csv, row 1"]),
        ("{shard}.csv", "__key__,a\nx", ["csv, line 2: expected 2 values", "found 1"]),
        ("{shard}.csv", "key,a\nx,2", ["one column named '__key__', found the columns 'key', 'a'"]),
    ],
)
def test_files_that_are_something_else(train: Path, name: str, text: str, parts: list[str]) -> None:
    """The error names the file, what was expected and what was found."""
    (train.parent / name.replace("{shard}", "train-000000")).write_text(text)
    with wids.ShardListDataset(train) as dataset, raises(JoinError, *parts):
        dataset.join(name)[0]


@pytest.mark.parametrize(
    ("name", "form"),
    [("all.json", as_object), ("all.csv.gz", as_csv), ("all.parquet", as_parquet)],
)
def test_one_file_for_all_shards(
    train: Path,
    name: str,
    form: Callable[[Entries], str | bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its path, or beside the shards; which of two is an error."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with wids.ShardListDataset(train) as dataset:
        with raises(NotFoundError, f"{train.parent}/{name}: expected a file", "{shard}"):
            dataset.join(name)
        write_file(train.parent / name, form, range(20))
        for place in (name, train.parent / name):
            joined = pickle.loads(pickle.dumps(dataset.join(place)))  # noqa: S301 - made here
            assert [s[".text"] for s in joined] == [f"caption {n}" for n in range(20)]
            assert joined.__getitems__([13, 2])[0][".score"] == 6.5
        write_file(tmp_path / "here" / name, form, range(15))
        with raises(JoinError, f"{name}: expected one file, found {tmp_path}/here/", "absolute"):
            dataset.join(name)
        (train.parent / name).unlink()
        with raises(JoinError, "found 5 of them missing: 's00015'"):
            dataset.join(name)
        assert len(dataset.join(name, missing="skip")) == 15
        assert dataset.join(name, missing="none")[17][".text"] is None
    with wids.ShardListDataset(train.parent / "train-000001.tar") as dataset:
        assert dataset.join(name)[0][".text"] == "caption 8"


def test_columns_by_name(train: Path) -> None:
    """``on`` is the column of the keys, and ``columns`` has those that are taken."""
    write_files(train.parent, "{shard}.parquet", lambda entries: as_parquet(entries, "id"))
    write_file(train.parent / "all.csv", lambda e: as_csv(e).replace("__key__", "id"), range(20))
    rows = [{"id": key, **value} for key, value in captions(range(20)).items()]
    write_file(train.parent / "all.jsonl", lambda _: "\n".join(map(json.dumps, rows)), range(0))
    frame = pd.DataFrame(rows)
    with wids.ShardListDataset(train) as dataset:
        for other in (
            *("{shard}.parquet", "all.csv", "all.jsonl", frame, frame.set_index("id")),
            pa.table(frame),
        ):
            both = dataset.join(other, on="id")
            assert sorted(fields(both[3])) == [".cls", ".score", ".text", ".txt"], other
            joined = dataset.join(other, on="id", columns=["text"])
            assert fields(joined[3]) == {".txt": "text 3", ".cls": 3, ".text": "caption 3"}
            with raises(JoinError, "expected the columns 'txt', 'x', found", "'id'", "'text'"):
                dataset.join(other, on="id", columns=["text", "txt", "x"])[0]
            with raises(JoinError, "'key'", "'text'", "on="):
                dataset.join(other, on="key")[0]
        for other in ("all.csv", frame, frame.set_index("id")):
            assert dataset.join(other, on="id", columns=["id"])[3][".id"] == "s00003"
        for other in (dataset, {"s00000": 1}):
            with raises(ValueError, "on, columns: expected a table, a frame or files"):
                dataset.join(other, columns=["x"])
        with raises(TypeError, "columns: expected a list of names, found 'text'"):
            dataset.join("all.csv", columns="text")
        with raises(TypeError, "on: expected the name of a column, found int 3"):
            dataset.join("all.csv", on=3)  # type: ignore[arg-type]


def test_places_in_a_pattern(train: Path, tmp_path: Path) -> None:
    """The number of a shard as it is written, and its path from the common folder."""
    shards = sorted(train.parent.glob("train-*.tar"))
    for shard, folder, numbers in zip(shards, "aab", SHARDS, strict=True):
        place = tmp_path / "data" / folder
        place.mkdir(parents=True, exist_ok=True)
        shard.rename(place / shard.name)
        for other in ("caps", "data"):
            (tmp_path / other).mkdir(exist_ok=True)
            write_file(tmp_path / other / folder / f"{shard.stem}.json", as_list, numbers)
        write_file(tmp_path / "caps" / f"part_{shard.stem[-6:]}.json", as_list, numbers)
    with wids.ShardListDataset(f"{tmp_path}/data/**/*.tar") as dataset:
        for pattern in (
            f"{tmp_path}/caps/part_{{number}}.json",
            f"{tmp_path}/caps/{{relative}}.json",
            "{relative}.json",
            "../caps/{relative}.json",
            "../../caps/part_{number}.json",
        ):
            assert [s[".text"] for s in dataset.join(pattern)] == [
                f"caption {n}" for n in range(20)
            ], pattern
    hub = tmp_path / "x-00001-of-00009.tar"
    (tmp_path / "data" / "b" / "train-000002.tar").rename(hub)
    write_file(tmp_path / "caps-00001.json", as_list, SHARDS[2])
    with wids.ShardListDataset(hub) as dataset:
        assert dataset.join("caps-{number}.json")[0][".text"] == "caption 13"
    hub.rename(tmp_path / "x.tar")
    with wids.ShardListDataset(tmp_path / "x.tar") as dataset:
        with raises(JoinError, "x.tar: expected a number in the name", "{number}.json", "{shard}"):
            dataset.join("{number}.json")[0]


def test_odd_names_of_shards(tmp_path: Path) -> None:
    """Braces and percent signs in a name are not taken for anything else."""
    from conftest import sample_members, write_tar

    for name in ("50%{shard}", "a b", "x.y"):
        write_tar(tmp_path / f"{name}.tar", sample_members(0, 2))
        (tmp_path / f"{name}.json").write_text(as_object(captions(range(2))))
        with wids.ShardListDataset([str(tmp_path / f"{name}.tar")]) as dataset:
            assert dataset.join("{shard}.json")[1][".text"] == "caption 1"


@pytest.mark.usefixtures("quick_retries")
def test_remote_files(tmp_path: Path, server: Server, own_cache: Path) -> None:
    """They are stored in the cache, and fetched again after another was published."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    for number, numbers in enumerate(SHARDS):
        server.page(f"/train-{number}.caps.json", as_object(captions(numbers)).encode())

    def sent() -> list[str]:
        whole = [r for r in server.log if r.num_sent > 1 and r.path.endswith("caps.json")]
        return [r.path for r in whole]

    for _ in range(2):
        with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
            joined = dataset.join("{shard}.caps.json")
            assert [s[".text"] for s in joined] == [f"caption {n}" for n in range(20)]
    assert sorted(sent()) == [f"/train-{number}.caps.json" for number in range(3)]
    assert len(list((own_cache / "shards").glob("*caps.json"))) == 3
    server.page(
        "/train-1.caps.json", as_object(captions(range(108, 113))).replace("s001", "s000").encode()
    )
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        assert dataset.join("{shard}.caps.json")[9][".text"] == "caption 109"
        server.page("/all.parquet", as_parquet(captions(range(20)), "id"))
        for name in ("all.parquet", f"{server.url}/all.parquet"):
            joined = dataset.join(name, on="id", columns=["text"])
            assert joined[9][".text"] == "caption 9"
        with raises(NotFoundError, f"{server.url}/no.csv: expected a file", "nor no.csv in the"):
            dataset.join("no.csv")
        other = dataset.join(server.url + "/none/{shard}.json")
        with raises(FetchError, "/none/train-0.json"):
            other[3]


def test_a_cache_that_cannot_be_written(tmp_path: Path, server: Server) -> None:
    """A remote file is read without being stored."""
    site = Site(tmp_path / "site", server)
    (tmp_path / "file").touch()
    site.dataset_index()
    server.page("/train-0.json", as_object(captions(SHARDS[0])).encode())
    with wids.ShardListDataset(
        site.spec(index="train.index"), cache_dir=tmp_path / "file" / "c", access="range"
    ) as dataset:
        assert dataset.join("{shard}.json")[3][".text"] == "caption 3"
