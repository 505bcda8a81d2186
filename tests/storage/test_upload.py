"""Files that are published at URLs: complete, or not there."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import need, open_descriptors, raises
from events import wait_for
from s3 import Bucket
from servers import free_port, running

import wids
from wids.errors import FetchError, UploadError
from wids.storage import upload, upload_targets

DATA = os.urandom(1000) * 1000
PART_NBYTES = 5 << 20  # the smallest part that S3 accepts


def publish(target: str, data: bytes = DATA, **options: object) -> None:
    with upload.publishing(target, **options) as file:  # type: ignore[arg-type]
        file.write(data)


def test_the_bytes_arrive(bucket: Bucket) -> None:
    """A file is published at a URL, replaced, and listed."""
    url, options = f"{bucket.url}/a/b.bin", bucket.options
    assert not upload.exists(url, options)
    assert upload.file_names(f"{bucket.url}/a", options) == []
    publish(url, storage_options=options)
    assert bucket.system.cat(url) == DATA
    publish(url, b"new", storage_options={f"{bucket.url}/": options, "https://x/": {}})
    assert bucket.system.cat(url) == b"new"
    assert upload.exists(url, options)
    assert upload.file_names(f"{bucket.url}/a", options) == ["b.bin"]
    assert bucket.names() == ["a/b.bin"]


def test_a_block_that_fails_uploads_nothing(bucket: Bucket) -> None:
    """An exception in the block, Ctrl-C too, leaves what was there."""
    url = f"{bucket.url}/a.bin"
    publish(url, b"old", storage_options=bucket.options)
    bucket.requests.clear()
    with raises(KeyboardInterrupt):
        with upload.publishing(url, storage_options=bucket.options) as file:
            file.write(DATA)
            raise KeyboardInterrupt
    assert bucket.requests == []
    assert bucket.system.cat(url) == b"old"


def test_a_large_file_is_committed_at_the_end(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts show nothing under the name until the last request."""
    monkeypatch.setattr(upload_targets, "PART_NBYTES", PART_NBYTES)
    seen: list[list[str]] = []

    def fault(method: str, path: str) -> None:
        if "partNumber" in path or (method == "POST" and "uploadId" in path):
            seen.append(bucket.names())

    bucket.fault = fault
    data = os.urandom(1 << 20) * 11
    publish(f"{bucket.url}/a.bin", data, storage_options=bucket.options)
    assert len(seen) >= 4  # a driver may repeat one
    assert not any(seen)
    assert bucket.system.cat(f"{bucket.url}/a.bin") == data


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_server_that_refuses_the_last_part(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    """The upload is retried, aborted and an error; what was there stays.

    The server has stored the other parts by then: moto answers 500 to an abort while another thread
    stores a part, and keeps the upload.
    """
    monkeypatch.setattr(upload_targets, "PART_NBYTES", PART_NBYTES)
    monkeypatch.setattr("wids.storage.transport.retry.MAX_FAILURES", 2)
    if old is not None:
        publish(f"{bucket.url}/a.bin", old, storage_options=bucket.options)
    bucket.requests.clear()

    def fault(_: str, path: str) -> int | None:
        if "partNumber=3" not in path:
            return None
        ids = {"Bucket": bucket.name, "Key": "a.bin", "UploadId": path.partition("uploadId=")[2]}
        parts = partial(bucket.system.call_s3, "list_parts", **ids)
        wait_for(lambda: len(parts().get("Parts", [])) == 2, "the other parts")
        return 400

    bucket.fault = fault
    with raises(UploadError, f"{bucket.url}/a.bin", "tried 2 times"):
        publish(f"{bucket.url}/a.bin", bytes(11 << 20), storage_options=bucket.options)
    begun = [path for method, path in bucket.requests if method == "POST" and "uploads" in path]
    assert len(begun) == 2
    assert bucket.names() == ([] if old is None else ["a.bin"])
    assert bucket.unfinished() == []


@pytest.mark.usefixtures("quick_retries")
def test_a_failure_that_passes_is_retried(bucket: Bucket) -> None:
    """An upload is tried again as a download is."""
    answers = iter([400, 400])
    bucket.fault = lambda method, _: next(answers, None) if method == "PUT" else None
    publish(f"{bucket.url}/a.bin", storage_options=bucket.options)
    assert bucket.system.cat(f"{bucket.url}/a.bin") == DATA


def test_what_exists_is_not_overwritten(bucket: Bucket) -> None:
    """``is_new`` is an error if something has the URL, also between the question and the upload."""
    url, options = f"{bucket.url}/a.bin", bucket.options
    publish(url, b"old", storage_options=options)
    with raises(FileExistsError, url):
        publish(url, is_new=True, storage_options=options)
    # The server says that nothing is there; the upload itself asks again (SPEC-31).
    bucket.fault = lambda method, _: 404 if method == "HEAD" else None
    with raises(FileExistsError, url):
        publish(url, is_new=True, storage_options=options)
    assert bucket.system.cat(url) == b"old"


def test_no_bucket_and_no_permission(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names bucket and URL, and says what to do, at once and without secrets (SEC-60)."""
    options = bucket.options
    with raises(UploadError, "expected the bucket s3://nobucket to exist", "create it"):
        publish("s3://nobucket/dir/a.bin", storage_options=options)
    bucket.fault = lambda method, _: 403 if method == "PUT" else None
    with raises(UploadError, f"{bucket.url}/a.bin: expected access to {bucket.url},"):
        publish(f"{bucket.url}/a.bin", storage_options=options)
    assert bucket.requests.count(("PUT", f"/{bucket.name}/a.bin")) == 1
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nothing")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nothing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with raises(UploadError, f"{bucket.url}/a.bin: expected credentials for {bucket.url}"):
        publish(f"{bucket.url}/a.bin", storage_options={"endpoint_url": options["endpoint_url"]})


def test_options_go_only_to_their_prefix(bucket: Bucket) -> None:
    """Options by prefix are for URLs below it alone, also for writing (SEC-9)."""
    url = f"{bucket.url}/a.bin"
    keys = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    nowhere = {**keys, "connect_timeout": "1s", "retry_s": 0}
    options = {f"{bucket.url}/other/": bucket.options, "s3://": nowhere}
    with pytest.MonkeyPatch.context() as patch, raises(UploadError, "127.0.0.1:9"):
        patch.setattr("s3fs.core.S3FileSystem.retries", 1)
        publish(url, storage_options=options)
    assert bucket.requests == []


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("https://h/a.tar?token=secret", ValueError, "https://h/a.tar?…: expected a path, or a"),
        ("s3://b/a.tar?token=secret", ValueError, "s3://b/a.tar?…: expected a URL without a query"),
        ("memory://b/t[1].json", ValueError, "without wildcards (* and [), which drivers expand"),
        ("s3://b/x*/a.tar", ValueError, "without wildcards"),
        ("s3://b/x//a.tar", ValueError, 'without "//"'),
        ("http://h/a.tar", ValueError, "found http:"),
        ("pipe:cat > a.tar", ValueError, "found pipe:"),
        ("file:///tmp/a.tar", ValueError, "pass the path"),
        ("local:///tmp/a.tar", UploadError, "leads to another"),
        ("s3://b/a::file:///tmp/a.tar", UploadError, "leads to another"),
        ("gopher://h/a.tar", UploadError, 'expected a driver for "gopher"'),
    ],
)
def test_what_cannot_be_written(url: str, kind: type[Exception], message: str) -> None:
    """A scheme that cannot be written, or that leads to local files, is an error (SEC-60)."""
    with pytest.raises(kind) as caught:
        publish(url, b"")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_rewriting_is_for_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A URL that is written is used as it is, whatever WDS_REWRITE says (SEC-60)."""
    import fsspec

    monkeypatch.setenv("WDS_REWRITE", f"memory://bucket={tmp_path}")
    publish("memory://bucket/rewritten.bin")
    assert os.listdir(tmp_path) == []
    assert fsspec.filesystem("memory").cat("/bucket/rewritten.bin") == DATA


def test_a_full_local_disk_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, small_disk: Path
) -> None:
    """The complete file is first on the local disk; the error says which folder to change."""
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(OSError, match="set TMPDIR") as caught:
        publish("memory://bucket/full.bin")
    assert caught.value.errno == errno.ENOSPC
    assert not upload.exists("memory://bucket/full.bin")


def test_a_full_disk_names_the_file(small_disk: Path) -> None:
    """Under the name that the caller knows."""
    with pytest.raises(OSError, match=re.escape(f"'{small_disk}/a.bin'")):
        publish(small_disk / "a.bin")
    with pytest.raises(OSError, match=re.escape(f"'{small_disk}/a-000000.tar'")):
        with wids.ShardWriter(small_disk / "a-%06d.tar") as writer:
            writer.write({"__key__": "a", "bin": DATA})
    assert os.listdir(small_disk) == []


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[str]:
    """A folder on an FTP server, whose files are visible while they are uploaded."""
    need(find_spec("pyftpdlib"), "pyftpdlib (pip install '.[test-all]')")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-w", "-i", "127.0.0.1", "-p",
               str(port), "-d", str(tmp_path)]  # fmt: skip
    with running(command, port):
        yield f"ftp://127.0.0.1:{port}"


def test_a_server_that_shows_files_early(
    ftp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a file has a temporary name until all of its bytes are there.

    Connections end with the errors that hold them: nothing is left to the garbage collector.
    """
    before = open_descriptors()
    publish(f"{ftp}/a.bin", b"old")
    publish(f"{ftp}/a.bin")
    with raises(FileExistsError, f"{ftp}/a.bin"):
        publish(f"{ftp}/a.bin", b"other", is_new=True)
    assert os.listdir(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == DATA

    from fsspec.implementations.ftp import FTPFileSystem

    def put_a_part(system: FTPFileSystem, path: str, target: str) -> None:
        with open(path, "rb") as source, system.open(target, "wb") as file:
            file.write(source.read(1000))

    monkeypatch.setattr(FTPFileSystem, "put_file", put_a_part)
    monkeypatch.setattr("wids.storage.transport.retry.MAX_FAILURES", 1)
    with raises(UploadError, f"expected {len(DATA)} bytes after the upload, found 1000"):
        publish(f"{ftp}/b.bin")
    assert os.listdir(tmp_path) == ["a.bin"]
    after = open_descriptors().items() - before.items()
    assert not [target for _, target in after if target.startswith("socket:")]


def test_fetch_errors_are_no_upload_errors() -> None:
    """A program can tell what could not be read from what could not be written."""
    assert not issubclass(UploadError, FetchError)
    assert issubclass(UploadError, OSError)
