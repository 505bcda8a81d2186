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
        "downloads",
        "ranges",
        *(
            pytest.param(way, marks=pytest.mark.long)
            for way in ("prefetcher", "table", "timings", "loaders")
        ),
    ],
)
def test_a_fork_amid_an_import(tmp_path: Path, server: Server, way: str) -> None:
    """A process that is forked while a thread imports a module can import it, whoever reads."""
    served = serve_shards(tmp_path, server)
    paths = [str(tmp_path / f"{number}.tar") for number in range(len(served))]
    build_spec(paths, pack=tmp_path / "train.index").save(tmp_path / "train.json")
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
        output, _ = process.communicate(timeout=2 * LONG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    num_forks, *hung = output.split()

    assert process.returncode == 0
    assert not hung, "it hung where it imported these"
    assert int(num_forks) > 0 or way == "loaders"
