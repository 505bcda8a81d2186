"""Class folders: which they are, and the numbers of their classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import raises
from trees import make_tree, packed

from wids import PackError, pack_folder

CLASSES = {"cat/1.jpg": "1", "cat/2.png": "2", "ant/1.jpg": "3", "dog/puppies/1.jpg": "4"}


def test_class_folders(tmp_path: Path) -> None:
    """Folders directly in the folder are classes, in the order of their names (PACK-7)."""
    root = make_tree(tmp_path / "in", {**CLASSES, "labels.csv": "x"})
    (root / "bee").mkdir()
    (root / ".hidden").mkdir()

    report = pack_folder(root, tmp_path / "out", seed=None)

    assert packed(tmp_path) == {
        "ant/1.cls": b"0",
        "ant/1.jpg": b"3",
        "cat/1.cls": b"2",
        "cat/1.jpg": b"1",
        "cat/2.cls": b"2",
        "cat/2.png": b"2",
        "dog/puppies/1.cls": b"3",
        "dog/puppies/1.jpg": b"4",
    }
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["classes"] == ["ant", "bee", "cat", "dog"]
    assert report.spec.extras["classes"] == document["classes"]
    assert report.remarks == ("1 class has no samples: bee",)
    assert {s.reason: s.names for s in report.skipped} == {
        "hidden": (".hidden",),
        "beside the class folders": ("labels.csv",),
    }


def test_numbers_of_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    """Names are sorted as Python sorts text: digits, capitals, small letters, others."""
    names = ["b", "B", "10", "9", "é", "a b", "_x"]
    make_tree(tmp_path / "in", {f"{name}/1.txt": name for name in names})
    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert report.spec.extras["classes"] == sorted(names)


@pytest.mark.parametrize(
    "files",
    [
        {"one/1.jpg": "", "one/2.jpg": ""},
        {"a/1.jpg": "", "b/1.jpg": "", "1.png": ""},
        {"images/1.jpg": "", "images/2.jpg": "", "labels/1.txt": "", "labels/2.txt": ""},
        {"a/1.jpg": "", "a/1.cls": "0", "b/1.jpg": "", "b/1.cls": "1"},
        {"test/1.jpg": "", "b/1.jpg": "", "metadata.csv": "file_name,x\ntest/1.jpg,1\n"},
        {"1.jpg": "", "2.jpg": ""},
    ],
    ids=["one folder", "pictures beside", "parallel folders", "labels", "splits", "flat"],
)
def test_folders_that_are_not_classes(files: dict[str, str], tmp_path: Path) -> None:
    """Without a sign that folders are classes, nothing is added (PACK-8)."""
    make_tree(tmp_path / "in", files)
    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert "classes" not in report.spec.extras
    assert report.fields.get(".cls", 0) == sum(name.endswith(".cls") for name in files)


def test_captions_and_formats_may_differ_between_classes(tmp_path: Path) -> None:
    """All pictures have one role, and a few captions change nothing (PACK-8)."""
    files = {"a/1.jpg": "", "a/2.JPG": "", "a/2.txt": "", "b/1.png": "", "notes.txt": ""}
    make_tree(tmp_path / "in", files)
    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert report.spec.extras["classes"] == ["a", "b"]
    assert report.fields == {".cls": 3, ".jpg": 2, ".png": 1, ".txt": 1}


@pytest.mark.parametrize("table", ["metadata.csv", "a/metadata.csv"])
def test_classes_with_captions_and_metadata(table: str, tmp_path: Path) -> None:
    """Class folders whose files have captions and rows of metadata keep their classes (PACK-8)."""
    name = "1.jpg" if "/" in table else "a/1.jpg"
    files = {"a/1.jpg": "", "a/1.txt": "x", "a/2.jpg": "", "b/1.jpg": "", "b/1.txt": "y"}
    make_tree(tmp_path / "in", {**files, table: f"file_name,x\n{name},7\n"})
    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert report.spec.classes == ["a", "b"]
    assert report.fields == {".cls": 3, ".jpg": 3, ".json": 1, ".txt": 2}
    assert packed(tmp_path)["a/1.json"] == b'{"x": 7}'


def test_splits_are_not_classes(tmp_path: Path) -> None:
    """Folders named train and test are an error, unless the caller decides (PACK-8)."""
    root = make_tree(tmp_path / "in", {"train/cat/1.jpg": "", "Test/cat/1.jpg": ""})
    with raises(PackError, "in: expected class folders", "Test, train", "--no-classes"):
        pack_folder(root, tmp_path / "out")
    assert "classes" not in pack_folder(root, tmp_path / "a", classes=False).spec.extras
    assert pack_folder(root, tmp_path / "b", classes=True).fields[".cls"] == 2
    assert pack_folder(root / "train", tmp_path / "c", classes=True).spec.extras["classes"] == [
        "cat"
    ]


def test_a_list_of_classes_numbers_them(tmp_path: Path) -> None:
    """Splits have the numbers of one list; a folder that it lacks is an error (PACK-7)."""
    root = make_tree(tmp_path / "in", {"cat/1.txt": "a", "dog/1.txt": "b"})
    report = pack_folder(root, tmp_path / "out", classes=["bird", "dog", "cat"])
    assert report.spec.classes == ["bird", "dog", "cat"]
    assert packed(tmp_path)["cat/1.cls"] == b"2"
    assert packed(tmp_path)["dog/1.cls"] == b"1"
    assert report.remarks == ("1 class has no samples: bird",)
    with raises(
        PackError, "in: expected folders of the classes in the list (cat), found others: dog"
    ):
        pack_folder(root, tmp_path / "other", classes=["cat"])
    for wrong in ("cat,dog", [], ["cat", "cat"], [1]):
        with raises(ValueError, "classes: expected"):
            pack_folder(root, tmp_path / "other", classes=wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("other*"))


def test_classes_on_request(tmp_path: Path) -> None:
    """One folder can be a class; labels of their own, or no folders, are errors (PACK-7)."""
    one = make_tree(tmp_path / "one", {"cat/1.jpg": "", "2.jpg": ""})
    report = pack_folder(one, tmp_path / "a", classes=True)
    assert list(packed(tmp_path, "a")) == ["cat/1.cls", "cat/1.jpg"]
    assert str(report.skipped[0]) == "1 beside the class folders: 2.jpg"
    flat = make_tree(tmp_path / "flat", {"1.jpg": ""})
    with raises(PackError, "expected class folders, found only files"):
        pack_folder(flat, tmp_path / "b", classes=True)
    labels = make_tree(tmp_path / "labels", {"a/1.jpg": "", "a/1.cls": "7"})
    with raises(PackError, "a/1.cls and the class folder a (a/1.cls)"):
        pack_folder(labels, tmp_path / "b", classes=True)
    beside = make_tree(tmp_path / "beside", {"a/x": "", "1.jpg": ""})
    with raises(PackError, "found none that can be packed", "beside the class folders: 1.jpg"):
        pack_folder(beside, tmp_path / "b", classes=True)


def test_pictures_decide_where_several_fields_are_equally_frequent(tmp_path: Path) -> None:
    """A folder with captions is a class like one without (PACK-8)."""
    files = {"cat/1.jpg": "", "cat/1.txt": "", "dog/1.jpg": "", "dog/2.jpg": "", "dog/2.txt": ""}
    report = pack_folder(make_tree(tmp_path / "in", files), tmp_path / "out")
    assert report.spec.extras["classes"] == ["cat", "dog"]


def test_a_remark_states_why_folders_are_not_classes(tmp_path: Path) -> None:
    """Two or more folders are not dropped in silence, unless that was asked for (PACK-8)."""
    root = make_tree(tmp_path / "in", {"a/1.jpg": "1", "b/1.txt": "1"})
    (remark,) = pack_folder(root, tmp_path / "out").remarks
    assert remark.startswith(
        "folders were not taken for classes, because most of their files are not of one kind "
        "(.txt, image); "
    )
    assert pack_folder(root, tmp_path / "none", classes=False).remarks == ()
