"""``wids info``: specs → text, table or JSON."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from command import run, write_bare_shards
from loopback import Server
from remote_site import Site


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
    assert re.search(r"^\.txt +6 B +100% +█{10}$", text, re.MULTILINE), (
        "read from the dataset index"
    )
    found = json.loads(run("info", "--json", spec)[1])
    assert (found["name"], found["num_samples"], found["num_shards"]) == ("train", 20, 3)
    assert found["nbytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
    table = run("info", "-t", spec, spec)[1].splitlines()
    assert len(table) == 3
    assert table[0].split()[:3] == ["file", "name", "num_samples"]


@pytest.mark.long
def test_tables_fit_the_window(shards: Path) -> None:
    """On a real terminal of 40 columns no line is longer."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
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
        lines = re.sub(r"\x1b\[\d+m", "", shown).splitlines()
        assert max(map(len, lines)) <= 40, shown


@pytest.mark.usefixtures("own_cache")
def test_fields_of_a_remote_dataset(server: Server, tmp_path: Path) -> None:
    """The fields come from its dataset index; no shard is read, and a missing one costs seconds."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    spec = site.spec(index="train.index")
    server.log.clear()
    status, out, err = run("info", spec)
    assert (status, err) == (0, "")
    assert re.search(r"^\.txt +6 B +100% +█{10}$", out, re.MULTILINE)
    assert not any(request.endswith(".tar") for request in server.requests)
    status, out, err = run("info", site.spec(index="other.index"))
    assert status == 0
    assert re.search(r"samples +20\n", out)


@pytest.mark.usefixtures("own_cache")
def test_shards_that_are_not_there_are_not_counted(server: Server, shards: Path) -> None:
    """Of a pattern with a wrong bound what exists is counted, and the status is 1."""
    paths = sorted(shards.glob("*.tar"))
    for path in paths:
        server.page(f"/{path.name}", path.read_bytes())
    nbytes = sum(path.stat().st_size for path in paths)
    pattern = re.sub(r"(\d+)\.tar", r"{\1..000005}.tar", paths[0].name)
    for folder in (str(shards), server.url):
        status, out, err = run("info", f"{folder}/{pattern}")
        assert status == 1
        assert re.search(r"shards +3\n", out)
        assert f"{folder}/train-{{000000..000005}}.tar; 000000 to 000002 exist" in err
        assert "000003 and 2 more do not" in err
        found = json.loads(run("info", "--json", f"{folder}/{pattern}")[1])
        assert (found["num_shards"], found["nbytes"]) == (3, nbytes)
        status, out, err = run("info", f"{folder}/{pattern.replace('train', 'none')}")
        assert (status, out) == (1, "")
        assert "none-000000.tar" in err
