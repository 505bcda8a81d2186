"""``wids rewrite``: a dataset becomes new shards."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import optional, write_shards, write_tar

from wids import ShardListDataset
from wids.cli.main import main
from wids.publish.journal import JobPart, Journal


def keys(spec: Path) -> list[str]:
    with ShardListDataset(spec) as dataset:
        return list(dataset.keys())


def test_shuffled_and_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed is the same order; all samples are there."""
    spec = write_shards(tmp_path, [20, 30])
    out = tmp_path / "out" / "train"
    assert main(["rewrite", str(spec), str(out), "--shuffle", "3", "--maxcount", "20"]) == 0
    assert capsys.readouterr().out == f"{out}: 3 shards, 50 samples\n"
    shuffled = keys(tmp_path / "out" / "train.json")
    assert shuffled != keys(spec)
    assert sorted(shuffled) == keys(spec)
    pattern = str(tmp_path / "again" / "x-%03d.tar")
    assert main(["rewrite", str(spec), pattern, "--shuffle", "3", "--jobs", "2"]) == 0
    assert keys(tmp_path / "again" / "x.json") == shuffled
    assert main(["verify", str(tmp_path / "again" / "x.json")]) == 0


def test_outputs_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output may have the name of the spec; a folder or a negative seed is an error."""
    spec = str(write_shards(tmp_path, [3]))
    assert main(["rewrite", spec, str(tmp_path / "new.json")]) == 0
    assert sorted(path.name for path in tmp_path.glob("new*")) == [
        "new-000000.tar",
        "new.index",
        "new.json",
    ]
    assert main(["rewrite", spec, f"{tmp_path}/"]) == 1
    assert "expected the beginning of file names" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rewrite", spec, str(tmp_path / "x"), "--shuffle", "-1"])
    assert "--shuffle: expected at least 0, found -1" in capsys.readouterr().err


def test_filtered_with_some_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Conditions are on paths, on columns of the saved table, on both, or on keys."""
    optional("pyarrow")
    members = [
        member
        for n in range(20)
        for member in [
            (f"{n:02}.json", json.dumps({"height": n * 10}).encode()),
            (f"{n:02}.cls", b"%d" % (n % 2)),
        ]
    ]
    write_tar(tmp_path / "a.tar", members)
    spec = str(tmp_path / "a.json")
    assert main(["create", str(tmp_path / "a.tar"), "-o", spec]) == 0
    where = ".json/height >= 150 and .cls == 1"
    out = str(tmp_path / "large")
    assert main(["rewrite", spec, out, "--where", where, "--fields", "json"]) == 0
    with ShardListDataset(tmp_path / "large.json") as dataset:
        assert [sample[".json"]["height"] for sample in dataset] == [150, 170, 190]
        assert ".cls" not in dataset[0]

    table = str(tmp_path / "a.parquet")
    assert main(["table", spec, "-c", "h=.json/height", "-o", table]) == 0
    assert main(["rewrite", spec, str(tmp_path / "small"), "--where", "h < 30"]) == 0
    assert keys(tmp_path / "small.json") == ["00", "01", "02"]
    for number, where in enumerate(("h < 30 and .cls == 0 and h > 0", "__key__ == '02'")):
        out = str(tmp_path / f"both-{number}")
        assert main(["rewrite", spec, out, "--where", where]) == 0
        assert keys(tmp_path / f"both-{number}.json") == ["02"]
    both = ["--where", "__key__ == '02'", "--where", "h < 30 and .cls == 0"]
    assert main(["rewrite", spec, str(tmp_path / "both"), *both]) == 0
    assert keys(tmp_path / "both.json") == ["02"]
    assert main(["rewrite", spec, str(tmp_path / "x"), "--where", "w < 30"]) == 1
    assert "expected columns of the dataset's table (" in capsys.readouterr().err
    assert main(["rewrite", spec, str(tmp_path / "x"), "--where", "h <"]) == 1
    assert "where: expected comparisons joined by `and`" in capsys.readouterr().err


@pytest.mark.long
def test_mapped_by_a_function_of_a_module_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The function takes samples of bytes, in the processes of the command."""
    spec = write_shards(tmp_path, [5, 5])
    (tmp_path / "rewriting_maps.py").write_text(
        "def even(sample):\n"
        "    if int(sample['.cls']) % 2 == 0:\n"
        "        return {**sample, '.txt': sample['.txt'].upper()}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    command = ["rewrite", str(spec), "even", "--map", "rewriting_maps:even", "-j", "2"]
    assert main([*command, "--maxcount", "3"]) == 0
    with ShardListDataset("even.json") as dataset:
        assert [sample[".txt"] for sample in dataset] == [f"TEXT {n}" for n in range(0, 10, 2)]
    capsys.readouterr()
    for text in ("rewriting_maps", "rewriting_maps:odd", "nothing:at_all", "json:__doc__"):
        assert main(["rewrite", str(spec), "x", "--map", text]) == 1
        assert f"--map: expected {'a' if text[0] == 'j' else 'M'}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--part=1/2", "--merge"])
def test_parts_of_a_map_have_a_version(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the version shows that all parts are written by the same map."""
    command = ["rewrite", str(write_shards(tmp_path, [4])), str(tmp_path / "new")]
    command += ["--map", f"{__name__}:same", "--jobs", "1"]
    assert main([*command, option]) == 1
    assert "--map: expected --version beside --part and --merge" in capsys.readouterr().err
    assert not list(tmp_path.glob("new*"))
    assert main([*command, "--part=1/1", "--version", "1"]) == 0
    assert main([*command, "--merge", "--version", "2"]) == 1
    assert "expected a journal of these shards and options" in capsys.readouterr().err
    assert main([*command, "--merge", "--version", "1"]) == 0
    assert keys(tmp_path / "new.json") == keys(tmp_path / "train.json")


def same(sample: dict[str, object]) -> dict[str, object]:
    """Return a sample as it is."""
    return sample


def failing(sample: dict[str, object]) -> dict[str, object]:
    """Fail."""
    raise LookupError(str(sample["__key__"]))


def test_a_lone_shard_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """What is put under its names afterwards belongs to others, and is not replaced."""
    spec = write_shards(tmp_path, [4])
    command = ["rewrite", str(spec), str(tmp_path / "new"), "--jobs", "2", "--map"]
    assert main([*command, f"{__name__}:failing"]) == 1
    assert not list(tmp_path.glob("new*"))
    other = tmp_path / "new-000000.tar"
    other.write_bytes(b"of others")
    assert main([*command, f"{__name__}:same"]) == 1
    assert other.read_bytes() == b"of others"


REASONS = [1]


def stopping(sample: dict[str, object]) -> dict[str, object]:
    """Fail in the second shard of two samples, while there is a reason."""
    if REASONS and sample["__index__"] == 2:
        raise RuntimeError("not yet")
    return sample


def test_a_resumed_run_prints_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error; afterwards logging is as it was (REWRITE-8).

    Without ``--version`` nothing is kept, and the remark says what to pass.
    """
    function = f"{__name__}:stopping"
    arguments = ["rewrite", str(write_shards(tmp_path, [4])), str(tmp_path / "new")]
    arguments += ["--maxcount", "2", "--map", function, "--jobs", "1"]
    remarks = {
        "a": (
            [],
            "left complete shards (1), which may have been written by other functions; pass ",
        ),
        "b": (["--version", "1"], "b.json: resumed; shards kept: 1 of 2"),
    }
    for name, (version, remark) in remarks.items():
        monkeypatch.setattr(sys.modules[__name__], "REASONS", [1])
        command = [*arguments, *version]
        command[2] = str(tmp_path / name)
        assert main(command) == 1
        monkeypatch.setattr(sys.modules[__name__], "REASONS", [])
        assert "not yet" in capsys.readouterr().err
        assert main(command) == 0
        printed = capsys.readouterr()
        assert remark in printed.err.splitlines()[0]
        assert "2 shards, 4 samples" in printed.out


def published(folder: Path) -> Path:
    """Publish shards of 4, 3, 0 and 5 samples, with dataset index, saved table and journal."""
    optional("pyarrow")
    folder.mkdir()
    spec = str(write_shards(folder, [4, 3, 0, 5]))
    tars = sorted(map(str, folder.glob("*.tar")))
    assert main(["create", *tars, "-o", spec, "-j", "1"]) == 0
    assert (
        main(["table", spec, "-c", ".txt", "-j", "1", "-o", str(folder / "captions.parquet")]) == 0
    )
    with Journal(f"{folder}/train.partial").part(JobPart(1, 2), "plan"):
        pass
    return Path(spec)


KEPT = ["--keep-shards", "--where", '__key__ != "s00005"', "-j", "1"]
REPLACED = {
    *("train-000001.tar", "train-000002.tar", "train.index", "captions.parquet"),
    "train.partial",
}


@pytest.mark.parametrize("is_divided", [False, True])
def test_files_that_are_replaced_are_named(
    is_divided: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them, and no other: without them no file has these samples (REWRITE-55)."""
    spec = published(tmp_path / "in")
    before = {*os.listdir(tmp_path / "in")}
    capsys.readouterr()
    for option in (["--part", "1/1"], ["--merge"]) if is_divided else ([],):
        assert main(["rewrite", str(spec), str(tmp_path / "in/new"), *KEPT, *option]) == 0
    err = capsys.readouterr().err
    named = {line.strip() for line in err.splitlines() if line.startswith("  ")}
    assert named == {f"{spec.parent}/{name}" for name in REPLACED}
    assert f"5 files of {spec}" in err
    assert before <= {*os.listdir(tmp_path / "in")}
    for name in named:
        shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
    assert main(["verify", str(tmp_path / "in/new.json"), "-j", "1"]) == 0
    for path in (tmp_path / "in").iterdir():
        assert b"s00005" not in path.read_bytes(), path


def test_nothing_is_named_that_the_new_dataset_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under another name either; where no shard is replaced, nothing is named (REWRITE-55)."""
    whole = str(write_shards(tmp_path, [2, 3]))
    where = ["--keep-shards", "-j", "1", "--where"]
    assert main(["rewrite", whole, str(tmp_path / "same"), *where, '__key__ != ""']) == 0
    assert "not part of" not in capsys.readouterr().err

    (tmp_path / "link").symlink_to(tmp_path)
    # One shard is listed by two names, of which the rewrite keeps one and replaces the other.
    document = json.loads(Path(whole).read_text())
    document["shardlist"].append({"url": "link/train-000000.tar", "nsamples": 2})
    Path(whole).write_text(json.dumps(document))
    where.append("__index__ != 3 and __index__ != 5")
    assert main(["rewrite", whole, str(tmp_path / "new"), *where]) == 0
    err = capsys.readouterr().err
    named = [line.strip() for line in err.splitlines() if line.startswith("  ")]
    assert named == [f"{tmp_path}/train-000001.tar"]
