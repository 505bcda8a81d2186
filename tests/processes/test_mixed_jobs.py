"""Jobs that train on a mix under torchrun, and loaders with a state."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import jobs
import pytest
import train_mix
from conftest import need, sample_members, write_tar

from wids import MixedSampler, Prefetcher, ShardListDataset

LENGTHS = {"a": [70, 120, 3], "b": [90, 61], "c": [23]}
WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}
NUM_EPOCHS = 6
KILL_AT = 130
"""A step of the second epoch."""


def write_mix(folder: Path) -> Path:
    """Write the shards of three datasets and a spec of their mix; return its path."""
    parts, start = [], 0
    for name, lengths in LENGTHS.items():
        shardlist = []
        for number, length in enumerate(lengths):
            path = write_tar(folder / f"{name}{number}.tar", sample_members(start, start + length))
            entry = {"url": path.name, "nsamples": length, "filesize": path.stat().st_size}
            shardlist.append(entry)
            start += length
        parts.append({"name": name, "shardlist": shardlist, "weight": WEIGHTS[name]})
    spec = folder / "mix.json"
    spec.write_text(json.dumps({"datasets": parts}))
    return spec


def steps_of_one_process(spec: Path, weights: Any) -> dict[int, list[int]]:
    """Return the samples of each step of a job that is not killed, computed in this process."""
    with ShardListDataset(spec) as dataset:
        sampler = MixedSampler(dataset, weights, rank=0, num_replicas=1, **train_mix.OPTIONS)
        drawn = [index for _ in range(NUM_EPOCHS) for index in sampler]
    width = train_mix.GLOBAL_BATCH_SIZE
    parts = (sorted(drawn[at : at + width]) for at in range(0, len(drawn), width))
    return dict(enumerate(parts, 1))


def check_killed_and_resumed(
    folder: Path, first: int, second: int, num_workers: int, then: dict[str, float]
) -> None:
    """Kill a job on some ranks, resume it on others, and compare each step with one process.

    It is resumed with other weights.
    """
    spec = write_mix(folder)
    schedule: Any = None
    done: list[jobs.Step] = []
    saved = 0
    for num_replicas, is_killed in ((first, True), (second, False)):
        trace = folder / f"ranks{num_replicas}{is_killed}"
        trace.mkdir()
        if saved:
            shutil.copy(folder / "state.json", trace)
        program = Path(train_mix.__file__)
        arguments = ["--epochs", NUM_EPOCHS, "--num-workers", num_workers]
        if saved and then != WEIGHTS:
            schedule = [(0, WEIGHTS), (saved * train_mix.GLOBAL_BATCH_SIZE, then)]
            arguments += ["--weights", json.dumps(schedule)]
        command = jobs.forked(num_replicas, program, spec, trace, *arguments)
        with jobs.started(command, **jobs.held(KILL_AT if is_killed else None)) as job:
            if is_killed:
                jobs.wait_for_step(job, trace, KILL_AT)
                jobs.kill(job)
                shutil.copy(trace / "state.json", folder)
            else:
                output, _ = job.communicate(timeout=200)
                assert job.returncode == 0, output
        steps = jobs.steps(trace)
        assert {step.rank for step in steps} == set(range(num_replicas))
        if is_killed:
            saved = json.loads((folder / "state.json").read_text())["step"]
            assert 120 < saved < 600
        assert min(step.number for step in steps) == (1 if is_killed else saved + 1)
        done += [step for step in steps if not is_killed or step.number <= saved]

    found: dict[int, list[int]] = {}
    for step in done:
        found.setdefault(step.number, []).extend(step.indices)
    assert {number: sorted(indices) for number, indices in found.items()} == (
        steps_of_one_process(spec, schedule)
    )
    starts = {"a": range(193), "b": range(193, 344), "c": range(344, 367)}
    for name, own in starts.items():
        counts = Counter(index for step in done for index in step.indices if index in own)
        share = 24 * (saved * WEIGHTS[name] + (600 - saved) * then[name])
        assert abs(sum(counts.values()) - share) < 2 * train_mix.NUM_CANONICAL
        assert max(counts.values()) - min(counts[index] for index in own) <= 2


RANKS, OTHER_WEIGHTS = ((1, 2), (2, 3), (3, 1)), {"a": 0.1, "b": 0, "c": 0.9}
# Each change of ranks, both weights, without workers and with them; every week all of these.
TELLING = [(RANKS[0], OTHER_WEIGHTS, 0), (RANKS[1], WEIGHTS, 2), (RANKS[2], OTHER_WEIGHTS, 2)]
CHANGES = [
    pytest.param(*change, marks=pytest.mark.long if change in TELLING else pytest.mark.seeds)
    for change in itertools.product(RANKS, (WEIGHTS, OTHER_WEIGHTS), (0, 2))
]


@pytest.mark.parametrize(("ranks", "then", "num_workers"), CHANGES)
def test_mix_is_killed_and_resumed(
    ranks: tuple[int, int], then: dict[str, float], num_workers: int, tmp_path: Path
) -> None:
    """A job on 1, 2 or 3 ranks is killed and resumed on others: each step has its samples.

    The proportions hold, those of other weights too, and no sample of a source came more than twice
    more than another (ORDER-30).
    """
    check_killed_and_resumed(tmp_path, *ranks, num_workers, then)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own business
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_ahead", [pytest.param(False, marks=pytest.mark.long), True])
def test_stateful_loader_resumes_a_mix(tmp_path: Path, num_workers: int, is_ahead: bool) -> None:
    """A restored loader returns the rest of the epoch, then the next epochs, on this rank."""
    need(importlib.util.find_spec("torchdata"), "pip install torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    with ShardListDataset(write_mix(tmp_path), fields=[".cls"]) as dataset:

        def loader() -> Any:
            sampler = MixedSampler(dataset, num_samples=150, num_replicas=2, rank=1, chunksize=9)
            return StatefulDataLoader(
                dataset,
                batch_size=7,
                sampler=Prefetcher(sampler, dataset) if is_ahead else sampler,
                num_workers=num_workers,
                multiprocessing_context="fork" if num_workers else None,
            )

        def indices(batches: Any) -> list[list[int]]:
            return [batch["__index__"].tolist() for batch in batches]

        reference = loader()
        epochs = [indices(reference) for _ in range(3)]
        assert [sum(map(len, epoch)) for epoch in epochs] == [75] * 3
        for stop in random.Random(num_workers).sample(range(1, 11), 2):
            interrupted = loader()
            indices(islice(interrupted, stop))
            state = json.loads(json.dumps(interrupted.state_dict()))
            del interrupted
            resumed = loader()
            resumed.load_state_dict(state)
            assert indices(resumed) == epochs[0][stop:]
            assert indices(resumed) == epochs[1]
            assert indices(resumed) == epochs[2]
