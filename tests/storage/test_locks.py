"""Exclusive locks by filelock and shared ones by flock: one kind, released by the kernel."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from conftest import in_child

from wids.storage import locks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to lock."""
    path = tmp_path / "a.lock"
    path.touch()
    return path


@pytest.fixture
def handles(path: Path) -> Iterator[list[int]]:
    """Two openings of that file."""
    handles = [os.open(path, os.O_RDWR) for _ in range(2)]
    yield handles
    for handle in handles:
        os.close(handle)


def held(path: Path, timeout_s: float = 0) -> bool | None:
    """Return what a process that wants the lock file now is told."""
    with locks.lock_file(str(path), mode=0o600, timeout_s=timeout_s) as is_held:
        return is_held


def test_exclusive_and_shared_locks_are_one_kind(path: Path, handles: list[int]) -> None:
    """Shared locks admit each other; each way to lock exclusively keeps all others out."""
    first, second = handles
    assert locks.probe(str(path))
    assert locks.acquire(first, is_shared=True)
    assert locks.acquire(second, is_shared=True)
    assert locks.acquire(first) is False
    assert held(path) is False
    assert not locks.probe(str(path))
    locks.release(second)
    assert locks.acquire(first)
    assert locks.acquire(second, is_shared=True) is False
    assert held(path) is False
    locks.release(first)
    with locks.lock_file(str(path), mode=0o600) as is_held:
        assert is_held is True
        assert locks.acquire(first) is False
        assert locks.acquire(second, is_shared=True) is False
    assert locks.acquire(first)


def test_a_closed_handle_has_no_lock(path: Path, tmp_path: Path) -> None:
    """Like a file system without locks, it answers None; a missing file has no working lock."""
    handle = os.open(path, os.O_RDWR)
    os.close(handle)
    assert locks.acquire(handle) is None
    assert locks.acquire(handle, is_shared=True) is None
    assert not locks.probe(str(tmp_path / "absent"))


def test_a_kill_releases_every_lock(path: Path, handles: list[int]) -> None:
    """Nothing outlives the process: no lock, and no marker that stands for one."""
    code = (
        "import os, sys, time\n"
        "from wids.storage import locks\n"
        "with locks.lock_file(sys.argv[1], mode=0o600) as is_held:\n"
        "    handle = os.open(sys.argv[1] + '2', os.O_RDWR | os.O_CREAT)\n"
        "    print(is_held, locks.acquire(handle), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True True\n"
        assert held(path) is False
        assert locks.acquire(handles[0]) is False
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert held(path) is True
    assert locks.probe(f"{path}2")
    assert sorted(os.listdir(path.parent)) == ["a.lock", "a.lock2"]


def test_a_forked_process_does_not_keep_a_lock_file(path: Path) -> None:
    """A worker that is forked during a download does not hold its lock, nor can it release it."""
    with ExitStack() as stack:
        assert stack.enter_context(locks.lock_file(str(path), mode=0o600)) is True
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(theirs)
            stack.close()  # as if the child left the block too
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        assert held(path) is False
    assert held(path) is True
    os.close(theirs)
    os.waitpid(child, 0)
    assert in_child(lambda: held(path) is True)


def test_a_forked_process_does_not_hold_a_held_file(path: Path, handles: list[int]) -> None:
    """It neither keeps the lock nor releases it: it does not have the file."""
    with ExitStack() as stack:
        assert stack.enter_context(locks.holding(str(path))) is True
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(theirs)
            stack.close()
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        assert locks.acquire(handles[0]) is False
    assert locks.acquire(handles[0]) is True
    os.close(theirs)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_drops_locks_beside_a_closed_file(
    path: Path, handles: list[int], tmp_path: Path
) -> None:
    """An interrupt can leave a closed file among the held ones, while its traceback exists."""
    other = tmp_path / "b.lock"
    other.touch()
    closed = locks.open_to_lock(str(other))
    locks._held.add(closed)
    closed.close()
    try:
        with locks.holding(str(path)) as is_held:
            assert is_held
            assert in_child(lambda: locks.acquire(handles[0]) is False and not locks._held)
    finally:
        locks._held.discard(closed)


def test_a_forked_process_drops_locks_without_a_free_descriptor(path: Path) -> None:
    """Its parent may have as many files open as a process can have."""
    resource = pytest.importorskip("resource")
    limits, fillers = resource.getrlimit(resource.RLIMIT_NOFILE), []
    with locks.holding(str(path)):
        (file,) = locks._held
        most = max(map(int, os.listdir("/dev/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    fillers.append(os.open(os.devnull, os.O_RDONLY))
            assert in_child(lambda: stat.S_ISCHR(os.fstat(file.fileno()).st_mode))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for filler in fillers:
                os.close(filler)


def test_waiting_for_a_lock_file(path: Path, handles: list[int]) -> None:
    """It ends with the lock, with the time, or when there is no use in it."""
    locks.acquire(handles[0])
    start_s = time.monotonic()
    assert held(path, timeout_s=0.2) is False
    assert 0.2 <= time.monotonic() - start_s < 5
    asked = []

    def give_up() -> bool:
        asked.append(1)
        return len(asked) == 3

    with locks.lock_file(str(path), mode=0o600, timeout_s=60, give_up=give_up) as is_held:
        assert is_held is False
    assert len(asked) == 3

    def let_go() -> bool:
        locks.release(handles[0])
        return False

    with locks.lock_file(str(path), mode=0o600, timeout_s=60, give_up=let_go) as is_held:
        assert is_held is True


def test_the_mode_of_a_new_lock_file(tmp_path: Path) -> None:
    """The stated mode counts, whatever the umask."""
    before = os.umask(0o077)
    try:
        with locks.lock_file(str(tmp_path / "new.lock"), mode=0o660) as is_held:
            assert is_held is True
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.lock").stat().st_mode) == 0o660


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_locks_that_fail(
    path: Path, handles: list[int], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Every lock answers None, and no marker file takes the lock's place."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    assert held(path) is None
    assert held(path.with_name("new.lock")) is None
    assert locks.acquire(handles[0]) is None
    assert locks.acquire(handles[0], is_shared=True) is None
    with locks.holding(str(path)) as is_held:
        assert is_held is None
    assert not locks.probe(str(path))
    locks.release(handles[0])
    assert {p.name for p in path.parent.iterdir()} <= {"a.lock", "new.lock"}
    assert held(path, timeout_s=60) is None


def test_places_without_lock_files(tmp_path: Path, path: Path) -> None:
    """A folder that cannot be made, and a link, answer None; the link is not followed."""
    assert held(path / "below-a-file.lock") is None
    link = tmp_path / "link.lock"
    link.symlink_to(tmp_path / "target")
    assert held(link) is None
    if os.path.isdir("/proc"):
        assert held(Path("/proc/new.lock")) is None
    assert not (tmp_path / "target").exists()


def test_without_flock(path: Path, handles: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no locks, everything works without them."""
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "REFUSES_DELETION", False)
    assert held(path) is None
    assert locks.acquire(handles[0]) is None
    assert locks.acquire(handles[0], is_shared=True) is None
    locks.release(handles[0])
    assert not locks.probe(str(path))
