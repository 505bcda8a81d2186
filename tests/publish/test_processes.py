"""Pools of processes end at once, in whatever state their workers are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from events import LONG_S, wait_for

STUCK = """
import os, sys, time
from wids.publish.executors import process_pool

TASK = '''
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open(PATH, "w").close()
time.sleep(1000)
'''
with process_pool(2) as executor:
    executor.submit(exec, TASK.replace("PATH", repr(sys.argv[1])))
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    raise KeyboardInterrupt
"""


def test_a_worker_whose_main_thread_hears_no_signal(tmp_path: Path) -> None:
    """A worker ends although another of its threads got the signal, while the main one waited."""
    path = tmp_path / "begun"
    command = [sys.executable, "-c", STUCK, str(path)]
    # Until all processes have closed the pipe of standard error.
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr.endswith("KeyboardInterrupt\n")


INTERRUPTING = """
import subprocess, sys
from wids.publish.executors import process_pool

PROGRAM = "import signal, time; signal.signal(signal.SIGINT, lambda *_: exit(7)); " + (
    "print('begun', flush=True); time.sleep(60)"
)
TASK = '''
import signal, subprocess, sys
with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
    program.stdout.readline()
    program.send_signal(signal.SIGINT)
    assert program.wait(50) == 7
'''
with process_pool(2) as executor:
    executor.submit(exec, TASK, {"PROGRAM": PROGRAM}).result()
"""


def test_programs_that_tasks_start_can_be_interrupted() -> None:
    """Workers ignore Ctrl-C, but what they start may handle it: ffmpeg ends so, for example."""
    subprocess.run([sys.executable, "-c", INTERRUPTING], timeout=100, check=True)


IMPORTING = """
import os, sys
from wids.publish.executors import process_pool

with process_pool(2) as executor:
    executor.submit(os.getpid).result()
"""


def test_ctrl_c_while_workers_import(tmp_path: Path) -> None:
    """Ctrl-C, which reaches all processes of a terminal, has one traceback: that of the program."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'multiprocessing.forkserver' in str(sys.orig_argv):\n"
        "    open('begun', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for((tmp_path / "begun").exists)
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    _, errors = process.communicate(timeout=LONG_S)  # until all processes have ended
    assert errors.count("Traceback") == 1, errors
    assert errors.endswith("KeyboardInterrupt\n")


BUSY = """
import os, sys, time
from wids.publish.executors import process_pool

TASK = '''
import hashlib
from wids.storage import files
with files.replacing(PATH) as file:
    file.write(b"a part")
    open("begun", "w").close()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes, in which no handler runs
'''
path = os.path.abspath("file")
with process_pool(2) as executor:
    executor.submit(exec, TASK.replace("PATH", repr(path)))
    while not os.path.exists("begun"):
        time.sleep(0.01)
    raise KeyboardInterrupt
"""


@pytest.mark.long
def test_a_worker_that_has_no_time_to_clean_up(tmp_path: Path) -> None:
    """The file that it was writing is deleted, however busy its main thread is."""
    command = [sys.executable, "-c", BUSY]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


CANCELLED = """
import os, signal, time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from wids.publish.executors import process_pool

with process_pool(2) as executor:
    pid = executor.submit(os.getpid).result()
    tasks = [executor.submit(time.sleep, 1000) for _ in range(10)]
    while not tasks[1].running():
        time.sleep(0.01)
    assert any([task.cancel() for task in tasks])
    os.kill(pid, signal.SIGKILL)
    (lost,) = wait(tasks[:2], return_when=FIRST_COMPLETED).done
    assert isinstance(lost.exception(), BrokenExecutor)
    raise KeyboardInterrupt
"""


@pytest.mark.long
def test_a_worker_that_is_killed_after_tasks_were_cancelled() -> None:
    """The pool ends its other workers, and nothing is printed but the reason."""
    command = [sys.executable, "-c", CANCELLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "InvalidState" not in done.stderr
    assert "leaked" not in done.stderr


FORKED = """
import os, sys
from wids.publish.executors import process_pool

with process_pool(2) as executor:
    import wids.shards.tars.scan
    assert executor.submit(os.getppid).result() != os.getpid()
    assert executor.submit(eval, "'wids.shards.tars.scan' in __import__('sys').modules").result()
"""


def test_workers_are_not_forks_of_the_program() -> None:
    """A driver of fsspec runs threads, and a fork of the program would wait for them for ever.

    They have the modules of the library that the program had when it began to work.
    """
    subprocess.run([sys.executable, "-c", FORKED], timeout=100, check=True)


OTHERS = """
import multiprocessing, time
from wids.publish.executors import process_pool

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    try:
        with process_pool(2) as executor:
            assert list(executor.map(abs, [-1, -2])) == [1, 2]
            other = context.Process(target=time.sleep, args=(1,))
            other.start()
            raise ValueError("the work ends")
    except ValueError:
        other.join()
        print(other.exitcode, other not in executor.workers, len(executor.workers) > 0)
"""


@pytest.mark.long
def test_processes_of_others_go_on() -> None:
    """A pool that ends early ends its own workers, and no other child of the program."""
    command = [sys.executable, "-c", OTHERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["0", "True", "True"], done.stderr


SPAWNED = """
from wids.publish.executors import process_pool

with process_pool(2) as executor:
    assert executor.submit(abs, -1).result() == 1
"""


def test_temporary_files_under_a_long_path(tmp_path: Path) -> None:
    """A socket there would have a path that is longer than systems allow; workers need none."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", SPAWNED], env=environment, timeout=100, check=True)
