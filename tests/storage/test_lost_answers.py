"""Uploads whose answer is lost, that are interrupted, or of which a part arrives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from s3 import Bucket

import wids
from wids.errors import UploadError
from wids.storage import upload
from wids.storage.transport.object_store import ReplacedError

DATA = os.urandom(1000) * 12_000  # two parts of the least size


def publish(target: str, data: bytes = DATA, **options: Any) -> None:
    with upload.publishing(target, **options) as file:
        file.write(data)


def first(answer: str, matches: Callable[[str, str], bool]) -> Callable[[str, str], str | None]:
    """Return a fault for the first request of a kind."""
    answers = iter([answer])
    return lambda method, path: next(answers, None) if matches(method, path) else None


def is_data(method: str, path: str) -> bool:
    return method == "PUT" and "a.bin" in path


def is_completion(method: str, path: str) -> bool:
    return method == "POST" and "uploadId" in path


@pytest.mark.usefixtures("quick_retries")
def test_a_new_file_whose_answer_is_lost(bucket: Bucket) -> None:
    """The upload is repeated, finds the bytes that it sent, and has succeeded."""
    bucket.fault = first("lose", is_data)
    publish(f"{bucket.url}/a.bin", b"small", is_new=True, storage_options=bucket.options)

    assert bucket.system.cat(f"{bucket.url}/a.bin") == b"small"
    assert len([path for method, path in bucket.requests if is_data(method, path)]) >= 1


@pytest.mark.usefixtures("quick_retries")
def test_a_large_file_whose_last_answer_is_lost(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one of several parts, where the server does not know the upload any more."""
    monkeypatch.setattr("wids.storage.upload_targets.PART_NBYTES", 5 << 20)
    monkeypatch.setattr("wids.storage.upload_targets.MAX_PUT_NBYTES", 5 << 20)
    bucket.fault = first("lose", is_completion)
    publish(f"{bucket.url}/a.bin", is_new=True, storage_options=bucket.options)

    assert any(is_completion(*request) for request in bucket.requests)
    assert bucket.system.cat(f"{bucket.url}/a.bin") == DATA
    assert bucket.unfinished() == []


@pytest.mark.usefixtures("quick_retries")
def test_other_bytes_are_not_taken_for_ours(bucket: Bucket) -> None:
    """What another program stored is an error, also of the same length, and stays."""
    for other in (b"other", b"longer than small"):
        url = f"{bucket.url}/{len(other)}/a.bin"

        def fault(method: str, path: str, url: str = url, other: bytes = other) -> str | None:
            if not is_data(method, path) or bucket.system.exists(url):
                return None
            bucket.system.pipe(url, other)
            return "lose"

        bucket.fault = fault
        with raises(FileExistsError, url):
            publish(url, b"small", is_new=True, storage_options=bucket.options)
        assert bucket.system.cat(url) == other


@pytest.mark.usefixtures("quick_retries")
def test_a_version_that_was_replaced_by_this_very_upload(bucket: Bucket) -> None:
    """The answer to a comparing upload is lost: its version is not refused."""
    url, options = f"{bucket.url}/a.bin", bucket.options
    publish(url, b"old", storage_options=options)
    _, version = upload.read(url, options)
    bucket.fault = first("lose", is_data)
    publish(url, b"new", replaces=version, storage_options=options)
    assert bucket.system.cat(url) == b"new"
    with pytest.raises(ReplacedError):
        publish(url, b"newer", replaces=version, storage_options=options)
    assert bucket.system.cat(url) == b"new"


@pytest.mark.long
@pytest.mark.usefixtures("quick_retries")
def test_a_writer_survives_lost_answers(bucket: Bucket) -> None:
    """No answer to an upload arrives at first, and the dataset is complete."""
    met: set[str] = set()

    def fault(method: str, path: str) -> str | None:
        if method != "PUT" or path in met:
            return None
        met.add(path)
        return "lose"

    bucket.fault = fault
    pattern = f"{bucket.url}/train-%06d.tar"
    with wids.ShardWriter(pattern, maxcount=3, storage_options=bucket.options) as writer:
        for number in range(7):
            writer.write({"__key__": f"s{number}", "cls": number})
    assert len([name for name in bucket.names() if name.endswith(".tar")]) == 3
    spec = next(name for name in bucket.names() if name.endswith(".json"))
    options = {"access": "download", "storage_options": bucket.options}
    with wids.ShardListDataset(f"{bucket.url}/{spec}", **options) as dataset:
        assert [sample[".cls"] for sample in dataset] == list(range(7))


@pytest.mark.usefixtures("quick_retries")
def test_a_truncated_upload_does_not_stay(bucket: Bucket) -> None:
    """The length is compared after the upload; what has another one is deleted."""
    url = f"{bucket.url}/a.bin"
    bucket.fault = lambda method, path: "truncate" if is_data(method, path) else None
    for is_new in (True, False):
        with raises(UploadError, "expected 1000 bytes after the upload, found 500"):
            publish(url, DATA[:1000], is_new=is_new, storage_options=bucket.options)
        assert bucket.names() == []
    bucket.fault = first("truncate", is_data)
    publish(url, DATA[:1000], is_new=True, storage_options=bucket.options)
    assert bucket.system.cat(url) == DATA[:1000]


class _File(MemoryFile):
    def write(self, data: bytes) -> int:
        self.fs.num_writes += 1
        if self.fs.num_writes == 2:
            raise self.fs.error
        return super().write(data)

    def close(self) -> None:
        self.commit()


class CompletingSystem(MemoryFileSystem):
    """A store whose driver publishes, when a file is closed, what was written until an error."""

    protocol = "s3"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in its base
    pseudo_dirs: list[str] = []  # noqa: RUF012
    cachable = False
    blocksize = 1 << 20
    num_writes = 0
    error: BaseException = KeyboardInterrupt()
    names: list[str] = []  # noqa: RUF012

    def rm_file(self, path: str) -> None:
        raise NotImplementedError

    def rm(self, path: str, **_: Any) -> None:  # type: ignore[override]
        del self.store[path]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("s3://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # type: ignore[override]
        if mode == "rb":
            return super()._open(path, mode, **options)
        CompletingSystem.names.append(path)
        return _File(self, path)


@pytest.fixture
def completing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[CompletingSystem]]:
    """It is the driver of S3, as old versions of s3fs are."""
    registry = sys.modules["fsspec.registry"]  # the package has a mapping of this name
    monkeypatch.setitem(registry._registry, "s3", CompletingSystem)
    for name, value in (("store", {}), ("names", []), ("pseudo_dirs", ["", "/bucket"])):
        monkeypatch.setattr(CompletingSystem, name, value)
    return CompletingSystem


@pytest.mark.parametrize("old", [None, b"old"])
def test_an_interrupted_upload_publishes_nothing(
    completing: type[CompletingSystem], old: bytes | None, tmp_path: Path
) -> None:
    """Ctrl-C leaves what was there, also with a driver that completes what it has."""
    path = tmp_path / "a.bin"
    path.write_bytes(DATA)
    if old is not None:
        completing.store["/bucket/a.bin"] = MemoryFile(None, "/bucket/a.bin", old)
    with pytest.raises(KeyboardInterrupt):
        upload.upload(str(path), "s3://bucket/a.bin", storage_options={"driver": "fsspec"})
    found = {name: file.getvalue() for name, file in completing.store.items()}
    assert found == ({} if old is None else {"/bucket/a.bin": old})
    assert completing.names
    assert "/bucket/a.bin" not in completing.names


@pytest.mark.usefixtures("quick_retries")
def test_a_rename_whose_answer_is_lost(
    completing: type[CompletingSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that renames is no different."""
    monkeypatch.setattr(completing, "num_writes", 2)
    lose(monkeypatch, MemoryFileSystem, "mv")
    publish("s3://bucket/a.bin", is_new=True, storage_options={"driver": "fsspec"})
    assert {name: file.getvalue() for name, file in completing.store.items()} == {
        "/bucket/a.bin": DATA
    }


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("driver", ["memory", "s3"])
def test_a_move_whose_answer_is_lost(
    driver: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is repeated, finds the file under its new name, and has succeeded."""
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    base = bucket.url if driver == "s3" else "memory://bucket"
    options = {f"{bucket.url}/": bucket.options}
    publish(f"{base}/a.bin", b"a", storage_options=options)
    publish(f"{base}/b.bin", b"b", storage_options=options)
    bucket.fault = first("lose", lambda method, path: method == "POST" and "delete" in path)
    lose(monkeypatch, MemoryFileSystem, "mv")
    upload.move(f"{base}/a.bin", f"{base}/b.bin", options)
    assert upload.read(f"{base}/b.bin", options)[0] == b"a"
    assert not upload.exists(f"{base}/a.bin", options)
    with raises(UploadError, f"{base}/a.bin"):
        upload.move(f"{base}/a.bin", f"{base}/b.bin", options)


@pytest.mark.usefixtures("quick_retries")
def test_a_deletion_whose_answer_is_lost() -> None:
    """The deletion is repeated, finds no file, and has succeeded."""
    publish("memory://bucket/gone.bin", b"a")
    with pytest.MonkeyPatch.context() as patch:
        lose(patch, MemoryFileSystem, "rm_file")
        upload.remove("memory://bucket/gone.bin")
    assert not upload.exists("memory://bucket/gone.bin")
    with raises(UploadError, "memory://bucket/gone.bin"):
        upload.remove("memory://bucket/gone.bin")


def lose(patch: pytest.MonkeyPatch, system: type, name: str) -> None:
    """Have a driver do what it is asked, and lose the answer to the first request."""
    method = getattr(system, name)
    errors = iter([ConnectionResetError()])

    def lost(self: object, *paths: str, **options: Any) -> None:
        method(self, *paths, **options)
        for error in errors:
            raise error

    patch.setattr(system, name, lost)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_first_upload_that_breaks_off(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the first upload of a process took, it is retried."""
    monkeypatch.setattr("wids.storage.transport.retry._answered", set())
    monkeypatch.setattr("wids.storage.transport.retry._FIRST_CONTACT_S", 0.0)
    lose(monkeypatch, MemoryFileSystem, "put_file")
    publish(f"memory://first/{is_new}.bin", b"small", is_new=is_new)
    assert MemoryFileSystem().cat(f"/first/{is_new}.bin") == b"small"


@pytest.mark.usefixtures("quick_retries")
def test_a_key_that_is_for_writing_alone(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses to say whether a file exists is one that answers."""
    monkeypatch.setattr("wids.storage.transport.retry._answered", set())
    bucket.fault = lambda method, _: 403 if method in ("HEAD", "GET") else None
    publish(f"{bucket.url}/a.bin", b"small", storage_options=bucket.options)
    assert bucket.system.cat(f"{bucket.url}/a.bin") == b"small"
