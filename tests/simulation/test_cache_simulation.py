"""The cache on a simulated computer: processes that fetch, evict, fork and are killed in any order.

Each seed is one history. In every history these laws hold:

- nobody reads wrong bytes, however long a copy stays open;
- nobody waits forever, and no error but those of the server reaches a reader;
- if the limit is exceeded, nothing is left that could have been deleted, and no copy in use is;
- while no process is stopped, a file is fetched by one process at a time;
- what killed processes left is gone after the next download, a minute later.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import IO, Any

import pytest
from fake_system import FakeFile, Inode, OpenFile, Process, System

from wids.errors import FetchError, MismatchError
from wids.storage import files, locks
from wids.storage.cache import cache_names, eviction, leases, store, verified
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache, CachedCopy
from wids.storage.download import Download, PartRequests
from wids.storage.transport import admission, retry
from wids.storage.transport.retry import Timeouts
from wids.storage.transport.schemes import Plan
from wids.storage.transport.stream import Content, Stream, TransientError

SIZE = 1000
CHUNK = 300
FOLDER = "/cache"
SHARDS = f"{FOLDER}/shards"
MODULES = (files, eviction, leases, cache_names, store, verified)


class History:
    """One run of some processes over one cache folder."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.system = System(self.rng, self.before_call)
        self.num_files = self.rng.randint(2, 6)
        self.limit = self.rng.choice([None, 2 * SIZE, 3 * SIZE, 5 * SIZE])
        self.kill_rate = self.rng.choice([0, 0.0005, 0.003])
        self.fork_rate = self.rng.choice([0, 0.002])
        self.stop_rate = self.rng.choice([0, 0, 0.0005])
        self.user_rate = self.rng.choice([0, 0, 0.001])
        self.fault_rate = self.rng.choice([0, 0.2])
        self.has_ranges = self.rng.random() < 0.7
        self.system.locks_work = self.rng.random() > 0.1
        self.versions = [0] * self.num_files
        self.fetching: dict[str, list[Process]] = {}
        self.evicting: dict[Process, Inode | None] = {}
        self.writers: dict[Inode, Process] = {}
        self.leases: set[OpenFile] = set()
        self.damaged: set[Inode] = set()
        self.system.before_unlink = self.before_unlink
        self.num_started = 0
        self.was_disturbed = False  # a process was stopped, or the user changed files
        self.is_over = False

    # What happens to the processes.

    def before_call(self, _: str) -> None:
        """Decide what happens at a system call."""
        if self.is_over:
            return
        rng, system, victims = self.rng, self.system, self.victims()
        if victims and rng.random() < self.kill_rate:
            victim = rng.choice(victims)
            system.trace.append(f"-- {victim.name} is killed")
            system.kill(victim)
            if self.num_started < 12:
                self.start()
        if rng.random() < self.fork_rate and self.num_started < 12:
            self.fork(rng.choice(self.victims() or [None]))
        if victims and rng.random() < self.stop_rate:
            process = rng.choice(victims)
            process.wakes_at_s = system.now_s + rng.choice([1, 10, 100])
            self.was_disturbed = True
            system.trace.append(f"-- {process.name} is stopped")
        if rng.random() < self.user_rate:
            self.disturb()

    def victims(self) -> list[Process]:
        """Return the processes that run, but for the one that looks at the end."""
        return [p for p in self.system.living() if p.name != "last"]

    def disturb(self) -> None:
        """Do what a user may do: publish a new version, set the clock, damage a copy."""
        kind = self.rng.choice(["publish", "clock", "truncate"])
        self.system.trace.append(f"-- {kind}")
        if kind == "publish":
            self.versions[self.rng.randrange(self.num_files)] += 1
        elif kind == "clock":
            shift_s = self.rng.choice([-1000, 1000, 100_000, -100_000])
            self.system.clock_shift_s += shift_s
            self.was_disturbed |= abs(shift_s) > 86_400  # then files look a day old
        else:
            self.was_disturbed = True
            copies = [i for path, i in self.system.entries.items() if path.endswith(".tar")]
            for inode in copies:
                if not inode.num_open:
                    del inode.data[self.rng.randrange(SIZE) :]
                    self.damaged.add(inode)

    def start(self) -> None:
        """Start a process that opens some copies."""
        self.num_started += 1
        cache = self.cache()
        self.system.start(f"p{self.num_started}", lambda: self.work(cache))

    def fork(self, parent: Process | None) -> None:
        """Start a child that holds what its parent has open, and reads it for a while."""
        if parent is None:
            return
        self.num_started += 1
        inodes = {h: file.inode for h, file in parent.handles.items()}
        dropped = {file.fileno() for file in locks._held} & inodes.keys()
        contents = {
            handle: bytes(inode.data)
            for handle, inode in inodes.items()
            if len(inode.locks) and not any(inode.locks.values()) and handle not in dropped
        }

        def read() -> None:
            for _ in range(self.rng.randint(1, 5)):
                self.system.sleep(self.rng.choice([0.1, 5, 500_000]))
                for handle, data in contents.items():
                    if handle in child.handles:
                        assert child.handles[handle].inode.data == data, "a lease changed"

        child = self.system.start(f"p{self.num_started}-child-of-{parent.name}", read, parent)
        for handle in dropped & child.handles.keys():  # as `locks._drop_locks` does
            self.system._close(child, handle)
        self.system.trace.append(f"-- {parent.name} forks {child.name}")

    # What the processes do.

    def cache(self) -> Cache:
        fetcher: Any = SimpleNamespace(save=self.save)
        return Cache(FOLDER, fetcher, limit_nbytes=self.limit, wants_progress=False)

    def body(self, number: int, version: int) -> bytes:
        return f"{number}:{version};".encode().ljust(SIZE, b"x")

    def file(self, number: int) -> tuple[RemoteFile, set[bytes]]:
        """Return a file of the server, as a spec may state it, and the bytes that it may have."""
        version = self.versions[number]
        body = self.body(number, version)
        stated = self.rng.choice([{}, {"nbytes": SIZE}, {"sha256": digest(body)}])
        url = f"http://host/{number}.tar"
        # Without a digest, a version that is published after the spec was read is as good.
        later = set() if "sha256" in stated else {self.body(number, version + n) for n in range(99)}
        return RemoteFile(url, **stated, version=str(version)), {body} | later  # type: ignore[arg-type]

    def work(self, cache: Cache) -> None:
        held: list[tuple[CachedCopy, set[bytes]]] = []
        for _ in range(self.rng.randint(1, 8)):
            action = self.rng.random()
            with suppress(FetchError, MismatchError):
                remote_file, bodies = self.file(self.rng.randrange(self.num_files))
                if action < 0.7:
                    held.append((self.open(cache, remote_file, held), bodies))
                elif action < 0.85:
                    cache.fetch(remote_file, index_of, lambda *_: None)
                elif action < 0.9:
                    eviction.clear(eviction.clearable(FOLDER))
                else:
                    self.system.sleep(self.rng.choice([0.001, 1, 70, 70]))
            while held and self.rng.random() < 0.4:
                self.check(*held[0])
                held.pop(0)[0].file.close()
            for copy, content in held:
                self.check(copy, content)
        for copy, _ in held:
            copy.file.close()

    def open(
        self, cache: Cache, remote_file: RemoteFile, held: list[tuple[CachedCopy, set[bytes]]]
    ) -> CachedCopy:
        def make_room() -> None:
            if held:
                held.pop(0)[0].file.close()

        start_s, was_disturbed = self.system.now_s, self.was_disturbed
        try:
            copy = cache.open(remote_file, index_of, make_room)
            while self.system.file(copy.file.fileno()).inode in self.damaged:  # its index says so
                copy.file.close()
                cache.discard(remote_file)
                copy = cache.open(remote_file, index_of, make_room)
        except FetchError as error:
            is_of_server = "server" in str(error) or "expected" in str(error)
            # Three times in a row it was evicted before it could be leased: rare, but no mistake.
            is_evicted = self.limit is not None and "evicted" in str(error)
            # Twice the clock was set by days, so that a file looked old while it was written.
            is_swept = self.was_disturbed and "No such file" in str(error)
            if not (is_of_server or is_evicted or is_swept):
                raise AssertionError(repr(error)) from error
            raise
        finally:
            took_s = self.system.now_s - start_s
            assert was_disturbed or self.was_disturbed or took_s < 100, "waited too long"
        self.leases.add(self.system.file(copy.file.fileno()))
        return copy

    def check(self, copy: CachedCopy, bodies: set[bytes]) -> None:
        """A copy has the bytes of the version that was asked for."""
        self.system.call("pread")
        found = bytes(self.system.file(copy.file.fileno()).inode.data)
        assert found in bodies, f"{copy.path}: found {len(found)} bytes: {found[:8]!r}…"

    def save(
        self, url: str, file: IO[bytes], expected: Any, report: Any, *, is_ahead: bool
    ) -> None:
        """Stand for `Fetcher.save`, with the real comparison of what arrives."""
        process = self.system.current
        assert process is not None
        others = self.fetching.setdefault(file.name.rsplit(".", 2)[0], [])
        others[:] = [other for other in others if not other.is_killed]
        if self.system.locks_work and not self.was_disturbed:
            assert not others, f"{url} is fetched twice at once"
        others.append(process)
        self.writers[self.system.file(file.fileno()).inode] = process
        try:
            download = Download(url, file, expected, report)
            transport: Any = SimpleNamespace(by_http=lambda _: None)
            plan = Plan(url, transport, Timeouts("http://server", 5.0), may_hedge=False)
            transports: Any = SimpleNamespace(open=self.open_url, plan=lambda _: plan)
            PartRequests(transports, download, is_ahead=is_ahead).run()
            download.verify()
        finally:
            if process in others:
                others.remove(process)

    def open_url(self, url: str, start: int, _: None, tag: str | None, **__: object) -> Stream:
        """Return what the server sends: all, the rest, or less than that."""
        number = int(url.rpartition("/")[2].removesuffix(".tar"))
        version = self.versions[number]
        body, total, found = self.body(number, version), self.rng.choice([None, SIZE]), None
        if self.has_ranges:
            total, found = SIZE, f'"{version}"'
        if not self.has_ranges or tag not in (None, found):
            start = 0
        sent = body[start:]
        if self.rng.random() < self.fault_rate:
            if total is not None and self.rng.random() < 0.7:
                sent = sent[: self.rng.randrange(len(sent))]
            else:
                raise TransientError("the server is busy")

        def chunks() -> Iterator[bytes]:
            for at in range(0, len(sent), CHUNK):
                self.system.sleep(self.rng.choice([0, 0.01, 1]))
                yield sent[at : at + CHUNK]

        return Stream(Content(start, total, found), chunks())

    # Laws.

    def counted(self) -> dict[str, Inode]:
        """Return the files that count for the limit, but for indexes."""
        return {
            path: inode
            for path, inode in self.system.entries.items()
            if path.startswith(f"{SHARDS}/") and not path.endswith(".index")
            if ".index." not in path
        }

    def make_space(self, folder: str, file: IO[bytes], nbytes: int, *others: Any) -> int:
        """Check the limit after what `eviction.make_space` did."""
        since, start_ns = self.system.num_calls, self.system.now_ns()
        excess = make_space(folder, file, nbytes, *others)
        if self.limit is not None and self.system.locks_work and not self.was_disturbed:
            counted = self.counted()
            total = sum(len(inode.data) for inode in counted.values())
            # A piece of unknown length is written before space for the next is reserved.
            total -= CHUNK * sum("/." in path for path in counted)
            times_ns = (start_ns, self.system.now_ns())
            deletable = [
                path
                for path, inode in counted.items()
                if not inode.num_open
                and inode.used_at < since
                and ("/." not in path or all(abs(t - inode.mtime_ns) > 6.1e10 for t in times_ns))
            ]
            assert total <= self.limit or not deletable, f"{total} bytes, with {deletable}"
        return excess

    def delete_if_unused(self, path: str) -> bool:
        """Note that a process evicts, for `before_unlink`."""
        process = self.system.current
        assert process is not None
        self.evicting[process] = self.system.entries.get(path)
        try:
            return delete_if_unused(path)
        finally:
            del self.evicting[process]

    def before_unlink(self, inode: Inode) -> None:
        """Check that what is evicted is not in use."""
        process = self.system.current
        assert process is not None
        is_evicted = self.evicting.get(process) is inode
        if is_evicted and self.system.locks_work and not self.was_disturbed:
            in_use = [file for file in self.leases if file.num_handles and file.inode is inode]
            assert not in_use, "a file was evicted while it was in use"
        if self.system.locks_work and not self.was_disturbed:
            writer = self.writers.get(inode)
            is_written = writer and any(f in inode.locks for f in writer.handles.values())
            assert writer is process or not is_written, "a file was deleted while it was written"

    def finish(self) -> None:
        """Fetch a file a minute after the others have ended, and look at what is left.

        Children of processes that were killed may be alive.
        """
        others = lambda: {p for p in self.victims() if "child" not in p.name}  # noqa: E731
        while others():
            self.system.sleep(50)
        self.is_over = True
        # Where locks do not work, files are swept after a day.
        self.system.sleep(100 if self.system.locks_work else 200_000)
        self.fault_rate = 0
        cache = self.cache()
        remote_file = RemoteFile("http://host/0.tar", version="last")
        cache.open(remote_file, index_of).file.close()
        left = [path for path in self.system.entries if path.startswith(f"{SHARDS}/.")]
        assert left == [], "temporary files are left"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def index_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return b"index of " + file.read(8)


flock = System.flock
make_space, save_total = eviction.make_space, eviction.save_total
delete_if_unused = leases.delete_if_unused


@contextmanager
def simulated(history: History) -> Iterator[None]:
    """Put the simulated system in place of the real one, for the modules of the cache."""
    system = history.system
    with pytest.MonkeyPatch.context() as patch:
        for module in (*MODULES, locks):
            for name in ("os", "time", "shutil"):
                if hasattr(module, name):
                    patch.setattr(module, name, getattr(system, name))
        fake_open = lambda path, mode, opener=None: FakeFile(system, path, mode, opener)  # noqa: E731
        for module in (files, eviction):
            patch.setattr(module, "open", fake_open, raising=False)
        for module in (cache_names, files, leases, locks):
            patch.setattr(
                module, "FileIO", lambda path, _="r", opener=None: fake_open(path, "r", opener)
            )
        patch.setattr(locks, "_held", set())
        patch.setattr(locks, "_no_fork", nullcontext())  # no call in it can be interrupted
        patch.setattr(
            locks, "acquire", lambda h, is_shared=False: system.flock(h, is_exclusive=not is_shared)
        )
        patch.setattr(locks, "release", system.unlock)
        patch.setattr(locks, "lock_file", system.lock_file)
        patch.setattr(leases, "_PATIENCE_S", 20.0)
        patch.setattr(files, "flushed_early", nullcontext)
        patch.setattr(retry, "random", history.rng)
        patch.setattr(retry, "time", system.time)
        patch.setattr(retry, "_pause", lambda wait_s, _: system.sleep(wait_s))
        patch.setattr(admission, "_LONGEST_PAUSE_S", 0.0)
        patch.setattr(cache_names, "default_folder", lambda: "/home")
        patch.setattr(eviction, "make_space", history.make_space)
        patch.setattr(eviction, "delete_if_unused", history.delete_if_unused)
        patch.setattr(
            files,
            "secrets",
            SimpleNamespace(token_hex=lambda n: f"{history.rng.getrandbits(8 * n):0{2 * n}x}"),
        )
        yield


def run(seed: int) -> None:
    """Run one history."""
    history = History(seed)
    try:
        with simulated(history):
            for _ in range(history.rng.randint(2, 5)):
                history.start()
            history.system.start("last", history.finish)
            history.system.run()
    except BaseException as error:
        trace = "\n".join(history.system.trace)
        raise AssertionError(f"seed {seed}: {error!r}\n{trace}") from error


def run_seeds(seeds: range) -> None:
    """Run one history after the other."""
    for seed in seeds:
        run(seed)


@contextmanager
def one_processor() -> Iterator[None]:
    """Run on one processor: of the threads of a history one runs at a time, and others wait."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of warnings of the cache would fill the memory."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_cache_in_many_histories() -> None:
    """Eighty histories keep the laws (CACHE-3, 5, 7, 8, 10 and 25)."""
    run_seeds(range(80))


@pytest.mark.seeds
def test_the_cache_in_thousands_of_histories() -> None:
    """Ten thousand histories keep the laws."""
    with one_processor():
        run_seeds(range(1000, 11_000))


def test_a_history_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed determines the whole history, so that a failure can be looked at again."""
    traces = []
    finish = History.finish
    monkeypatch.setattr(
        History, "finish", lambda self: (finish(self), traces.append(list(self.system.trace)))
    )
    for _ in range(2):
        run(7)
    assert traces[0] == traces[1] != []


@contextmanager
def _no_lock(path: str) -> Iterator[bool]:
    locks.os.stat(path)
    yield True


def _no_shared_lock(system: System, handle: int, *, is_exclusive: bool) -> bool | None:
    return flock(system, handle, is_exclusive=True) if is_exclusive else True


@contextmanager
def _holding_in_children_too(path: str) -> Iterator[Any]:
    with locks.open_to_lock(path) as file:
        yield locks.acquire(file.fileno())
        locks.release(file.fileno())


@contextmanager
def _no_turn(*_: object, **__: object) -> Iterator[bool]:
    yield True


@contextmanager
def _write_in_place(path: str, **_: object) -> Iterator[Any]:
    with suppress(FileNotFoundError):
        files.os.unlink(path)
    with files.open(path, "x+b", opener=files.os.open) as file:
        yield file


MUTANTS = [
    pytest.param(locks, "holding", _no_lock, id="nothing is locked exclusively"),
    pytest.param(
        *(locks, "holding", _holding_in_children_too),
        id="children inherit locks",
        marks=pytest.mark.long,
    ),
    pytest.param(store, "turn", _no_turn, id="all fetch at once"),
    pytest.param(System, "flock", _no_shared_lock, id="leases are not locked"),
    pytest.param(files, "replacing", _write_in_place, id="files are written in place"),
    pytest.param(files, "_ABANDONED_S", -1.0, id="unlocked files are swept at once"),
    pytest.param(files, "delete_if_abandoned", lambda *_: False, id="nothing is swept"),
    pytest.param(files.locks, "probe", lambda _: True, id="sweeping looks at no lock"),
    pytest.param(
        *(eviction, "save_total", lambda f, total: save_total(f, total._replace(nbytes=0))),
        id="the total does not count what is held",
    ),
    pytest.param(
        *(eviction, "save_total", lambda f, total: eviction.load_total(f) or save_total(f, total)),
        id="the total does not count what is fetched",
    ),
    pytest.param(eviction, "_evicted", lambda _: 0, id="nothing is evicted"),
    pytest.param(Download, "verify", lambda _: None, id="digests are not compared"),
    pytest.param(Download, "compare", lambda *_: None, id="versions are not compared"),
]


@pytest.mark.long
@pytest.mark.parametrize(("module", "name", "mutant"), MUTANTS)
def test_a_broken_cache_is_found(
    module: Any, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws are not empty: each of these mistakes breaks one in some history."""
    simulated_system = simulated

    @contextmanager
    def simulated_mistake(history: History) -> Iterator[None]:
        with simulated_system(history), pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, mutant)
            yield

    monkeypatch.setitem(globals(), "simulated", simulated_mistake)
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(range(1000))
