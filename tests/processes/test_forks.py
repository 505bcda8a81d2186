"""Processes that are forked while a thread imports modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dataset.served_shards import serve_shards
from events import LONG_S
from loopback import Server

from wids import build_spec

SCRIPT = Path(__file__).with_name("fork_amid_imports.py")


@pytest.mark.parametrize(
    "way",
    [
        "numpy.ma",
        *(
            pytest.param(way, marks=pytest.mark.long)
            for way in ("downloads", "ranges", "prefetcher", "table", "timings", "loaders")
        ),
    ],
)
def test_a_fork_amid_an_import(tmp_path: Path, server: Server, way: str) -> None:
    """A process that is forked while a thread imports a module can import it, whoever reads."""
    served = serve_shards(tmp_path, server)
    paths = [str(tmp_path / f"{number}.tar") for number in range(len(served))]
    build_spec(paths, dataset_index=tmp_path / "train.index").save(tmp_path / "train.json")
    document = json.loads((tmp_path / "train.json").read_text())
    for entry, shard in zip(document["shardlist"], served, strict=True):
        entry["url"] = shard["url"]
    (tmp_path / "train.json").write_text(json.dumps(document))

    process = subprocess.Popen(
        [sys.executable, SCRIPT, way, tmp_path / "train.json"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=4 * LONG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    num_forks, *hung = output.split()

    assert process.returncode == 0
    assert not hung, "it hung where it imported these"
    assert int(num_forks) > 0 or way == "loaders"


_LOGGING = """
import logging.config, os, sys, threading, time
from wids.storage import stages

inside, main = threading.Event(), threading.get_ident()

def made():
    inside.set()
    while sys._current_frames()[main].f_code.co_name not in ("_hold", "_acquireLock"):
        time.sleep(0.001)
    import colorsys
    return logging.NullHandler()

config = {"version": 1, "handlers": {"a": {"()": made}}, "root": {"handlers": ["a"]}}
thread = threading.Thread(target=logging.config.dictConfig, args=(config,), daemon=True)
thread.start()
inside.wait()
child = os.fork()
logging.getLogger("wids.child").warning("logged")
if not child:
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

_INTERRUPTED = """
import importlib.abc, importlib.util, os, signal, sys, threading, time
from wids.storage import stages

begun, forked, main = threading.Event(), threading.Event(), threading.get_ident()

class Slow(importlib.abc.Loader):
    def find_spec(self, name, *_):
        return importlib.util.spec_from_loader(name, self) if name == "slow" else None

    def exec_module(self, _):
        begun.set()
        while sys._current_frames()[main].f_code.co_name != "hold_imports":
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        forked.wait()

sys.meta_path.append(Slow())
threads = [threading.Thread(target=__import__, args=("slow",), daemon=True)]
threads[0].start()
begun.wait()
child = os.fork()
if not child:
    import sched
    os._exit(7)
forked.set()
threads.append(threading.Thread(target=__import__, args=("sched",), daemon=True))
threads[1].start()
for thread in threads:
    thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("script", [_LOGGING, _INTERRUPTED])
def test_a_fork_leaves_no_thread_waiting(script: str) -> None:
    """A fork and an import end, where logging is configured meanwhile, or Ctrl-C is pressed."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
    assert "RuntimeError" not in done.stderr
