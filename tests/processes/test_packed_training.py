"""Training a transformer on packed batches, in one to three processes, killed and resumed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from conftest import need_weights

import wids

SCRIPT = jobs.EXAMPLES / "train_packed.py"
NUM_SAMPLES = 400


def write_texts(folder: Path) -> Path:
    """Write shards of documents of many lengths, in which each token is the last one plus three."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 1, NUM_SAMPLES), 1, 256).astype(int)
    with wids.ShardWriter(folder / "texts-%06d.tar", maxcount=90) as writer:
        for number, length in enumerate(lengths):
            tokens = (rng.integers(64) + 3 * np.arange(length)) % 64
            writer.write({"__key__": f"{number:06d}", ".npy": tokens.astype(np.uint8)})
    return folder / "texts.json"


def single_process(spec: Path) -> wids.PackedBatchSampler:
    """Return the batches of a single process, made with lengths that were read."""
    with wids.ShardListDataset(spec) as dataset:
        lengths = [len(sample[".npy"]) for sample in dataset]
        inside = wids.DistributedChunkedSampler(
            dataset, num_replicas=1, rank=0, num_canonical=6, even=False
        )
    return wids.PackedBatchSampler(inside, lengths, 256)


def steps_of(spec: Path, num_epochs: int) -> list[list[list[int]]]:
    """Return the batches of each step in a single process."""
    batches, found = single_process(spec), []
    for epoch in range(num_epochs):
        batches.set_epoch(epoch)
        each = list(batches)
        assert {index for batch in each for index in batch} == set(range(NUM_SAMPLES))
        assert sum(map(len, each)) == NUM_SAMPLES + batches.num_repeated
        found += [each[at : at + 6] for at in range(0, len(each), 6)]
    return found


def check(expected: list[list[list[int]]], steps: list[jobs.Step]) -> None:
    """Each step used the samples that it has in a single process."""
    used: dict[int, list[int]] = {}
    for step in steps:
        used.setdefault(step.number, []).extend(step.indices)
    assert {number: sorted(indices) for number, indices in used.items()} == {
        number: sorted(index for batch in batches for index in batch)
        for number, batches in enumerate(expected, 1)
    }


def example() -> ModuleType:
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("train_packed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained_document_by_document(spec: Path, expected: list[list[list[int]]]) -> dict[str, Any]:
    """Return the weights after the same steps, with each document in a batch of its own."""
    module = example()
    torch.manual_seed(0)
    network = module.Transformer()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    with wids.ShardListDataset(spec) as dataset:
        for step in expected:
            documents = [
                torch.from_numpy(dataset[index][".npy"]).long()[None]
                for batch in step
                for index in batch
            ]
            losses = [
                torch.nn.functional.cross_entropy(
                    network(
                        {
                            "input_ids": each,
                            "position_ids": torch.arange(each.shape[1])[None],
                            "document_ids": torch.zeros_like(each),
                        }
                    )[0, :-1],
                    each[0, 1:],
                    reduction="sum",
                )
                for each in documents
            ]
            count = sum(each.shape[1] - 1 for each in documents)
            optimizer.zero_grad()
            (torch.stack(losses).sum() / count).backward()
            optimizer.step()
    state: dict[str, Any] = network.state_dict()
    return state


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Weights are equal but for rounding."""
    for name, value in one.items():
        assert torch.allclose(value, other[name], atol=1e-4), name


@pytest.mark.long
def test_gradients_are_those_of_single_documents(tmp_path: Path) -> None:
    """Three ranks take the steps of one process without packing, where each token counts the same.

    That needs documents that do not see each other, positions and labels of each, the weights of
    ranks with different numbers of tokens, and gradients that are summed over batches and ranks.
    """
    need_weights()
    spec, checkpoint = write_texts(tmp_path), tmp_path / "checkpoint.pt"
    trace = tmp_path / "trace"
    command = jobs.torchrun(
        3, SCRIPT, spec, "--checkpoint", checkpoint, "--epochs", 1, "--num-workers", 0
    )
    command, environment = jobs.traced(command, trace)
    printed = jobs.run(command, **environment)

    expected = steps_of(spec, 1)
    check(expected, jobs.steps(trace))
    assert "PackedBatchSampler" in printed
    trained = torch.load(checkpoint, weights_only=True)["network"]
    torch.manual_seed(0)
    assert any(
        not torch.allclose(value, trained[name], atol=1e-2)
        for name, value in example().Transformer().state_dict().items()
    )
    assert_equal(trained_document_by_document(spec, expected), trained)


@pytest.mark.long
def test_killed_and_resumed_on_one_to_three_ranks(tmp_path: Path) -> None:
    """Killed twice, and resumed with another number of ranks and of workers each time.

    Each step has the samples that it would have without the kills, and the weights are those of a
    process that runs each document by itself. The last state begins the next epoch.
    """
    need_weights()
    spec, checkpoint = write_texts(tmp_path), tmp_path / "checkpoint.pt"
    expected = steps_of(spec, 2)
    done: list[jobs.Step] = []
    plan = [(3, 0), (1, 2), (2, 0)]
    for number, (num_replicas, num_workers) in enumerate(plan):
        trace = tmp_path / f"trace{number}"
        command = jobs.forked(
            *(num_replicas, SCRIPT, spec, "--checkpoint", checkpoint, "--save-every", 1),
            *("--epochs", 2, "--num-workers", num_workers),
        )
        before = max((step.number for step in done), default=0)
        is_last = number == len(plan) - 1
        kill_at = None if is_last else before + len(expected) // len(plan)
        steps = jobs.traced_steps(command, trace, kill_at)
        if kill_at is None:
            done += steps
            break
        saved = torch.load(checkpoint, weights_only=True)["step"]
        assert before < saved <= max(step.number for step in steps)
        assert min(step.number for step in steps) == before + 1
        assert {step.rank for step in steps} == set(range(num_replicas))
        done += [step for step in steps if step.number <= saved]

    check(expected, done)
    last = torch.load(checkpoint, weights_only=True)
    assert_equal(trained_document_by_document(spec, expected), last["network"])
    later, fresh = single_process(spec), single_process(spec)
    later.load_state_dict(last["batches"])
    fresh.set_epoch(2)
    assert later.epoch == 2
    assert list(later) == list(fresh)


@pytest.mark.long
def test_a_killed_job_packs_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Four ranks are killed, then three; six read the rest of four sources of other lengths.

    Checkpoints are distributed, with a model of FSDP2. Every sample comes once, and fewer batches
    than ranks again (ORDER-52, ORDER-73).
    """
    program, checkpoint = Path(__file__).with_name("train_packed_ranks.py"), tmp_path / "saved"
    checkpoint.mkdir()
    done: list[jobs.Step] = []
    for number, (num_ranks, kill_at) in enumerate(((4, 22), (3, 47), (6, None))):
        trace = tmp_path / f"trace{number}"
        trace.mkdir()
        command = jobs.forked(num_ranks, program, "--checkpoint", checkpoint, "--trace", trace)
        if kill_at is None:
            jobs.run(command)
            done += jobs.steps(trace)
            break
        with jobs.started(command, **jobs.held(kill_at)) as job:
            jobs.wait_for_step(job, trace, kill_at)
            jobs.kill(job)
        saved = max(int(path.name.partition("-")[2]) for path in checkpoint.glob("step-*"))
        done += [step for step in jobs.steps(trace) if step.number <= saved]
    batches = [tuple(step.indices) for step in done]
    assert {index for batch in batches for index in batch} == set(range(2000))
    assert len(batches) - len(set(batches)) < 6
    num_needed = 500 * (3 + 9 + 30 + 50) / 200
    assert len(batches) < 1.05 * num_needed + 6
