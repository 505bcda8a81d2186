"""Saved tables: read by others, refused when stale, fetched when remote."""

from __future__ import annotations

import doctest
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from conftest import raises, write_shards, write_tar
from loopback import Server

import wids
from wids import FetchError, ShardListDataset, SpecError, TableError
from wids.cli.main import main
from wids.tables import table_file
from wids.tables.table_file import fingerprint, read_or_load

COLUMNS = "label=.cls,caption=.txt"


@pytest.fixture
def saved(train: Path) -> Path:
    """The spec of 20 samples with a saved table."""
    write_table(train)
    return train


def write_table(spec: Path) -> Path:
    output = spec.with_suffix(".parquet")
    assert main(["table", str(spec), "--columns", COLUMNS, "-o", str(output), "-j", "1"]) == 0
    return output


EXPECTED = [n % 10 for n in range(20)]


def test_a_saved_table_is_read_back(saved: Path) -> None:
    """Of a spec, its path, a dataset, and the rows of a view."""
    with ShardListDataset(saved) as dataset:
        table = dataset.table({"label": ".cls", "caption": ".txt"})
        assert wids.load_table(dataset).equals(table)
        assert wids.load_table(saved).equals(table)
        assert wids.load_table(wids.load_spec(saved)).equals(table)
        assert wids.load_table(str(saved)).equals(table)
        for selection in (
            slice(3, 9),
            slice(None, None, -2),
            [7, 7, 0],
            table["label"].to_numpy() > 5,
        ):
            view = dataset[selection]
            expected = view.table({"label": ".cls", "caption": ".txt"})
            assert wids.load_table(view).equals(expected)
        assert dataset[:0].table([".cls"]).num_rows == len(wids.load_table(dataset[:0])) == 0


def test_a_table_is_saved_as_the_command_saves_it(train: Path, tmp_path: Path) -> None:
    """TABLE-12: `save_table` writes the file of ``wids table``, and the document names it."""
    output = write_table(train)
    by_command, document = output.read_bytes(), train.read_text()
    output.unlink()
    train.write_text((tmp_path / "train.json.bak").read_text())
    columns = {"label": ".cls", "caption": ".txt"}
    with ShardListDataset(train) as dataset:
        spec = wids.save_table(dataset.table(columns), train, str(output), columns)
        assert wids.load_table(spec).equals(dataset.table(columns))
    assert output.read_bytes() == by_command
    assert train.read_text() == document


def test_a_table_of_a_dataset_is_saved_with_columns_of_the_caller(train: Path) -> None:
    """TABLE-12: the returned spec names the table, and the document stays as it was."""
    document = train.read_text()
    with ShardListDataset(train) as dataset:
        table = dataset.table([".cls"]).append_column("score", [list(range(20))])
        spec = wids.save_table(table, dataset, train.parent / "scores.parquet")
        spec.save(train.parent / "scored.json")
        assert train.read_text() == document
    scored = train.parent / "scored.json"
    assert wids.load_table(scored, ["score"])["score"].to_pylist() == list(range(20))
    with ShardListDataset(scored) as dataset:
        assert read_or_load(dataset, {".cls": ".cls", "score": "score"}).equals(table)


def test_a_spec_without_counts_has_its_table_saved(train: Path) -> None:
    """TABLE-10: its rows are one row group, since nothing says where its shards end."""
    tars = sorted(str(path) for path in train.parent.glob("*.tar"))
    with ShardListDataset(tars) as dataset:
        table = dataset.table([".cls"])
    spec = wids.save_table(table, tars, train.parent / "tars.parquet")
    assert wids.load_table(spec).equals(table)


def test_only_a_table_of_all_samples_is_saved(train: Path) -> None:
    """TABLE-13: other rows, no rows, another order, and another place are errors; nothing stays."""
    output = train.parent / "t.parquet"
    with ShardListDataset(train) as dataset:
        whole = dataset.table([".cls"])
        for table, found in (
            (whole[3:], "found 17 rows"),
            (whole.take(list(range(20))[::-1]), "found them in another order"),
            (whole.drop_columns(["__key__"]), "found none of the name __key__"),
        ):
            with raises(TableError, "each of the 20 samples", found, "not of a view"):
                wids.save_table(table, dataset, output)
        with raises(ValueError, "expected a file on this machine, found s3://b/t.parquet"):
            wids.save_table(whole, dataset, "s3://b/t.parquet")
    assert not output.exists()


def test_no_shard_is_needed(saved: Path) -> None:
    """Neither opened nor fetched."""
    for tar in saved.parent.glob("*.tar"):
        tar.unlink()
    table = wids.load_table(saved, ["label"])
    assert table.column_names == ["__index__", "__key__", "label"]
    assert table["label"].to_pylist() == EXPECTED


def test_duckdb_pandas_and_polars_read_it(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TABLE-10: as any Parquet file; and what they select selects samples."""
    monkeypatch.chdir(saved.parent)
    path = "train.parquet"
    frames = {
        "pandas": pd.read_parquet(path),
        "polars": pl.read_parquet(path).to_pandas(),
        "duckdb": duckdb.sql("SELECT * FROM 'train.parquet'").df(),
    }
    for name, frame in frames.items():
        assert frame["label"].tolist() == EXPECTED, name
        assert frame["__index__"].tolist() == list(range(20)), name
        assert frame["caption"][7] == "text 7", name
    with ShardListDataset(saved) as dataset:
        chosen = {
            "pandas": frames["pandas"]["label"] == 3,
            "polars": pl.read_parquet(path)["label"] == 3,
            "duckdb": duckdb.sql(
                "SELECT __index__ FROM 'train.parquet' WHERE label = 3 ORDER BY 1"
            ).df()["__index__"],
            "Arrow": duckdb.sql("SELECT label = 3 AS x FROM 'train.parquet'").to_arrow_table()["x"],
        }
        for name, selection in chosen.items():
            view = dataset[selection]
            assert [sample[".cls"] for sample in view] == [3, 3], name
            assert view.lengths == [1, 0, 1], name


def test_row_groups_are_those_of_shards(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TABLE-10: joined while they are short, so that reading a part of a column is cheap."""
    for least, most, expected in (
        (1, 100, [8, 5, 7]),
        (10, 100, [13, 7]),
        (1, 4, [4, 4, 4, 1, 4, 3]),
    ):
        monkeypatch.setattr(table_file, "_MIN_GROUP", least)
        monkeypatch.setattr(table_file, "_MAX_GROUP", most)
        with pq.ParquetFile(write_table(train)) as file:
            groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            assert groups == expected
            assert file.metadata.row_group(0).column(2).compression == "ZSTD"
            assert json.loads(file.metadata.metadata[b"wids"]) == {
                "version": 1,
                "fingerprint": fingerprint(wids.load_spec(train)),
                "columns": {"label": ".cls", "caption": ".txt"},
            }
        assert wids.load_table(train)["label"].to_pylist() == EXPECTED


def test_the_fingerprint_is_that_of_the_page() -> None:
    """TABLE-11: computed here as the page says it, and the same wherever the shards are."""
    import hashlib

    shards = [{"url": "a%20b.tar", "nsamples": 3, "filesize": 10_240, "sha256": "0f"}, "c.tar"]
    lines = '["a%20b.tar", 3, 10240, null, "0f"]\n["c.tar", null, null, null, null]\n'
    expected = hashlib.sha256(lines.encode()).hexdigest()[:32]
    for base in ("/data", "https://example.com/x"):
        assert fingerprint(wids.load_spec({"shardlist": shards}, base=base)) == expected
    signed = [{**shards[0], "url": "https://h/a%20b.tar?signature=1"}, "c.tar"]
    assert fingerprint(wids.load_spec({"shardlist": signed})) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"nsamples": 7},
        {"filesize": 1},
        {"sha256": "00"},
        {"md5sum": "00"},
        {"url": "train-000001.tar"},
    ],
    ids=str,
)
def test_a_stale_table_is_refused(saved: Path, change: dict[str, Any]) -> None:
    """TABLE-13: whatever changed of a shard; the error names the remedy, and deletes nothing."""
    document = json.loads(saved.read_text())
    document["shardlist"][0].update(change)
    saved.write_text(json.dumps(document))
    with raises(TableError, "train.parquet", "the shards have changed", "`wids table`"):
        wids.load_table(saved)
    assert saved.with_suffix(".parquet").exists()


def test_shards_in_another_order_make_a_table_stale(saved: Path) -> None:
    """TABLE-13: rows would be beside other samples."""
    document = json.loads(saved.read_text())
    document["shardlist"].reverse()
    saved.write_text(json.dumps(document))
    with raises(TableError, "expected a table of the shards that the spec names now"):
        wids.load_table(saved)


def test_the_file_has_the_last_word(saved: Path, tmp_path: Path) -> None:
    """TABLE-13: a file of other shards under the same name, a damaged one, a foreign one, none."""
    (tmp_path / "other").mkdir()
    other = write_shards(tmp_path / "other", [8, 5, 6])
    own = saved.with_suffix(".parquet")
    good = own.read_bytes()
    shutil.copy(write_table(other), own)
    with raises(TableError, "found one of others"):
        wids.load_table(saved)
    own.write_bytes(good[:-100])
    with raises(TableError, "a damaged one", "make it again"):
        wids.load_table(saved)
    own.write_bytes(good[:200] + bytes(200) + good[400:])
    with raises(TableError, "a damaged one", "make it again"):
        wids.load_table(saved)
    pd.DataFrame({"x": [1]}).to_parquet(own)
    with raises(TableError, "found one of others"):
        wids.load_table(saved)
    own.unlink()
    with raises(FetchError, "no such file"):
        wids.load_table(saved)


def outcomes(spec: Path, flips: Iterator[tuple[int, int]]) -> Counter[str]:
    """Return what becomes of a table after each change of a byte; fail if it has other values."""
    own, found = spec.with_suffix(".parquet"), Counter[str]()
    good = own.read_bytes()
    with ShardListDataset(spec) as dataset:
        expected = wids.load_table(dataset)
        for at, flip in flips:
            own.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            table, message = expected, ""
            try:
                table = wids.load_table(dataset)
            except TableError as error:
                message = str(error)
            assert table.equals(expected), (at, flip)
            assert table.schema == expected.schema, (at, flip)
            assert not message or (str(own) in message and "`wids table`" in message), message
            found["error" if message else "equal"] += 1
    own.write_bytes(good)
    return found


def test_a_flipped_bit_never_changes_a_value(saved: Path) -> None:
    """TABLE-21: in no page, header or footer; the error names the file and the remedy."""
    nbytes = saved.with_suffix(".parquet").stat().st_size
    found = outcomes(saved, ((at, 1 << at % 8) for at in range(0, nbytes, 3)))
    assert found["error"] > 4 * found["equal"]  # pyarrow 15 writes bytes that nothing reads


@pytest.mark.long
def test_no_flipped_bit_changes_a_value(tmp_path: Path) -> None:
    """TABLE-21: of all bits of a table with values of many types."""
    members = [
        (f"s{n:04d}.{field}", data)
        for n in range(40)
        for field, data in (
            ("cls", b"%d" % (n % 7)),
            ("json", json.dumps({"a": [n] * (n % 3), "b": n / 3, "c": n % 2 > 0}).encode()),
        )
    ]
    spec, output = tmp_path / "own.json", str(tmp_path / "own.parquet")
    wids.build_spec([str(write_tar(tmp_path / "own.tar", members))]).save(spec)
    columns = "cls=.cls,a=.json/a,b=.json/b,c=.json/c,whole=.json"
    assert main(["table", str(spec), "--columns", columns, "-o", output, "-j", "1"]) == 0
    nbytes = Path(output).stat().st_size
    outcomes(spec, ((at, 1 << bit) for at in range(nbytes) for bit in range(8)))


def test_damage_of_a_column_that_is_not_read(saved: Path) -> None:
    """TABLE-21: only what is read is compared, so a column costs no more than its bytes."""
    own = saved.with_suffix(".parquet")
    blob = bytearray(own.read_bytes())
    chunk = pq.read_metadata(own).row_group(0).column(3)
    blob[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 1
    own.write_bytes(blob)
    assert wids.load_table(saved, ["label"])["label"].to_pylist() == EXPECTED
    with raises(TableError, "caption does not have the checksum", "make it again"):
        wids.load_table(saved, ["caption"])


def test_a_table_without_checksums_is_read(saved: Path) -> None:
    """TABLE-21: one of an earlier version, or one that another program has saved again."""
    document = json.loads(saved.read_text())
    assert len(document["table"].pop("crc32")) == 1 + 4
    assert document["table"].pop("filesize") == saved.with_suffix(".parquet").stat().st_size
    with ShardListDataset({**document, "base": str(saved.parent)}) as dataset:
        assert wids.load_table(dataset)["label"].to_pylist() == EXPECTED
    table = pq.read_table(saved.with_suffix(".parquet"))
    pq.write_table(table, saved.with_suffix(".parquet"), compression="none")
    assert wids.load_table(saved)["label"].to_pylist() == EXPECTED


@pytest.mark.parametrize("num_checksums", [1, 4, 6])
def test_a_spec_with_other_checksums_than_columns(saved: Path, num_checksums: int) -> None:
    """TABLE-21: it is an error about the spec, also if those that it has fit."""
    document = json.loads(saved.read_text())
    document["table"]["crc32"] = (document["table"]["crc32"] + [1])[:num_checksums]
    saved.write_text(json.dumps(document))
    with raises(TableError, "expected 5 checksums in the spec", f"found {num_checksums}"):
        wids.load_table(saved)


def test_a_table_with_other_rows_is_refused(saved: Path) -> None:
    """TABLE-13: also if its metadata say otherwise."""
    own = saved.with_suffix(".parquet")
    table = pq.read_table(own)
    pq.write_table(table.slice(0, 19), own)
    with raises(TableError, "it has 19 rows"):
        wids.load_table(saved)


def test_a_table_that_was_sorted_is_refused(saved: Path) -> None:
    """TABLE-13: pyarrow keeps the fingerprint of a table that it sorts, but not its rows."""
    path = saved.with_suffix(".parquet")
    table = pq.read_table(path)
    for changed, reason in (
        (table.sort_by([("label", "descending")]), "rows are in another order"),
        (table.drop(["__key__"]), "no column __index__ or __key__"),
        (table.drop(["__index__"]), "no column __index__ or __key__"),
    ):
        pq.write_table(changed, path)
        with ShardListDataset(saved) as dataset:
            for source in (saved, dataset[2:4]):
                with raises(TableError, reason, "make it again with `wids table`"):
                    wids.load_table(source, ["label"])


def test_wrong_names_are_errors(saved: Path, train: Path) -> None:
    """A spec without a table, a column that the table does not have, a name that is a text."""
    with raises(TableError, "found 'lable'; it has label"):
        wids.load_table(saved, ["lable"])
    with raises(TypeError, "expected a list of names"):
        wids.load_table(saved, "label")
    document = json.loads(train.read_text())
    del document["table"]
    train.write_text(json.dumps(document))
    with raises(TableError, "expected the name of a saved table", "wids table SPEC"):
        wids.load_table(train)
    with raises(SpecError, "table: expected an object with a url"):
        wids.load_table({"shardlist": ["a.tar"], "table": "a.parquet"})
    with raises(SpecError, "expected a url and a fingerprint, found url"):
        wids.load_table({"shardlist": ["a.tar"], "table": {"url": "a.parquet"}})


def test_a_remote_table_is_fetched_once(saved: Path, server: Server) -> None:
    """Through the transport, into the cache; and again when it has changed."""
    own = saved.with_suffix(".parquet")
    server.page("/train.parquet", own.read_bytes())
    url = server.page("/train.json", json.loads(saved.read_text()))
    assert wids.load_table(url)["label"].to_pylist() == EXPECTED
    assert wids.load_table(url, ["caption"])["caption"][3].as_py() == "text 3"
    num_bytes = sum(r.num_sent for r in server.log if r.path == "/train.parquet")
    assert num_bytes < 2 * len(own.read_bytes())
    table = pq.read_table(own)
    pq.write_table(table, own, compression="none")
    server.page("/train.parquet", own.read_bytes())
    with ShardListDataset(url) as dataset:
        assert wids.load_table(dataset[:3])["label"].to_pylist() == [0, 1, 2]
    assert not [r for r in server.log if r.path.endswith(".tar")]
    document = json.loads(saved.read_text())
    document["table"]["fingerprint"] = "0" * 32
    server.log.clear()
    with raises(TableError, "the shards have changed"):
        wids.load_table(server.page("/stale.json", document))
    assert [r.path for r in server.log] == ["/stale.json"], "before anything is fetched"


def test_a_damaged_copy_of_a_table_is_fetched_again(
    saved: Path, server: Server, own_cache: Path
) -> None:
    """TABLE-21: once; if the server has damaged bytes, that is an error."""
    good = saved.with_suffix(".parquet").read_bytes()
    server.page("/train.parquet", good)
    url = server.page("/train.json", json.loads(saved.read_text()))
    wids.load_table(url)
    (copy,) = (own_cache / "shards").glob("*-train.parquet")
    for at in (100, len(good) - 100):
        copy.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert wids.load_table(url)["label"].to_pylist() == EXPECTED
        assert copy.read_bytes() == good
    server.page("/train.parquet", good[:100] + bytes([good[100] ^ 1]) + good[101:])
    server.log.clear()
    with raises(TableError, "/train.parquet", "does not have the checksum", "make it again"):
        wids.load_table(url)
    assert len([r for r in server.log if r.path == "/train.parquet" and r.num_sent > 1]) == 2


def test_a_remote_spec_names_no_local_table(saved: Path, server: Server) -> None:
    """SPEC-12: a document from a URL must not name files of this machine."""
    document = json.loads(saved.read_text())
    document["table"]["url"] = saved.with_suffix(".parquet").as_uri()
    with raises(SpecError, "a local file"):
        wids.load_table(server.page("/f.json", document))
    document["table"]["url"] = "pipe:cat /etc/passwd"
    with raises(SpecError, "allow_pipe=True"):
        wids.load_table(server.page("/p.json", document))


def test_specs_keep_their_table(saved: Path, tmp_path: Path) -> None:
    """TABLE-12: a spec that is loaded and saved names the same file, wherever it is."""
    spec = wids.load_spec(saved)
    assert spec.table is not None
    assert spec.table.url == str(saved.with_suffix(".parquet"))
    (tmp_path / "elsewhere").mkdir()
    spec.save(tmp_path / "elsewhere" / "copy.json")
    assert wids.load_spec(tmp_path / "elsewhere" / "copy.json").table == spec.table
    assert wids.load_table(tmp_path / "elsewhere" / "copy.json").num_rows == 20
    assert wids.load_spec([saved, saved]).table is None


def test_a_saved_table_is_preferred(saved: Path) -> None:
    """If it has the columns by these paths; otherwise the dataset is read."""
    with ShardListDataset(saved) as dataset:
        for columns in ({}, {"label": ".cls"}, {"label": "label"}):
            table = read_or_load(dataset, columns)
            assert table["label"].to_pylist() == EXPECTED
            assert dataset.get_stats()[0] == 0, "no shard is opened"
        assert read_or_load(dataset, {"label": ".txt"})["label"][3].as_py() == "text 3"
        assert read_or_load(dataset[:2], {"l": ".cls"})["l"].to_pylist() == [0, 1]
        saved.with_suffix(".parquet").unlink()
        with raises(FetchError, "no such file"):
            read_or_load(dataset, {})


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docstring, with a command that prints what it did."""
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(table_file, optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted > 3) == (0, True)


def test_without_pyarrow_the_error_names_the_extra(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a saved table."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises(ModuleNotFoundError, "pip install 'wids[table]'"):
        wids.load_table(saved)


def test_many_rows_are_as_in_memory(tmp_path: Path) -> None:
    """A table of lists, nulls and texts comes back with the same types and values."""
    samples = [
        (
            f"{n:03d}.json",
            json.dumps({"v": list(range(n % 4)), "t": None if n % 3 else "é"}).encode(),
        )
        for n in range(50)
    ]
    write_tar(tmp_path / "a.tar", samples)
    wids.build_spec([str(tmp_path / "a.tar")]).save(tmp_path / "a.json")
    output = tmp_path / "a.parquet"
    columns = "v=.json/v,t=.json/t,all=.json"
    main(["table", str(tmp_path / "a.json"), "-c", columns, "-o", str(output), "-j", "1"])
    with ShardListDataset(tmp_path / "a.json") as dataset:
        expected = dataset.table({"v": ".json/v", "t": ".json/t", "all": ".json"})
        table = wids.load_table(dataset)
        assert table.to_pylist() == expected.to_pylist()
        assert [f.type.num_fields for f in table.schema] == [
            f.type.num_fields for f in expected.schema
        ]
        assert np.array_equal(table["__index__"].to_numpy(), np.arange(50))
