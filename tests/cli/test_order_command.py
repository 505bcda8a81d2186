"""``wids order``: what is in a step of training, from the state of a sampler in any file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from command import run
from conftest import optional, write_shards
from looks import browse_command
from torch.utils.data import DataLoader

import wids

BATCH = 3


def samplers(spec: Path, count: int, **options: Any) -> list[Any]:
    dataset = wids.ShardListDataset(spec)
    return [
        wids.DistributedChunkedSampler(dataset, num_replicas=count, rank=rank, **options)
        for rank in range(count)
    ]


def walked(ranks: list[Any], count: int | None = None) -> list[list[list[int]]]:
    """Read some batches on all ranks; return, for each step, that of each rank."""
    steps = []
    readers = [iter(rank) for rank in ranks]
    for _ in range(1000 if count is None else count):
        batches = [list(islice(reader, BATCH)) for reader in readers]
        if not any(batches):
            break
        steps.append(batches)
    return steps


def rows(out: str) -> Iterator[dict[str, Any]]:
    names, *lines = (line.split() for line in out.splitlines())
    for line in lines:
        values = dict(zip(names, line, strict=True))
        yield {name: int(v) if name not in ("key", "shard") else v for name, v in values.items()}


def in_step(found: Any, step: int, ranks: int) -> list[list[int]]:
    return [
        [r["index"] for r in found if (r["step"], r["rank"]) == (step, n)] for n in range(ranks)
    ]


@pytest.fixture
def long_run(tmp_path: Path) -> tuple[Path, Path, list[list[list[int]]]]:
    """A spec, a state on 2 ranks after steps on 4 and 3, and all steps of the epoch."""
    spec = write_shards(tmp_path, [40, 27, 33])
    steps, state = [], None
    for count, num_steps in ((4, 3), (3, 3), (2, 2)):
        ranks = samplers(spec, count, chunksize=8, seed=5, redeal=True)
        for rank in ranks if state else ():
            rank.load_state_dict(state)
        steps += walked(ranks, num_steps)
        state = ranks[0].state_dict()
    for rank in ranks:
        rank.load_state_dict(state)
    (tmp_path / "state.json").write_text(json.dumps(state))
    return spec, tmp_path / "state.json", [*steps, *walked(ranks)]


def test_steps_of_a_run_on_other_numbers_of_ranks(long_run: Any) -> None:
    """Each step of the epoch is as it was read, or will be: before, at and after the state."""
    spec, state, steps = long_run
    options = ("order", spec, "--state", state, "--batch-size", BATCH)
    status, out, err = run(*options, "--steps", f"0:{len(steps)}")

    assert status == 0, err
    assert err.splitlines()[-1] == (
        "epoch 0: steps 0 to 2 on 4 ranks, steps 3 to 5 on 3 ranks, "
        f"steps 6 to {len(steps) - 1} on 2 ranks; step 8 is next"
    )
    found = list(rows(out))
    for number, batches in enumerate(steps):
        assert in_step(found, number, len(batches)) == batches
    with wids.ShardListDataset(spec) as dataset:
        for row in found:
            number, _ = dataset.locate(row["index"])
            assert row["key"] == dataset.keys()[row["index"]]
            assert row["shard"] == dataset.spec.shards[number].url
    status, out, _ = run(*options)
    assert in_step(list(rows(out)), 8, 2) == steps[8]
    assert {row["step"] for row in rows(out)} == {8}


def test_every_step_of_a_key(long_run: Any) -> None:
    """Those of all parts of the epoch, as one JSON object."""
    spec, state, steps = long_run
    with wids.ShardListDataset(spec) as dataset:
        key = dataset.keys()[steps[4][2][1]]
    options = ("order", spec, "--state", state, "--batch-size", BATCH, "--key", key, "--json")
    status, out, err = run(*options)

    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["epoch"] == 0
    row = found["samples"][0]
    assert (row["step"], row["rank"], row["place"], row["key"]) == (4, 2, BATCH + 1, key)


def test_other_epochs_and_sizes(long_run: Any) -> None:
    """Another epoch has no parts; a part may have had steps of another size."""
    spec, state, steps = long_run
    first, second, third = samplers(spec, 2, chunksize=8, seed=5, redeal=True), [], []
    for rank in first:
        rank.set_epoch(3)
        second.append(list(rank))
    status, out, _ = run(
        *("order", spec, "--state", state, "--batch-size", "7", "--epoch", "3", "--step", "1")
    )
    assert (status, in_step(list(rows(out)), 1, 2)) == (0, [order[7:14] for order in second])
    status, out, _ = run(
        *("order", spec, "--state", state, "--batch-size", "9,5,6", "--steps", "0:4")
    )
    for number, batches in ((0, zip(*steps[:3], strict=True)), (3, zip(*steps[6:8], strict=True))):
        third = [[index for batch in of_rank for index in batch] for of_rank in batches]
        assert in_step(list(rows(out)), number, len(third)) == third


PROGRAM = """
import wids
from torch.utils.data import DataLoader

dataset = wids.ShardListDataset("train.json")
view = dataset[3:17]
ranks = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=1, seed=4)
single = wids.ChunkedSampler(dataset)
numbers = wids.ChunkedSampler(range(20))
mix = wids.MixedSampler(dataset, num_samples=60, seed=4)


def batches():
    return wids.BucketBatchSampler(ranks, [n % 2 for n in range(20)], 2)


def packed():
    return wids.PackedBatchSampler(ranks, [n % 7 + 1 for n in range(20)], 9, window=8)


def loader():
    return DataLoader(dataset, batch_sampler=wids.Prefetcher(batches(), dataset))


def streams():
    return DataLoader(wids.stream(dataset, ranks), batch_size=None)


number = 3
"""


@pytest.fixture
def program(train: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module beside the dataset of 20 samples."""
    name = f"own_order_{abs(hash(request.node.nodeid)) % 10**9}"
    (train.parent / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(train.parent)
    monkeypatch.syspath_prepend("")
    return name


@pytest.mark.parametrize("what", ["batches", "loader", "packed"])
def test_batches_of_a_program(program: str, what: str) -> None:
    """A step is a batch, on all ranks of the state, whatever rank the program has here."""
    ranks: list[Any] = samplers(Path("train.json"), 3, seed=4)
    if what == "packed":
        lengths = [n % 7 + 1 for n in range(20)]
        ranks = [wids.PackedBatchSampler(rank, lengths, 9, window=8) for rank in ranks]
    else:
        ranks = [wids.BucketBatchSampler(rank, [n % 2 for n in range(20)], 2) for rank in ranks]
    Path("b.json").write_text(json.dumps(ranks[0].state_dict(1)))
    walks = [list(rank) for rank in ranks]
    status, out, _ = run("order", f"{program}:{what}", "--state", "b.json", "--steps", "0:3")

    assert status == 0
    for step in range(3):
        assert in_step(list(rows(out)), step, 3) == [walk[step] for walk in walks]
    status, _, err = run("order", f"{program}:{what}", "--state", "b.json", "--batch-size", "2")
    message = f"--batch-size: expected none for a step of a {type(ranks[0]).__name__}, found 2"
    assert (status, message in err) == (1, True)


def test_views_mixes_and_streams_of_a_program(program: str) -> None:
    """A dataset gets the sampler of the state; a sampler, also of a stream, is used as it is."""
    dataset = wids.ShardListDataset("train.json")
    arguments = {"num_replicas": 3, "rank": 2}
    for what, made in (
        ("view", wids.DistributedChunkedSampler(dataset[3:17], **arguments, even=False)),
        ("mix", wids.MixedSampler(dataset, **arguments, num_samples=60, seed=4)),
        ("streams", wids.DistributedChunkedSampler(dataset, **arguments, seed=4)),
        ("numbers", wids.ChunkedSampler(range(20))),
    ):
        Path("s.json").write_text(json.dumps(made.state_dict(2)))
        options = ("order", f"{program}:{what}", "--state", "s.json", "--batch-size", "2")
        status, out, err = run(*options, "--step", "1", "--json")
        assert status == 0, err
        found = json.loads(out)["samples"]
        assert [row["index"] for row in found if row["rank"] == made._replica()[0]] == [
            *islice(made, 2, 4)
        ]
        assert (found[0]["key"] is None) == (what == "numbers")


def loader_state(kind: str, num_workers: int) -> Any:
    """Return the state of torchdata's loader after two steps, on one of two ranks."""
    data = optional("torchdata.stateful_dataloader")
    dataset = wids.ShardListDataset("train.json", transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=0, seed=4)
    options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": list}
    if kind == "batches":
        options["batch_sampler"] = wids.BucketBatchSampler(sampler, [n % 2 for n in range(20)], 2)
    elif kind == "sampler":
        options |= {"sampler": sampler, "batch_size": 2}
    else:
        dataset, options["batch_size"] = wids.stream(dataset, sampler, batch_size=2), None
        options.pop("collate_fn")
    loader = data.StatefulDataLoader(dataset, **options)
    reading = iter(loader)
    next(reading)
    next(reading)
    state = loader.state_dict()
    for _ in reading:  # to its end, so that the workers end
        pass
    return state


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [
        ("sampler", 0),
        ("stream", 0),
        ("batches", 0),
        pytest.param("sampler", 2, marks=pytest.mark.long),
    ],
)
def test_states_of_loaders(program: str, kind: str, num_workers: int) -> None:
    """The sampler's state is found in that of torchdata's loader, which a checkpoint contains."""
    state = loader_state(kind, num_workers)
    torch.save({"model": {"weight": torch.zeros(3)}, "loaders": [state]}, "checkpoint.pt")
    spec = f"{program}:batches" if kind == "batches" else "train.json"
    options = () if kind == "batches" else ("--batch-size", "2")
    ranks = samplers(Path("train.json"), 2, seed=4)
    if kind == "batches":
        ranks = [wids.BucketBatchSampler(each, [n % 2 for n in range(20)], 2) for each in ranks]
        walks = [next(islice(rank, 3, None)) for rank in ranks]
    else:
        walks = [list(islice(rank, 6, 8)) for rank in ranks]
    status, out, err = run("order", spec, "--state", "checkpoint.pt", *options, "--step", "3")

    assert status == 0, err
    assert in_step(list(rows(out)), 3, 2) == walks


@pytest.mark.long  # Lightning and accelerate take seconds to import
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_trainers(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's, with the callback's state, and what accelerate saves of a sampler."""
    lightning, accelerate = optional("lightning"), optional("accelerate")
    monkeypatch.chdir(train.parent)
    dataset = wids.ShardListDataset("train.json", transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, seed=4)
    expected = list(sampler.ahead())

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return (self.weight * batch[".cls"].float()).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = lightning.pytorch.callbacks.ModelCheckpoint(".", "last", every_n_train_steps=4)
    trainer = lightning.Trainer(
        max_epochs=1,
        limit_train_batches=5,
        callbacks=[wids.SamplerCallback(sampler), saving],
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=wids.collate)
    trainer.fit(Module(), loader)
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.register_for_checkpointing(sampler)
    sampler.load_state_dict(sampler._state_at(sampler._place_of(0) + 8))
    accelerator.save_state("saved")
    dataset.close()
    for file in ("last.ckpt", "saved/custom_checkpoint_0.pkl"):
        status, out, err = run("order", "train.json", "--state", file, "--batch-size", "2")
        assert status == 0, err
        assert "step 4 is next" in err, file
        assert in_step(list(rows(out)), 4, 1) == [expected[8:10]]


@pytest.mark.long
def test_a_step_of_a_view_in_the_browser(program: str) -> None:
    """The page has all samples; those of the view are found by their places in it."""
    sampler = wids.ChunkedSampler(wids.ShardListDataset("train.json")[3:17])
    Path("s.json").write_text(json.dumps(sampler.state_dict(4)))
    options = ("--state", "s.json", "--batch-size", "4")
    batch = sorted(index + 3 for index in list(sampler)[4:8])
    with browse_command(f"{program}:view", options=options) as (client, _):
        assert client.parts.fragment == "step=1"
        found = client.json("samples?step=1")
        assert [card["index"] for card in found["cards"]] == batch
        assert (found["num_found"], found["python"]) == (4, f"dataset[{batch}]")
        assert client.json("samples")["num_found"] == 20
        assert client.json(f"sample/{batch[1]}?step=1")["next"] == batch[2]
        assert client.json("samples?step=2")["error"] == (
            "step: expected the one that the page was started with, found 2; start `wids browse` "
            "with --step 2"
        )


def test_what_is_wrong_is_named(program: str) -> None:
    """Object, what was expected, what was found, and what to do."""
    dataset = wids.ShardListDataset("train.json")
    state = wids.ChunkedSampler(dataset).state_dict(4)
    other = wids.DistributedChunkedSampler(range(20), num_replicas=2, rank=0).state_dict(4)
    both = {"a": [state], "b": {"c": other}}
    shared = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=0).state_dict(4)
    files = {"s": state, "two": both, "other": other, "shared": shared, "none": {"epoch": 3}}
    files["half"] = {**state, "position": "four"}
    files["ranks"] = {**state, "num_replicas": "two"}
    files["range"] = {
        **state,
        "fingerprint": json.dumps({**json.loads(state["fingerprint"]), "range": 7}),
    }
    for name, value in files.items():
        Path(f"{name}.json").write_text(json.dumps(value))
    batches = wids.BucketBatchSampler(wids.ChunkedSampler(dataset), [0] * 20, 2)
    Path("batches.json").write_text(json.dumps(batches.state_dict()))
    Path("text.json").write_text("position: 3")
    torch.save({"state": state, "path": Path()}, "objects.pt")
    two = ("--batch-size", "2")
    cases: dict[tuple[str, str, tuple[str, ...]], str] = {
        ("train.json", "s", (*two, "--step", "10")): "--step: expected one of the 10 steps of "
        "epoch 0, found 10; steps count from 0 in each epoch, so that in a run of such epochs it "
        "is --epoch 1 --step 0",
        (
            "train.json",
            "s",
            (*two, "--key", "no"),
        ): "'train': no sample has the key 'no'; its keys() are all",
        ("train.json", "other", two): "other.json: expected the state of what train.json stands "
        "for: the state belongs to another order: lengths: expected ",
        (f"{program}:view", "s", two): "expected a count or (start, stop), with start first, "
        "within the dataset's 14 samples, found (0, 20); pass what training has read: its spec, "
        "MODULE:DATASET for a view, or MODULE:SAMPLER for batches and mixes",
        (f"{program}:ranks", "other", two): f"other.json: expected the state of what {program}",
        (f"{program}:single", "shared", two): "expected a sampler for 2 ranks, found "
        "ChunkedSampler, which is for one process; make a DistributedChunkedSampler",
        ("train.json", "batches", two): "batch_size: found 2 in the state, which this sampler "
        "does not have",
        ("train.json", "none", two): "none.json: expected the state of one sampler, with epoch, "
        "fingerprint, num_replicas, position, found none; save it alone: json.dump(",
        ("train.json", "two", two): "position, found ['a'][0], ['b']['c']; save it alone",
        ("train.json", "half", two): "the state is damaged: position: expected an integer",
        (
            "train.json",
            "ranks",
            two,
        ): "the state is damaged: num_replicas: expected an integer of at least 1",
        ("train.json", "range", two): "train.json stands for: 'int' object is not iterable; pass ",
        ("train.json", "text", two): "text.json: expected JSON, or a file of torch.save without ",
        ("train.json", "gone", two): "gone.json: No such file",
        (
            "train.json",
            "s",
            (),
        ): "expected what a rank reads in a step of a DistributedChunkedSampler, found none",
        ("train.json", "s", ("--batch-size", "2,2")): "--batch-size: expected one number, or one "
        "for each of the 1 parts of epoch 0, found 2",
        (f"{program}:number", "s", two): "expected a dataset, a loader, or a callable that returns",
    }
    for (spec, file, arguments), message in cases.items():
        status, out, err = run("order", spec, "--state", f"{file}.json", *arguments)
        assert (status, out, message in err) == (1, "", True), err
    status, _, err = run("browse", "train.json", "--step", "3")
    assert (status, "--step: expected --state FILE too, found none" in err) == (1, True)
    status, _, err = run("browse", f"{program}:view", "--state", "s.json", *two, "--step", "3")
    assert (status, "s.json: expected the state of what" in err) == (1, True)
    status, out, err = run("order", "train.json", "--state", "objects.pt", *two)
    assert (status, out, "objects.pt: expected JSON, or a file of torch.save" in err) == (
        1,
        "",
        True,
    )
    assert re.search(r"found Unsupported .*pathlib\.", err)  # in the words of this torch
    assert "weights_only" not in err
    for text in ("3:3", "3", "-1:2", "a:b", "3:b"):
        status, _, err = run("order", "train.json", "--state", "s.json", *two, f"--steps={text}")
        assert (status, f"expected A:B with A less than B, found {text}" in err) == (2, True), err
