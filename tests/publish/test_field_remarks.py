"""Remarks on fields that only some samples have, and on formats that are mixed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from conftest import Member, write_tar

import wids
from wids.cli.main import main
from wids.storage.sizes import percent_text


def samples(fields: list[list[str]], start: int = 0) -> list[Member]:
    """Return the members of samples with these fields."""
    return [
        (f"k{number:05d}{field}", b"")
        for number, names in enumerate(fields, start)
        for field in names
    ]


def remarks(*paths: Path, **options: Any) -> list[str]:
    """Return the remarks of `build_spec`, which are those of `verify_spec`."""
    built: list[wids.Problem] = []
    wids.build_spec(list(map(str, paths)), on_problem=built.append, **options)
    verified: list[wids.Problem] = []
    assert wids.verify_spec(list(map(str, paths)), on_remark=verified.append) == []
    if not options:
        assert verified == built
    assert {problem.severity for problem in built} <= {"remark"}
    return [problem.text for problem in built]


def test_fields_of_some_samples(tmp_path: Path) -> None:
    """A field that samples lack is named with the numbers, over all shards."""
    first = write_tar(tmp_path / "a.tar", samples([[".jpg", ".txt"]] * 1200))
    second = [[".jpg", ".txt"]] * 799 + [[".jpg"]]
    write_tar(tmp_path / "b.tar", samples(second, 1200))
    assert remarks(first, tmp_path / "b.tar") == ["only 1,999 of 2,000 samples (99.95 %) have .txt"]
    assert remarks(first) == []


def test_mixed_formats(tmp_path: Path) -> None:
    """Fields of one role that no sample has together are mixed formats, in any case."""
    fields = [[".jpg", ".cls"]] * 8 + [[".PNG", ".cls"]] * 3 + [[".JPG", ".cls"]] * 2
    path = write_tar(tmp_path / "a.tar", samples(fields))
    assert remarks(path) == [
        "formats are mixed: .jpg in 8 samples, .PNG in 3, .JPG in 2",
    ]
    some = write_tar(tmp_path / "b.tar", samples([*fields, [".cls"], [".cls"]]))
    assert remarks(some)[1] == "only 13 of 15 samples (86.66 %) have .jpg or .PNG or .JPG"


def test_what_is_played_is_remarked_on_as_sound_and_film(tmp_path: Path) -> None:
    """Each extension that pages play is of the kind that its player has."""
    fields = [[".mkv", ".opus"]] * 3 + [[".ogv", ".wav"]] * 2 + [[".m4v", ".flac"]]
    path = write_tar(tmp_path / "a.tar", samples(fields))
    assert remarks(path) == [
        "formats are mixed: .mkv in 3 samples, .ogv in 2, .m4v in 1",
        "formats are mixed: .opus in 3 samples, .wav in 2, .flac in 1",
    ]


def test_roles_that_are_not_mixed(tmp_path: Path) -> None:
    """A picture and its mask are two roles, as are fields of different kinds."""
    fields = [[".jpg", ".png", ".txt", ".seg.png"], [".jpg", ".PNG", ".txt", ".seg.png"]]
    path = write_tar(tmp_path / "a.tar", samples(fields))
    assert remarks(path) == ["formats are mixed: .png in 1 sample, .PNG in 1"]


def test_each_dataset_has_fields_of_its_own(tmp_path: Path) -> None:
    """Shards of different datasets need not have the same fields."""
    write_tar(tmp_path / "a.tar", samples([[".jpg"]]))
    write_tar(tmp_path / "b.tar", samples([[".wav"], [".wav", ".txt"]]))
    shards = [{"url": str(tmp_path / f"{name}.tar"), "dataset": name} for name in "ab"]
    found: list[wids.Problem] = []
    assert wids.verify_spec(shards, on_remark=found.append) == []
    assert list(map(str, found)) == ["b: only 1 of 2 samples (50 %) has .txt"]


def test_a_field_for_every_sample(tmp_path: Path) -> None:
    """A dot in every key makes a field for every sample: one remark, in little memory."""
    members = [(f"image.{number}.jpg", b"") for number in range(2_000)]
    path = write_tar(tmp_path / "a.tar", members)
    (text,) = remarks(path)
    assert text.startswith("more than 1,000 different fields, such as .0.jpg, .1.jpg, .2.jpg: if ")
    assert text.endswith('split names at the last dot, key_split="last"')
    assert remarks(path, key_split="last") == []


def test_a_few_numbers_for_each_field(tmp_path: Path) -> None:
    """The memory does not grow with the number of samples."""
    from wids.publish.problems import field_remarks
    from wids.shards.indexes.dataset_index import load_dataset_index

    peaks = []
    for num_shards in (2, 8):
        paths = []
        for number in range(num_shards):
            path = tmp_path / f"{num_shards}-{number}.tar"
            paths.append(str(write_tar(path, samples([[".a", ".b"]] * 500, number * 500))))
        dataset_index = tmp_path / f"{num_shards}.index"
        spec = wids.build_spec(paths, dataset_index=dataset_index)
        loaded = load_dataset_index(str(dataset_index))
        assert loaded is not None
        tracemalloc.start()
        field_remarks(loaded, spec.shards)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        del loaded
    assert peaks[1] < 2 * peaks[0]


@pytest.mark.parametrize(
    ("count", "total", "text"),
    [
        (9995, 10_000, "99.95 %"),
        (99_999_999, 100_000_000, "99.99 %"),
        (1, 10**9, "< 0.01 %"),
        (5, 5, "100 %"),
        (0, 5, "0 %"),
        (1, 2, "50 %"),
        (1, 3, "33.33 %"),
    ],
)
def test_shares_are_rounded_down(count: int, total: int, text: str) -> None:
    """Only all of them are 100 %."""
    assert percent_text(count, total) == text


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Remarks leave the exit status 0, repeated keys make it 1, for both commands."""
    first = write_tar(tmp_path / "a.tar", samples([[".jpg", ".txt"], [".jpg"]]))
    spec = str(tmp_path / "a.json")
    assert main(["create", str(first), "-o", spec, "-j", "1"]) == 0
    assert "wids: note: a: only 1 of 2 samples (50 %) has .txt" in capsys.readouterr().err
    assert main(["verify", spec, "-j", "1"]) == 0
    out, err = capsys.readouterr()
    assert (out, "wids: note: a: only 1 of 2 samples (50 %) has .txt" in err) == ("", True)
    write_tar(tmp_path / "b.tar", samples([[".jpg", ".txt"]], 1))
    spec = str(tmp_path / "both.json")
    assert main(["create", str(tmp_path), "-o", spec, "-j", "1"]) == 1
    text = '1 key occurs in several shards: "k00001" in a.tar and b.tar'
    out, err = capsys.readouterr()
    assert text in err
    assert "2 shards, 3 samples" in out
    assert main(["verify", spec, "-j", "1"]) == 1
    assert text in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "wids", "create", tmp_path, "-o", spec],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, text in done.stderr) == (1, True)
