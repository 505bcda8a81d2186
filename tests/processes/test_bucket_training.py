"""Training on batches of one shape each, in one to three processes, killed and resumed."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jobs
import pytest
from conftest import need, write_tar
from PIL import Image

import wids

SCRIPT = jobs.EXAMPLES / "train_buckets.py"
SHAPES = [(40, 72), (48, 64), (56, 56), (64, 48), (72, 40)]
LENGTHS = [130, 3, 170, 157]
NUM_SAMPLES = sum(LENGTHS)
BUCKETS = [(0, 0, 0, 1, 1, 2, 3, 3, 4)[n % 9] for n in range(NUM_SAMPLES)]


def write_shapes(folder: Path) -> Path:
    """Write shards of pictures of five shapes, and a spec; return its path."""
    need(importlib.util.find_spec("pyarrow"), "pip install pyarrow")
    pictures = []
    for number, (height, width) in enumerate(SHAPES):
        stream = io.BytesIO()
        Image.new("RGB", (width, height), (50 * number, 128, 255 - 50 * number)).save(
            stream, "JPEG"
        )
        pictures.append(stream.getvalue())
    shardlist, start = [], 0
    for number, length in enumerate(LENGTHS):
        members = []
        for sample in range(start, start + length):
            members += [(f"{sample:06d}.jpg", pictures[BUCKETS[sample]])]
            members += [(f"{sample:06d}.cls", b"%d" % (sample % 4))]
        path = write_tar(folder / f"shapes-{number:06d}.tar", members)
        shardlist.append({"url": path.name, "nsamples": length})
        start += length
    spec = folder / "shapes.json"
    spec.write_text(json.dumps({"shardlist": shardlist}))
    return spec


def expected(spec: Path, epoch: int) -> wids.BucketBatchSampler:
    """Return the batches of an epoch in a single process, made without the table."""
    with wids.ShardListDataset(spec) as dataset:
        inside = wids.DistributedChunkedSampler(
            dataset, num_replicas=1, rank=0, num_canonical=6, even=False
        )
    sizes = [max(1, 16 * 64 * 64 // (height * width)) for height, width in SHAPES]
    batches = wids.BucketBatchSampler(inside, BUCKETS, sizes.__getitem__, aligned=True)
    batches.set_epoch(epoch)
    return batches


def check(spec: Path, steps: list[jobs.Step], num_epochs: int) -> None:
    """Every batch of every epoch was used once, and all ranks had one shape in a step."""
    for epoch in range(num_epochs):
        batches = expected(spec, epoch)
        used = [step.indices for step in steps if step.epoch == epoch]
        assert Counter(used) == Counter(map(tuple, batches))
        assert {index for batch in used for index in batch} == set(range(NUM_SAMPLES))
        assert sum(map(len, used)) == NUM_SAMPLES + batches.num_repeated
    shapes: dict[Any, set[int]] = {}
    for step in steps:
        shapes.setdefault(step.number, set()).update(BUCKETS[index] for index in step.indices)
    assert {len(found) for found in shapes.values()} == {1}


@pytest.mark.long
def test_two_ranks_train_on_five_shapes(tmp_path: Path) -> None:
    """Both ranks use equally many batches, of the same shape in each step, and every sample."""
    spec = write_shapes(tmp_path)
    trace = tmp_path / "trace"
    command = jobs.torchrun(2, SCRIPT, spec, "--num-workers", 0)
    command, environment = jobs.traced(command, trace)

    printed = jobs.run(command, **environment)

    steps = jobs.steps(trace)
    check(spec, steps, 2)
    assert len({sum(step.rank == rank for step in steps) for rank in range(2)}) == 1
    assert "5 buckets of 460 samples" in printed


PLAN = [(1, 0), (2, 2), (3, 0), (1, 2), (2, 0), (3, 2)]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([(2, 2), (3, 0), (1, 2)], marks=pytest.mark.long),
        pytest.param(PLAN, marks=pytest.mark.seeds),
    ],
    ids=len,
)
def test_killed_and_resumed_on_one_to_three_ranks(
    plan: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Killed again and again, and resumed with another number of ranks and of workers each time.

    Up to the last checkpoint before a kill, and from there in the next job, each batch of each
    epoch is used exactly once.
    """
    spec, checkpoint = write_shapes(tmp_path), tmp_path / "checkpoint.pt"
    done: list[jobs.Step] = []
    total = 3 * len(expected(spec, 0))
    for number, (num_replicas, num_workers) in enumerate(plan):
        trace = tmp_path / f"trace{number}"
        command = jobs.forked(
            *(num_replicas, SCRIPT, spec, "--checkpoint", checkpoint, "--save-every", 1),
            *("--epochs", 3, "--num-workers", num_workers),
        )
        before = max((step.number for step in done), default=0)
        is_last = number == len(plan) - 1
        kill_at = None if is_last else before + total // len(plan)
        steps = jobs.traced_steps(command, trace, kill_at)
        if kill_at is None:
            done += steps
            break
        saved = _saved(checkpoint)
        assert before < saved <= max(step.number for step in steps)
        assert min(step.number for step in steps) == before + num_replicas
        done += [step for step in steps if step.number <= saved]

    check(spec, done, 3)


def _saved(checkpoint: Path) -> int:
    import torch

    done: int = torch.load(checkpoint, weights_only=True)["done"]
    return done
