"""Ranks that each count their own dataset, and pass over shards that are broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from conftest import sample_members, write_tar
from jobs import forked, run

pytestmark = pytest.mark.long


def write_folders(folder: Path, ranks: tuple[int, int]) -> None:
    """Write two shards for each rank, of which the second rank lacks one in ``different``."""
    for name in ("same", "different"):
        for rank in ranks:
            own = folder / name / str(rank)
            own.mkdir(parents=True)
            write_tar(own / "a.tar", sample_members(0, 4))
            if (name, rank) != ("different", ranks[1]):
                write_tar(own / "b.tar", sample_members(4, 8))


def test_ranks_that_counted_different_samples_are_told(tmp_path: Path) -> None:
    """Each rank gets the error before its first step; stated counts need no question.

    So do two processes that share a rank (ORDER-66).
    """
    write_folders(tmp_path, (0, 1))
    output = run(forked(2, Path(__file__).parent / "count_ranks.py", tmp_path))
    lines = [line for line in output.splitlines() if "same " in line or "different " in line]
    assert Counter(line for line in lines if line.endswith("steps")) == {
        f"{label}{name} {rank}: {steps} steps": count
        for name, count in (("same", 2), ("different", 1))
        for label, steps in (("", 4), ("shared ", 8))
        for rank in (0, 1)
    }
    errors = sorted(line for line in lines if "expected the same samples" in line)
    assert [line.partition(":")[0] for line in errors] == [
        f"{label}different {rank}" for label in ("", "shared ") for rank in (0, 1)
    ]
    assert all("found 8 on rank 0 and 4 on rank 1; their datasets" in line for line in errors)


def test_a_mesh_of_some_processes_waits_for_no_others(tmp_path: Path) -> None:
    """Those that make no sampler are not asked what they have counted."""
    write_folders(tmp_path, (1, 2))
    output = run(forked(3, Path(__file__).parent / "count_ranks.py", tmp_path))

    assert sorted(line for line in output.splitlines() if line.endswith("steps")) == [
        f"same {rank}: 4 steps" for rank in (1, 2)
    ]
    lines = [line for line in output.splitlines() if line.startswith("different ")]
    assert len(lines) == 2
    assert all("found 8 on rank 1 and 4 on rank 2; their datasets" in line for line in lines)
