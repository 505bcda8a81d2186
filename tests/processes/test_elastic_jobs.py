"""A job that is killed, and restarted whole on other numbers of ranks, not chosen before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jobs
import pytest
import torch

JOB = Path(__file__).with_name("train_elastic.py")


@pytest.mark.long
def test_a_killed_job_continues_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Four ranks are killed, then three; five read the rest, and the next epoch (ORDER-50).

    Up to the last checkpoint before a kill, and from there in the next job, each sample is used
    once; fewer than five come again at the end of each epoch.
    """
    num_samples = 1501
    spec = jobs.write_pictures(tmp_path, [700, 4, 500, 297])
    checkpoint = tmp_path / "checkpoint.pt"
    done: list[jobs.Step] = []
    for number, (num_replicas, kill_at) in enumerate([(4, 33), (3, 71), (5, None)]):
        trace = tmp_path / f"trace{number}"
        trace.mkdir()
        command = jobs.torchrun(
            num_replicas, JOB, spec, "--checkpoint", checkpoint, "--trace", trace
        )
        before = torch.load(checkpoint, weights_only=True)["step"] if done else 0
        if kill_at is None:
            jobs.run(command)
            done += jobs.steps(trace)
            continue
        with jobs.started(command, **jobs.held(kill_at)) as job:
            jobs.wait_for_step(job, trace, kill_at)
            jobs.kill(job)
        saved = torch.load(checkpoint, weights_only=True)
        assert saved["sampler"]["epoch"] == 0
        assert saved["step"] > before
        done += [step for step in jobs.steps(trace) if step.number <= saved["step"]]
    for epoch in range(2):
        used = Counter(jobs.used(done, epoch))
        assert set(used) == set(range(num_samples))
        assert used.total() - num_samples < 5
