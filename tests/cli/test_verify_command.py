"""``wids verify``: a spec and its shards → problems and a status."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run, write_bare_shards


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_verify(shards: Path) -> None:
    """Status 0 and nothing on standard output, or 1 and a line for each problem."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    assert run("verify", spec, "--decode") == (
        0,
        "",
        f"{spec}: 3 shards, 20 samples: no problems\n",
    )
    (shards / "train-000001.tar").unlink()

    status, out, _ = run("verify", spec)

    assert status == 1
    assert out == f"{shards}/train-000001.tar: cannot be read: No such file or directory\n"
