"""Which file becomes which member of which key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import raises
from trees import make_tree, packed

from wids import PackError, ShardListDataset, pack_folder
from wids.publish.packing.pack_plan import stem_and_field


@pytest.mark.parametrize(
    ("path", "stem", "field"),
    [
        ("a.jpg", "a", ".jpg"),
        ("b/a.JPG", "b/a", ".jpg"),
        ("a.jpeg", "a", ".jpg"),
        ("a.JPEG", "a", ".jpg"),
        ("a.tiff", "a", ".tif"),
        ("v1.0/a.png", "v1.0/a", ".png"),
        ("a.seg.png", "a.seg", ".png"),
        ("a.json.gz", "a", ".json.gz"),
        ("a.JSON.GZ", "a", ".json.gz"),
        ("a.b.json.gz", "a.b", ".json.gz"),
        ("a.gz", "a", ".gz"),
        ("a..jpg", "a.", ".jpg"),
        ("a.tar.xz", "a.tar", ".xz"),
    ],
)
def test_stem_and_field(path: str, stem: str, field: str) -> None:
    """Names are split at the last dot; fields have one case and spelling (PACK-1, PACK-3)."""
    assert stem_and_field(path) == (stem, field)


@pytest.mark.parametrize(
    ("path", "stem", "field"),
    [("a.seg.PNG", "a", ".seg.png"), ("a.x.jpeg", "a", ".x.jpg"), ("a.json.gz", "a", ".json.gz")],
)
def test_split_at_the_first_dot(path: str, stem: str, field: str) -> None:
    """On request a name is split as in a tar (PACK-1)."""
    assert stem_and_field(path, "first") == (stem, field)


@pytest.mark.parametrize("path", ["README", "a.", "v1.0/README", "Mr. Smith", "a.\x1b"])
@pytest.mark.parametrize("key_split", ["first", "last"])
def test_names_without_an_extension(path: str, key_split: str) -> None:
    """What follows a dot is an extension only if it is a word."""
    assert stem_and_field(path, key_split) is None  # type: ignore[arg-type]


def test_files_of_one_stem_are_a_sample(tmp_path: Path) -> None:
    """Captions beside pictures are fields; the same stem in another folder is another sample."""
    files = {
        "x/1.jpg": b"\xff\xd8one",
        "x/1.txt": "one",
        "y/1.JPEG": b"\xff\xd8two",
        "y/1.txt": "two",
        "y/v.2.txt": "three",
    }
    make_tree(tmp_path / "in", files)

    report = pack_folder(tmp_path / "in", tmp_path / "out", classes=False, seed=None)

    assert packed(tmp_path) == {
        "x/1.jpg": b"\xff\xd8one",
        "x/1.txt": b"one",
        "y/1.jpg": b"\xff\xd8two",
        "y/1.txt": b"two",
        "y/v_2.txt": b"three",
    }
    assert report.fields == {".txt": 3, ".jpg": 2}
    with ShardListDataset(tmp_path / "out.json") as dataset:  # PACK-2
        assert [dataset.find_key(key) for key in ("x/1", "y/1", "y/v_2")] == [0, 1, 2]
        assert dataset.get_by_key("y/v_2")[".txt"] == "three"


def test_files_of_0_bytes_are_remarked(tmp_path: Path) -> None:
    """They are packed, and a remark names them."""
    make_tree(tmp_path / "in", {"a.jpg": "", "a.txt": "a", "b.jpg": "", "b.txt": "b"})

    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert report.num_samples == 2
    assert report.remarks == ("2 files have 0 bytes: a.jpg, b.jpg",)


def test_split_at_the_first_dot_makes_fields_of_more_parts(tmp_path: Path) -> None:
    """By default a remark says that two stems may be meant as one sample."""
    make_tree(tmp_path / "in", {"a.jpg": "1", "a.seg.png": "2"})

    report = pack_folder(tmp_path / "in", tmp_path / "out", seed=None)
    assert list(packed(tmp_path)) == ["a.jpg", "a_seg.png"]
    (remark,) = report.remarks
    assert 'key_split="first"' in remark
    assert "a.seg" in remark

    report = pack_folder(tmp_path / "in", tmp_path / "b", key_split="first")
    assert list(packed(tmp_path, "b")) == ["a.jpg", "a.seg.png"]
    assert (report.num_samples, report.remarks) == (1, ())


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("a.jpg", "a.JPG"), ["a.JPG and a.jpg (a.jpg)"]),
        (("a.jpg", "a.jpeg"), ["a.jpeg and a.jpg (a.jpg)"]),
        (("a.b.jpg", "a_b.jpg"), ["a.b.jpg and a_b.jpg (a_b)"]),
        (("a.b.jpg", "a_b.txt"), ["a.b.jpg and a_b.txt (a_b)"]),
        (
            ("x/a.jpg", "x/a.JPG", "b.txt", "b.TXT"),
            ["b.TXT and b.txt (b.txt)", "x/a.JPG and x/a.jpg (x/a.jpg)"],
        ),
    ],
)
def test_two_files_that_become_one_member(
    names: tuple[str, ...], named: list[str], tmp_path: Path
) -> None:
    """An error names both files of each pair, and nothing is written."""
    make_tree(tmp_path / "in", dict.fromkeys(names, "x"))
    with raises(PackError, "in: expected every file", *named, "rename or move"):
        pack_folder(tmp_path / "in", tmp_path / "new" / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """They keep their bytes, in shards, index and spec; a remark counts them (PACK-2)."""
    root = os.fsencode(tmp_path / "in")
    for folder in (b"caf\xe9", b"the"):
        os.makedirs(os.path.join(root, folder))
        for name in (b"\xff1.txt", b"2.txt"):
            with open(os.path.join(root, folder, name), "wb") as file:
                file.write(name[-5:])

    report = pack_folder(tmp_path / "in", tmp_path / "out")

    with ShardListDataset(tmp_path / "out.json") as dataset:
        key = os.fsdecode(b"caf\xe9/\xff1")
        sample = dataset.get_by_key(key)
        assert (sample["__key__"], sample[".cls"]) == (key, 0)
        assert dataset.spec.extras["classes"] == [os.fsdecode(b"caf\xe9"), "the"]
        assert dataset.get_by_key(os.fsdecode(b"the/\xff1"))[".txt"] == "1.txt"
    (remark,) = report.remarks
    assert remark.startswith("3 names are not UTF-8")


def test_awkward_names(tmp_path: Path) -> None:
    """Long names, spaces, newlines and other scripts are keys as they are."""
    keys = ["x" * 120, "d/" * 40 + "deep", "two words", "new\nline", "猫", "%06d", "a'b\"c", "-o"]
    make_tree(tmp_path / "in", {f"{key}.txt": key for key in keys})
    pack_folder(tmp_path / "in", tmp_path / "out")
    with ShardListDataset(tmp_path / "out.json") as dataset:
        assert {dataset[i]["__key__"]: dataset[i][".txt"] for i in range(8)} == {k: k for k in keys}
