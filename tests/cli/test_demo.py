"""``wids demo``, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wids import ShardListDataset
from wids.cli.demo_command import epoch_report, write_dataset

WRONG = """
from wids import DistributedChunkedSampler

def shifted(dataset):
    "Ranks that overlap: rank 1 reads rank 0's share."
    return DistributedChunkedSampler(dataset, num_replicas=2, rank=0)

def short(dataset):
    "Each rank loses three samples."
    return list(DistributedChunkedSampler(dataset))[3:]

def uneven(dataset):
    "Every sample once, but ranks differ."
    import torch.distributed as dist
    return range(600) if dist.get_rank() == 0 else range(600, 1000)

def broken(dataset):
    raise RuntimeError("no such luck")
"""


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, wids.cli.main as c; sys.exit(c.main())",
            "demo",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_demo_shows_an_exact_epoch(tmp_path: Path) -> None:
    """It writes a dataset, shows a sample and an exact epoch, and says what to type next."""
    result = run_demo(tmp_path)

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for line in (
        *("wrote 4 shards and wids-demo/shapes.json", "dataset[123] of 1000:"),
        *(".txt           a yellow circle", "__key__        000123"),
        *("rank 0: 20 batches, 500 samples", "rank 1: 20 batches, 500 samples"),
        "yes: each of the 1000 samples exactly once (0 missing, 0 repeated)",
        "yes: the same number of batches on every rank",
        "    dataset = wids.ShardListDataset('wids-demo/shapes.json')",
    ):
        assert line in result.stdout.splitlines()
    assert " at 0x" not in result.stdout
    commands = [line for line in result.stdout.splitlines() if line.startswith("    wids ")]
    assert (len(commands), len({line.index("#") for line in commands})) == (4, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampler", "line"),
    [
        ("shifted", "NO:  each of the 1000 samples exactly once (500 missing, 500 repeated)"),
        ("short", "NO:  each of the 1000 samples exactly once (6 missing, 0 repeated)"),
        ("uneven", "NO:  the same number of batches on every rank"),
    ],
)
def test_wrong_sampler_is_detected(tmp_path: Path, sampler: str, line: str) -> None:
    """The report comes from what the loaders returned, so a wrong sampler ends with status 1."""
    (tmp_path / "wrong.py").write_text(WRONG)

    result = run_demo(tmp_path, "--sampler", f"wrong:{sampler}")

    assert result.returncode == 1
    assert line in result.stdout.splitlines()
    assert "look at the sampler" in result.stdout


@pytest.mark.long
def test_failing_sampler_is_shown(tmp_path: Path) -> None:
    """If the processes fail, the end of their output is on standard error."""
    (tmp_path / "wrong.py").write_text(WRONG)

    result = run_demo(tmp_path, "--sampler", "wrong:broken")

    assert result.returncode == 1
    assert "no such luck" in result.stderr


def test_pictures_are_real(tmp_path: Path) -> None:
    """Samples are JPEG pictures with caption and label."""
    with ShardListDataset(write_dataset(str(tmp_path))) as dataset:
        sample = dataset[6]
        assert sample[".jpg"].format == "JPEG"
        assert sample[".jpg"].size == (64, 64)
        assert (sample[".txt"], sample[".cls"]) == ("a green square", 1)
        with ShardListDataset(tmp_path / "shapes.json", transformations=None, raw="bytes") as raw:
            assert raw[6][".jpg"].startswith(b"\xff\xd8")


def test_report_counts_indices() -> None:
    """Missing and repeated samples and uneven ranks are distinguished."""
    assert epoch_report(4, [[[0, 1]], [[2, 3]]])[1]
    for num_samples, batches, line in (
        (
            4,
            [[[0, 1]], [[2, 2]]],
            "NO:  each of the 4 samples exactly once (1 missing, 1 repeated)",
        ),
        (4, [[[0, 1]], [[2, 3], [4]]], "NO:  each of the 4 samples exactly once"),
        (3, [[[0, 1]], [[2], []]], "NO:  the same number of batches on every rank"),
    ):
        text, is_exact = epoch_report(num_samples, batches)
        assert line in text
        assert not is_exact
