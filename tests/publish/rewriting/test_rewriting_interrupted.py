"""Rewriting on a full or broken disk, and killed with all its processes, and resumed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import write_shards
from faults import failing, faults

import wids


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    (tmp_path / "in").mkdir()
    spec = write_shards(tmp_path / "in", [3, 4])
    with wids.ShardListDataset(spec, transformations=[], raw="bytes") as found:
        _ = found[0], found[6]  # both shards are open, so that what is opened below is written
        yield found


def rewritten(dataset: wids.ShardListDataset, folder: Path) -> None:
    wids.rewrite(dataset[::-1], folder / "new-%06d.tar", maxcount=3, progress=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def accepted(kind: type[BaseException], text: str) -> Iterator[None]:
    """The block may raise this error, whose message then has the text."""
    try:
        yield
    except kind as error:
        assert text in str(error)  # noqa: PT017 - the block need not raise


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_complete_files(
    code: int, step: int, dataset: wids.ShardListDataset, tmp_path: Path
) -> None:
    """After any call that fails, what has its name is complete, and the same call does the rest.

    The input is as it was. A full disk is an error that names the folder (REWRITE-6).
    """
    whole = tmp_path / "whole"
    rewritten(dataset, whole)
    complete, source = contents(whole), contents(tmp_path / "in")
    assert len(complete) == 5

    for fault in faults(step, at_least=10):
        folder = tmp_path / f"{fault.number}"
        text = f"{folder}: expected space for all shards" if code == errno.ENOSPC else ""
        with accepted(OSError, text), failing(fault, code):
            rewritten(dataset, folder)
            # A lock that fails is done without, as are hard links.
            assert "new.json" in contents(folder), fault.where
        left = contents(folder) if folder.exists() else {}
        final = {name for name in left if name.startswith("new-") or name == "new.json"}
        assert all(left[name] == complete[name] for name in final), f"{fault.where}: a part"
        assert not [name for name in left if name.endswith(".tmp")], f"{fault.where}: {set(left)}"
        if "new.json" not in final or "new.partial/plan" in left:
            rewritten(dataset, folder)
        assert {n: d for n, d in contents(folder).items() if not n.endswith(".lock")} == complete
    assert contents(tmp_path / "in") == source


@pytest.mark.long
def test_killed_ten_times_with_all_workers(tmp_path: Path) -> None:
    """``kill -9`` of the program and its workers, ten times: the bytes are those of one run.

    (REWRITE-8)
    """
    (tmp_path / "in").mkdir()
    spec = write_shards(tmp_path / "in", [300, 301])
    (tmp_path / "slowly.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def same(sample):\n"
        "    time.sleep(0.001)\n"
        "    while len(list(Path().glob('killed/new-*.tar'))) >= int(os.environ['MOST']):\n"
        "        time.sleep(0.005)\n"
        "    return sample\n"
    )

    def start(folder: str, most: int) -> subprocess.Popen[bytes]:
        """Start a run, which waits for its end when there are so many shards."""
        command = [sys.executable, "-m", "wids", "rewrite", str(spec), f"{folder}/new"]
        options = ["--shuffle", "0", "--maxcount", "10", "--map", "slowly:same", "-j", "2"]
        options += ["--version", "1"]
        return subprocess.Popen(
            [*command, *options],
            cwd=tmp_path,
            env={**os.environ, "MOST": f"{most}"},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )

    with start("whole", 1000) as job:
        assert job.wait(120) == 0
    folder = tmp_path / "killed"
    for _ in range(10):
        before = len(list(folder.glob("new-*.tar")))
        with start("killed", before + 3) as job:
            until_s = time.monotonic() + 120
            while len(list(folder.glob("new-*.tar"))) <= before:
                assert time.monotonic() < until_s
                assert job.poll() is None, "it ended by itself"
                time.sleep(0.002)
            os.killpg(job.pid, signal.SIGKILL)
        assert not (folder / "new.json").exists()
    with start("killed", 1000) as job:
        assert job.wait(120) == 0

    assert contents(folder) == contents(tmp_path / "whole")
    assert wids.verify_spec(folder / "new.json") == []
