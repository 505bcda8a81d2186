"""What all tests share: small shards, a loopback server, and a watch over leaks.

Helpers make tars with the standard library, never with wids, so that a mistake in wids cannot hide
itself.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.metadata
import io
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import pytest
from loopback import Server

from wids.storage import stages
from wids.storage.transport.admission import Admission
from wids.storage.transport.retry import Attempts

if TYPE_CHECKING:
    from s3 import Bucket
    from tabs import Chromium

# A case may take any time: one of 10 ms took more than the 200 allowed, on a busy machine. So may
# its making: hypothesis 6.100 allows a second for all of the first ten.
hypothesis.settings.register_profile(
    "wids",
    max_examples=25,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("wids")

# On a busy machine any request may take a second, and be sent twice; tests count requests. Also in
# processes that a fixture of a module starts.
os.environ["WIDS_HEDGE"] = "0"
# The tests start hundreds of processes, each of which would compile wids.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of torch spin while they wait for each other. Where several processes test at a time,
    # they took ten times as long as one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

Member = tuple[str, bytes]
_folder_numbers = itertools.count()


def write_tar(path: Path, members: Iterable[Member], tar_format: int = tarfile.PAX_FORMAT) -> Path:
    """Write members into a tar with the standard library."""
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def sample_members(start: int, stop: int) -> list[Member]:
    """Return the members of small samples: a text and a class for each number."""
    return [
        member
        for number in range(start, stop)
        for member in [
            (f"s{number:05d}.txt", f"text {number}".encode()),
            (f"s{number:05d}.cls", str(number % 10).encode()),
        ]
    ]


def write_shards(folder: Path, lengths: Iterable[int]) -> Path:
    """Write shards of small samples and their spec; return the path of the spec."""
    shardlist = []
    start = 0
    for number, length in enumerate(lengths):
        write_tar(folder / f"train-{number:06d}.tar", sample_members(start, start + length))
        shardlist.append({"url": f"train-{number:06d}.tar", "nsamples": length})
        start += length
    spec = folder / "train.json"
    spec.write_text(json.dumps({"wids_version": 1, "name": "train", "shardlist": shardlist}))
    return spec


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """The spec of 20 samples in shards of 8, 5 and 7."""
    return write_shards(tmp_path, [8, 5, 7])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 100 kB."""
    need(os.geteuid() == 0 and shutil.which("mount"), "root, to mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(tmp_path)]
    need(subprocess.run(mount, check=False).returncode == 0, "a machine that lets root mount")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def need(what: object, reason: str) -> None:
    """Skip if something is missing on a contributor's machine; fail in CI, which should have it."""
    if not what:
        miss(reason)


def optional(module: str) -> ModuleType:
    """Return a module of an optional package; without it skip, or fail in CI."""
    try:
        return importlib.import_module(module)
    except ImportError:
        miss(f"pip install {module.partition('.')[0]}")


def need_weights() -> None:
    """Skip where torch is too old to read weights safely, so that the library refuses them."""
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    need((int(major), int(minor)) >= (2, 6), "torch 2.6 or later")


def miss(reason: str) -> NoReturn:
    """Skip, or fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"CI has to provide it: {reason}")
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Ctrl-C reaches what tests start; where a shell started them with ``&``, it is ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """What exists before a module is not looked through by ``gc.collect``: that took 0.3 s."""
    gc.collect()
    gc.freeze()


_own_folders: list[Path] = []  # of the test that runs


def own_folder(folder: Path) -> Path:
    """Make a folder that goes with the test that runs, unless that fails."""
    folder.mkdir(0o700, parents=True)
    _own_folders.append(folder)
    return folder


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Delete what a test wrote after it, unless it failed: all of it would take 2 GB."""
    if report.failed:
        _own_folders.clear()
    elif report.when == "teardown":
        while _own_folders:
            shutil.rmtree(_own_folders.pop(), ignore_errors=True)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of its own for each test, named for it, as pytest's.

    That one looks through the folders of all earlier tests for the next number: 3 ms a test.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return own_folder(tmp_path_factory.getbasetemp() / f"{name}_{next(_folder_numbers)}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for each test."""
    caches = tmp_path_factory.getbasetemp() / "caches"
    folder = own_folder(caches / str(next(_folder_numbers))) / "wids"
    monkeypatch.setenv("WIDS_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def no_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this process are not flushed to the disk: only a power failure would show it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def new_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server has answered before, also not one of another test on the same port."""
    monkeypatch.setattr("wids.errors._secrets", OrderedDict())  # messages hide any "secret" else
    monkeypatch.setattr("wids.storage.transport.retry._answered", set())
    monkeypatch.setattr("wids.storage.transport.admission._admissions", [Admission()])
    # If this machine stops, the server seems slow, and files would arrive in shorter parts.
    monkeypatch.setattr("wids.storage.transport.admission._Server.note_speed", lambda *_: None)
    monkeypatch.setattr("wids.storage.transport.admission._FIRST_PART_NBYTES", 1 << 20)
    monkeypatch.setattr("wids.storage.transport.hedging._paces", {})
    for at in range(stages.OUTAGES.start, stages.OUTAGES.stop):
        stages.here.common[at] = 0.0


@pytest.fixture
def forked() -> Iterator[None]:
    """Have loaders fork their workers, which Python 3.14 does not: they get closures so."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("workers that get closures need fork")
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once after a failed request; the waits count as if they had been waited for."""
    failed = Attempts.failed
    monkeypatch.setattr(Attempts, "failed", lambda *args: 0.0 * failed(*args))
    monkeypatch.setattr("wids.storage.transport.admission._LONGEST_PAUSE_S", 0.0)


def settle(path: Path) -> Path:
    """Make a file look an hour old, so that its time of modification is believed."""
    hour_ago = path.stat().st_mtime - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is about forks, locks or signals on Windows, and where POSIX was taken away.

    A test is in one run alone, as its mark says.
    """
    for item in items:
        runs = {mark.name for mark in item.iter_markers()} & {"long", "alone", "seeds"}
        if len(runs) > 1:
            raise pytest.UsageError(f"{item.nodeid}: expected one mark of a run, found {runs}")
    listed = Path(__file__).with_name("without_posix") / "needs_posix.txt"
    if os.name != "nt" and str(listed.parent) not in sys.path:
        return
    names = set(listed.read_text(encoding="utf-8").splitlines())  # and comments
    for item in items:
        test, _, parameters = item.nodeid.partition("[")
        forks = {"fork", "forkserver"} & set(re.split(r"\W", parameters))
        if forks or names & {item.nodeid, test, test.partition("::")[0]}:
            item.add_marker(pytest.mark.skip(reason="needs POSIX"))


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves file descriptors open, threads running, or another priority."""
    descriptors = open_descriptors()
    threads = set(threading.enumerate())
    scheduler = getattr(os, "sched_getscheduler", int)(0)
    yield
    # Some encoders of films make the thread that calls them one of real time.
    assert getattr(os, "sched_getscheduler", int)(0) == scheduler, "the test leaves a priority"
    running = _running(threads)
    if running:
        gc.collect()
        # Threads of a read that was dropped end with their requests, which nobody waits for. Others
        # have done their work, but a busy machine may not have let them end.
        end_s = time.monotonic() + _END_S
        for thread in running:
            thread.join(max(0.0, end_s - time.monotonic()))
        running = _running(threads)
    assert not running, f"the test leaves running: {running}"
    # After the threads, which close what they have open. Those of requests that a browser dropped
    # end by themselves. Cycles may hold some; to collect after every test takes minutes.
    until_s = time.monotonic() + _END_S
    while (leaked := _leaked(descriptors)) and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.02)
    assert not leaked, f"the test leaves open: {leaked}"


_END_S = 10.0
"""How long what has nothing to do any more may take to end."""


def _running(before: set[threading.Thread]) -> list[threading.Thread]:
    new = set(threading.enumerate()) - before
    # One thread of a process calls obstore for the main thread, and two make small pictures; they
    # stay for the next call.
    new = {thread for thread in new if thread.name not in ("wids-object-store", "wids-pictures")}
    return [t for t in new if t.is_alive() and (not t.daemon or t.name.startswith("wids"))]


def _leaked(before: dict[str, str]) -> dict[str, str]:
    return {
        number: target
        for number, target in open_descriptors().items()
        if number not in before and target.endswith((".tar", ".json", ".tmp", ".index"))
    }


def open_descriptors() -> dict[str, str]:
    """Return what each file descriptor of this process is of; nothing where that is unknown."""
    found = {}
    if os.path.isdir("/proc/self/fd"):
        for number in os.listdir("/proc/self/fd"):
            try:
                found[number] = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # the descriptor of the listing itself
                continue
    return found


def num_open(path: Path) -> int:
    """Return how often this process has open a file, or the files of a folder.

    Others come and go: connections of servers, and of threads that end.
    """
    return sum(Path(target).is_relative_to(path) for target in open_descriptors().values())


@pytest.fixture
def server() -> Iterator[Server]:
    """A loopback HTTP server, in this process, for one test."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """The address of an S3 server, for all tests that want one."""
    from s3 import s3_server

    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3_address: str, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """An empty bucket on it, behind a proxy that can fail."""
    from s3 import bucket_of

    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    with bucket_of(s3_address, f"bucket-{digest}") as bucket:
        yield bucket


@pytest.fixture(scope="module")
def chromium_program() -> Iterator[Any]:
    """Chromium, for the tests of a module."""
    from tabs import started

    with started() as program:
        yield program


@pytest.fixture
def chromium(chromium_program: Any) -> Iterator[Chromium]:
    """Pages for a test, which fails on every problem that they report and it does not cause."""
    from tabs import Chromium

    chromium = Chromium(chromium_program)
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def validator() -> Any:
    """A validator of specs by their JSON Schema."""
    with pytest.MonkeyPatch.context() as patch:
        # It has no part in this, and where Jupyter installed it, grammars that take 5 s to make.
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        import jsonschema
    schema = (Path(__file__).parents[1] / "specs" / "shard-spec.schema.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(schema))


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises this error, and its message has all these parts."""
    with pytest.raises(kind) as caught:
        yield caught
    # The iterator of a loader, in a cycle of frames, would wait 5 s for workers when that is found.
    traceback.clear_frames(caught.tb)
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, f"{missing} not in the message: {caught.value}"
    # This frame is in the traceback. The cycle would keep what its other frames have open, and be
    # collected in another test, in any order: a socket would warn before its connection closes it.
    del caught


def in_child(work: Callable[[], bool]) -> bool:
    """Do something in a forked process; tell whether it came out true."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 1
        except BaseException:  # noqa: BLE001 - shown, and told by the status
            traceback.print_exc()
        finally:
            os._exit(status)  # not the tests once more
    return os.waitpid(child, 0)[1] == 0
