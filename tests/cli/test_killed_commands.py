"""``kill -9`` of a command that works with several processes: nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command import has_record, run
from conftest import need, sample_members, write_tar
from events import in_time, wait_for

from wids import load_spec


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of shards that take a command a second or two."""
    first = write_tar(tmp_path / "a-000.tar", sample_members(0, 3000))
    for number in range(1, 16):
        (tmp_path / f"a-{number:03d}.tar").hardlink_to(first)
    return tmp_path


def killed_at_work(is_at_work: Callable[[], bool], *arguments: object) -> list[int] | None:
    """Kill a command, but not its workers, when it is at work and has started two processes.

    Returns:
        The two; None if the command ended before.
    """
    command = [sys.executable, "-m", "wids", *map(str, arguments), "-j", "2"]
    found: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def is_ready() -> bool:
            found[:] = children(process.pid)
            return (len(found) == 2 and is_at_work()) or process.poll() is not None

        wait_for(is_ready, "the work of the command")
        process.kill()
    return found if process.returncode == -signal.SIGKILL else None


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += map(int, task.read_text().split())
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Processes that are killed after the test if it fails."""
    pids: list[int] = []
    yield pids
    for pid in filter(is_running, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_end(orphans: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, orphans)), "the end of all workers")


@pytest.mark.long
def test_workers_end_with_a_killed_create(shards: Path, orphans: list[int]) -> None:
    """The next run resumes at once, as no worker holds the journal's lock."""
    need(os.path.isdir("/proc/self/task"), "Linux, to list the workers of a process")
    output, journal = shards / "a.json", shards / "a.partial"
    command = ("create", shards, "-o", output)
    orphans += in_time(lambda: killed_at_work(lambda: has_record(journal), *command))

    status, _, err = run("create", shards, "-o", output)

    assert (status, "another process" in err) == (1, False), err  # the shards are one and the same
    assert "keys occur in several shards" in err
    assert load_spec(output).shards[15].num_samples == 3000
    wait_for_end(orphans)


@pytest.mark.long
def test_workers_end_with_a_killed_pack(tmp_path: Path, orphans: list[int]) -> None:
    """The next run resumes at once, and its shards have the same bytes."""
    need(os.path.isdir("/proc/self/task"), "Linux, to list the workers of a process")
    (tmp_path / "in").mkdir()
    for number in range(200):
        (tmp_path / "in" / f"{number}.bin").write_bytes(bytes([number % 256]) * 20_000)
    command = ["pack", tmp_path / "in", "--maxcount", "4", "-o"]
    output = tmp_path / "out"

    def kill() -> list[int] | None:
        for path in tmp_path.glob("out*"):  # if an earlier attempt came too late
            path.unlink()
        return killed_at_work((tmp_path / "out-000001.tar").exists, *command, output)

    orphans += in_time(kill)
    wait_for_end(orphans)
    assert (tmp_path / "out.partial").exists()
    assert not (tmp_path / "out.json").exists()

    status, _, err = run(*command, output, "-j", "2")

    assert (status, err) == (0, "")
    assert run(*command, tmp_path / "again", "-j", "1")[0] == 0
    for path in tmp_path.glob("out-*.tar"):
        assert path.read_bytes() == (tmp_path / path.name.replace("out", "again")).read_bytes()
    assert len(list(tmp_path.glob("out-*.tar"))) == 50
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.long
def test_workers_end_with_a_killed_verify(shards: Path, orphans: list[int]) -> None:
    """Workers that wait for a task, and workers that have one."""
    need(os.path.isdir("/proc/self/task"), "Linux, to list the workers of a process")
    command = ("verify", f"{shards}/a-{{000..015}}.tar")
    orphans += in_time(lambda: killed_at_work(lambda: True, *command))
    wait_for_end(orphans)
