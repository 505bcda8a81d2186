"""Shards, dataset indexes and specs that are written to URLs."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from s3 import Bucket

import wids
from wids import ShardWriter, TarWriter


def fill(writer: ShardWriter | TarWriter, start: int, stop: int) -> None:
    for number in range(start, stop):
        writer.write({"__key__": f"s{number:05d}", "txt": f"text {number}"})


def texts(spec: str, bucket: Bucket) -> list[str]:
    with wids.ShardListDataset(spec, storage_options=bucket.options) as dataset:
        return [sample[".txt"] for sample in dataset]


def expected(stop: int) -> list[str]:
    return [f"text {number}" for number in range(stop)]


def writes(bucket: Bucket) -> list[str]:
    """Return the names of what was written, in order, each once."""
    paths = [path.partition("?")[0] for method, path in bucket.requests if method == "PUT"]
    return list(dict.fromkeys(path.rpartition("/")[2] for path in paths))


def test_a_dataset_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """A `ShardWriter` publishes shards, then the dataset index, then the spec (SPEC-31)."""
    done: list[str] = []
    with ShardWriter(
        f"{bucket.url}/a/train-%06d.tar",
        maxcount=100,
        post=done.append,
        storage_options=bucket.options,
    ) as writer:
        fill(writer, 0, 250)
    tars = [f"train-{number:06d}.tar" for number in range(3)]
    assert writes(bucket) == [*tars, "train.index", "train.json"]
    assert done == [f"{bucket.url}/a/{name}" for name in tars]
    spec = f"{bucket.url}/a/train.json"
    assert texts(spec, bucket) == expected(250)
    assert wids.verify_spec(spec, storage_options=bucket.options) == []
    document = json.loads(bucket.system.cat(spec))
    assert [entry["url"] for entry in document["shardlist"]] == tars
    assert document["index"] == "train.index"
    # The same bytes as on the local disk.
    with ShardWriter(tmp_path / "train-%06d.tar", maxcount=100) as writer:
        fill(writer, 0, 250)
    for name in [*tars, "train.index"]:
        assert bucket.system.cat(f"{bucket.url}/a/{name}") == (tmp_path / name).read_bytes()


def test_if_exists_as_on_the_local_disk(bucket: Bucket) -> None:
    """What exists is an error, resumed or replaced."""
    pattern, options = f"{bucket.url}/a-%d.tar", bucket.options
    about: dict[str, Any] = {"maxcount": 10, "storage_options": options}
    with raises(KeyboardInterrupt):
        with ShardWriter(pattern, **about) as writer:
            fill(writer, 0, 25)
            raise KeyboardInterrupt
    assert bucket.names() == ["a-0.tar", "a-1.tar"]
    with raises(FileExistsError, f"{bucket.url}/a-0.tar: already exists"):
        ShardWriter(pattern, **about)
    with ShardWriter(pattern, if_exists="resume", **about) as writer:
        assert writer.num_samples == 20
        fill(writer, 20, 25)
    assert texts(f"{bucket.url}/a.json", bucket) == expected(25)
    with raises(FileExistsError, f"{bucket.url}/a.json: already exists"):
        ShardWriter(pattern, start_shard=7, **about)
    with ShardWriter(pattern, if_exists="replace", **about) as writer:
        fill(writer, 0, 5)
    assert texts(f"{bucket.url}/a.json", bucket) == expected(5)


def test_a_shard_that_appears_meanwhile_is_not_replaced(bucket: Bucket) -> None:
    """Of two writers of a pattern the slower one fails, by the server's own word."""
    about: dict[str, Any] = {"maxcount": 10, "storage_options": bucket.options}
    with raises(FileExistsError, "a-0.tar"):
        with ShardWriter(f"{bucket.url}/a-%d.tar", **about) as slow:
            fill(slow, 100, 105)
            with ShardWriter(f"{bucket.url}/a-%d.tar", **about) as fast:
                fill(fast, 0, 5)
    assert texts(f"{bucket.url}/a.json", bucket) == expected(5)


def test_one_tar(bucket: Bucket) -> None:
    """A `TarWriter` takes a URL; an exception leaves nothing there."""
    url = f"{bucket.url}/one.tar"
    with raises(ZeroDivisionError):
        with TarWriter(url, storage_options=bucket.options) as writer:
            fill(writer, 0, 5)
            1 / 0  # noqa: B018
    assert bucket.names() == []
    with TarWriter(url, storage_options=bucket.options) as writer:
        fill(writer, 0, 5)
    assert writer.index is not None
    spec = wids.build_spec([url], storage_options=bucket.options)
    assert (spec.shards[0].sha256, spec.shards[0].nbytes) == (writer.sha256, writer.nbytes)


def test_build_spec_and_save(bucket: Bucket, tmp_path: Path) -> None:
    """Dataset index and spec go to URLs; names of what is beside them are relative (SPEC-33)."""
    options = bucket.options
    for number in range(2):
        path = write_tar(tmp_path / f"{number}.tar", sample_members(number * 5, number * 5 + 5))
        bucket.system.put(str(path), f"{bucket.url}/x/{number}.tar")
    shards = [f"{bucket.url}/x/0.tar", f"{bucket.url}/x/1.tar"]
    dataset_index = f"{bucket.url}/x/both.index"
    spec = wids.build_spec(shards, dataset_index=dataset_index, storage_options=options)
    assert spec.index == dataset_index
    spec.save(f"{bucket.url}/x/both.json", storage_options=options)
    document = json.loads(bucket.system.cat(f"{bucket.url}/x/both.json"))
    assert [entry["url"] for entry in document["shardlist"]] == ["0.tar", "1.tar"]
    assert document["index"] == "both.index"
    spec.save(f"{bucket.url}/elsewhere.json", storage_options=options)
    assert texts(f"{bucket.url}/elsewhere.json", bucket) == expected(10)
    loaded = wids.load_spec(f"{bucket.url}/x/both.json", read=lambda url, _: bucket.system.cat(url))
    assert loaded.shards == spec.shards


def test_a_remote_spec_names_no_local_file(bucket: Bucket, train: Path) -> None:
    """Readers of a remote spec do not have the writer's files (SPEC-33)."""
    spec = wids.load_spec(train)
    with raises(ValueError, f"{bucket.url}/a.json: expected remote shards", "train-000000.tar"):
        spec.save(f"{bucket.url}/a.json", storage_options=bucket.options)
    assert bucket.names() == []


@pytest.mark.parametrize(
    "missing", [pytest.param("train.index", marks=pytest.mark.long), "train.json"]
)
def test_no_permission_for_dataset_index_or_spec(
    bucket: Bucket, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The shards stay; the error names what could not be written, and a later run finishes."""
    caplog.set_level(logging.WARNING)
    bucket.fault = lambda method, path: 403 if method == "PUT" and missing in path else None
    about: dict[str, Any] = {"maxcount": 10, "storage_options": bucket.options}
    with raises(wids.UploadError, f"{bucket.url}/{missing}: expected access to {bucket.url}"):
        with ShardWriter(f"{bucket.url}/train-%d.tar", **about) as writer:
            fill(writer, 0, 25)
    assert [name for name in bucket.names() if name.endswith(".tar")] == [
        f"train-{number}.tar" for number in range(3)
    ]
    assert "train.json" not in bucket.names()
    bucket.fault = lambda _, __: None
    with ShardWriter(f"{bucket.url}/train-%d.tar", if_exists="resume", **about) as writer:
        assert writer.num_samples == 25
    assert texts(f"{bucket.url}/train.json", bucket) == expected(25)


WRITE = """
import sys, wids
from wids.storage import upload_targets
upload_targets.PART_NBYTES = 5 << 20  # the smallest part that S3 accepts
upload_targets.MAX_PUT_NBYTES = 5 << 20
with wids.ShardWriter(sys.argv[1] + "/train-%06d.tar", maxcount=12) as writer:
    for number in range(18):
        writer.write({"__key__": f"s{number:05d}", "txt": f"text {number}", "bin": bytes(1 << 20)})
"""


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("partNumber=3", []),
        pytest.param("uploadId=", [], marks=pytest.mark.long),
        pytest.param("train-000001.tar", ["train-000000.tar"], marks=pytest.mark.long),
        pytest.param(
            "train.index", ["train-000000.tar", "train-000001.tar"], marks=pytest.mark.long
        ),
        pytest.param(
            *("train.json", ["train-000000.tar", "train-000001.tar", "train.index"]),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_killed_writer(bucket: Bucket, where: str, left: list[str], tmp_path: Path) -> None:
    """A process that is killed while it uploads leaves complete files only (SPEC-31)."""

    def fault(method: str, path: str) -> str | None:
        is_commit = "partNumber" not in path if where == "uploadId=" else True
        return "stall" if method in ("PUT", "POST") and where in path and is_commit else None

    bucket.fault = fault
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, bucket.url],
        env={
            **os.environ,
            **bucket.environment(),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": str(tmp_path),
        },
    )
    assert bucket.stalled.wait(60)
    process.kill()
    process.wait()
    bucket.end.set()
    assert bucket.names() == left
    assert os.listdir(tmp_path) == []


def test_create_in_a_bucket(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`wids create -o s3://…` writes dataset index and spec there (SPEC-33)."""
    from wids.cli.main import main

    monkeypatch.chdir(tmp_path)
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "shards").mkdir()
    for number in range(2):
        path = tmp_path / "shards" / f"t-{number}.tar"
        write_tar(path, sample_members(number * 5, number * 5 + 5))
        bucket.system.put(str(path), f"{bucket.url}/x/t-{number}.tar")
    output = f"{bucket.url}/x/t.json"
    assert main(["create", f"{bucket.url}/x/t-{{0..1}}.tar", "-o", output, "-j", "1"]) == 0
    assert f"{output}: 2 shards, 10 samples" in capsys.readouterr().out
    assert texts(output, bucket) == expected(10)
    assert main(["verify", output, "-j", "1"]) == 0
    # Local shards that will be uploaded, and a spec that is elsewhere than they.
    bucket.system.rm(output)
    base = f"{bucket.url}/x/"
    other = f"{bucket.url}/specs/t.json"
    assert main(["create", "shards", "-o", output, "--base", base, "-j", "1"]) == 0
    assert main(["create", "shards", "-o", other, "--base", base, "-j", "1"]) == 0
    assert texts(output, bucket) == texts(other, bucket) == expected(10)
    assert wids.verify_spec(other, storage_options=bucket.options) == []
    capsys.readouterr()
    assert main(["create", "shards", "-o", other]) == 1
    assert "upload the shards first, or state where they will be" in capsys.readouterr().err
    assert main(["create", "shards", "-o", "https://h/t.json", "--base", base]) == 1
    assert "https://h/t.json: expected a path, or a URL that can be" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["shards"]


def test_create_in_a_bucket_resumes(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of a remote spec is in the current folder until the spec is published."""
    from wids.cli.main import main

    monkeypatch.chdir(tmp_path)
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    write_tar(tmp_path / "t.tar", sample_members(0, 5))
    bucket.fault = lambda method, path: 403 if method == "PUT" and ".json" in path else None
    command = ["create", "t.tar", "-o", f"{bucket.url}/t.json", "--base", bucket.url, "-j", "1"]
    assert main(command) == 1
    assert bucket.names() == ["t.index"]
    journal, tar = sorted(os.listdir(tmp_path))
    assert (re.fullmatch(r"t-[0-9a-f]{8}\.partial", journal) is not None, tar) == (True, "t.tar")
    bucket.fault = lambda _, __: None
    assert main(command) == 0
    assert bucket.names() == ["t.index", "t.json"]
    assert os.listdir(tmp_path) == ["t.tar"]


def test_a_damaged_shard_that_would_be_resumed_is_named(bucket: Bucket) -> None:
    """By its URL, and not by the temporary file that it was downloaded to."""
    bucket.system.pipe(f"{bucket.url}/train-0.tar", b"<html>" * 200)
    with raises(wids.ShardFormatError, f"{bucket.url}/train-0.tar: "):
        ShardWriter(
            f"{bucket.url}/train-%d.tar", if_exists="resume", storage_options=bucket.options
        )
