"""Documents of other programs name shards and splits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from beside_files import samples, shards, write_energon
from conftest import optional, raises
from loopback import Server

import wids


def names(spec: wids.DatasetSpec) -> list[str]:
    """Return the last part of the names of shards."""
    return [shard.url.rpartition("/")[2] for shard in spec.shards]


@pytest.fixture
def energon(tmp_path: Path) -> Path:
    """The root of a dataset of Energon, with its shards in a folder inside it."""
    tars = shards(tmp_path / "coco" / "parts", (3, 4, 5, 6))
    write_energon(
        tmp_path / "coco", tars, train=["parts/{00002..00003}.tar"], val=["parts/00000.tar"]
    )
    return tmp_path / "coco"


def test_the_root_of_energon_names_its_shards(energon: Path) -> None:
    """Shards in folders inside the root have their counts by ``.info.json`` (SPEC-53)."""
    spec = wids.load_spec(energon)
    assert [shard.num_samples for shard in spec.shards] == [3, 4, 5, 6]
    assert spec == wids.load_spec(energon / ".nv-meta" / ".info.json")
    with wids.ShardListDataset(energon) as dataset:
        assert dataset[4]["__key__"] == "s00004"
    with wids.ShardListDataset(energon / "parts") as dataset:  # its root is one level up
        assert (len(dataset), dataset.get_stats()[1]) == (18, 0)


def test_splits_of_energon_by_name(energon: Path) -> None:
    """The shards of a split come in its order, without what is excluded (SPEC-53)."""
    optional("yaml")
    assert names(wids.load_spec(energon, split="train")) == ["00002.tar", "00003.tar"]
    val = wids.load_spec(str(energon), split="val")
    assert (names(val), val.name) == (["00000.tar"], "val")
    with wids.ShardListDataset(val) as dataset:
        assert [sample["__key__"] for sample in dataset] == ["s00000", "s00001", "s00002"]
    with raises(wids.SpecError, "split.yaml: expected a split 'test', found train, val"):
        wids.load_spec(energon, split="test")
    split = energon / ".nv-meta" / "split.yaml"
    text = split.read_text().replace("[]", "[parts/00003.tar]")
    split.write_text(text)
    assert names(wids.load_spec(energon, split="train")) == ["00002.tar"]
    split.write_text(text.replace("00003.tar]", "00003.tar/7]"))
    with raises(wids.SpecError, "found the sample 'parts/00003.tar/7'", "select a view"):
        wids.load_spec(energon, split="train")
    split.write_text("split_parts: [")
    with raises(wids.SpecError, "split.yaml: expected YAML"):
        wids.load_spec(energon, split="train")


def test_splits_without_pyyaml(energon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package; ``split.json``, which newer versions write, needs none."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with raises(ImportError, "split.yaml: ", "PyYAML", "pip install pyyaml"):
        wids.load_spec(energon, split="train")
    (energon / ".nv-meta" / "split.yaml").unlink()
    splits = {"split_parts": {"train": ["parts/00001.tar"]}, "exclude": []}
    (energon / ".nv-meta" / "split.json").write_text(json.dumps(splits))
    assert names(wids.load_spec(energon, split="train")) == ["00001.tar"]


def test_splits_of_timm_by_name(tmp_path: Path) -> None:
    """The shards of a split in ``_info.json``; without a name, each shard has that of its split."""
    tars = shards(tmp_path / "d", (3, 4, 5))
    split = {
        name: {
            "name": name,
            "filenames": [tar.name for tar in own],
            "shard_lengths": [len(samples(tar)) for tar in own],
            "num_samples": 0,
        }
        for name, own in (("train", tars[:2]), ("validation", tars[2:]))
    }
    info = tmp_path / "d" / "_info.json"
    info.write_text(json.dumps({"splits": split}))
    assert names(wids.load_spec(info, split="train")) == ["00000.tar", "00001.tar"]
    with wids.ShardListDataset(info) as dataset:
        assert list(dataset.sources) == ["train", "validation"]
        assert dataset.lengths == [3, 4, 5]
    with raises(wids.SpecError, "expected a split 'test', found train, validation"):
        wids.load_spec(info, split="test")


@pytest.mark.parametrize("name", ["sizes.json", ".nv-meta/.info.json"])
def test_a_document_names_shards_that_nobody_can_list(
    server: Server, tmp_path: Path, name: str
) -> None:
    """By the URL of a document with counts, plain HTTP needs no pattern."""
    shards(tmp_path / "d")
    counts: Any = {"00000.tar": 10, "00001.tar": 7}
    server.page(f"/d/{name}", counts if name == "sizes.json" else {"shard_counts": counts})
    spec = wids.load_spec(f"{server.url}/d/{name}")
    assert [(shard.url, shard.num_samples) for shard in spec.shards] == [
        (f"{server.url}/d/00000.tar", 10),
        (f"{server.url}/d/00001.tar", 7),
    ]
    assert server.requests == [f"/d/{name}"]
    assert server.asked == []


def test_a_root_without_its_document_is_a_folder(tmp_path: Path) -> None:
    """A ``.nv-meta`` without ``.info.json`` changes nothing."""
    shards(tmp_path / "d")
    (tmp_path / "d" / ".nv-meta").mkdir()
    assert len(wids.load_spec(tmp_path / "d").shards) == 2


@pytest.mark.parametrize("name", ["sizes.json", "_info.json", ".nv-meta/.info.json"])
@pytest.mark.parametrize("text", ["Infinity", "[" * 100_000])
def test_a_hostile_document_is_an_error_of_its_own(name: str, text: str, tmp_path: Path) -> None:
    """Neither a number without end nor brackets without end leave as an error of Python."""
    texts = {
        "sizes.json": '{"0.tar": HERE}',
        "_info.json": '{"splits": {"a": {"filenames": ["0.tar"], "shard_lengths": [HERE]}}}',
        ".nv-meta/.info.json": '{"shard_counts": {"0.tar": HERE}}',
    }
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(texts[name].replace("HERE", text))
    with raises(wids.SpecError, path.name):
        wids.load_spec(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("split.yaml", "[" * 100_000, marks=pytest.mark.long),
        ("split.yaml", "split_parts: {train: .inf}"),
        ("split.yaml", "split_parts: {train: [.inf]}"),
        ("split.json", "[" * 100_000),
        ("split.json", '{"split_parts": {"train": Infinity}}'),
    ],
)
def test_hostile_splits_are_errors_of_their_own(energon: Path, name: str, text: str) -> None:
    """The same of a document with splits."""
    optional("yaml")
    for other in (energon / ".nv-meta").glob("split.*"):
        other.unlink()
    (energon / ".nv-meta" / name).write_text(text)
    with raises(wids.SpecError, name):
        wids.load_spec(energon, split="train")
