"""A table of shards equals the shardlist of its document, and a damaged one is not used."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st

import wids
from wids.errors import SpecError
from wids.shards.specs.shard_table import (
    DamagedTableError,
    State,
    TableFile,
    open_table,
    table_url,
    write_table,
)
from wids.shards.specs.spec_tables import ShardTable

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
NAMES = st.one_of(
    st.builds("train-{:06d}.tar".format, st.integers(0, 10**6)),
    st.builds("https://example.com/a/{}.tar?x=1".format, st.integers(0, 9)),
    st.builds("é/ü {}.tar".format, TEXTS),
)
DIGESTS = st.one_of(
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.just("0" * 64),
    st.text("0123456789ABCDEF", max_size=64),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.one_of(
    NAMES,
    st.fixed_dictionaries(
        {"url": NAMES},
        optional={
            "nsamples": st.none() | st.integers(0, 1 << 40),
            "num_samples": st.integers(0, 5),
            "filesize": st.integers(0, (1 << 63) - 1),
            "size": st.integers(0, 5),
            "sha256": st.none() | DIGESTS,
            "md5sum": st.none() | DIGESTS,
            "dataset": TEXTS,
            "key_split": st.sampled_from(["first", "last"]),
            "index": st.builds("{}.index".format, st.integers(0, 9)),
            "note": JSON_VALUES,
            "é": JSON_VALUES,
        },
    ),
)
DOCUMENTS = st.fixed_dictionaries(
    {"shardlist": st.lists(ENTRIES, min_size=1, max_size=12)},
    optional={
        "name": TEXTS,
        "base": st.sampled_from(["sub/", "https://example.com/sub"]),
        "key_split": st.sampled_from(["first", "last"]),
        "info": JSON_VALUES,
        "index": st.just("all.index"),
    },
)


def document_of(num_shards: int, **more: Any) -> dict[str, Any]:
    """Return a document of many shards."""
    entries = [
        {"url": f"train-{n:06d}.tar", "nsamples": n % 7, "filesize": n, "sha256": f"{n + 1:064x}"}
        for n in range(num_shards)
    ]
    return {"name": "train", "shardlist": entries, **more}


def settled(path: Path, text: str) -> Path:
    """Write a document whose time is long ago."""
    path.write_text(text)
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.fixture(autouse=True)
def _tables_of_short_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents from 100 kB on have a table here, which keeps the tests fast."""
    monkeypatch.setattr("wids.shards.specs.saved_document.LARGE_NBYTES", 100_000)
    for module in ("parsing", "spec_tables"):
        monkeypatch.setattr(f"wids.shards.specs.{module}.SHORT_NBYTES", 100_000)


@pytest.fixture
def no_eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No document is parsed as a whole."""

    def parse(*_: object) -> None:
        raise AssertionError("the document was parsed")

    monkeypatch.setattr("wids.shards.specs.parsing.parse", parse)
    return None


@given(DOCUMENTS, st.sampled_from([None, 2]))
def test_a_table_equals_the_shardlist(
    tmp_path_factory: pytest.TempPathFactory,
    document: dict[str, Any],
    indent: int | None,
) -> None:
    """Every document gives the same spec by its table as by its JSON (SHARDS-1)."""
    folder = tmp_path_factory.mktemp("law")
    path = settled(folder / "train.json", json.dumps(document, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wids.shards.specs.parsing.SHORT_NBYTES", 1 << 30)
        wanted = wids.load_spec(path)
        for module in ("parsing", "spec_tables"):
            patch.setattr(f"wids.shards.specs.{module}.SHORT_NBYTES", 0)
        patch.setenv("WIDS_CACHE", str(folder / "cache"))
        made, again = wids.load_spec(path), wids.load_spec(path)
    assert isinstance(made.shards, ShardTable)
    assert made == wanted == again
    assert made.document(str(folder)) == wanted.document(str(folder))


def test_a_large_document_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process makes its table in the cache, which the next one maps."""
    path = settled(tmp_path / "train.json", json.dumps(document_of(1500)))
    first = wids.ShardListDataset(path, cache_dir=tmp_path / "cache")
    monkeypatch.setattr("wids.shards.specs.parsing.parse", None)
    with wids.ShardListDataset(path, cache_dir=tmp_path / "cache") as dataset:
        assert dataset.spec == first.spec
        assert len(dataset) == sum(n % 7 for n in range(1500))
        assert dataset.locate(21) == (8, 0)
        assert not isinstance(dataset.spec.shards, tuple)
        assert dataset.spec.shards[-1].url == str(tmp_path / "train-001499.tar")


def test_a_document_beyond_all_limits_needs_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer one than is parsed is read by the table that was saved with it (SHARDS-9)."""
    wids.load_spec(document_of(1500), base=tmp_path).save(tmp_path / "train.json")
    monkeypatch.setattr("wids.shards.specs.parsing.MAX_DOCUMENT_NBYTES", 100_000)
    assert len(wids.load_spec(tmp_path / "train.json").shards) == 1500
    (tmp_path / "copy.json").write_bytes((tmp_path / "train.json").read_bytes() + b" ")
    with raises(SpecError, "copy.json: expected a document of at most 100000", "table of shards"):
        wids.load_spec(tmp_path / "copy.json")


@pytest.mark.usefixtures("no_eager")
def test_a_published_table_is_used(tmp_path: Path) -> None:
    """A saved spec has its table beside it; a copy of it is mapped, which nobody writes over.

    SHARDS-3.
    """
    spec = wids.load_spec(document_of(1500), base=tmp_path)
    spec.save(tmp_path / "train.json")
    assert (tmp_path / "train.shards").exists()
    moved = tmp_path / "moved"
    moved.mkdir()
    for ending in ("json", "shards"):
        copy = moved / f"train.{ending}"
        copy.write_bytes((tmp_path / f"train.{ending}").read_bytes())
        os.utime(copy, ns=(10**18, 10**18))
    with wids.ShardListDataset(moved / "train.json", cache_dir=tmp_path / "cache") as dataset:
        table = dataset.spec.shards
        assert isinstance(table, ShardTable)
        assert [table.file.path] == [str(path) for path in (tmp_path / "cache").rglob("*.shards")]
        (moved / "train.shards").write_bytes(b"")
        assert table[7].url == str(moved / "train-000007.tar")


def test_a_changed_document_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table beside another document is not used, and one remark says so (SHARDS-5)."""
    wids.load_spec(document_of(1500), base=tmp_path).save(tmp_path / "train.json")
    text = (tmp_path / "train.json").read_text()
    settled(tmp_path / "train.json", text.replace('"nsamples": 6', '"nsamples": 5'))
    for _ in range(2):
        dataset = wids.ShardListDataset(tmp_path / "train.json", cache_dir=tmp_path / "cache")
        assert dataset.spec.shards[6].num_samples == 5
    remarks = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(remarks) == 1
    assert "another version of its JSON document" in remarks[0].getMessage()


@pytest.mark.parametrize("at", [0, 9, 40, 200, 3000, -4])
def test_a_damaged_table_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    """After a flipped bit in header, facts, counts or names the document is read.

    SHARDS-8.
    """
    wids.load_spec(document_of(1500), base=tmp_path).save(tmp_path / "train.json")
    wanted = wids.load_spec(document_of(1500), base=tmp_path).shards
    table = tmp_path / "train.shards"
    data = bytearray(table.read_bytes())
    data[at] ^= 4
    table.write_bytes(data)
    os.utime(tmp_path / "train.json", ns=(10**18, 10**18))
    assert wids.load_spec(tmp_path / "train.json").shards == wanted
    assert "train.shards" in caplog.text


def table_of(document: dict[str, Any], path: Path, text: bytes = b"") -> TableFile:
    """Write a table, and open it."""
    with path.open("wb") as file:
        sha256 = hashlib.sha256(text).digest()
        write_table(file, document["shardlist"], document, sha256, State(0, ""))
    table = open_table(str(path))
    assert table is not None
    return table


def test_every_bit_is_covered(tmp_path: Path) -> None:
    """A table of which any byte is changed, or cut off, is refused, or its entries are."""
    path = tmp_path / "t.shards"
    table = table_of(document_of(20), path)
    wanted = [table.entry(number) for number in range(20)]
    data = path.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises((DamagedTableError, SpecError)):
            TableFile("t", bytes(changed)).check()
    for stop in range(0, len(data), 7):
        with pytest.raises(DamagedTableError):
            TableFile("t", data[:stop])
    assert [TableFile("t", data).entry(number) for number in range(20)] == wanted


def test_a_cut_table_is_noticed(tmp_path: Path) -> None:
    """A cut table raises an error: touching its bytes would end the process (SHARDS-8)."""
    path = tmp_path / "t.shards"
    table = table_of(document_of(1500), path)
    os.truncate(path, 8192)
    with raises(SpecError, "t.shards: expected the bytes that it had when it was opened"):
        table.entry(1400)


def test_a_worker_gets_a_path(tmp_path: Path) -> None:
    """A spawned process gets the path of the table, and maps it itself."""
    path = settled(tmp_path / "train.json", json.dumps(document_of(1500)))
    dataset = wids.ShardListDataset(path, cache_dir=tmp_path / "cache")
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=_keep, initargs=(dataset,)) as pool:
        number, shard, nbytes = pool.apply(_kept)
    assert (number, shard) == (dataset.locate(35), dataset.spec.shards[1499])
    assert nbytes < 20_000
    assert pickle.loads(pickle.dumps(dataset)).spec == dataset.spec  # noqa: S301


kept: list[wids.ShardListDataset] = []


def _keep(dataset: wids.ShardListDataset) -> None:
    kept.append(dataset)


def _kept() -> tuple[tuple[int, int], wids.ShardSpec, int]:
    from unittest.mock import patch

    with patch("wids.shards.specs.shard_table.passes_to_process", lambda: True):
        nbytes = len(pickle.dumps(kept[0]))
    return kept[0].locate(35), kept[0].spec.shards[-1], nbytes


def test_a_table_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A worker whose table was replaced says so, and reads no other shards."""
    table = table_of(document_of(1500), tmp_path / "t.shards", b"a document")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wids.shards.specs.shard_table.passes_to_process", lambda: True)
        data = pickle.dumps(table)
    table_of(document_of(1400), tmp_path / "t.shards")
    with raises(SpecError, "t.shards: expected the table", "open the dataset again"):
        pickle.loads(data)  # noqa: S301


def test_references_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a document may not name is refused by its table too (SPEC-12, SPEC-13)."""
    document = document_of(10)
    document["shardlist"][5]["url"] = "pipe:echo"
    path = settled(tmp_path / "train.json", json.dumps(document))
    for module in ("parsing", "spec_tables"):
        monkeypatch.setattr(f"wids.shards.specs.{module}.SHORT_NBYTES", 0)
    with raises(SpecError, "names the command pipe:echo"):
        wids.load_spec(path)
    assert wids.load_spec(path, allow_pipe=True).shards[5].url == "pipe:echo"


def test_views_of_tables_are_tables(tmp_path: Path) -> None:
    """A slice, and a dataset that consists of others, make no object for each shard."""
    path = settled(tmp_path / "train.json", json.dumps(document_of(1500)))
    spec = wids.load_spec(path)
    assert isinstance(spec.shards[10:20], ShardTable)
    assert spec.shards[10:20] == tuple(spec.shards[n] for n in range(10, 20))
    with wids.ShardListDataset([path, path], cache_dir=tmp_path / "cache") as dataset:
        assert len(dataset.spec.shards) == 3000
        assert dataset.spec.shards[1501].dataset == "train"
        assert dataset.reader.edges[-1] == 2 * sum(n % 7 for n in range(1500))
        assert list(dataset.sources) == ["train"]
        assert np.array_equal(dataset.lengths, [n % 7 for n in range(1500)] * 2)


def test_the_table_has_the_name_of_its_document() -> None:
    """The table of a document is beside it, with the same query."""
    assert table_url("/a/train.json") == "/a/train.shards"
    assert table_url("https://h/a/train.json?sig=1") == "https://h/a/train.shards?sig=1"
