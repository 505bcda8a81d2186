"""Packing into a bucket of an S3 server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from s3 import Bucket
from trees import contents, make_tree

import wids
from wids import UploadError, pack_folder


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four samples; the current folder is that of the test."""
    monkeypatch.chdir(tmp_path)
    return make_tree(tmp_path / "in", {f"{c}/{n}.txt": f"{c} {n}" for c in "ab" for n in range(2)})


def test_a_dataset_in_a_bucket(source: Path, bucket: Bucket, tmp_path: Path) -> None:
    """The bytes are those of a local output, and the spec comes last."""
    options: dict[str, Any] = {"storage_options": bucket.options}
    report = pack_folder(source, f"{bucket.url}/x/out", maxcount=1, **options)
    assert report.spec_path == f"{bucket.url}/x/out.json"
    pack_folder(source, tmp_path / "local" / "out", maxcount=1)

    found = {name: bucket.system.cat(f"{bucket.name}/x/{name}") for name in contents(Path("local"))}
    assert found == contents(tmp_path / "local")
    assert len(bucket.names()) == 6
    written = [path for method, path in bucket.requests if method == "PUT"]
    assert "out.json" in written[-1]
    assert wids.verify_spec(f"{bucket.url}/x/out.json", **options) == []

    with raises(FileExistsError, f"{bucket.url}/x/out.json: already exists"):
        pack_folder(source, f"{bucket.url}/x/out", maxcount=1, **options)
    pack_folder(source, f"{bucket.url}/x/out", maxcount=2, if_exists="replace", **options)
    assert (
        wids.load_spec(f"{bucket.url}/x/out.json", read=wids_read(bucket)).shards[1].num_samples
        == 2
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "local"]


def wids_read(bucket: Bucket) -> Any:
    from wids.storage.fetch import Fetcher

    return Fetcher(bucket.options).read


def test_an_upload_that_fails_is_resumed(
    source: Path, bucket: Bucket, tmp_path: Path, quick_retries: None
) -> None:
    """Complete shards stay and are not uploaded again; one that was deleted is."""
    del quick_retries
    url, options = f"{bucket.url}/out", {"storage_options": bucket.options}
    bucket.fault = lambda method, path: 403 if method == "PUT" and "out-000002" in path else None
    with raises(UploadError, "out-000002.tar"):
        pack_folder(source, url, maxcount=1, **options)
    assert bucket.names() == ["out-000000.tar", "out-000001.tar"]
    (journal,) = tmp_path.glob("out-*.partial")
    # The URL may have a password, and another folder's journal has another name.
    assert journal.stat().st_mode & 0o077 == 0
    with raises(FileExistsError, "is of an interrupted run with other files or options"):
        pack_folder(source, url, maxcount=1, seed=9, **options)
    bucket.system.rm(f"{bucket.name}/out-000000.tar")
    bucket.fault = lambda method, path: None  # noqa: ARG005
    bucket.requests.clear()

    pack_folder(source, url, maxcount=1, **options)

    assert not [path for method, path in bucket.requests if method == "PUT" and "000001" in path]
    assert wids.verify_spec(f"{url}.json", **options) == []
    assert not journal.exists()


@pytest.mark.long
def test_the_command_ends_with_ctrl_c(source: Path, bucket: Bucket, tmp_path: Path) -> None:
    """It does not wait for uploads to a server that hangs, and leaves no temporary file."""
    bucket.fault = lambda method, path: "stall" if method == "PUT" and "out-" in path else None
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "wids", "pack", str(source), "-o", f"{bucket.url}/out"]
    process = subprocess.Popen(
        [*command, "--maxcount", "2", "-j", "2"],
        env={**os.environ, **bucket.environment(), "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert bucket.stalled.wait(60)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, err = process.communicate(timeout=40)  # the server hangs for a minute
    finally:
        bucket.end.set()
        process.kill()
    assert (process.returncode, err.splitlines()[-1]) == (130, "wids: interrupted")
    assert os.listdir(folder) == []


@pytest.mark.long
def test_the_command_writes_to_a_bucket(
    source: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With options from the environment, on two processes."""
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "wids", "pack", str(source), "-o", f"{bucket.url}/out"]
    command += ["--maxcount", "2", "-j", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"wids browse {bucket.url}/out.json" in result.stdout
    assert wids.verify_spec(f"{bucket.url}/out.json", storage_options=bucket.options) == []
