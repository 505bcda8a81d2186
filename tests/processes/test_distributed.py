"""Data parallel epochs under a real ``torchrun`` with gloo on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import write_shards

PROGRAM = Path(__file__).parent / "exact_epoch.py"


def test_three_ranks_share_1003_samples(tmp_path: Path) -> None:
    """The union is the dataset, all ranks are equally long, and at most one index each repeats."""
    spec = write_shards(tmp_path, [400, 3, 350, 250])
    report = tmp_path / "report.json"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--local-addr", "127.0.0.1", "--nproc-per-node", "3"),
        *(str(PROGRAM), str(spec), str(report)),
    ]

    result = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    ranks = json.loads(report.read_text())
    everything = [index for rank in ranks for index in rank]
    assert [len(rank) for rank in ranks] == [335, 335, 335]
    assert set(everything) == set(range(1003))
    assert len(everything) == 1005
