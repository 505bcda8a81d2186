"""A writer that is interrupted at any place, or any of whose calls to the system fails."""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import failing, faults, interrupting, steps

from wids import ShardWriter, verify_spec
from wids.storage import locks

SAMPLES = [{"__key__": f"{n}", "txt": f"text {n}"} for n in range(4)]

pytestmark = [
    # An object that is interrupted while it is made, or left, is closed when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def write(folder: Path, if_exists: Any = "error") -> None:
    """Write two shards of two samples, their dataset index and their spec."""
    with ShardWriter(folder / "a-%d.tar", maxcount=2, if_exists=if_exists) as writer:
        for sample in SAMPLES[writer.num_samples :]:
            writer.write(sample)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, bytes]:
    """The files that an undisturbed writer leaves."""
    folder = tmp_path / "complete"
    folder.mkdir()
    write(folder)
    return contents(folder)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Empty folders."""
    return (path for n in range(10**6) if not (path := tmp_path / str(n)).mkdir())


def check(folder: Path, complete: dict[str, bytes], what: str) -> None:
    """Compare what a disturbed writer left with the law, and resume."""
    left = contents(folder)
    if any(name.endswith(".tmp") for name in left) or sys.version_info >= (3, 12):
        # Python 3.12 keeps what was interrupted while it was made, or left, in a cycle.
        gc.collect()
        left = contents(folder)
    names = set(left) - {name for name in left if name.endswith(".lock")}
    assert names <= set(complete), f"{what}: left {names}"
    assert all(left[name] == complete[name] for name in names), f"{what}: left a part of a file"
    for name in set(left) - names:
        assert locks.probe(str(folder / name)), f"{what}: {name} is locked"
    write(folder, "resume")
    assert contents(folder) == complete, f"{what}: not completed"
    assert verify_spec(folder / "a.json") == []


@pytest.mark.parametrize("step", steps(17))
def test_an_interrupt_at_any_place(
    step: int, complete: dict[str, bytes], folders: Iterator[Path]
) -> None:
    """Ctrl-C is Ctrl-C; complete shards stay, and nothing else does (SPEC-16)."""
    for fault in faults(step, at_least=300):
        folder = next(folders)
        with interrupting(fault, "publish", "storage", "shards"):
            write(folder)
        check(folder, complete, fault.where)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_any_call(
    code: int, step: int, complete: dict[str, bytes], folders: Iterator[Path]
) -> None:
    """A full or broken disk is an error; complete shards stay, and nothing else does."""
    for fault in faults(step, at_least=10):
        folder = next(folders)
        with suppress(OSError), failing(fault, code):
            write(folder)
            # A lock that fails is done without, as are hard links.
            assert contents(folder) == complete
        check(folder, complete, fault.where)
