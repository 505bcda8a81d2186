"""A job that is killed, and restarted whole on other numbers of ranks, not chosen before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import jobs
import pytest
import torch
from conftest import write_tar
from events import wait_for
from loopback import Server

JOB = Path(__file__).with_name("train_elastic.py")


def killed(
    tmp_path: Path,
    spec: object,
    jobs_: Iterable[tuple[int, int, int | None]],
    *arguments: str,
    ready: Callable[[], object] = lambda: True,
) -> list[jobs.Step]:
    """Run a job on some processes, with so many peers, and kill it at a step; then the next one.

    A job that is killed has to be ready for it.

    Returns:
        The steps up to the last checkpoint before each kill, and those of the last job.
    """
    checkpoint = tmp_path / "checkpoint.pt"
    done: list[jobs.Step] = []
    for number, (num_processes, peers, kill_at) in enumerate(jobs_):
        trace = tmp_path / f"trace{number}"
        trace.mkdir()
        command = jobs.forked(
            *(num_processes, JOB, spec, "--checkpoint", checkpoint, "--trace", trace),
            *("--peers", peers, *arguments),
        )
        before = torch.load(checkpoint, weights_only=True)["step"] if done else 0
        if kill_at is None:
            jobs.run(command)
            return done + jobs.steps(trace)
        with jobs.started(command, **jobs.held(kill_at)) as job:
            jobs.wait_for_step(job, trace, kill_at)
            wait_for(ready, "what has to be ready")
            jobs.kill(job)
        saved = torch.load(checkpoint, weights_only=True)
        assert saved["sampler"]["epoch"] == 0
        assert saved["step"] > before
        done += [step for step in jobs.steps(trace) if step.number <= saved["step"]]
    raise AssertionError("the last job is not killed")


@pytest.mark.long
def test_a_killed_job_continues_on_any_number_of_ranks(tmp_path: Path) -> None:
    """Four ranks are killed, then three; five read the rest, and the next epoch (ORDER-50).

    Up to the last checkpoint before a kill, and from there in the next job, each sample is used
    once; fewer than five come again at the end of each epoch.
    """
    num_samples = 1501
    spec = jobs.write_pictures(tmp_path, [700, 4, 500, 297])
    done = killed(tmp_path, spec, [(4, 1, 33), (3, 1, 71), (5, 1, None)])
    for epoch in range(2):
        used = Counter(jobs.used(done, epoch))
        assert set(used) == set(range(num_samples))
        assert used.total() - num_samples < 5


@pytest.mark.parametrize(
    "dealt",
    [
        pytest.param([], marks=pytest.mark.seeds),
        pytest.param(["--redeal"], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_groups_of_ranks_train_on_the_same_samples(
    dealt: list[str], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 x 2 processes are killed, then 1 x 3; 3 x 1 read the rest, and an epoch (ORDER-66).

    In each step the processes of a group use the same samples, without a broken one. All processes
    share a cache, and each shard is fetched once.
    """
    lengths, broken = [400, 4, 500, 297], 450
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    index, shardlist = 0, []
    for number, length in enumerate(lengths):
        samples = range(index, index := index + length)
        members = [(f"{n:06d}.cls", b"?" if n == broken else b"%d" % (n % 4)) for n in samples]
        path = write_tar(tmp_path / f"{number}.tar", members)
        server.page(f"/{path.name}", path.read_bytes())
        shardlist.append({"url": path.name, "nsamples": length, "filesize": path.stat().st_size})
    server.page("/spec.json", json.dumps({"shardlist": shardlist}).encode())
    parts = [(4, 2, 33), (3, 3, 120), (3, 1, None)]

    def are_fetched() -> bool:  # or the next job would fetch once more what was arriving
        return len(list(tmp_path.glob("cache/shards/*.tar"))) == len(lengths)

    done = killed(tmp_path, f"{server.url}/spec.json", parts, *dealt, ready=are_fetched)

    by_step: dict[int, dict[int, tuple[int, ...]]] = {}
    for step in done:
        by_step.setdefault(step.number, {})[step.rank] = step.indices
    groups = Counter()
    own: dict[int, list[int]] = {0: [], 1: []}
    epochs = {step.number: step.epoch for step in done}
    for number, ranks in by_step.items():
        distinct = {*ranks.values()}
        groups[len(ranks), len(distinct)] += 1
        if len(ranks) == 4:
            assert ranks[0] == ranks[1]
            assert ranks[2] == ranks[3]
        own[epochs[number]] += [index for indices in distinct for index in indices]
    assert groups.keys() == {(4, 2), (3, 1), (3, 3)}
    for epoch in range(2):
        used = Counter(own[epoch])
        assert set(used) == set(range(sum(lengths))) - {broken}
        assert used.total() - len(used) < 3
    fetched = Counter(request.path for request in server.log if request.path.endswith(".tar"))
    assert fetched == {f"/{number}.tar": 1 for number in range(len(lengths))}
