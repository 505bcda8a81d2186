"""Executors whose workers are killed in the middle of a task, and what is done on them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
from conftest import raises, sample_members, write_tar
from pages import ON_CLUSTERS

import wids
from wids import LostTaskError
from wids.cli import demo_command

NUM_SHARDS, LENGTH = 8, 10


class Doomed(Executor):
    """Another executor, on which the worker of one task is killed.

    Args:
        executor: The executor.
        number: Which task, by the order in which they are submitted.
        marker: File that is made by the first kill, after which there is no other; None to kill
            each worker that gets the task.
    """

    def __init__(self, executor: Executor, number: int, marker: Path | None = None) -> None:
        self._executor, self._number, self._marker = executor, number, marker

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._number -= 1
        if self._number == -1:
            return self._executor.submit(killed_within, self._marker, fn, *args, **kwargs)
        return self._executor.submit(fn, *args, **kwargs)


def killed_within(
    marker: Path | None, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Kill this process where it would rename a complete temporary file, or at the end."""
    if marker is not None and marker.exists():
        return function(*args, **kwargs)
    if marker is not None:
        marker.touch()
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    function(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def write_input(folder: Path) -> Path:
    """Write shards, and a folder of files; return the spec of the shards."""
    shards = []
    for number in range(NUM_SHARDS):
        members = sample_members(number * LENGTH, (number + 1) * LENGTH)
        shards.append(write_tar(folder / f"in-{number}.tar", members))
        for name, data in members:
            (folder / "files").mkdir(exist_ok=True)
            (folder / "files" / name).write_bytes(data)
    wids.build_spec(shards, name="in", dataset_index=folder / "in.index").save(folder / "in.json")
    return folder / "in.json"


def rewrite(spec: Path, folder: Path, executor: Executor | None) -> None:
    """Shuffle all samples into shards of their own."""
    with wids.ShardListDataset(spec) as dataset:
        order = np.random.default_rng(0).permutation(len(dataset))
        wids.rewrite(dataset[order], folder / "out-%06d.tar", maxcount=LENGTH, executor=executor)


def pack(spec: Path, folder: Path, executor: Executor | None) -> None:
    """Pack a folder of files."""
    wids.pack_folder(spec.parent / "files", folder / "out", maxcount=LENGTH, executor=executor)


def build(spec: Path, folder: Path, executor: Executor | None) -> None:
    """Describe the shards."""
    shards = sorted(spec.parent.glob("in-*.tar"))
    journal, index = folder / "out.partial", folder / "out.index"
    found = wids.build_spec(shards, dataset_index=index, executor=executor, journal=journal)
    found.save(folder / "out.json")
    shutil.rmtree(journal)


def verify(spec: Path, folder: Path, executor: Executor | None) -> None:
    """Verify the shards."""
    assert folder
    assert wids.verify_spec(spec, decode=True, executor=executor) == []


def table(spec: Path, folder: Path, executor: Executor | None) -> None:
    """Read a column of all samples."""
    with wids.ShardListDataset(spec) as dataset:
        found = dataset.table({"label": ".cls"}, executor=executor)
    (folder / "table").write_text(str(found.to_pydict()))


WORKS = (rewrite, pack, build, verify, table)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_works(executor: Executor, folder: Path) -> None:
    """Check what is done on a cluster; a worker is killed in the middle of rewriting."""
    (folder / "in").mkdir()
    spec, marker = write_input(folder / "in"), folder / "killed"
    for work in (rewrite, pack, build):
        expected, found = (folder / f"{work.__name__}-{n}" for n in (1, 2))
        for path in (expected, found):
            path.mkdir()
        work(spec, expected, None)

        work(spec, found, Doomed(executor, 3, marker))

        assert marker.exists(), "no worker was killed"
        assert contents(found) == contents(expected), work
    verify(spec, folder, executor)
    table(spec, folder, executor)


def check_lost_task(executor: Executor, folder: Path) -> None:
    """Check a run one of whose tasks is lost for good, and the next run."""
    (folder / "lost").mkdir()
    spec, output = folder / "in" / "in.json", folder / "lost"
    # Dask suspects whatever was on the worker that died, and may name another shard.
    with raises(LostTaskError, ".tar: expected the result of its", "complete shards are kept"):
        rewrite(spec, output, Doomed(executor, 3))
    assert not {"out-000003.tar", "out.json", "out.index"} & set(os.listdir(output))

    rewrite(spec, output, executor)

    assert contents(output) == contents(folder / "rewrite-1")


def run_block(word: str, others: dict[str, str]) -> dict[str, Any]:
    """Run the block of docs/engines.md that has a word, with other texts, in the current folder.

    Return what it defines.
    """
    (block,) = (block for block in ON_CLUSTERS if word in block.code)
    code = block.code
    for old, new in others.items():
        code = code.replace(old, new)
    demo_command.write_dataset("wids-demo")
    defined: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, f"{block.page}:{block.line}", "exec"), defined)  # noqa: S102
    (output,) = Path().glob("by-*/shapes.json")
    assert wids.verify_spec(output) == []
    return defined
