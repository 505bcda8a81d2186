"""Shards → spec and pack."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_shards, write_tar
from loopback import Server

from wids import (
    NotFoundError,
    ShardFormatError,
    ShardListDataset,
    build_pack,
    build_spec,
    load_spec,
)
from wids.transport import fetch
from wids.writing import build as room


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    write_shards(tmp_path, [8, 5, 7])
    return sorted(tmp_path.glob("*.tar"))


def test_shards_are_counted_measured_hashed_and_indexed(shards: list[Path], tmp_path: Path) -> None:
    """What comes out is what the files are, and the pack is that of `build_pack`."""
    spec = build_spec(shards, name="train", pack=tmp_path / "train.index")

    for about, path, count in zip(spec.shards, shards, (8, 5, 7), strict=True):
        data = path.read_bytes()
        assert (about.url, about.num_samples) == (str(path), count)
        assert (about.nbytes, about.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (spec.name, spec.index) == ("train", str(tmp_path / "train.index"))
    build_pack(spec, tmp_path / "other.index")
    assert (tmp_path / "other.index").read_bytes() == (tmp_path / "train.index").read_bytes()
    spec.save(tmp_path / "train.json")
    with ShardListDataset(tmp_path / "train.json") as dataset:
        assert dataset[19][".txt"] == "text 19"
        assert dataset.get_by_key("s00011")["__index__"] == 11


def test_documents_keep_what_else_they_say(train: Path) -> None:
    """Counts are found anew; names and other keys stay."""
    document = json.loads(train.read_text())
    document["info"] = "about"
    document["shardlist"][1] |= {"nsamples": 99, "md5sum": "0" * 32, "tag": "x"}
    train.write_text(json.dumps(document))

    spec = build_spec(train)

    assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]
    assert (spec.name, spec.extras["info"]) == ("train", "about")
    assert (spec.shards[1].extras, spec.shards[1].md5sum) == ({"tag": "x"}, None)


@pytest.mark.parametrize("kind", ["threads", "fork", "spawn"])
def test_any_executor_will_do(kind: str, shards: list[Path], tmp_path: Path) -> None:
    """The result is the same, in the order of the shards."""
    executor: Any
    if kind == "threads":
        executor = ThreadPoolExecutor(3)
    else:
        executor = ProcessPoolExecutor(2, mp_context=get_context(kind))
    with executor:
        spec = build_spec(shards, pack=tmp_path / "a.index", executor=executor)

    assert spec.shards == build_spec(shards, pack=tmp_path / "b.index").shards
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()


def test_remote_shards_are_described(server: Server, shards: list[Path], tmp_path: Path) -> None:
    """They are fetched once each, and not kept."""
    pages = [server.page(f"/{path.name}", path.read_bytes()) + "?token=x" for path in shards]

    spec = build_spec(pages, pack=tmp_path / "a.index")

    local = build_spec(shards, pack=tmp_path / "b.index")
    assert [(s.num_samples, s.sha256) for s in spec.shards] == [
        (s.num_samples, s.sha256) for s in local.shards
    ]
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()
    assert len(server.log) == 3


def test_an_interrupted_run_goes_on(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before a kill is not read again; a record that was cut short is."""
    journal = tmp_path / "journal"
    described = room.describe

    def work() -> bool:
        def until_the_last(path: str, *about: Any) -> Any:
            if path == str(shards[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return described(path, *about)

        monkeypatch.setattr(room, "describe", until_the_last)
        build_spec(shards, journal=journal)
        return True

    assert not in_child(work)
    asked: list[str] = []

    def noted(path: str, *about: Any) -> Any:
        asked.append(path)
        return described(path, *about)

    monkeypatch.setattr(room, "describe", noted)
    data = journal.read_bytes()
    for cut, expected in ((len(data), shards[2:]), (len(data) - 1, shards[1:]), (20, shards)):
        journal.write_bytes(data[:cut])
        asked.clear()
        spec = build_spec(shards, journal=journal, pack=tmp_path / "a.index")
        assert asked == list(map(str, expected))
        assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]
    damaged = bytearray(data)
    damaged[60] ^= 1
    journal.write_bytes(damaged)
    asked.clear()
    build_spec(shards, journal=journal)
    assert len(asked) == 3


def test_journals_are_not_mistaken(shards: list[Path], tmp_path: Path) -> None:
    """Another file of that name stays as it is; one that another process writes is not touched."""
    other = tmp_path / "notes"
    other.write_text("something of the user's own" * 10)
    with raises(FileExistsError, "notes: expected a journal", "move it away"):
        build_spec(shards, journal=other)
    assert other.read_text() == "something of the user's own" * 10

    journal = tmp_path / "journal"
    with room._Journal(journal) as first:
        first.add(room._examined(fetch.Fetcher(), (str(shards[0]), "first")))
        with raises(OSError, "another process is describing these shards"):
            build_spec(shards, journal=journal)
    assert journal.exists()


def test_a_record_outlives_an_interruption_at_once(shards: list[Path], tmp_path: Path) -> None:
    """Between writing a record and noting it: what is in the file counts."""
    journal = tmp_path / "journal"
    with room._Journal(journal) as log:
        log.add(room._examined(fetch.Fetcher(), (str(shards[0]), "first")))
        log._heads.clear()
    with room._Journal(journal) as log:
        assert (str(shards[0]), "first") in log


def test_what_is_done_is_kept_when_another_shard_fails(tmp_path: Path, shards: list[Path]) -> None:
    """Whatever its place: shards that were read are not read again."""
    bad = tmp_path / "a-bad.tar"
    bad.write_bytes(b"<html>" * 200)
    journal = tmp_path / "journal"
    with ThreadPoolExecutor(1) as executor, raises(ShardFormatError, "a-bad.tar"):
        build_spec([*shards, bad], journal=journal, executor=executor)
    with room._Journal(journal) as log:
        assert all((str(path), "first") in log for path in shards)
    journal.unlink()
    with raises(ShardFormatError, "a-bad.tar"):
        build_spec([bad], journal=journal)
    assert not journal.exists(), "nothing was done"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A file name of any bytes can be described and read."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tar")
    write_tar(Path(path), sample_members(0, 3))
    build_spec([{"url": path}]).save(tmp_path / "a.json")
    with ShardListDataset(tmp_path / "a.json") as dataset:
        assert dataset[2][".txt"] == "text 2"


def test_a_shard_that_changed_meanwhile_is_read_again(shards: list[Path], tmp_path: Path) -> None:
    """The journal is not believed where the file is another."""
    journal = tmp_path / "journal"
    write_tar(tmp_path / "bad.tar", [])
    (tmp_path / "bad.tar").write_bytes(b"<html>" * 200)
    with raises(ShardFormatError, "bad.tar"):
        build_spec([*shards, tmp_path / "bad.tar"], journal=journal)
    write_tar(shards[0], sample_members(0, 3))

    spec = build_spec(shards, journal=journal)

    assert [shard.num_samples for shard in spec.shards] == [3, 5, 7]


def test_errors_name_the_shard(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local or remote, and without secrets."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with raises(NotFoundError, "missing.tar"):
        build_spec([tmp_path / "missing.tar"])
    url = server.page("/bad.tar", b"<html>" * 200) + "?token=secret"
    with pytest.raises(ShardFormatError) as caught:
        build_spec([url])
    assert str(caught.value).startswith(f"{server.url}/bad.tar")
    assert "secret" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_keys_split_at_the_last_dot(tmp_path: Path) -> None:
    """The rule is written into the spec and the pack."""
    path = write_tar(tmp_path / "a.tar", [("x.1.txt", b"a"), ("x.2.txt", b"b")])

    spec = build_spec([path], key_split="last", pack=tmp_path / "a.index")
    spec.save(tmp_path / "a.json")

    assert spec.shards[0].num_samples == 2
    with ShardListDataset(tmp_path / "a.json") as dataset:
        assert [sample["__key__"] for sample in dataset] == ["x.1", "x.2"]
    assert load_spec(tmp_path / "a.json").shards[0].key_split == "last"
