"""``wids sample``: one sample → text or bytes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from command import run, write_bare_shards
from conftest import write_tar
from loopback import Server

from wids.cli import main as cli


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_sample(shards: Path) -> None:
    """A sample by index, negative or not, or by key; and one field as it is stored."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)

    lines = run("sample", spec, 12)[1].splitlines()
    assert lines[0].split(maxsplit=1) == [".txt", "text 12"]
    assert run("sample", spec, "--key", "s00012")[1].splitlines() == lines
    assert run("sample", spec, "--", -8)[1].splitlines() == lines
    assert run("sample", spec)[1].splitlines()[0].split(maxsplit=1) == [".txt", "text 0"]
    assert run("sample", spec, 12, "--cat", ".txt")[1] == "text 12"
    assert run("sample", spec, 12, "-c", "txt")[1] == "text 12"
    assert run("sample", spec, 12, "-r", "-w", 20)[1].splitlines()[0] == ".txt b'text 12'"
    assert "'.txt': b'text 12'" in run("sample", spec, 12, "-p")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["20"], "20"),
        (["--key", "none"], "none"),
        (
            ["1", "--cat", ".jpg"],
            'found ".jpg", which no shard has; the shards have ".cls", ".txt"',
        ),
        (["1", "--key", "a"], "found both"),
    ],
)
def test_samples_that_do_not_exist(arguments: list[str], message: str, train: Path) -> None:
    """The error is one line, with status 1."""
    status, out, err = run("sample", train, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("wids: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_field_of_another_sample_only(tmp_path: Path) -> None:
    """The error names the sample that lacks the field."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.txt", b"2")])
    assert 'sample "a": it has no field .txt' in run("sample", path, 0, "-c", "txt")[2]


def test_stdout_of_cat_is_bytes(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field is written as it is stored."""
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(["sample", str(train), "3", "--cat", ".txt"]) == 0
    assert stream.buffer.getvalue() == b"text 3"  # type: ignore[attr-defined]


def test_secrets_of_a_url_are_not_shown(train: Path, server: Server) -> None:
    """User, password and signature stay out of what is printed, in all forms (SEC-4)."""
    document = json.loads(train.read_text())
    origin = server.url.replace("http://", "http://user:secret@")
    for shard in document["shardlist"]:
        server.page(f"/{shard['url']}", (train.parent / shard["url"]).read_bytes())
        shard["url"] = f"{origin}/{shard['url']}?X-Signature=secret"
    train.write_text(json.dumps(document))

    for form in ([], ["--raw"], ["--python"]):
        status, out, err = run("sample", train, 3, "--width", 200, *form)
        assert (status, err) == (0, "")
        assert f"{server.url}/train-000000.tar?" in out
        assert "secret" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        [3],
        *(
            pytest.param(row, marks=pytest.mark.long)
            for row in (["s00003"], [3, "--shard", 0], [3, "--raw"])
        ),
    ],
)
def test_damaged_bytes_are_shown_with_a_remark(arguments: list[object], shards: Path) -> None:
    """Fields that are not as the index describes them are named; the status is 1."""
    spec, tar = shards / "train.json", shards / "train-000000.tar"
    run("create", shards, "-o", spec)
    assert run("sample", spec, *arguments)[::2] == (0, "")

    tar.write_bytes(tar.read_bytes().replace(b"text 3", b"tent 3"))
    status, out, err = run("sample", spec, *arguments)
    assert (status, "tent 3" in out, len(err.splitlines())) == (1, True, 1)
    assert 'train-000000.tar: sample "s00003": the bytes of .txt are not those' in err
    assert "wids verify" in err
    assert run("sample", spec, *arguments, "--cat", "cls") == (0, "3", "")
    status, out, err = run("sample", spec, *arguments, "--cat", "txt")
    assert (status, out, "the bytes of .txt" in err) == (1, "tent 3", True)
