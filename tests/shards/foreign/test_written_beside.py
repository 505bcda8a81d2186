"""Counts that other programs wrote beside shards are used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from beside_files import bytes_of, serve, shards, write_dali, write_energon, write_stats
from conftest import raises, write_tar
from loopback import Server

import wids


def as_is(path: Path, document: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(document))


def write_info(path: Path, document: dict[str, int]) -> None:
    """Write ``_info.json`` as timm reads it."""
    names, lengths = list(document), list(document.values())
    train = {"name": "train", "filenames": names[:1], "shard_lengths": lengths[:1]}
    rest = {"name": "validation", "filenames": names[1:], "shard_lengths": lengths[1:]}
    as_is(path, {"splits": {"train": train, "validation": rest}})


def write_manifest(path: Path, document: dict[str, int]) -> None:
    """Write ``manifest.jsonl`` as open_lm does."""
    lines = [
        json.dumps({"shard": name.removesuffix(".tar"), "num_sequences": count})
        for name, count in document.items()
    ]
    path.write_text("\n".join(lines) + "\n")


def write_counts(path: Path, document: dict[str, int]) -> None:
    """Write ``.info.json`` as Energon does."""
    path.parent.mkdir(exist_ok=True)
    as_is(path, {"energon_version": "7.4.1", "shard_counts": document})


OF_FOLDER: dict[str, Callable[[Path, dict[str, int]], None]] = {
    "sizes.json": as_is,
    "_info.json": write_info,
    "manifest.jsonl": write_manifest,
    ".info.json": write_counts,
    ".nv-meta/.info.json": write_counts,
}


@pytest.mark.parametrize("name", OF_FOLDER)
def test_counts_of_a_folder_avoid_the_scan(tmp_path: Path, name: str) -> None:
    """A dataset has its length without opening a shard, for a folder, a pattern and a file."""
    shards(tmp_path / "d")
    OF_FOLDER[name](tmp_path / "d" / name, {"00000.tar": 10, "00001.tar": 7})
    for form in ("", "*.tar", "{00000..00001}.tar"):
        with wids.ShardListDataset(f"{tmp_path}/d/{form}") as dataset:
            assert (dataset.lengths, dataset.get_stats()[1]) == ([10, 7], 0)
            assert dataset[12]["__key__"] == "s00012"
    with wids.ShardListDataset(tmp_path / "d" / "00001.tar") as dataset:
        assert (len(dataset), dataset.get_stats()[1]) == (7, 0)


@pytest.mark.parametrize("kind", ["stats", "dali", "dali without names", "energon"])
def test_counts_of_each_shard_avoid_the_scan(tmp_path: Path, kind: str) -> None:
    """A dataset has its length by a file for each shard, without opening a shard."""
    tars = shards(tmp_path / "d")
    for tar, count in zip(tars, (10, 7), strict=True):
        if kind == "stats":
            write_stats(tar, count)
        elif kind != "energon":
            write_dali(tar, "v1.2" if kind == "dali" else "v1.1")
    if kind == "energon":
        meta = write_energon(tmp_path / "d", tars)
        (meta / ".info.json").unlink()
    with wids.ShardListDataset(tmp_path / "d") as dataset:
        assert (dataset.lengths, dataset.get_stats()[1]) == ([10, 7], 0)
        assert dataset[12]["__key__"] == "s00012"


def test_counting_a_remote_dataset_reads_no_shard(server: Server, tmp_path: Path) -> None:
    """The bytes of sizes.json are all that is read (SPEC-50)."""
    shards(tmp_path / "d")
    as_is(tmp_path / "d" / "sizes.json", {"00000.tar": 10, "00001.tar": 7, "00002.tar": 9})
    serve(server, tmp_path / "d")
    with wids.ShardListDataset(f"{server.url}/{{00000..00001}}.tar") as dataset:
        assert dataset.lengths == [10, 7]
        assert bytes_of(server, ".tar") == 0
        assert [path for path in server.requests if path.endswith(".tar")] == []
        assert bytes_of(server, "/sizes.json") == (tmp_path / "d" / "sizes.json").stat().st_size
        assert dataset[12][".txt"] == "text 12"


def test_files_that_disagree_are_an_error_that_names_both(tmp_path: Path) -> None:
    """Two counts of one shard that differ, or a count that the tar does not have."""
    tars = shards(tmp_path / "d")
    as_is(tmp_path / "d" / "sizes.json", {"00000.tar": 10, "00001.tar": 8})
    with (
        wids.ShardListDataset(tmp_path / "d") as dataset,
        raises(
            wids.MismatchError,
            "00001.tar: ",
            "sizes.json says 8 samples, the shard has 7; correct or remove that file",
        ),
    ):
        dataset[12]
    write_manifest(tmp_path / "d" / "manifest.jsonl", {"00000.tar": 10, "00001.tar": 7})
    with raises(wids.MismatchError, "sizes.json states 8 samples, and ", "manifest.jsonl 7"):
        wids.ShardListDataset(tmp_path / "d")
    (tmp_path / "d" / "sizes.json").unlink()
    (tmp_path / "d" / "manifest.jsonl").unlink()
    for tar in tars:
        write_dali(tar)
        write_stats(tar, 9)
    with raises(wids.MismatchError, "00000_stats.json states 9 samples, and ", "00000.idx 10"):
        wids.ShardListDataset(tmp_path / "d")


def test_files_of_other_programs_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of the same name with other contents is a warning; the shards are scanned."""
    tars = shards(tmp_path / "d")
    (tmp_path / "d" / "manifest.jsonl").write_text('{"audio_filepath": "a.wav"}\n')
    tars[0].with_suffix(".idx").write_text("something else")
    with wids.ShardListDataset(tmp_path / "d") as dataset:
        assert (dataset.lengths, dataset.get_stats()[1]) == ([10, 7], 2)
    assert "manifest.jsonl: expected the number of samples of each shard" in caplog.text


def test_counts_of_some_shards_leave_the_others_to_be_counted(tmp_path: Path) -> None:
    """Shards that no file names are counted as before."""
    shards(tmp_path / "d", (10, 7, 5))
    as_is(tmp_path / "d" / "sizes.json", {"00000.tar": 10, "00002.tar": 5})
    with wids.ShardListDataset(tmp_path / "d") as dataset:
        assert (dataset.lengths, dataset.get_stats()[1]) == ([10, 7, 5], 1)


def test_counts_by_another_rule_are_not_used(tmp_path: Path) -> None:
    """Others split names at their first dot, so with the last dot the tar is counted."""
    (tmp_path / "d").mkdir()
    write_tar(tmp_path / "d" / "a.tar", [("a.1.txt", b"1"), ("a.2.txt", b"2")])
    as_is(tmp_path / "d" / "sizes.json", {"a.tar": 1})
    for rule, count in (("first", 1), ("last", 2)):
        with wids.ShardListDataset(tmp_path / "d", key_split=rule) as dataset:  # type: ignore[arg-type]
            assert len(dataset) == count


def test_many_folders_without_such_files_are_not_all_asked(server: Server, tmp_path: Path) -> None:
    """Of shards in many folders, a few folders show that nobody wrote counts (SPEC-50)."""
    (tar,) = shards(tmp_path, (3,))
    urls = [server.page(f"/{n}/00000.tar", tar.read_bytes()) for n in range(20)]
    with wids.ShardListDataset(urls) as dataset:
        assert len(dataset) == 60
    asked = {r.path.split("/")[1] for r in server.asked if r.path.endswith("/sizes.json")}
    assert asked == {str(n) for n in range(16)}


def test_a_dot_in_the_name_of_a_shard(tmp_path: Path) -> None:
    """The index of ``a.0.tar`` is ``a.0.idx``, never one that other shards would have too."""
    tars = shards(tmp_path, (3, 4), "a.{}.tar")
    (tmp_path / "a.idx").write_text("v1.2 9\n")
    for tar in tars:
        write_dali(tar)
    with wids.ShardListDataset(tmp_path) as dataset:
        assert (dataset.lengths, dataset.get_stats()[1]) == ([3, 4], 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sizes.json", '{"00000.tar": -3}'),
        ("sizes.json", "[" * 100_000),
        ("sizes.json", '{"00000.tar": Infinity}'),
        ("sizes.json", '{"00000.tar": "x"}'),
        ("sizes.json", "\xff"),
        ("_info.json", '{"splits": [3]}'),
        ("_info.json", '{"splits": {"a": {"filenames": ["00000.tar"], "shard_lengths": []}}}'),
        ("manifest.jsonl", "3\n"),
        (".info.json", '{"shard_counts": 3}'),
        ("_info.json", '{"splits": {"a": {"filenames": ["00000.tar"], "shard_lengths": [1e999]}}}'),
        ("manifest.jsonl", '{"shard": "00000", "num_sequences": Infinity}'),
        (".info.json", '{"shard_counts": {"00000.tar": -Infinity}}'),
        ("00000_stats.json", '{"successes": -1}'),
        ("00000_stats.json", '{"successes": Infinity}'),
        ("00000_stats.json", "[" * 100_000),
        ("00000.tar.idx", "short"),
    ],
)
def test_counts_that_are_none_are_passed_over(tmp_path: Path, name: str, text: str) -> None:
    """A file with another form is no count, however damaged it is."""
    shards(tmp_path, (4,))
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with wids.ShardListDataset(tmp_path) as dataset:
        assert (len(dataset), dataset.get_stats()[1]) == (4, 1)


def test_copies_are_counted_without_their_server(server: Server, tmp_path: Path) -> None:
    """Nothing is asked about shards that were fetched, so a dataset opens offline."""
    shards(tmp_path / "d")
    serve(server, tmp_path / "d")
    name = f"{server.url}/{{00000..00001}}.tar"
    with wids.ShardListDataset(name, access="download") as dataset:
        assert dataset.lengths == [10, 7]
    num_asked = len(server.asked)
    with wids.ShardListDataset(name) as dataset:
        assert dataset.lengths == [10, 7]
    assert len(server.asked) == num_asked


def test_an_index_of_another_program_is_not_read(server: Server, tmp_path: Path) -> None:
    """A shard with counts of DALI or Energon is fetched, also if a spec names their index."""
    tars = shards(tmp_path / "d")
    list(map(write_dali, tars))
    write_energon(tmp_path / "d", tars)
    serve(server, tmp_path / "d")
    with wids.ShardListDataset(f"{server.url}/.nv-meta/.info.json") as dataset:
        assert [shard.index for shard in dataset.spec.shards] == [None, None]
        assert (len(dataset), dataset[12][".txt"]) == (17, "text 12")
    assert bytes_of(server, "00001.tar") == tars[1].stat().st_size
    assert not [request for request in server.log if request.path.endswith(".sqlite")]
    entry = {"url": "00000.tar", "nsamples": 10, "index": "00000.idx"}
    as_is(tmp_path / "d" / "old.json", {"shardlist": [entry]})
    serve(server, tmp_path / "d")
    with wids.ShardListDataset(f"{server.url}/old.json", cache_dir=tmp_path / "c") as dataset:
        assert dataset[3][".txt"] == "text 3"
