"""Progress bars: shown to people, and to nobody else."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import select
import struct
import subprocess
import sys
import types

import pytest
from events import LONG_S

from wids.storage import progress
from wids.storage.progress import Bar, PartsBar, is_wanted


class Terminal(io.StringIO):
    """A stderr that a person sees."""

    def isatty(self) -> bool:
        return True


def test_who_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown at a terminal, unless the argument or the environment decides."""
    assert not is_wanted(None)
    assert is_wanted(wanted=True)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert is_wanted(None)
    assert not is_wanted(wanted=False)
    for stated, wanted in (("0", False), ("off", False), ("False", False), ("1", True)):
        monkeypatch.setenv("WIDS_PROGRESS", stated)
        assert is_wanted(None) is wanted
    monkeypatch.setenv("WIDS_PROGRESS", "")
    assert is_wanted(None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not is_wanted(None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert is_wanted(None)
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    assert not is_wanted(None)


def test_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is recognised by its configuration; IPython in a pipe is not a notebook."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert is_wanted(None)
    shell.config = {}
    assert not is_wanted(None)
    fake.get_ipython = lambda: None
    assert not is_wanted(None)


def test_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It counts what is reported, and shows bytes with prefixes."""
    monkeypatch.setattr(progress, "DELAY_S", 0)
    with Bar("fetching 0.tar", None, "B", wanted=True) as bar:
        bar.reach(0, 4_000_000)
        bar.reach(2_000_000, 4_000_000)
    shown = capsys.readouterr().err
    assert "fetching 0.tar" in shown
    assert "4.00M" in shown


def test_a_bar_of_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the bytes of all parts, those of the one in progress, and the time left (SPEC-26)."""
    monkeypatch.setattr(progress, "DELAY_S", 0)
    with PartsBar("reading", 2, 4_000_000, wanted=True) as bar:
        bar.move(500_000)
        bar._bar.mininterval = 0  # show each step
        bar._bar.start_t -= 10
        bar.finish(1_000_000)
        bar.move(1_000_000, 3_000_000)
    shown = capsys.readouterr().err
    assert "500k/4.00M" in shown
    assert "1.00M/4.00M" in shown
    assert "1 of 2 shards" in shown
    assert re.search(r"2\.00M/4\.00M \[00:1\d<00:", shown)
    with PartsBar("reading", 2, None, wanted=True) as bar:
        bar.move(500_000)
        bar.finish(1_000_000)
    assert "0/2 [" in capsys.readouterr().err


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it start a thread, which tqdm would."""
    code = (
        "import threading\nfrom wids.storage.progress import Bar\n"
        "with Bar('x', 10, 'B', wanted=True) as bar:\n    bar.reach(10)\n"
        "import sys\nprint(threading.active_count(), 'tqdm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1 False\n", "")
    with Bar("x", 10, "B", wanted=True) as bar:
        bar.reach(10)
    assert capsys.readouterr().err == ""


def test_a_real_terminal() -> None:
    """A pseudo-terminal shows the bar; a pipe does not."""
    fcntl, termios = (pytest.importorskip(name) for name in ("fcntl", "termios"))
    code = (
        "from wids.storage import progress\nprogress.DELAY_S = 0\n"
        "with progress.Bar('fetching', 10, 'B') as bar:\n    bar.reach(5)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    subprocess.run(command, stderr=theirs, check=True)
    shown = b""  # the system passes it on in its own time
    while b"fetching:  50%" not in shown:
        assert select.select([ours], [], [], LONG_S)[0], shown
        shown += os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
