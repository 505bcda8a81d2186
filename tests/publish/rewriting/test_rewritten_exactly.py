"""`rewrite`: bytes, limits and what is kept, where names, values and settings are unusual."""

from __future__ import annotations

import gzip
import random
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_shards, write_tar

import wids
from wids import ShardListDataset


def test_compressed_fields_are_copied(tmp_path: Path) -> None:
    """Bytes under ``.gz`` are copied, gzip data or not, and empty ones."""
    stored = [("a.json.gz", gzip.compress(b"1")), ("b.json.gz", b"1"), ("c.json.gz", b"")]
    source = write_tar(tmp_path / "old.tar", stored)
    with ShardListDataset(source) as dataset:
        wids.rewrite(dataset, tmp_path / "new-%06d.tar")
    with tarfile.open(tmp_path / "new-000000.tar") as archive:
        assert [(m.name, archive.extractfile(m).read()) for m in archive] == stored  # type: ignore[union-attr]


def test_copied_members_are_written_as_by_a_writer(tmp_path: Path) -> None:
    """Shards have the bytes that `TarWriter` writes of the same samples, and its index.

    Members are of all lengths around a block, a piece and the limit up to which they are joined.
    """
    sizes = [0, 1, 511, 512, 513, 16_383, 16_384, 16_385, (1 << 20) - 1, 1 << 20, 3 << 20, 7]
    samples = [
        {"__key__": f"d/{n:03}", ".a.bin": random.Random(n).randbytes(size), ".cls": b"%d" % n}
        for n, size in enumerate([*sizes, *[700] * 1200, *sizes])
    ]
    with wids.ShardWriter(tmp_path / "old-%d.tar", maxcount=200, encoder=False) as writer:
        for sample in samples:
            writer.write(sample)
    order = random.Random(0).sample(range(len(samples)), len(samples))
    with ShardListDataset(tmp_path / "old.json") as dataset:
        wids.rewrite(dataset[order], tmp_path / "new-%d.tar", maxcount=10_000)
    with wids.TarWriter(tmp_path / "expected.tar", encoder=False) as tar:
        for index in order:
            tar.write(samples[index])
    assert (tmp_path / "new-0.tar").read_bytes() == (tmp_path / "expected.tar").read_bytes()
    dataset_index = wids.build_spec(
        [tmp_path / "expected.tar"], dataset_index=tmp_path / "expected.index"
    )
    assert dataset_index.shards[0].sha256 == wids.load_spec(tmp_path / "new.json").shards[0].sha256
    assert wids.verify_spec(tmp_path / "new.json") == []


def damaged(tmp_path: Path) -> ShardListDataset:
    """Return a dataset of which a bit of the class of sample 3 has changed since it was packed."""
    with wids.ShardWriter(tmp_path / "old-%d.tar") as writer:
        for number in range(5):
            writer.write({"__key__": f"s{number}", "txt": "a" * 600, "cls": number})
    data = bytearray((tmp_path / "old-0.tar").read_bytes())
    with tarfile.open(tmp_path / "old-0.tar") as archive:
        data[archive.getmember("s3.cls").offset_data] ^= 1
    (tmp_path / "old-0.tar").write_bytes(data)
    return ShardListDataset(tmp_path / "old.json")


def test_damaged_members_are_not_copied(tmp_path: Path) -> None:
    """Copied bytes are compared with the index, and the error names shard and member.

    Not with ``verify="never"``, and not where the field is left out.
    """
    with (
        damaged(tmp_path) as dataset,
        raises(wids.ShardFormatError, 'old-0.tar: member "s3.cls": expected bytes with the check'),
    ):
        wids.rewrite(dataset[::-1], tmp_path / "new-%d.tar")
    assert not list(tmp_path.glob("new-*.tar"))
    for name, options in (("a", {"verify": "never"}), ("b", {"fields": ["txt"]})):
        with ShardListDataset(tmp_path / "old.json", **options) as dataset:
            spec = wids.rewrite(dataset, tmp_path / f"{name}-%d.tar")
        assert spec.shards[0].num_samples == 5


@pytest.mark.parametrize(
    "name", ["{:03}é.txt", "{:03}.é", "{:050}." + "x" * 80, "d/" * 600 + "{:03}.txt", "{:090}.txt"]
)
def test_names_count_in_limits(tmp_path: Path, name: str) -> None:
    """Shards keep to ``maxsize`` and are filled, whatever headers their names need."""
    source = write_tar(tmp_path / "old.tar", [(name.format(n), b"1") for n in range(60)])
    with ShardListDataset(source) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "new-%06d.tar", maxsize=40_960)
    assert {shard.nbytes for shard in spec.shards[:-1]} == {40_960}
    assert (spec.shards[-1].nbytes or 0) <= 40_960


def test_fields_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    """Shards of some fields are filled with these."""
    names = [(f"{n:03}.{field}", bytes(size)) for n in range(90) for field, size in FIELDS]
    with ShardListDataset(write_tar(tmp_path / "old.tar", names), fields=["txt"]) as dataset:
        spec = wids.rewrite(dataset, tmp_path / "new-%06d.tar", maxsize=102_400)
    assert [shard.num_samples for shard in spec.shards] == [90]


FIELDS = [("jpg", 10_000), ("txt", 10)]


def test_starting_over_leaves_a_running_run_alone(tmp_path: Path) -> None:
    """``resume=False`` is an error while another run works, which then ends well (REWRITE-8)."""
    begun, told = threading.Event(), threading.Event()
    found: list[Any] = []

    def waiting(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] == 2:
            begun.set()
            told.wait(30)
        return sample

    def run(dataset: ShardListDataset) -> None:
        found.append(wids.rewrite(dataset, pattern, maxcount=2, map=waiting))

    pattern = tmp_path / "out" / "new-%06d.tar"
    with ShardListDataset(write_shards(tmp_path, [4])) as dataset:
        thread = threading.Thread(target=run, args=[dataset])
        thread.start()
        assert begun.wait(30)
        try:
            with raises(OSError, "expected to be the only writer"):
                wids.rewrite(dataset, pattern, maxcount=3, resume=False)
        finally:
            told.set()
            thread.join()
    assert [shard.num_samples for shard in found[0].shards] == [2, 2]


def test_starting_over_leaves_no_other_shards(tmp_path: Path) -> None:
    """A new run of fewer shards has none of the interrupted one among them (REWRITE-8)."""

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] == 5:
            raise KeyboardInterrupt
        return sample

    pattern = tmp_path / "out" / "new-%06d.tar"
    with ShardListDataset(write_shards(tmp_path, [6])) as dataset:
        with pytest.raises(KeyboardInterrupt):
            wids.rewrite(dataset, pattern, maxcount=1, map=failing)
        assert len(list((tmp_path / "out").glob("*.tar"))) == 5
        wids.rewrite(dataset, pattern, maxcount=4, resume=False)
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == ["new-000000.tar", "new-000001.tar", "new.index", "new.json"]


def test_the_input_is_found_through_links(tmp_path: Path) -> None:
    """The input is not overwritten under another name of its folder (REWRITE-6)."""
    (tmp_path / "in").mkdir()
    write_shards(tmp_path / "in", [2])
    (tmp_path / "link").symlink_to("in")
    with (
        ShardListDataset(tmp_path / "in" / "train.json") as dataset,
        raises(wids.RewriteError, "expected another output than the input"),
    ):
        wids.rewrite(dataset, tmp_path / "link" / "train-%06d.tar")


@pytest.mark.parametrize("key", ["", None, 5])
def test_a_rename_has_to_return_a_key(tmp_path: Path, key: Any) -> None:
    """Another value is an error that names the sample, before anything is written."""
    with (
        ShardListDataset(write_shards(tmp_path, [2])) as dataset,
        raises(wids.RewriteError, 'train-000000.tar: sample "s00000"', f"found {key!r}"),
    ):
        wids.rewrite(dataset, tmp_path / "out" / "new-%06d.tar", rename=lambda _: key)
    assert not (tmp_path / "out").exists()
