"""What two datasets do not have in common, by their dataset indexes alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Member, raises, write_tar
from loopback import Server

import wids
from wids import MismatchError, SpecError
from wids.publish.new_spec import new_dataset_index
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.tars.headers import TarMembers
from wids.shards.tars.index import ShardIndex, build_index

FIELDS = ("jpg", "json", "cls")


def publish(folder: Path, *shards: list[Member], **options: bool) -> Path:
    """Write shards with spec and dataset index; return the spec. The shards are deleted."""
    folder.mkdir()
    tars = [write_tar(folder / f"{n}.tar", members) for n, members in enumerate(shards)]
    wids.build_spec(tars, dataset_index=folder / "all.index", **options).save(folder / "all.json")
    for tar in tars:
        tar.unlink()
    return folder / "all.json"


def members(*texts: str) -> list[Member]:
    """Return the members of samples such as ``a=1``, key and text, each with a class."""
    pairs = [text.split("=") for text in texts]
    return [m for k, t in pairs for m in ((f"{k}.txt", t.encode()), (f"{k}.cls", b"0"))]


def differences(old: Path, new: Path) -> tuple[list[str], list[str], list[str], int]:
    found = wids.diff_specs(old, new)
    return found.removed, found.changed, found.added, found.num_same


def test_samples_are_compared_without_shards(tmp_path: Path) -> None:
    """Whatever the shards and the order; no shard is there to be read."""
    old = publish(tmp_path / "old", members("a=1", "b=2"), members("c=3", "d=4", "e=5"))
    same = publish(tmp_path / "same", members("e=5"), members("d=4", "a=1", "c=3", "b=2"))
    new = publish(tmp_path / "new", members("f=6", "e=5", "c=x", "a=1", "\udcff=7"))
    assert differences(old, same) == ([], [], [], 5)
    assert wids.diff_specs(old, same).is_empty
    assert differences(old, new) == (["b", "d"], ["c"], ["f", "\udcff"], 2)
    assert differences(new, old) == (["f", "\udcff"], ["c"], ["b", "d"], 2)


@pytest.mark.parametrize(
    "other",
    [
        [("a.txt", b"1"), ("a.cls", b"1")],  # one byte
        [("a.txt", b"0"), ("a.cls", b"1")],  # the bytes of two fields, exchanged
        [("a.txt", b"1"), ("a.clz", b"0")],  # the name of a field
        [("a.txt", b"1")],
        [("a.txt", b"1"), ("a.cls", b"0"), ("a.json", b"")],
        [("a.txt", b"1\0"), ("a.cls", b"0")],
    ],
)
def test_any_other_field_is_a_change(other: list[Member], tmp_path: Path) -> None:
    """The name of a field, its length and its bytes are compared."""
    old = publish(tmp_path / "old", members("a=1", "b=2"))
    new = publish(tmp_path / "new", [*other, *members("b=2")])
    assert differences(old, new) == ([], ["a"], [], 1)
    turned = publish(tmp_path / "turned", [*members("b=2"), ("a.cls", b"0"), ("a.txt", b"1")])
    assert differences(old, turned) == ([], [], [], 2)


def test_keys_of_several_shards_are_compared_as_often_as_they_occur(tmp_path: Path) -> None:
    """Equal samples are each other's partners first, then samples of one key."""
    old = publish(tmp_path / "old", members("a=1"), members("a=2"), members("a=2"))
    new = publish(tmp_path / "new", members("a=2"), members("a=1"))
    assert differences(old, new) == (["a"], [], [], 2)
    assert differences(new, old) == ([], [], ["a"], 2)
    third = publish(tmp_path / "third", members("a=3"), members("a=2"), members("a=4"))
    assert differences(old, third) == ([], ["a", "a"], [], 1)


def test_dataset_indexes_of_parts_and_of_single_shards(tmp_path: Path) -> None:
    """Whatever the dataset index that has the index of a shard."""
    whole = publish(tmp_path / "whole", members("a=1"), members("b=2"))
    parts = [publish(tmp_path / k, members(f"{k}={v}")) for k, v in (("b", 2), ("a", 1))]
    document = {"datasets": [{"source_url": str(path)} for path in parts]}
    (tmp_path / "parts.json").write_text(json.dumps(document))
    entries = [{"url": f"{k}/0.tar", "index": f"{k}/all.index"} for k in "ab"]
    (tmp_path / "single.json").write_text(json.dumps({"shardlist": entries}))
    for name in ("parts.json", "single.json"):
        assert differences(whole, tmp_path / name) == ([], [], [], 2)
    assert differences(parts[0], tmp_path / "single.json") == ([], [], ["a"], 1)


def test_a_shard_without_checksums_is_an_error(tmp_path: Path, server: Server) -> None:
    """Except where both datasets name it, and its headers are the same."""
    old = publish(tmp_path / "old", members("a=1"))
    tar = write_tar(tmp_path / "0.tar", members("a=1"))
    (tmp_path / "none.json").write_text(json.dumps({"shardlist": ["0.tar"]}))
    with raises(
        MismatchError, f"{tar}: expected a dataset index", "found none", "wids create --digests"
    ):
        wids.diff_specs(old, tmp_path / "none.json")

    # Headers alone are read of shards that are this long.
    write_tar(tar, [*members("a=1"), ("b.bin", bytes(4 << 20))])
    url = server.page("/0.tar", tar.read_bytes())
    for name in ("one", "two"):
        wids.build_spec([url], dataset_index=tmp_path / f"{name}.index").save(
            tmp_path / f"{name}.json"
        )
    assert differences(tmp_path / "one.json", tmp_path / "two.json") == ([], [], [], 2)
    with raises(MismatchError, "0.tar: expected a dataset index", "found one without them"):
        wids.diff_specs(old, tmp_path / "one.json")


def test_remote_datasets_are_compared_by_their_dataset_indexes(
    tmp_path: Path, server: Server
) -> None:
    """What is requested are documents and dataset indexes; shards are not there."""
    for name, texts in (("old", ("a=1", "b=2")), ("new", ("a=1", "b=3"))):
        spec = publish(tmp_path / name, members(*texts))
        for path in (spec, spec.with_suffix(".index")):
            server.page(f"/{name}/{path.name}", path.read_bytes())
    found = wids.diff_specs(f"{server.url}/old/all.json", f"{server.url}/new/all.json")
    assert found == wids.SpecDiff([], ["b"], [], 1)
    assert {request.split()[-1].rpartition(".")[2] for request in server.requests} == {
        *("json", "index")
    }


def test_a_shard_that_was_replaced_under_its_name(tmp_path: Path) -> None:
    """One URL does not make two shards the same."""
    old = publish(tmp_path / "in", members("a=1", "b=2"), members("c=3"))
    (tmp_path / "in").rename(tmp_path / "out")
    new = publish(tmp_path / "in", members("a=1", "b=x"), members("c=3"))
    spec = wids.load_spec(new)
    moved = replace(spec, index=str(tmp_path / "out/all.index"))
    assert wids.diff_specs(moved, spec) == wids.SpecDiff([], ["b"], [], 2)
    assert wids.diff_specs(spec, old) == wids.SpecDiff([], [], [], 3)


def shard_index(number: int, first: int) -> ShardIndex:
    """Return the index of 10,000 samples of three fields."""
    names = [f"{n:09d}.{field}".encode() for n in range(first, first + 10_000) for field in FIELDS]
    starts = 1024 * np.arange(len(names))
    sizes = np.full(len(names), 500)
    made = build_index(TarMembers(names, starts + 512, sizes, starts), "first")
    crcs = np.random.default_rng(number).integers(1 << 32, size=len(names), dtype=np.uint32)
    return replace(made, head_crcs=crcs, payload_crcs=crcs)


def write_large(path: Path, indexes: dict[int, ShardIndex]) -> Path:
    nbytes = 10_240 + 30_000 * 1024

    def indexed() -> Iterator[tuple[str, int, ShardIndex]]:
        yield from ((f"{path.stem}-{n}.tar", nbytes, index) for n, index in indexes.items())

    with new_dataset_index(f"{path}.index", indexed()):
        pass
    shards = [ShardSpec(f"{path}-{n}.tar", len(i), nbytes) for n, i in indexes.items()]
    DatasetSpec(shards, index=f"{path}.index").save(f"{path}.json")
    return path.with_suffix(".json")


@pytest.mark.alone
def test_two_million_samples_take_less_than_ten_seconds(tmp_path: Path) -> None:
    """Of which no shard is the same, by the time of the processor; a tenth is changed."""
    indexes = {n: shard_index(n, 10_000 * n) for n in range(200)}
    old = write_large(tmp_path / "old", indexes)
    for n in range(90, 110):
        indexes[n] = shard_index(n + 1000, 10_000 * n)
    indexes[200] = shard_index(200, 10_000 * 200)
    del indexes[7]
    new = write_large(tmp_path / "new", dict(reversed(indexes.items())))
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    found = wids.diff_specs(old, new)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    counts = [len(keys) for keys in (found.removed, found.changed, found.added)]
    assert counts == [10_000, 200_000, 10_000]
    assert found.num_same == 2_000_000 - 210_000
    assert cpu_s < 10, f"{wall_s} s by the clock"


def test_other_classes(tmp_path: Path) -> None:
    """Equal numbers of different classes are no equal samples (SPEC-62)."""
    old, new = (publish(tmp_path / name, members("a=1")) for name in ("old", "new"))
    for path, names in ((old, ["cat", "dog"]), (new, ["dog"])):
        path.write_text(json.dumps({**json.loads(path.read_text()), "classes": names}))
    with raises(SpecError, "the new dataset: expected the classes of the old dataset"):
        wids.diff_specs(old, new)
