"""``wids info``: specs → text, table or JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from command import run, write_bare_shards


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_info(shards: Path) -> None:
    """Text for people, JSON for scripts, and a table."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)

    text = run("info", spec)[1]
    assert re.search(r"samples +20\n +shards +3\n", text)
    assert re.search(r"^\.txt +6 B +100% +█{10}$", text, re.MULTILINE), "read from the pack"
    found = json.loads(run("info", "--json", spec)[1])
    assert (found["name"], found["num_samples"], found["num_shards"]) == ("train", 20, 3)
    assert found["nbytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
    table = run("info", "-t", spec, spec)[1].splitlines()
    assert len(table) == 3
    assert table[0].split()[:3] == ["file", "name", "num_samples"]


def test_tables_fit_the_window(shards: Path) -> None:
    """On a real terminal of 40 columns no line is longer."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    for arguments in (["info", spec], ["info", "-t", spec], ["sample", spec, "3"]):
        reader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        env = {name: v for name, v in os.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "wids", *map(str, arguments)]
        subprocess.run(command, stdout=terminal, stderr=terminal, env=env, check=True)
        os.close(terminal)
        shown = os.read(reader, 100_000).decode()
        os.close(reader)
        assert max(map(len, shown.splitlines())) <= 40, shown
