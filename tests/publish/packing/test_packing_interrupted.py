"""Packing that is killed, interrupted at any place, or meets a full disk, and is resumed."""

from __future__ import annotations

import errno
import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises
from faults import failing, faults, interrupting, steps
from trees import contents, make_tree

from wids import FetchError, ShardListDataset, pack_folder, verify_spec
from wids.publish.packing import packed_folder

pytestmark = [
    # An object that is interrupted while it is made, or left, is closed when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "in", {f"{n}.txt": f"text {n}" for n in range(4)})


@pytest.fixture
def complete(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files that an undisturbed run leaves."""
    pack(source, tmp_path / "complete")
    return contents(tmp_path / "complete")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(n) for n in range(10**6))


def pack(source: Path, folder: Path, executor: Executor | None = None, **options: Any) -> None:
    """Write two shards of two samples, their dataset index and their spec."""
    pack_folder(source, folder / "out", maxcount=2, executor=executor, **options)


def check(source: Path, folder: Path, complete: dict[str, bytes], what: str) -> None:
    """What is there under a final name is complete; the same call does the rest."""
    if folder.exists():
        left = contents(folder)
        if any(name.endswith(".tmp") for name in left):
            # Python 3.12 keeps what was interrupted while it was made, or left, in a cycle.
            gc.collect()
            left = contents(folder)
        journal = {name for name in left if name.startswith("out.partial/")}
        final = {name for name in left.keys() - journal if not name.endswith((".lock", ".tmp"))}
        assert final <= set(complete), f"{what}: left {final}"
        assert all(left[name] == complete[name] for name in final), f"{what}: a part of a file"
        assert not [name for name in left if name.endswith(".tmp")], f"{what}: left {set(left)}"
        is_empty = journal <= {"out.partial/lock", "out.partial/plan"}
        assert is_empty or "out-000000.tar" in left, f"{what}: a journal of nothing"
        if final == set(complete) and "out.partial/plan" not in left:
            return  # interrupted after the last step, perhaps with locks and records left
    pack(source, folder)
    assert contents(folder) == complete, f"{what}: not completed"
    assert verify_spec(folder / "out.json") == []


@pytest.mark.parametrize("step", steps(31))
def test_an_interrupt_at_any_place(
    step: int, source: Path, complete: dict[str, bytes], folders: Iterator[Path]
) -> None:
    """Ctrl-C is Ctrl-C; complete shards and the journal stay, and nothing else."""
    for fault in faults(step, at_least=300):
        folder = next(folders)
        with interrupting(fault, "publish", "storage", "shards"):
            pack(source, folder)
        check(source, folder, complete, fault.where)


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_any_call(
    code: int, step: int, source: Path, complete: dict[str, bytes], folders: Iterator[Path]
) -> None:
    """A full or broken disk is an error; complete shards stay, and are not written again."""
    for fault in faults(step, at_least=10):
        folder = next(folders)
        with suppress(OSError), failing(fault, code):
            pack(source, folder)
            # A lock that fails is done without, as are hard links.
            assert contents(folder) == complete
        check(source, folder, complete, fault.where)


@pytest.mark.parametrize(
    "name",
    [
        *("link", "unlink"),
        *(pytest.param(n, marks=pytest.mark.long) for n in ("open", "replace", "fsync", "mkdir")),
    ],
)
@pytest.mark.parametrize("is_after", [False, True])
def test_a_kill_at_any_step(
    name: str, is_after: bool, source: Path, complete: dict[str, bytes], folders: Iterator[Path]
) -> None:
    """``kill -9`` before or after each step: the next run makes the same bytes."""
    for number in range(1, 100):
        folder = next(folders)
        if _survives(source, folder, name, number, is_after=is_after):
            assert contents(folder) == complete
            break
        left = contents(folder) if folder.exists() else {}
        if not left.keys() >= complete.keys() or "out.partial/plan" in left:
            pack(source, folder)
        elif (folder / "out.partial").exists():
            with raises(FileExistsError, "already exists"):  # the rest of a journal goes
                pack(source, folder)
        # Unfinished specs and dataset indexes are deleted once they are a minute old (SPEC-16).
        found = {
            name: data
            for name, data in contents(folder).items()
            if name[0] != "." or name.startswith(".out-000")
        }
        assert found == complete, f"killed at {name} {number}"
    assert number > 1


def _survives(source: Path, folder: Path, name: str, number: int, *, is_after: bool) -> bool:
    """Dataset index in a process that is killed at the n-th call of a function of the system."""
    call = getattr(os, name)
    calls = 0

    def count_and_call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **options)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def work() -> bool:
        setattr(os, name, count_and_call)
        pack(source, folder)
        return True

    return in_child(work)


def test_complete_shards_are_not_written_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure only what is missing is written, on any executor."""
    write = packed_folder.write_shard
    written: list[str] = []
    fails = True

    def write_or_fail(task: Any, **options: Any) -> Any:
        if fails and task.path.endswith("1.tar"):
            raise OSError("a broken disk")
        written.append(os.path.basename(task.path))
        return write(task, **options)

    monkeypatch.setattr(packed_folder, "write_shard", write_or_fail)
    for number, executor in enumerate((None, ThreadPoolExecutor(1))):
        folder = tmp_path / str(number)
        fails = True
        with raises(OSError, "a broken disk"):
            pack(source, folder, executor)
        assert sorted(os.listdir(folder)) == ["out-000000.tar", "out.partial"]
        assert written == ["out-000000.tar"]
        fails = False
        pack(source, folder, executor)
        assert written == ["out-000000.tar", "out-000001.tar"]
        assert sorted(contents(folder)) == [
            "out-000000.tar",
            "out-000001.tar",
            "out.index",
            "out.json",
        ]
        written.clear()
        if executor is not None:
            executor.shutdown()


def interrupted_run(source: Path, folder: Path) -> None:
    """Leave the first shard and the journal."""

    def work() -> bool:
        write = packed_folder.write_shard

        def write_or_die(task: Any, **options: Any) -> Any:
            if task.path.endswith("1.tar"):
                os.kill(os.getpid(), signal.SIGKILL)
            return write(task, **options)

        packed_folder.write_shard = write_or_die  # type: ignore[assignment]
        pack(source, folder)
        return True

    assert not in_child(work)
    assert sorted(n for n in os.listdir(folder) if n[0] != ".") == ["out-000000.tar", "out.partial"]


@pytest.mark.parametrize("change", ["file", "options", "another folder", "touched"])
def test_a_journal_of_other_files_or_options(change: str, source: Path, tmp_path: Path) -> None:
    """Shards of two datasets are never mixed: an error, or everything anew on request."""
    folder = tmp_path / "new"
    interrupted_run(source, folder)
    left = contents(folder)
    options: dict[str, Any] = {}
    if change == "file":
        for path in source.iterdir():
            path.write_text("other")
    elif change == "touched":
        for path in source.iterdir():
            os.utime(path, (1, 1))
    elif change == "options":
        options = {"seed": 5}
    else:
        source = make_tree(tmp_path / "b", {f"{n}.txt": f"text {n}" for n in range(4)})
    with raises(FileExistsError, "out.partial: is of an interrupted run", "--replace"):
        pack(source, folder, **options)
    assert {n: d for n, d in contents(folder).items() if not n.endswith(".lock")} == {
        n: d for n, d in left.items() if not n.endswith(".lock")
    }

    pack(source, folder, **options, if_exists="replace")
    pack(source, tmp_path / "fresh", **options)

    assert contents(folder) == contents(tmp_path / "fresh")


def test_a_shard_that_changed_since_is_written_again(source: Path, tmp_path: Path) -> None:
    """A shard in the journal counts only as long as it is the one that was written."""
    interrupted_run(source, tmp_path / "new")
    (tmp_path / "new" / "out-000000.tar").unlink()
    pack(source, tmp_path / "new")
    assert verify_spec(tmp_path / "new" / "out.json") == []


def test_a_shard_that_was_edited_since_is_not_published(source: Path, tmp_path: Path) -> None:
    """Its digest would be that of other bytes, also where its time was kept."""
    interrupted_run(source, tmp_path / "new")
    shard = tmp_path / "new" / "out-000000.tar"
    status, data = shard.stat(), shard.read_bytes()
    shard.write_bytes(data.replace(b"text", b"TEXT"))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with raises(FileExistsError, "out-000000.tar: expected no file", "move it away"):
        pack(source, tmp_path / "new")
    shard.write_bytes(data)
    pack(source, tmp_path / "new")
    assert verify_spec(tmp_path / "new" / "out.json") == []


def test_a_spec_of_something_else_beside_a_journal(source: Path, tmp_path: Path) -> None:
    """A spec that came up since the interruption is not overwritten."""
    interrupted_run(source, tmp_path / "new")
    (tmp_path / "new" / "out.json").write_text("mine")
    with raises(FileExistsError, "out.json: already exists"):
        pack(source, tmp_path / "new")
    assert (tmp_path / "new" / "out.json").read_text() == "mine"


def test_readers_find_no_spec_while_shards_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails leaves no mixture, and one that replaced nothing the dataset."""
    source = make_tree(tmp_path / "in", {f"{n}.txt": "old" for n in range(3)})
    pack_folder(source, tmp_path / "out", maxcount=1, seed=None)
    old = (tmp_path / "out.json").read_bytes()
    make_tree(source, {"0.txt": "newer", "1.txt": "newer", "2.txt": "newer"})

    cut = packed_folder.cut

    def fail(at: str) -> None:
        def late(*plan: Any) -> Any:  # the folder has been listed
            os.truncate(source / at, 1)
            return cut(*plan)

        with monkeypatch.context() as patched:
            patched.setattr(packed_folder, "cut", late)
            with pytest.raises(FetchError):
                pack_folder(source, tmp_path / "out", maxcount=1, seed=None, if_exists="replace")
        (source / at).write_text("newer")

    fail("0.txt")
    assert (tmp_path / "out.json").read_bytes() == old
    fail("1.txt")
    assert not (tmp_path / "out.json").exists()
    assert (tmp_path / "out.json.replaced").read_bytes() == old
    pack_folder(source, tmp_path / "out", maxcount=1, seed=None, if_exists="replace")
    assert not (tmp_path / "out.json.replaced").exists()
    with ShardListDataset(tmp_path / "out.json") as dataset:
        assert [sample[".txt"] for sample in dataset] == ["newer"] * 3
