"""``wids rewrite``: a dataset becomes new shards."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from command import run, run_in_terminal
from conftest import in_child, optional, write_shards, write_tar
from loopback import Server
from s3 import Bucket

from wids import ShardListDataset
from wids.cli.main import main
from wids.publish.journal import JobPart, Journal
from wids.tables.table_file import load_table


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


@pytest.mark.long
def test_files_that_are_replaced_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them, and no other; nothing is deleted without being asked for (REWRITE-55)."""
    spec = published(tmp_path / "in")
    before = sorted(os.listdir(tmp_path / "in"))
    capsys.readouterr()
    assert main(["rewrite", str(spec), str(tmp_path / "out/new"), *KEPT]) == 0
    err = capsys.readouterr().err
    named = {line.strip() for line in err.splitlines() if line.startswith("  ")}
    assert named == {f"{spec.parent}/{name}" for name in REPLACED}
    assert f"5 files of {spec}" in err
    assert "--delete-replaced" in err
    assert sorted(os.listdir(tmp_path / "in")) == before

    # Where no shard is replaced, the old dataset is as complete as the new one.
    where = ["--keep-shards", "--where", '__key__ != ""']
    whole = str(write_shards(tmp_path, [2, 3]))
    assert main(["rewrite", whole, str(tmp_path / "same"), *where]) == 0
    assert "not part of" not in capsys.readouterr().err


@pytest.mark.parametrize("is_later", [False, True])
def test_files_that_are_replaced_are_deleted(
    is_later: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that writes, or by the same once more; the new dataset is whole.

    Samples that were left out are in none of the files that are there (REWRITE-55).
    """
    spec = published(tmp_path / "in")
    before = {*os.listdir(tmp_path / "in")}
    old = tmp_path / "old"
    old.mkdir()
    for name in ("train.json", "train.index"):
        shutil.copy(tmp_path / "in" / name, old)
    command = ["rewrite", str(spec), str(tmp_path / "in/new"), *KEPT]
    if is_later:
        assert main(command) == 0
        assert main(["diff", str(spec), str(tmp_path / "in/new.json")]) == 1
        assert capsys.readouterr().out.splitlines()[-1] == "- s00005"
    assert main([*command, "--delete-replaced", "--yes"]) == 0
    err = capsys.readouterr().err
    assert f"deleting 5 files of {spec}" in err
    assert f"wids cache clear {spec}" in err
    new = {"new-000001.tar", "new.index", "new.json"}
    assert {*os.listdir(tmp_path / "in")} == before - REPLACED | new
    assert main(["verify", str(tmp_path / "in/new.json"), "-j", "1"]) == 0
    assert main(["diff", str(old / "train.json"), str(tmp_path / "in/new.json")]) == 1
    assert capsys.readouterr().out == "- s00005\n"
    for path in (tmp_path / "in").iterdir():
        assert b"s00005" not in path.read_bytes(), path


def test_a_journal_of_a_killed_run_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that deletes later finishes a run that was killed after its spec (REWRITE-55)."""
    spec = published(tmp_path / "in")
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "delete", lambda _: os._exit(7))
        assert not in_child(lambda: main(command) == 0)
    assert (tmp_path / "new.json").exists()
    assert (tmp_path / "new.partial").exists()
    assert main([*command, "--delete-replaced", "--yes"]) == 0
    assert not (tmp_path / "new.partial").exists()
    assert not (tmp_path / "in/train-000001.tar").exists()
    assert main(["verify", str(tmp_path / "new.json"), "-j", "1"]) == 0


def test_a_table_of_the_new_dataset_stays(tmp_path: Path) -> None:
    """Whatever the new spec names, also by a link, is not deleted (REWRITE-55)."""
    spec, new = published(tmp_path / "in"), tmp_path / "new.json"
    table = tmp_path / "in/captions.parquet"
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT]
    assert main(command) == 0
    assert main(["table", str(new), "-c", ".txt", "-j", "1", "-o", str(table)]) == 0
    (tmp_path / "link.parquet").symlink_to(table)
    new.write_text(new.read_text().replace("in/captions.parquet", "link.parquet"))
    assert main([*command, "--delete-replaced", "--yes"]) == 0
    assert not (tmp_path / "in/train-000001.tar").exists()
    assert load_table(ShardListDataset(new)).num_rows == len(ShardListDataset(new))


def test_only_files_of_datasets_are_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The author of a spec may have named any file (REWRITE-55)."""
    spec = published(tmp_path / "in")
    others = [tmp_path / name for name in ("letter", "key")]
    for path in others:
        path.write_text("of the user")
    document = json.loads(spec.read_text())
    document["table"]["url"] = str(others[0])
    document["shardlist"][0]["index"] = str(others[1])
    spec.write_text(json.dumps(document))
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT, "--delete-replaced", "--yes"]
    assert main(command) == 1
    err = capsys.readouterr().err
    for path in others:
        assert (
            f"{path}: not deleted: expected a shard, a dataset index, a table or a journal" in err
        )
        assert path.exists()
    assert not (tmp_path / "in/train-000001.tar").exists()


def test_a_journal_that_is_written_to_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named as a problem, and everything else is deleted (REWRITE-55)."""
    spec = published(tmp_path / "in")
    before = {*os.listdir(tmp_path / "in")}
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT, "--delete-replaced", "--yes"]
    with Journal(f"{tmp_path}/in/train.partial").alone():
        assert in_child(lambda: main(command) == 1)
    err = capfd.readouterr().err
    assert "train.partial: not deleted: another process" in err
    assert {*os.listdir(tmp_path / "in")} == before - REPLACED | {"train.partial"}


def test_nothing_is_deleted_for_another_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of another condition, which leaves out as many samples (REWRITE-55)."""
    spec = published(tmp_path / "in")
    before = sorted(os.listdir(tmp_path / "in"))
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT]
    assert main(command) == 0
    other = [text.replace("s00005", "s00006") for text in command]
    assert main([*other, "--delete-replaced", "--yes"]) == 1
    assert "new.json: already exists" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path / "in")) == before


def test_nothing_is_deleted_for_other_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as of fewer fields, of another input, or of a map that has changed (REWRITE-55)."""
    write_tar(tmp_path / "a-0.tar", [("x.txt", b"one"), ("x.cls", b"1"), ("y.txt", b"two")])
    write_tar(tmp_path / "b-0.tar", [("x.txt", b"ONE"), ("x.cls", b"1"), ("y.txt", b"two")])
    (tmp_path / "maps_of_words.py").write_text(
        "def lower(sample):\n    return {**sample, '.txt': b'one'}\n"
        "def upper(sample):\n    return {**sample, '.txt': b'ONE'}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a", "b"):
        assert (
            main(["create", str(tmp_path / f"{name}-0.tar"), "-o", f"{tmp_path}/{name}.json"]) == 0
        )
    a, b, out = (f"{tmp_path}/{name}" for name in ("a.json", "b.json", "out"))
    where = ["--keep-shards", "--where", '__key__ != "y"', "-j", "1"]
    mapped = ["--keep-shards", "-j", "1", "--map"]
    cases = [
        ([a, f"{out}/1", *where, "--fields", "txt"], [a, f"{out}/1", *where]),
        ([a, f"{out}/2", *where], [b, f"{out}/2", *where]),
        (
            [b, f"{out}/3", *mapped, "maps_of_words:lower"],
            [b, f"{out}/3", *mapped, "maps_of_words:upper"],
        ),
    ]
    for written, other in cases:
        assert main(["rewrite", *written]) == 0
        before = sorted(os.listdir(tmp_path))
        assert main(["rewrite", *other, "--delete-replaced", "--yes"]) == 1
        assert "json: already exists" in capsys.readouterr().err
        assert sorted(os.listdir(tmp_path)) == before


def test_deleting_needs_consent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list comes first; without a terminal nothing is even written (REWRITE-55)."""
    spec = published(tmp_path / "in")
    before = sorted(os.listdir(tmp_path / "in"))
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT, "--delete-replaced"]
    assert run(*command)[0] == 2
    assert not (tmp_path / "new.json").exists()
    status, shown = run_in_terminal(command, "n")
    assert status == 1
    assert shown.index("train-000001.tar") < shown.index("deleting 5 files")
    assert sorted(os.listdir(tmp_path / "in")) == before
    assert run_in_terminal(command, "y")[0] == 0
    assert {*os.listdir(tmp_path / "in")} == {*before} - REPLACED

    capsys.readouterr()
    for options, text in ((["--shuffle", "1"], "--keep-shards"), (["--part", "1/2"], "--merge")):
        kept = ["--keep-shards"] * ("--part" in options)
        arguments = ["rewrite", str(spec), str(tmp_path / "x"), *kept, *options]
        assert main([*arguments, "--delete-replaced", "--yes"]) == 1
        assert text in capsys.readouterr().err


def test_a_file_that_the_new_dataset_has_too_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also under another name of it; and a file of others that cannot be deleted is named."""
    spec = published(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    # One shard is listed by two names, of which the rewrite keeps one and replaces the other.
    document = json.loads(spec.read_text())
    twice = {"url": "../link/train-000000.tar", "nsamples": 4}
    document["shardlist"].append(twice)
    del document["index"], document["table"]
    spec.write_text(json.dumps(document))
    Path(tmp_path / "in/train-000001.tar").rename(tmp_path / "elsewhere.tar")
    (tmp_path / "in/train-000001.tar").symlink_to(tmp_path / "elsewhere.tar")
    where = [*KEPT[:2], "__index__ != 5 and __index__ != 12", *KEPT[3:]]
    command = ["rewrite", str(spec), str(tmp_path / "new"), *where, "--delete-replaced", "--yes"]
    assert main(command) == 0
    assert "train-000001.tar (a link: the file that it leads to stays)" in capsys.readouterr().err
    assert (tmp_path / "in/train-000000.tar").exists()
    assert (tmp_path / "elsewhere.tar").exists()
    assert not (tmp_path / "in/train-000001.tar").is_symlink()
    assert "s00003" in keys(tmp_path / "new.json")


def test_files_that_cannot_be_deleted_are_problems(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A web server has no command for it; the status is 1, and the rest is deleted (REWRITE-55)."""
    spec = published(tmp_path / "in")
    tar = tmp_path / "in/train-000001.tar"
    url = server.page("/train-000001.tar", tar.read_bytes()) + "?token=secret"
    document = json.loads(spec.read_text())
    document["shardlist"][1]["url"] = url
    spec.write_text(json.dumps(document))
    command = ["rewrite", str(spec), str(tmp_path / "new"), *KEPT, "--delete-replaced", "--yes"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert f"{server.url}/train-000001.tar?…: not deleted: " in err.replace("%E2%80%A6", "…")
    assert "secret" not in err
    assert not (tmp_path / "in/train.index").exists()
    assert tar.exists()


@pytest.mark.long
def test_replaced_objects_of_a_bucket_are_deleted(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server that has them, once the new dataset is there (REWRITE-55)."""
    spec = published(tmp_path / "in")
    for path in spec.parent.glob("*[0-9nx].[jti]*"):
        bucket.system.pipe(f"{bucket.url}/{path.name}", path.read_bytes())
    before = {*bucket.names()}
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    command = ["rewrite", f"{bucket.url}/train.json", f"{bucket.url}/new", *KEPT]
    assert main([*command, "--delete-replaced", "--yes"]) == 0
    new = {"new-000001.tar", "new.index", "new.json"}
    assert {*bucket.names()} == before - REPLACED | new
    puts = [n for n, (method, _) in enumerate(bucket.requests) if method == "PUT"]
    deletions = [n for n, (method, path) in enumerate(bucket.requests) if _deletes(method, path)]
    assert len(deletions) == 4
    assert max(puts) < min(deletions)


def _deletes(method: str, path: str) -> bool:
    return method == "DELETE" or (method == "POST" and path.endswith("?delete"))
