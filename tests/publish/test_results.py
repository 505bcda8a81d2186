"""Results of tasks on executors: in which order, what they raise, and which are lost."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import doomed
import pytest
from conftest import raises
from events import LONG_S

import wids
from wids import LostTaskError
from wids.cli.main import main
from wids.publish.executors import results_of


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The spec of an input, an empty folder for an output, and another one."""
    paths = [tmp_path / name for name in ("in", "out", "expected")]
    for path in paths:
        path.mkdir()
    return doomed.write_input(paths[0]), paths[1], paths[2]


def square(number: int) -> int:
    return number * number


def picky(number: int) -> int:
    if number == 3:
        raise KeyError("three")
    return number


@pytest.mark.parametrize("in_order", [False, True])
def test_any_number_of_tasks(in_order: bool) -> None:
    """More tasks than are submitted at a time: each is done once, in order if that is wanted."""
    with ThreadPoolExecutor(4) as executor:
        found = list(results_of(executor, square, range(2000), str, in_order=in_order))
    assert sorted(found) == [(n, n * n) for n in range(2000)]
    assert not in_order or found == sorted(found)


def test_what_is_no_executor_is_named() -> None:
    """The error states the argument, and what it is."""
    with raises(TypeError, "executor: expected an Executor", "found int 4"):
        list(results_of(4, square, [1], str))  # type: ignore[arg-type]


def test_few_tasks_are_submitted_at_a_time() -> None:
    """The scheduler of a cluster need not have all tasks of a large dataset in memory."""
    submitted: list[Future[int]] = []

    class Watched(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            submitted.append(super().submit(fn, *args, **kwargs))
            assert sum(not future.done() for future in submitted) <= 512
            return submitted[-1]

    go_on = threading.Event()
    with Watched(1) as executor:
        results = results_of(executor, lambda n: go_on.wait(LONG_S) and n, range(1000), str)
        threading.Timer(0.05, go_on.set).start()
        assert sorted(task for task, _ in results) == list(range(1000))
    assert len(submitted) == 1000


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_what_a_task_raises(pool: Callable[[int], Executor]) -> None:
    """Its own error is raised as it is, after what finished with it, with the worker's lines."""
    with pool(1) as executor:
        results = results_of(executor, picky, range(6), str, in_order=True)
        found = [next(results) for _ in range(3)]
        with pytest.raises(KeyError, match="three") as caught:
            next(results)
    assert found == [(0, 0), (1, 1), (2, 2)]
    if pool is ProcessPoolExecutor:
        assert 'raise KeyError("three")' in str(caught.value.__cause__)


class Result:
    """Something that can be watched."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_results_are_forgotten(pool: ThreadPoolExecutor) -> None:
    """Memory does not grow with the tasks: no result is alive after the next one was asked for."""
    alive: weakref.WeakSet[Result] = weakref.WeakSet()

    def made(_: int) -> Result:
        result = Result()
        alive.add(result)
        return result

    found = []
    for task, result in results_of(pool, made, range(1000), str):
        found.append(task)
        if task == 0:
            first = weakref.ref(result)
    del result
    pool.shutdown()  # a thread may still have what it returned last
    gc.collect()

    assert sorted(found) == list(range(1000))
    assert first() is None
    assert not alive


def test_results_come_before_an_error(pool: ThreadPoolExecutor) -> None:
    """What has finished is passed on, the error is raised, and the rest is not begun."""
    begun = []
    others_wait = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("task 0")
        if number > 1:
            others_wait.wait(LONG_S)
        return number

    found: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="task 0"):
        found.extend(results_of(pool, work, range(100), str))
    others_wait.set()
    pool.shutdown()

    assert found in ([], [(1, 1)])
    assert len(begun) < 10


@pytest.mark.parametrize("work", doomed.WORKS)
def test_a_killed_worker_is_an_error_that_names_a_shard(
    work: Callable[..., None], folders: tuple[Path, Path, Path]
) -> None:
    """Complete shards stay, nothing is half-written, and the next run resumes and cleans up."""
    spec, output, other = folders
    with ProcessPoolExecutor(1) as executor:
        with raises(LostTaskError, ".tar: expected the result", "BrokenProcessPool", "run it"):
            work(spec, output, doomed.Doomed(executor, 3))
    left = doomed.contents(output)
    if work in (doomed.rewrite, doomed.pack):
        assert set(left) > {"out-000000.tar", "out-000001.tar", "out-000002.tar"}
        assert not {"out-000003.tar", "out.json", "out.index"} & set(left)
    times = {path: path.stat().st_mtime_ns for path in output.glob("*.tar")}

    work(spec, output, None)

    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    work(spec, other, None)
    assert doomed.contents(output) == doomed.contents(other)


RUNNING: list[Executor] = []


def copied(sample: dict[str, Any]) -> dict[str, Any]:
    """Shut the executor down."""
    RUNNING[-1].shutdown(wait=False, cancel_futures=True)
    return sample


def test_a_cancelled_task(folders: tuple[Path, Path, Path]) -> None:
    """An executor that is shut down loses tasks, begun or not; a second run resumes."""
    spec, output, other = folders
    executor = ThreadPoolExecutor(1)

    RUNNING.append(executor)
    options: dict[str, Any] = {"maxcount": 10, "map": copied, "version": "1"}
    with wids.ShardListDataset(spec, transformations=[], raw="bytes") as dataset:
        with raises(LostTaskError, ".tar: expected", "lost it: ", "complete shards are kept"):
            wids.rewrite(dataset, output / "out-%d.tar", executor=executor, **options)
        executor.shutdown()  # the first task was running, and is published now
        assert set(os.listdir(output)) == {"out-0.tar", "out.partial"}
        wids.rewrite(dataset, output / "out-%d.tar", **options)
        wids.rewrite(dataset, other / "out-%d.tar", **options)
    assert doomed.contents(output) == doomed.contents(other)


class Forgetful(Executor):
    """Does all tasks, and loses their results, as a program that is killed does."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        future: Future[Any] = Future()
        future.set_exception(OSError("gone"))
        return future


def test_a_shard_whose_result_is_lost(
    folders: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker noted that it is complete, so the next run does not write it again."""
    spec, output, other = folders
    with raises(LostTaskError, "gone"):
        doomed.rewrite(spec, output, Forgetful())
    caplog.set_level("INFO", "wids")
    doomed.rewrite(spec, output, None)
    assert f"shards kept: {doomed.NUM_SHARDS} of {doomed.NUM_SHARDS}" in caplog.text
    doomed.rewrite(spec, other, None)
    assert doomed.contents(output) == doomed.contents(other)


class Elsewhere(ThreadPoolExecutor):
    """Does tasks where the output has a folder of the same name, and is another one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        for journal in Path(RUNNING_IN[-1]).glob("*.partial"):
            shutil.rmtree(journal)
        return super().submit(fn, *args, **kwargs)


RUNNING_IN: list[Path] = []


def test_workers_that_see_other_files(folders: tuple[Path, Path, Path]) -> None:
    """Shards that are nowhere to be found would be in the spec; the first one is an error."""
    spec, output, _ = folders
    RUNNING_IN.append(output)
    with Elsewhere(1) as executor, raises(FileNotFoundError, "workers have to see the same files"):
        doomed.rewrite(spec, output, executor)
    assert not (output / "out.json").exists()


def test_an_executor_that_was_shut_down() -> None:
    """It is as good as one that loses tasks: the error names the first."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with raises(LostTaskError, "a.tar: expected the result", "cannot schedule new futures"):
        list(results_of(executor, square, [3], lambda _: "a.tar"))


class Counting(ThreadPoolExecutor):
    """Takes two tasks, like an executor with a limit."""

    left = 2

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.left:
            raise RuntimeError("the quota of this account is used up")
        self.left -= 1
        return super().submit(fn, *args, **kwargs)


def test_what_an_executor_refuses_for_reasons_of_its_own() -> None:
    """Its error is raised as it is: no task is lost, and there are no logs of workers to read."""
    with Counting(1) as executor, pytest.raises(RuntimeError, match=r"^the quota") as caught:
        list(results_of(executor, square, range(3), str))
    assert not isinstance(caught.value, LostTaskError)


def test_an_executor_that_is_broken() -> None:
    """The next run on it is an error that names its first task."""
    with ProcessPoolExecutor(1) as executor:
        executor.submit(os._exit, 1).exception()
        with raises(LostTaskError, "a.tar: expected the result", "BrokenProcessPool"):
            list(results_of(executor, square, [3], lambda _: "a.tar"))


KILLING_MAP = """
import os, pathlib

def once(sample):
    if sample["__index__"] == 35 and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), 9)
    return sample
"""


@pytest.mark.long
def test_a_command_whose_worker_is_killed(
    folders: tuple[Path, Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command prints one line, and continues when it is run again."""
    spec, output, _ = folders
    (output / "killing_map.py").write_text(KILLING_MAP)
    monkeypatch.chdir(output)
    monkeypatch.syspath_prepend(str(output))
    command = ["rewrite", str(spec), "out", "--maxcount", "10", "--map", "killing_map:once"]
    command += ["--version", "1"]
    assert main([*command, "--jobs", "2"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "the executor lost it: BrokenExecutor: its process ended, with exit code -9;" in printed
    assert not (output / "out.json").exists()

    assert main([*command, "--jobs", "2"]) == 0

    assert wids.verify_spec(output / "out.json") == []
    assert not list(output.glob(".*"))
