"""Shards, dataset indexes and joined files that cannot be opened: nothing stays open."""

from __future__ import annotations

import errno
import gc
import io
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import sample_members, settle, write_tar
from events import wait_for
from faults import Fault, faults

import wids
from wids.shards import sidecars
from wids.shards.tars import shard
from wids.storage import files
from wids.storage.cache import leases

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc"
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Opens the copy of a remote shard, a changed copy, the dataset index, and a local shard."""
    # So that these small files are mapped, as larger ones are.
    monkeypatch.setattr("wids.storage.files._SMALL_NBYTES", 0)
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    path = settle(write_tar(tmp_path / "a.tar", sample_members(0, 8)))
    wids.build_spec([str(path)], dataset_index=tmp_path / "a.index")
    remote = {
        "shardlist": [{"url": "mem://host/a.tar", "nsamples": 8}],
        "index": "mem://host/a.index",
    }

    def open_file(url: str) -> io.BytesIO:
        return io.BytesIO((tmp_path / url.rpartition("/")[2]).read_bytes())

    def work() -> None:
        with wids.ShardListDataset(remote, handlers={"mem": open_file}) as dataset:
            assert dataset[3][".txt"] == "text 3"  # looks for the dataset index, to read by range
            assert [sample[".txt"] for sample in dataset][7] == "text 7"
            with sidecars.open_file(dataset.reader.store, "mem://host/a.index") as file:
                file.read()
        for copy in (tmp_path / "cache" / "shards").glob("*-a.tar"):
            os.utime(copy, ns=(0, copy.stat().st_mtime_ns + 1))
        with wids.ShardListDataset([str(path)]) as dataset:
            assert dataset[3][".txt"] == "text 3"

    work()
    return work


def descriptors() -> list[str]:
    """Return the files that this process has open."""
    gc.collect()
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if name.startswith("/") and "/proc/" not in name)


@contextmanager
def failing(fault: Fault, owner: Any, name: str) -> Iterator[None]:
    """Fail a call of a function."""
    call = getattr(owner, name)

    def fail_or_call(*arguments: Any, **options: Any) -> Any:
        if fault.is_at(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments, **options)

    replacement: Any = fail_or_call
    if isinstance(call, type):  # which `isinstance` is asked about
        replacement = type(name, (call,), {"__new__": lambda _, *a, **o: fail_or_call(*a, **o)})
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(owner, name, replacement)
        yield


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((os, "fstat"), (os, "open"), (os, "utime"), (mmap, "mmap")),
        *((leases, "FileIO"), (files, "FileIO"), (shard, "FileIO")),
    ],
)
def test_a_failure_of_any_call(owner: Any, name: str, work: Callable[[], None]) -> None:
    """If the system refuses any call, nothing stays open, which would keep copies (CACHE-7)."""
    before = descriptors()
    for fault in faults(step=1, at_least=1):
        with suppress(OSError, wids.WidsError), failing(fault, owner, name):
            work()
        # A thread that fetched may still be at its last step.
        wait_for(lambda: descriptors() == before, f"the end of all files after {fault.where}")


def test_arguments_that_are_refused_when_the_file_is_open(tmp_path: Path) -> None:
    """An error that somebody keeps, as a notebook does, keeps no file."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 8))
    before = descriptors()
    for options in ({"fields": [[]]}, {"raw": "text"}):
        with pytest.raises((TypeError, ValueError)) as caught:
            wids.Shard(path, **options)  # type: ignore[arg-type]
        assert descriptors() == before
        assert caught
