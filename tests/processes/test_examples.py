"""The examples train on every sample exactly once, even if they are killed and resumed.

Each test starts a program of ``examples/``, with gloo on loopback if it has several processes, and
checks which samples its training steps used. Two ranks that are not killed are started as users
start them, by ``torchrun``; others are forked.
"""

from __future__ import annotations

import importlib.util
import itertools
import socket
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import jobs
import pytest
from conftest import need
from loopback import Server

import wids
from wids import DistributedChunkedSampler, ShardListDataset

DDP = jobs.EXAMPLES / "train_ddp.py"
CANONICAL = 12  # as in train_ddp.py
GLOBAL_BATCH_SIZE = 48


def check_equal_steps(steps: list[jobs.Step], num_replicas: int, epochs: int, count: int) -> None:
    """Every rank took each step once, and an epoch has ``count`` steps."""
    expected = [
        (rank, epoch, epoch * count + number)
        for rank in range(num_replicas)
        for epoch in range(epochs)
        for number in range(1, count + 1)
    ]
    assert sorted((step.rank, step.epoch, step.number) for step in steps) == expected


WORKERS = (["0"], ["2", "fork"], ["2", "spawn"])
# One, two and four ranks, and each kind of workers; every week all pairs of them, and three.
TELLING = [(1, WORKERS[2]), (2, WORKERS[1]), (4, WORKERS[0])]
CONFIGURATIONS = [
    pytest.param(*pair, marks=pytest.mark.long if pair in TELLING else pytest.mark.seeds)
    for pair in itertools.product((1, 2, 3, 4), WORKERS)
]


@pytest.mark.parametrize(("num_replicas", "workers"), CONFIGURATIONS)
def test_every_rank_trains_equally(num_replicas: int, workers: list[str], tmp_path: Path) -> None:
    """All ranks take equal steps over every sample; at most one per canonical run is repeated."""
    num_samples = 1007  # 12 times 84, less one
    spec = jobs.write_pictures(tmp_path, [350, 3, 425, 229])
    arguments = ["--num-workers", workers[0]]
    if workers[1:]:
        arguments += ["--start-method", workers[1]]

    start = jobs.torchrun if num_replicas == 2 else jobs.forked
    command = start(num_replicas, DDP, spec, *arguments)
    steps = jobs.traced_steps(command, tmp_path / "trace")

    per_rank = (num_samples + 1) // num_replicas
    check_equal_steps(steps, num_replicas, 2, -(-per_rank // (GLOBAL_BATCH_SIZE // num_replicas)))
    for epoch in range(2):
        seen = Counter(jobs.used(steps, epoch))
        assert set(seen) == set(range(num_samples))
        assert max(seen.values()) <= 2
        assert sum(seen.values()) == num_samples + 1


@pytest.mark.long
def test_killed_and_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    """A job on three ranks, killed twice in the middle of an epoch, resumes on two and four.

    Up to the last checkpoint before a kill, and from there in the next job, each sample is used
    exactly once in each epoch, and each step has the samples that it would have without the kill.
    """
    num_samples, num_epochs, lengths = 1200, 3, [350, 4, 500, 346]  # 25 steps an epoch
    spec = jobs.write_pictures(tmp_path, lengths)
    checkpoint = tmp_path / "checkpoint.pt"
    done: list[jobs.Step] = []
    for number, (num_replicas, kill_at) in enumerate([(3, 11), (2, 38), (4, None)]):
        trace = tmp_path / f"trace{number}"
        command = jobs.forked(
            *(num_replicas, DDP, spec, "--checkpoint", checkpoint, "--save-every", 8),
            *("--epochs", num_epochs),
        )
        before = len(done) and max(step.number for step in done)
        took = jobs.traced_steps(command, trace, kill_at)
        steps = [step for step in took if step.number > before]
        if kill_at is None:
            done += steps
        else:
            saved = _saved_step(checkpoint)
            assert before < saved <= max(step.number for step in steps)
            done += [step for step in steps if step.number <= saved]
            assert {step.rank for step in steps} == set(range(num_replicas))

    for epoch in range(num_epochs):
        assert jobs.used(done, epoch) == list(range(num_samples))
    expected = _steps_of_one_process(num_samples, num_epochs, lengths)
    found: dict[int, list[int]] = {}
    for step in done:
        found.setdefault(step.number, []).extend(step.indices)
    assert {number: sorted(indices) for number, indices in found.items()} == expected


def _saved_step(checkpoint: Path) -> int:
    import torch

    step: int = torch.load(checkpoint, weights_only=True)["step"]
    return step


def _steps_of_one_process(
    num_samples: int, num_epochs: int, lengths: list[int]
) -> dict[int, list[int]]:
    class Data:
        def __init__(self) -> None:
            self.lengths = lengths

        def __len__(self) -> int:
            return num_samples

    sampler = DistributedChunkedSampler(Data(), num_replicas=1, rank=0, num_canonical=CANONICAL)
    steps: list[list[int]] = []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        width = GLOBAL_BATCH_SIZE
        steps += [sorted(indices[at : at + width]) for at in range(0, len(indices), width)]
    return dict(enumerate(steps, 1))


@pytest.mark.long
def test_each_node_fetches_its_share(server: Server, tmp_path: Path) -> None:
    """Two ``torchrun`` agents have a cache each: every sample once, each node fetches its share.

    By default a rank has the same slice of the dataset in every epoch. So a node asks only for the
    shards of its slices, once in two epochs: its share, and at most one shard at a boundary for
    each rank. The path of a request tells which node it comes from.
    """
    num_shards, length = 10, 48
    spec = jobs.write_pictures(tmp_path, [length] * num_shards)
    for path in tmp_path.glob("pictures*"):
        for node in range(2):
            server.page(f"/node{node}/{path.name}", path.read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    trace = tmp_path / "trace"
    with ExitStack() as stack:
        agents = []
        for node in range(2):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--node-rank", str(node), "--nproc-per-node", "2"),
                *("--master-addr", "127.0.0.1", "--master-port", str(port)),
                *(str(DDP), f"{server.url}/node{node}/{spec.name}"),
            ]
            command, environment = jobs.traced(command, trace)
            environment["WIDS_CACHE"] = str(tmp_path / f"cache{node}")
            agents.append(stack.enter_context(jobs.started(command, **environment)))
        for agent in agents:
            output, _ = agent.communicate(timeout=200)
            assert agent.returncode == 0, output

    steps = jobs.steps(trace)
    check_equal_steps(steps, 4, 2, num_shards * length // GLOBAL_BATCH_SIZE)
    for epoch in range(2):
        assert jobs.used(steps, epoch) == list(range(num_shards * length))
    for node in range(2):
        asked = [
            request.path
            for request in server.log
            if request.path.startswith(f"/node{node}/") and request.path.endswith(".tar")
        ]
        needed = {
            f"/node{node}/pictures-{index // length:06d}.tar"
            for step in steps
            if step.rank // 2 == node
            for index in step.indices
        }
        assert Counter(asked) == Counter(needed)
        assert len(asked) <= num_shards // 2 + 2


# Other people's loaders and trainers


def program(name: str, *packages: str) -> Path:
    """Return the path of an example, if the packages that it needs are installed."""
    for package in packages:
        need(importlib.util.find_spec(package), f"pip install {package}")
    return jobs.EXAMPLES / name


def killed_and_restarted(
    tmp_path: Path, command: list[str], checkpoints: str, *kills: int, save_every: int = 7
) -> list[list[jobs.Step]]:
    """Kill a job at each of some steps and start it again; return the steps of all jobs."""
    command = [*command, checkpoints, str(tmp_path / "saved"), "--save-every", str(save_every)]
    runs = []
    for number, kill_at in enumerate(kills):
        trace = tmp_path / f"trace{number}"
        runs.append(jobs.traced_steps(command, trace, kill_at))
    return [*runs, jobs.traced_steps(command, tmp_path / "trace")]


def check_exact(runs: list[list[jobs.Step]], num_samples: int, count: int, epochs: int = 2) -> None:
    """Up to each checkpoint and after it, every sample of an epoch was used exactly once."""
    steps: list[jobs.Step] = []
    for run in runs:
        begin = min(step.number for step in run)
        assert not steps or 1 < begin <= max(step.number for step in steps) + 1
        steps = [step for step in steps if step.number < begin] + run
    num_replicas = len({step.rank for step in runs[-1]})
    check_equal_steps(steps, num_replicas, epochs, count)
    for epoch in range(epochs):
        assert jobs.used(steps, epoch) == list(range(num_samples))


@pytest.mark.parametrize(
    "num_workers",
    [pytest.param(0, marks=pytest.mark.seeds), pytest.param(2, marks=pytest.mark.long)],
)
def test_stateful_dataloader(num_workers: int, tmp_path: Path) -> None:
    """Killed in its second epoch, it resumes with the batch after the checkpoint."""
    spec = jobs.write_pictures(tmp_path, [500, 3, 500, 197])
    script = program("train_stateful.py", "torchdata")
    command = [sys.executable, str(script), str(spec), "--num-workers", str(num_workers)]

    runs = killed_and_restarted(tmp_path, command, "--checkpoint", 65)

    check_exact(runs, 1200, 50)


@pytest.mark.parametrize(
    ("devices", "num_workers", "kills"),
    [
        # An epoch has 25 steps, and the checkpoint of step 25 is resumed from twice.
        pytest.param(1, 2, [8, 26, 27], marks=pytest.mark.long),
        pytest.param(2, 0, [26, 38], marks=pytest.mark.long),
        pytest.param(2, 0, [8, 26, 27, 38, 51], marks=pytest.mark.seeds),
    ],
)
def test_lightning(devices: int, num_workers: int, kills: list[int], tmp_path: Path) -> None:
    """Killed often, in mid-epoch and after an epoch's last step, in one process and in two."""
    lengths = [150, 3, 150, 297]
    spec = jobs.write_pictures(tmp_path, [length * devices for length in lengths])
    script = program("train_lightning.py", "lightning")
    command = [sys.executable, str(script), str(spec), "--epochs", "3"]
    command += ["--devices", str(devices), "--num-workers", str(num_workers)]

    runs = killed_and_restarted(tmp_path, command, "--checkpoints", *kills, save_every=5)

    check_exact(runs, 600 * devices, 25, 3)


@pytest.mark.long
def test_accelerate(tmp_path: Path) -> None:
    """In two processes with an unprepared loader each sample is used once, also after a kill."""
    spec = jobs.write_pictures(tmp_path, [350, 3, 350, 497])
    script = program("train_accelerate.py", "accelerate", "torchdata")
    command = jobs.forked(2, script, spec)

    runs = killed_and_restarted(tmp_path, command, "--checkpoints", 33)

    check_exact(runs, 1200, 25)


@pytest.mark.parametrize(
    "num_replicas",
    [pytest.param(1, marks=pytest.mark.seeds), pytest.param(2, marks=pytest.mark.long)],
)
def test_transformers(num_replicas: int, tmp_path: Path) -> None:
    """Resumed in its second epoch, the trainer goes on in the order of that epoch."""
    lengths = [350, 3, 350, 497]
    spec = jobs.write_pictures(tmp_path, [length * num_replicas for length in lengths])
    script = program("train_hf.py", "transformers", "accelerate")
    command = [sys.executable, str(script), str(spec)]
    if num_replicas > 1:
        command = jobs.forked(num_replicas, script, spec)

    runs = killed_and_restarted(tmp_path, command, "--checkpoints", 65)

    check_exact(runs, 1200 * num_replicas, 50)
    with ShardListDataset(spec) as dataset:
        for rank in range(num_replicas):
            sampler = DistributedChunkedSampler(dataset, num_replicas=num_replicas, rank=rank)
            sampler.set_epoch(1)
            order = list(sampler)
            for step in runs[-1]:
                if step.rank == rank:
                    at = (step.number - 51) * 24
                    assert list(step.indices) == order[at : at + 24]


@pytest.mark.alone  # beside other work, Ray does not start within its own limits
@pytest.mark.timeout(900)  # two minutes, most of which Ray needs to start and to checkpoint
def test_ray_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a local Ray of two workers, killed with all its processes, each sample is used once."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # on this machine, and for this test
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")  # where other work is done too
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")  # a checkpoint waits for one
    monkeypatch.setenv("PYTHONPATH", str(Path(wids.__file__).parents[1]))  # for Ray's workers
    spec = jobs.write_pictures(tmp_path, [350, 3, 350, 497])
    script = program("train_ray.py", "ray")
    command = [sys.executable, str(script), str(spec), "--num-workers", "0"]

    # A checkpoint of the second epoch exists: each takes Ray about a second.
    runs = killed_and_restarted(tmp_path, command, "--storage", 34)

    check_exact(runs, 1200, 25)


@pytest.mark.long
def test_grain(tmp_path: Path) -> None:
    """Two processes read with grain in the order of a sampler, then three, then one, by workers.

    All are killed: at the end of an epoch, and within one. Process 0 saves for all of them, so it
    is started last here: no process needs another one.
    """
    spec = jobs.write_pictures(tmp_path, [350, 3, 350, 497])
    script = program("train_grain.py", "grain")
    seen: list[jobs.Step] = []
    saved_at = 0
    # An epoch has 25 steps of two processes. Three have 17 of it.
    for processes, kill_at, num_workers in [(2, 26, 0), (3, 36, 0), (1, None, 2)]:
        saved_before, saved_at = saved_at, 0 if kill_at is None else kill_at // 5 * 5
        for process in reversed(range(processes)):
            command = [sys.executable, str(script), str(spec), "--num-workers", str(num_workers)]
            command += ["--process", str(process), "--processes", str(processes)]
            command += ["--checkpoint", str(tmp_path / "saved"), "--save-every", "5"]
            trace = tmp_path / f"{processes}-{process}"
            found = jobs.traced_steps(command, trace, kill_at)
            assert found[0].number == saved_before + 1
            seen += [step for step in found if kill_at is None or step.number <= saved_at]
    for epoch in range(2):
        assert jobs.used(seen, epoch) == list(range(1200))


def test_examples_have_no_switches_of_tests() -> None:
    """What tests need to see they log themselves (traced.py)."""
    for path in jobs.EXAMPLES.glob("*.py"):
        assert "trace" not in path.read_text(encoding="utf-8"), path.name


def test_every_example_has_a_test() -> None:
    """Every example is named in a test."""
    kinds = ("bucket", "detector", "packed", "speech")
    names = ("notebook", "cluster_example", *(f"{kind}_training" for kind in kinds))
    tests = [Path(__file__), *(Path(__file__).with_name(f"test_{name}.py") for name in names)]
    source = "".join(path.read_text(encoding="utf-8") for path in tests)
    examples = [*jobs.EXAMPLES.glob("*.py"), *jobs.EXAMPLES.glob("*.ipynb")]
    assert [path.name for path in examples if path.name not in source] == []
