"""Who sees the log: ``wids --verbose``, programs with ``$WIDS_LOG``, and their workers."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import run, run_process
from conftest import write_shards
from loopback import Server
from torch.utils.data import DataLoader

import wids
from wids.cli.log_output import printed

LINE = re.compile(r"[\d-]{10} [\d:,]{12} (INFO|DEBUG|WARNING) (wids[\w.]*)\[(\d+)\]: (.+)")


def lines_in(text: str) -> list[tuple[str, ...]]:
    """Return level, logger, process and message of each line of the log."""
    return [match.groups() for line in text.splitlines() if (match := LINE.fullmatch(line))]


def python(code: str, *arguments: object, **variables: str) -> str:
    """Run a program, and return what it prints on standard error."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.fixture
def served(server: Server, tmp_path: Path) -> str:
    """The signed URL of a spec of two shards."""
    spec = write_shards(tmp_path, [4, 4])
    for path in (spec, *tmp_path.glob("*.tar")):
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url.replace('http://', 'http://me:SECRET@')}/train.json?key=SECRET"


@pytest.mark.parametrize(("before", "after"), [("-v", ""), ("", "--verbose")])
def test_verbose_before_or_after_the_command(before: str, after: str, served: str) -> None:
    """Once shows no requests, and leaves neither a handler nor a level nor a variable behind."""
    logger = logging.getLogger("wids")
    settings = logger.level, list(logger.handlers)
    status, out, err = run(*filter(None, (before, "prefetch", served, after)))
    found = lines_in(err)
    assert status == 0
    assert {level for level, *_ in found} == {"INFO"}
    assert [name for _, name, *_ in found].count("wids.storage.cache.store") == 4
    assert {process for _, _, process, _ in found} == {str(os.getpid())}
    assert "SECRET" not in err
    assert "downloaded" not in out
    assert (logger.level, logger.handlers, "WIDS_LOG" in os.environ) == (*settings, False)


@pytest.mark.parametrize(("before", "after"), [("-vv", ""), ("-v", "-v"), ("", "-vv")])
def test_verbose_twice_shows_requests(before: str, after: str, served: str) -> None:
    """Twice counts before and after the command together."""
    _, _, err = run(*filter(None, (before, "info", served, after)))
    (line,) = [line for line in lines_in(err) if line[0] == "DEBUG"]
    assert line[1] == "wids.storage.transport.request_log"
    url = served.partition("?")[0].replace("me:SECRET@", "")
    assert re.match(rf"GET {url}\?…: status 200, \d+ bytes in [\d.]+ ms", line[3])


@pytest.mark.long
def test_processes_of_a_command(served: str) -> None:
    """Processes that a command starts print their requests too."""
    status, _, err = run_process("-vv", "verify", served, "-j", "2")
    found = lines_in(err)
    assert status == 0
    first = found[0][2]  # loads the spec
    assert {process for _, _, process, text in found if "GET" in text} > {first}


def test_an_import_installs_nothing() -> None:
    """Without the variable no handler is added, no level is set, and logging is not imported."""
    code = """
import sys, wids
assert not {"logging", "numpy", "torch"} & set(sys.modules)
import logging
names = [name for name in logging.root.manager.loggerDict if name.startswith("wids")]
assert names == [], names
"""
    assert python(code, WIDS_LOG="") == ""


def test_an_import_with_the_variable() -> None:
    """It prints what the program has no handler for, and imports neither torch nor numpy."""
    code = """
import sys, wids, logging
assert not {"numpy", "torch"} & set(sys.modules)
logger = logging.getLogger("wids.any")
logger.info("one\\x1b")
logger.debug("two")
logging.getLogger("another").info("three")
logging.basicConfig(level="INFO", format="%(message)s")
logger.info("four")
logging.getLogger().handlers[0].setLevel("ERROR")
logger.info("five")
"""
    first, second, third = python(code, WIDS_LOG="info").splitlines()
    assert lines_in(first)[0][3] == "one\\x1b"
    assert second == "four"
    assert lines_in(third)[0][3] == "five"


def test_a_level_that_is_none() -> None:
    """A program runs on without its log, and is told which levels there are."""
    assert python("import wids", WIDS_LOG="chatty") == (
        "WIDS_LOG: expected DEBUG or INFO or WARNING or ERROR, found 'chatty'; it is not used\n"
    )


def test_forked_workers(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each forked worker of a DataLoader prints what it does, with its process."""
    dataset = wids.ShardListDataset(served)
    loader = DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork")
    with printed(logging.INFO, in_full=True):
        assert [batch[".cls"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    found = [line for line in lines_in(capfd.readouterr().err) if "downloaded" in line[3]]
    processes = {process for _, _, process, _ in found}
    assert len(processes - {str(os.getpid())}) == len(found) == 2


WORKERS = """
import sys, wids
from torch.utils.data import DataLoader

if __name__ == "__main__":
    url, method = sys.argv[1:]
    loader = DataLoader(wids.ShardListDataset(url), 4, num_workers=2, collate_fn=wids.collate,
                        multiprocessing_context=method)
    assert len(list(loader)) == 2
"""


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(method: str, served: str, tmp_path: Path) -> None:
    """Each worker of a DataLoader prints what it does, with its process."""
    program = tmp_path / "program.py"
    program.write_text(WORKERS)
    result = subprocess.run(
        [sys.executable, program, served, method],
        env={**os.environ, "WIDS_LOG": "INFO"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = [line for line in lines_in(result.stderr) if "downloaded" in line[3]]
    assert len({process for _, _, process, _ in found}) == len(found) == 2
    assert "SECRET" not in result.stderr
