"""Commands as sources of bytes."""

from __future__ import annotations

import logging
import os
import select
from pathlib import Path

import pytest
from conftest import raises
from events import LONG_S
from transfers import DATA, saved

from wids.errors import FetchError
from wids.storage.transport.pipe import Pipe
from wids.storage.transport.stream import CHUNK_NBYTES

pytestmark = pytest.mark.usefixtures("quick_retries")


def test_pipes_to_stdout_and_to_a_file(tmp_path: Path) -> None:
    """A command writes to its standard output, or to the path that replaces ``{local}``."""
    (tmp_path / "a b").write_bytes(DATA)

    assert saved(f"pipe:cat '{tmp_path}/a b'") == DATA
    assert saved(f"pipe:cat '{tmp_path}/a b' | cat") == DATA
    assert saved(f"pipe:cp '{tmp_path}/a b' {{local}}") == DATA
    assert saved(f"pipe: cat '{tmp_path}/a b'", scratch=str(tmp_path / "new")) == DATA


def test_pipes_that_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A status other than 0 is an error despite any output; arguments stay out of messages."""
    caplog.set_level(logging.DEBUG)
    for command in ("echo half; exit 3", "exit 3 # {local}"):
        with raises(FetchError, "expected the command to exit with status 0, found 3"):
            saved(f"pipe:{command} --token=SECRET", scratch=str(tmp_path))
    assert "SECRET" not in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("main", ["yes", f"head -c {CHUNK_NBYTES} /dev/zero"])
def test_an_abandoned_pipe_is_killed(tmp_path: Path, main: str) -> None:
    """Closing the stream kills everything that its command has started, also if the shell ended."""
    alive, number = tmp_path / "alive", tmp_path / "number"
    os.mkfifo(alive)  # its end can be read when no process holds it any more
    stream = Pipe().open(f"pipe:echo $$ > {number}; sleep 300 3> {alive} & {main}", 0, None, None)

    with stream:
        next(stream.chunks)
        held = os.open(alive, os.O_RDONLY)  # when the process in the background has it
        if main != "yes":  # its shell ends; nobody has asked for its status yet
            os.waitid(os.P_PID, int(number.read_text()), os.WEXITED | os.WNOWAIT)
        assert not select.select([held], [], [], 0)[0]
    with open(held, "rb"):
        assert select.select([held], [], [], LONG_S)[0] == [held]
        assert os.read(held, 1) == b""
