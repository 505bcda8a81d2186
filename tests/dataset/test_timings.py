"""What `wids.timings` and `dataset.stats` say of loops over all kinds of loaders."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import optional
from loopback import Server
from served_shards import identity, serve_shards
from slow_cases import CASES, Case, Make, attempts, local_shards, slow_collate, slow_server
from torch.utils.data import DataLoader

import wids
from wids.dataset import timing
from wids.storage import stages


def loader_of(case: Case, dataset: wids.ShardListDataset) -> Any:
    """Return a DataLoader that reads a case as training would."""
    sampler = None
    if case.chunksize is not None:
        sampler = wids.ChunkedSampler(dataset, chunksize=case.chunksize)
    return DataLoader(dataset, sampler=sampler, **case.loader)


@pytest.mark.filterwarnings("ignore:.*chunk")
@pytest.mark.parametrize(
    "make",
    [
        make if make in (slow_server, slow_collate) else pytest.param(make, marks=pytest.mark.long)
        for make in CASES
    ],
    ids=lambda make: make.__name__,
)
def test_each_case_is_recognised(
    make: Make, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that was made slow on purpose has the bottleneck that docs/slow.md describes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))  # a processor for each rank
    for case in attempts(make, tmp_path, server):
        with case.dataset() as dataset:
            loader = loader_of(case, dataset)
            with wids.timings(loader) as timings:
                for _ in loader:
                    pass
        times = timings.times()
        assert times.counts["samples"] == len(dataset)
        assert times.advice in str(times)
        if times.bottleneck == case.bottleneck:
            break
    assert times.bottleneck == case.bottleneck, str(times)


# Kinds of loaders.

NUM_SAMPLES, BATCH, DECODE_S = 48, 4, 0.002


def decoded(data: bytes) -> float:
    """Return when this began; it takes two milliseconds."""
    start_s = time.perf_counter()
    time.sleep(DECODE_S)
    assert data
    return start_s


def two_shards(folder: Path, decoder: Callable[[bytes], Any]) -> Any:
    """Return the arguments of a dataset of two shards, whose texts are decoded."""
    shards = local_shards(folder, 2, NUM_SAMPLES // 2)
    return shards, {"transformations": [wids.Decoder(decoders={"txt": decoder})]}


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    """A dataset of two shards, of which each sample takes two milliseconds."""
    shards, options = two_shards(tmp_path, decoded)
    with wids.ShardListDataset(shards, **options) as made:
        yield made


def check(timings: Any, num_passes: int = 1, *, has_collate: bool = True) -> None:
    """Check that loops over all samples were seen, whoever has read them."""
    times = timings.times()
    assert times.num_batches == num_passes * NUM_SAMPLES // BATCH
    assert times.counts["samples"] == num_passes * NUM_SAMPLES
    assert times.seconds["decode"] >= num_passes * NUM_SAMPLES * DECODE_S
    assert times.seconds["collate"] > 0 or not has_collate
    # A pass waits for its first batch; the others may be ready when they are wanted.
    assert num_passes * BATCH * DECODE_S <= times.wait_s <= times.loop_s


def run(loader: Any) -> Any:
    """Read all batches; return the timings."""
    with wids.timings(loader) as timings:
        for _ in loader:
            pass
    return timings


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader(num_workers: int, dataset: wids.ShardListDataset) -> None:
    """With any number of workers the stages are those of all processes."""
    sampler = wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)
    check(run(DataLoader(dataset, BATCH, sampler=sampler, num_workers=num_workers)))


def test_workers_that_ran_before(dataset: wids.ShardListDataset) -> None:
    """Persistent workers begin to count when a block begins, and stop when it ends."""
    loader = DataLoader(
        dataset, BATCH, num_workers=1, persistent_workers=True, collate_fn=wids.collate
    )
    list(loader)
    assert dataset.stats()["samples"] >= NUM_SAMPLES
    timings = run(loader)
    check(timings)
    before = dataset.stats()
    list(loader)
    assert dataset.stats()["decode_s"] == before["decode_s"]
    check(timings)


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_to_start_workers(method: str, dataset: wids.ShardListDataset) -> None:
    """Workers that share nothing with the program but what they are sent count there too."""
    num_before, _ = dataset.get_stats()  # those that counted the samples
    check(run(DataLoader(dataset, BATCH, num_workers=1, multiprocessing_context=method)))
    assert dataset.get_stats()[0] == num_before + NUM_SAMPLES // BATCH


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stateful_loader(num_workers: int, dataset: wids.ShardListDataset) -> None:
    """Torchdata's loader works as before, its state included."""
    stateful = optional("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(dataset, BATCH, num_workers=num_workers)
    with wids.timings(loader) as timings:
        for _ in loader:
            assert loader.state_dict()
    check(timings)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_stream(is_loaded: bool, dataset: wids.ShardListDataset) -> None:
    """A stream is timed in a loader, or as it is."""
    stream: Any = wids.stream(dataset, wids.ChunkedSampler(dataset), batch_size=BATCH)
    if is_loaded:
        check(run(DataLoader(stream, BATCH, num_workers=1)))
    else:
        times = run(stream).times()
        assert times.num_batches == times.counts["samples"] == NUM_SAMPLES


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_accelerate(dataset: wids.ShardListDataset) -> None:
    """A loader that accelerate has prepared is timed, and so is one that is prepared later."""
    accelerate = optional("accelerate")
    loader = DataLoader(dataset, BATCH, num_workers=1)
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    check(run(prepared))
    with wids.timings(loader) as timings:
        list(prepared)
    check(timings, has_collate=False)  # that of the loader which accelerate made


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning(dataset: wids.ShardListDataset, tmp_path: Path) -> None:
    """A trainer's own loop over a loader is timed."""
    lightning = optional("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return (self.weight * batch[".txt"].float()).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = DataLoader(dataset, BATCH, num_workers=1)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    with wids.timings(loader) as timings:
        trainer.fit(Module(), loader)
    check(timings, num_passes=2)


def test_a_loader_is_as_before(dataset: wids.ShardListDataset) -> None:
    """After one block, or two, nothing of the loader or of its class is changed."""
    loader: Any = DataLoader(dataset, BATCH)
    before, collate = DataLoader.__iter__, loader.collate_fn
    timings = wids.timings(loader)
    with timings, wids.timings(loader):
        assert DataLoader.__iter__ is not before
        next(iter(loader))
    assert DataLoader.__iter__ is before
    assert loader.collate_fn is collate
    assert timings.times().num_batches == 1


class Frozen:
    """A loader whose collate function is checked when it is set."""

    @property
    def collate_fn(self) -> Any:
        return list

    @collate_fn.setter
    def collate_fn(self, function: Any) -> None:
        raise ValueError(f"no {function}")

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))


def test_a_block_that_cannot_begin_leaves_its_loader() -> None:
    """A loader that refuses to be timed is iterated over as before."""
    before = Frozen.__iter__
    with pytest.raises(ValueError, match="no functools"), wids.timings(Frozen()):
        pass
    assert Frozen.__iter__ is before


def test_what_is_no_loader() -> None:
    """What cannot be timed is refused, with what was expected."""
    with pytest.raises(TypeError, match="loader: expected one to iterate over, found int"):
        wids.timings(5)
    with (
        pytest.raises(TypeError, match="class is written in Python, such as a DataLoader, found"),
        wids.timings([1]),
    ):
        pass


# Numbers.


class Marked(wids.ShardListDataset):
    """Notes when a batch was begun."""

    def __getitems__(self, indices: Any) -> list[Any]:
        start_s = time.perf_counter()
        return [(start_s, sample) for sample in super().__getitems__(indices)]


def marks(samples: list[Any]) -> tuple[float, float, float]:
    """Return when a batch was begun, when its first sample was decoded, and when it ended."""
    wids.collate([sample for _, sample in samples])
    start_s, first = samples[0]
    return start_s, first[".txt"], time.perf_counter()


def test_stages_add_up_to_the_time_of_a_worker(tmp_path: Path) -> None:
    """From its first batch to its last, each moment of a worker is in one stage."""
    shards, options = two_shards(tmp_path, decoded)
    with Marked(shards, **options) as dataset:
        loader: Any = DataLoader(dataset, BATCH, num_workers=1, collate_fn=marks)
        with wids.timings(loader) as timings:
            (before_s, first_s, _), *_, (_, _, last_s) = loader
            after_s = time.perf_counter()
    # The marks are some instructions away from the clocks of the stages, on either side.
    assert last_s - first_s <= sum(timings.times().seconds.values()) + 1e-6 <= after_s - before_s


def test_workers_count_for_the_dataset(tmp_path: Path, server: Server) -> None:
    """Requests, bytes, copies, shards and samples of workers are those of the dataset."""
    shards = serve_shards(tmp_path, server)[:2]
    options: dict[str, Any] = {"access": "download", "cache_dir": str(tmp_path / "cache")}
    with wids.ShardListDataset(shards, **options) as dataset:
        before = dataset.stats()
        for _ in range(2):
            list(DataLoader(dataset, 5, num_workers=1, collate_fn=identity))
        found = {name: number - before[name] for name, number in dataset.stats().items()}
        assert dataset.get_stats() == (20, 4)
    assert found["samples"] == 100
    assert found["nbytes"] == sum(shard["filesize"] for shard in shards)
    assert found["requests"] >= 2
    assert (found["fetches"], found["hits"], found["openings"]) == (2, 2, 4)
    assert (found["evictions"], found["retries"], found["decode_s"]) == (0, 0, 0)


class Clock:
    """A clock of this process that stands still, but for decoding and for the loop of a test.

    Attributes:
        now_s: What it shows.
        decode_s: What a sample takes.
    """

    now_s = decode_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def decode(self, _: bytes) -> float:
        """Take the time of a sample."""
        self.now_s += self.decode_s
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of loops and stages."""
    clock = Clock()
    monkeypatch.setattr(stages, "perf_counter", clock)
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def test_a_loop_that_waits_warns_once(clock: Clock, tmp_path: Path) -> None:
    """After a minute of which it waited for much there is one warning, which names the stage."""
    clock.decode_s = 5.0
    shards, options = two_shards(tmp_path, clock.decode)
    with wids.ShardListDataset(shards, **options) as dataset:
        with pytest.warns(UserWarning, match=r"waited 100% of the last minute") as found:
            run(DataLoader(dataset, BATCH))
    assert len(found) == 1
    assert "bottleneck: workers: use more workers (num_workers)" in str(found[0].message)


@pytest.mark.parametrize("more_s", [-1 / 32, 0, 1 / 32])
def test_a_loop_that_waits_for_two_fifths_of_a_minute(
    more_s: float, clock: Clock, tmp_path: Path
) -> None:
    """Of twelve batches in a minute, 2 s for each are no reason to warn, and any more are."""
    num_batches = NUM_SAMPLES // BATCH
    batch_s = 2.0 + more_s
    clock.decode_s = batch_s / BATCH
    shards, options = two_shards(tmp_path, clock.decode)
    with wids.ShardListDataset(shards, **options) as dataset:
        loader: Any = DataLoader(dataset, BATCH)
        with warnings.catch_warnings(record=True) as found, wids.timings(loader) as timings:
            warnings.simplefilter("always")
            for _ in loader:
                clock.now_s += 60 / num_batches - batch_s
    times = timings.times()
    assert (times.loop_s, times.wait_s) == (60, num_batches * batch_s)
    messages = [str(warning.message) for warning in found]
    assert len(messages) == (more_s > 0)
    assert all("waited 41% of the last minute" in message for message in messages)


@pytest.mark.parametrize(("loop_s", "bottleneck"), [(1.0, "loop"), (0.5, "workers")])
def test_a_loop_that_is_slow_itself(
    loop_s: float, bottleneck: str, clock: Clock, tmp_path: Path
) -> None:
    """If batches are ready in nine tenths of the time, the loop bounds itself."""
    clock.decode_s = 0.02
    shards, options = two_shards(tmp_path, clock.decode)
    with wids.ShardListDataset(shards, **options) as dataset:
        loader: Any = DataLoader(dataset, BATCH)
        with wids.timings(loader) as timings:
            for _ in loader:
                clock.now_s += loop_s
    assert timings.times().wait_s == pytest.approx(NUM_SAMPLES * clock.decode_s)
    assert timings.bottleneck == bottleneck
    assert ("nothing here would make it faster" in timings.advice) == (bottleneck == "loop")
