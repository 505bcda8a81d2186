"""``metadata.csv`` and ``metadata.jsonl`` as Hugging Face's folder loaders read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from trees import make_tree, packed

from wids import PackError, pack_folder
from wids.publish.packing.folder_listing import read_rows

PICTURES = {"1.jpg": "one", "2.jpg": "two"}


def records(folder: Path, stem: str = "out") -> dict[str, Any]:
    """Return the JSON fields of a packed dataset by key."""
    found = packed(folder, stem)
    return {
        name.removesuffix(".json"): json.loads(data)
        for name, data in found.items()
        if name.endswith(".json")
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", 'file_name,text,n\n2.jpg,"a ""red"", dog\nand more",2\n1.jpg,猫,1\n'),
        (
            "metadata.csv",
            '\ufefffile_name,text,n\r\n\r\n1.jpg,猫,1\r\n2.jpg,"a ""red"", dog\nand more",2',
        ),
        (
            "metadata.jsonl",
            (
                '{"file_name": "1.jpg", "text": "猫", "n": 1}\n\n'
                '{"n": 2, "file_name": "2.jpg", "text": "a \\"red\\", dog\\nand more"}'
            ),
        ),
    ],
    ids=["csv", "csv of Windows", "jsonl"],
)
def test_rows_become_json(name: str, text: str, tmp_path: Path) -> None:
    """The columns of a row, without the names of files, are the field .json (PACK-9)."""
    make_tree(tmp_path / "in", {**PICTURES, name: text})

    report = pack_folder(tmp_path / "in", tmp_path / "out")

    assert records(tmp_path) == {
        "1": {"text": "猫", "n": 1},
        "2": {"text": 'a "red", dog\nand more', "n": 2},
    }
    assert packed(tmp_path)["2.jpg"] == b"two"
    assert (report.fields, report.remarks) == ({".jpg": 2, ".json": 2}, ())


def test_numbers_in_csv(tmp_path: Path) -> None:
    """A column of numbers has numbers; identifiers with zeros in front stay text (PACK-10)."""
    cells = {
        "whole": (["1", "", "-30"], [1, None, -30]),
        "decimal": (["1", "2.5", "-1e3"], [1.0, 2.5, -1000.0]),
        "identifier": (["007", "1", "2"], ["007", "1", "2"]),
        "mixed": (["1", "two", ""], ["1", "two", ""]),
        "infinite": (["1e999", "1", "2"], ["1e999", "1", "2"]),
        "words": (["nan", "true", "1_000"], ["nan", "true", "1_000"]),
        "empty": (["", "", ""], ["", "", ""]),
    }
    lines = zip(*([name, *texts] for name, (texts, _) in cells.items()), strict=True)
    files = ("file_name", "1.jpg", "2.jpg", "3.jpg")
    text = "\n".join(f"{file},{','.join(line)}" for file, line in zip(files, lines, strict=True))
    (tmp_path / "metadata.csv").write_text(text)

    rows = read_rows(str(tmp_path), "metadata.csv")

    assert {name: [row.values[name] for row in rows] for name in cells} == {
        name: expected for name, (_, expected) in cells.items()
    }


def test_numbers_that_are_written_in_two_ways_stay_text(tmp_path: Path) -> None:
    """1.1 and 1.10 are no measurements; 0.50 alone is a number (PACK-10)."""
    table = "file_name,version,x\n1.jpg,1.1,0.50\n2.jpg,1.10,3\n"
    make_tree(tmp_path / "in", {**PICTURES, "metadata.csv": table})
    pack_folder(tmp_path / "in", tmp_path / "out")
    assert records(tmp_path) == {
        "1": {"version": "1.1", "x": 0.5},
        "2": {"version": "1.10", "x": 3.0},
    }


def test_tables_in_folders(tmp_path: Path) -> None:
    """Names start from the folder of the table, may go into others, and up (PACK-9)."""
    files = {
        "train/img/1.jpg": "1",
        "train/metadata.csv": "file_name,x\nimg/1.jpg,1\n",
        "test/1.jpg": "2",
        "test/metadata.jsonl": '{"file_name": "./1.jpg", "x": 2}',
        "c/1.jpg": "3",
        "tables/metadata.csv": "file_name,x\n..\\c\\1.jpg,3\n",
    }
    make_tree(tmp_path / "in", files)
    report = pack_folder(tmp_path / "in", tmp_path / "out")
    assert records(tmp_path) == {"train/img/1": {"x": 1}, "test/1": {"x": 2}, "c/1": {"x": 3}}
    (remark,) = report.remarks
    assert "not taken for classes, because files have rows of metadata" in remark


def test_several_files_in_a_row(tmp_path: Path) -> None:
    """Further columns name more files of the sample, wherever they are (PACK-9)."""
    files = {
        "images/1.png": "i1",
        "images/1.txt": "t1",
        "masks/1.png": "m1",
        "frames/a.jpeg": "fa",
        "frames/b.jpeg": "fb",
        "images/2.png": "i2",
        "metadata.jsonl": "\n".join(
            map(
                json.dumps,
                [
                    {
                        "mask_file_name": "masks/1.png",
                        "file_name": "images/1.png",
                        "frame_file_names": ["frames/a.jpeg", "frames/b.jpeg"],
                        "k": 1,
                    },
                    {
                        "file_name": "images/2.png",
                        "mask_file_name": None,
                        "prev_file_name": "images/1.png",
                    },
                ],
            )
        ),
    }
    make_tree(tmp_path / "in", files)

    report = pack_folder(tmp_path / "in", tmp_path / "out", seed=None)

    assert packed(tmp_path) == {
        "images/1.frame.0.jpg": b"fa",
        "images/1.frame.1.jpg": b"fb",
        "images/1.json": b'{"k": 1}',
        "images/1.mask.png": b"m1",
        "images/1.png": b"i1",
        "images/1.txt": b"t1",
        "images/2.png": b"i2",
        "images/2.prev.png": b"i1",
    }
    assert (report.num_samples, report.remarks) == (2, ())


def test_rows_that_name_files_by_role_only(tmp_path: Path) -> None:
    """Without file_name the first file names the sample; its field has the role (PACK-9)."""
    table = "image_file_name,mask_file_name,x\ni/1.jpg,m/1.png,5\n"
    make_tree(tmp_path / "in", {"i/1.jpg": "a", "m/1.png": "b", "metadata.csv": table})
    pack_folder(tmp_path / "in", tmp_path / "out")
    assert packed(tmp_path) == {
        "i/1.image.jpg": b"a",
        "i/1.json": b'{"x": 5}',
        "i/1.mask.png": b"b",
    }


def test_rows_without_files_and_files_without_rows(tmp_path: Path) -> None:
    """Both are counted, with names; everything else is packed."""
    table = "file_name,x\n1.jpg,1\n3.jpg,3\n,4\n5,5\n"
    files = {**PICTURES, "4.jpg": "4", "5": "no extension", "metadata.csv": table}
    make_tree(tmp_path / "in", files)

    report = pack_folder(tmp_path / "in", tmp_path / "out")

    assert records(tmp_path) == {"1": {"x": 1}}
    assert report.num_samples == 3
    assert report.remarks == (
        (
            "2 rows name files that are not there: metadata.csv, line 3: 3.jpg, "
            "metadata.csv, line 4: no name"
        ),
        "2 samples have no row: 2, 4",
    )
    assert str(report.skipped[0]) == "1 without an extension: 5"


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (
            {"metadata.csv": "image,text\n1.jpg,x\n"},
            ['metadata.csv: expected a column "file_name"', "found: image, text", "rename"],
        ),
        (
            {"metadata.csv": "file_name,x\n1.jpg,1\n1.jpg,2\n"},
            ["metadata.csv, line 2 and metadata.csv, line 3 (1.json)", "keep one row for a file"],
        ),
        ({"metadata.csv": ""}, ["metadata.csv: expected a column", "found: nothing"]),
        ({"metadata.jsonl": '{"text": 1}'}, ["metadata.jsonl: expected a column", "found: text"]),
        (
            {"metadata.csv": "file_name,text\n1.jpg,a, b\n"},
            ["metadata.csv, line 2: expected 2 values", "found 3", "quotes"],
        ),
        ({"metadata.csv": 'file_name,text\n1.jpg,"a\n'}, ["metadata.csv, line 2: expected CSV"]),
        ({"metadata.csv": "file_name,x,x\n1.jpg,1,2\n"}, ["metadata.csv: expected columns", "'x'"]),
        ({"metadata.csv": b"file_name\n\xff.jpg\n"}, ["metadata.csv: expected text in UTF-8"]),
        ({"metadata.jsonl": "{}\nfile_name"}, ["metadata.jsonl, line 2: expected a JSON object"]),
        ({"metadata.jsonl": "[1]"}, ["line 1: expected a JSON object, found [1]"]),
        ({"metadata.jsonl": "[" * 100_000}, ["line 1: expected a JSON object"]),
        (
            {"metadata.jsonl": '{"file_name": ["1.jpg"]}'},
            ["line 1: file_name: expected the name of a file", "['1.jpg']"],
        ),
        (
            {"metadata.csv": "file_name\n7.jpg\n8.jpg\n"},
            ["expected rows that name files", "metadata.csv, line 2: 7.jpg"],
        ),
        (
            {"metadata.csv": "file_name\n1.jpg\n", "metadata.jsonl": '{"file_name": "1.jpg"}'},
            ["expected one of metadata.csv and metadata.jsonl, found both"],
        ),
        (
            {"metadata.csv": "file_name,x\n1.jpg,1\n1.jpg,2\n"},
            ["metadata.csv, line 2 and metadata.csv, line 3 (1.json)"],
        ),
        (
            {"metadata.csv": "file_name,x\n1.jpg,1\n", "1.json": "{}"},
            ["metadata.csv, line 2 and 1.json (1.json)"],
        ),
        ({"metadata.csv": "file_name,a/b_file_name\n1.jpg,2.jpg\n"}, ["without a slash", "'a/b'"]),
        ({"x/metadata.parquet": "PAR1"}, ["x/metadata.parquet: expected metadata.csv", "convert"]),
    ],
)
def test_tables_that_cannot_be_used(
    files: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    """The error names table, line, what was expected and what was found."""
    root = make_tree(tmp_path / "in", {**PICTURES, **files})
    with raises(PackError, f"{root}: ", *parts):
        pack_folder(root, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()
