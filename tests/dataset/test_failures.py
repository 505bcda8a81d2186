"""``on_error="skip"`` and ``"next"``: what becomes of batches with damaged samples."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises, write_tar
from events import LONG_S
from torch.utils.data import DataLoader

import wids
from wids import DecodeError, ShardListDataset, TransformError
from wids.storage.shared_numbers import SharedNumber, writing

BAD = (1, 2, 7)
LENGTH = 9


@pytest.fixture
def spec(tmp_path: Path) -> list[str]:
    """Three shards of three samples, of which three cannot be decoded."""
    paths = []
    for shard in range(3):
        numbers = range(shard * 3, shard * 3 + 3)
        members = [(f"{n}.cls", b"cat" if n in BAD else b"%d" % n) for n in numbers]
        paths.append(str(write_tar(tmp_path / f"{shard}.tar", members)))
    return paths


@pytest.fixture(autouse=True)
def expected_warnings() -> Iterator[None]:
    """Ignore the one warning; `test_one_warning` looks at it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*dataset.num_failed", UserWarning)
        yield


def numbers(samples: Any) -> list[int]:
    return [sample[".cls"] for sample in samples]


def test_an_iteration_that_is_left_waits_for_no_lock(spec: list[str]) -> None:
    """It may be collected by a thread for which the holder of that lock waits, to fork."""
    with ShardListDataset(spec, on_error="skip") as dataset:
        samples = iter(dataset)
        next(samples)
        with writing:
            closing = threading.Thread(target=samples.close, daemon=True)  # type: ignore[attr-defined]
            closing.start()
            closing.join(LONG_S)
            assert not closing.is_alive()


def test_skip_leaves_samples_out_of_batches_and_counts_them(spec: list[str]) -> None:
    """A batch loses the samples that fail, and stays in order (VIEW-5)."""
    with ShardListDataset(spec, on_error="skip") as dataset:
        assert numbers(dataset.__getitems__([8, 7, 0, 2, 0])) == [8, 0, 0]
        assert dataset.__getitems__([1, 2]) == []
        assert dataset.num_failed == 4
        assert numbers(dataset) == [0, 3, 4, 5, 6, 8]
        assert dataset.num_failed == 7
        with raises(DecodeError, '"7" (index 7)'):  # who asks for one sample gets it or an error
            dataset[7]
        assert dataset.num_failed == 7


@pytest.mark.parametrize("on_error", ["skip", "next", None])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_skip_warns_where_ranks_wait_for_each_other(
    tmp_path: Path, on_error: Any, num_replicas: int
) -> None:
    """A rank that leaves out an empty batch has a step less; with `"next"` none has (VIEW-5)."""
    with ShardListDataset(whole(tmp_path, 30), on_error=on_error) as dataset:
        ranks = {"rank": 0, "num_replicas": num_replicas}
        sampler = wids.DistributedChunkedSampler(dataset, **ranks)
        buckets = wids.BucketBatchSampler(sampler, [1] * 30, batch_size=5)
        for each in (sampler, buckets):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                list(each)
            warned = any('on_error="next" keeps batches full' in str(w.message) for w in caught)
            assert warned is (on_error == "skip" and num_replicas > 1)


def test_next_takes_the_next_good_sample_of_the_view(spec: list[str]) -> None:
    """The replacement is of the same view; the first follows the last (VIEW-6)."""
    with ShardListDataset(spec, on_error="next") as dataset:
        assert dataset[1][".cls"] == 3
        assert dataset[-8][".cls"] == 3
        assert numbers(dataset.__getitems__([0, 1, 2, -2])) == [0, 3, 3, 8]
        assert numbers(dataset) == [0, 3, 3, 3, 4, 5, 6, 8, 8]
        assert dataset.num_failed == 2 + 3 + 3
        view = dataset[[0, 5, 7]]
        assert view[2][".cls"] == 0
        assert numbers(view) == [0, 5, 0]


def test_next_gives_up_when_none_is_good(tmp_path: Path) -> None:
    """After a hundred bad samples in a row the first one's error is raised."""
    members = [(f"{n:03}.cls", b"cat" if n < 150 else b"1") for n in range(300)]
    path = write_tar(tmp_path / "a.tar", members)
    with ShardListDataset(path, on_error="next") as dataset:
        assert dataset[60][".cls"] == 1
        with raises(DecodeError, '"010" (index 10)', "none of the next 100 samples"):
            dataset[10]
        with raises(DecodeError, "none of the next 1 samples"):
            dataset[:2].__getitems__([0])


def test_one_warning(spec: list[str]) -> None:
    """The first sample that fails is named; all others are only counted."""
    with (
        ShardListDataset(spec, on_error="skip") as dataset,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        list(dataset)
        list(dataset[:5])
    assert len(caught) == 1
    assert '"1" (index 1)' in str(caught[0].message)
    assert "left out; dataset.num_failed counts" in str(caught[0].message)


@pytest.mark.parametrize("context", [None, "fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_skip_and_count(spec: list[str], context: str | None) -> None:
    """A DataLoader gets shorter batches, an empty one from `wids.collate`, and the count."""
    num_workers = 0 if context is None else 2
    with ShardListDataset(spec, on_error="skip", verify="never") as dataset:
        loader = DataLoader(
            dataset,
            batch_sampler=[[0, 1], [1, 2], [7, 8, 6]],
            collate_fn=wids.collate,
            num_workers=num_workers,
            multiprocessing_context=context,
        )
        batches = [batch[".cls"].tolist() if batch else [] for batch in loader]
        assert batches == [[0], [], [8, 6]]
        assert dataset.num_failed == 4


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own business
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_counts_positions(spec: list[str], num_workers: int) -> None:
    """A state after a batch that became shorter continues with the batch after it (VIEW-9)."""
    stateful = optional("torchdata.stateful_dataloader")

    def loader(dataset: ShardListDataset) -> Any:
        return stateful.StatefulDataLoader(
            dataset,
            batch_size=3,
            sampler=wids.ChunkedSampler(dataset, shuffle=False),
            num_workers=num_workers,
            collate_fn=wids.collate,
        )

    with ShardListDataset(spec, on_error="skip") as dataset:
        interrupted = loader(dataset)
        batches = iter(interrupted)
        assert next(batches)[".cls"].tolist() == [0]
        resumed = loader(dataset)
        resumed.load_state_dict(interrupted.state_dict())
        del batches
        assert [batch[".cls"].tolist() for batch in resumed] == [[3, 4, 5], [6, 8]]


def test_damaged_bytes_are_skipped(tmp_path: Path) -> None:
    """A member that is not what was indexed costs its sample, not its batch."""
    path = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"text %d" % n) for n in range(3)])
    wids.build_spec([str(path)], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    data = bytearray(path.read_bytes())
    data[data.index(b"text 1") + 5] ^= 1
    path.write_bytes(data)
    with ShardListDataset(tmp_path / "a.json", on_error="skip") as dataset:
        assert [s[".txt"] for s in dataset.__getitems__([0, 1, 2])] == ["text 0", "text 2"]


def test_a_key_is_never_another_samples(spec: list[str]) -> None:
    """`get_by_key` raises the error of its sample, also where the next one would do."""
    with ShardListDataset(spec, on_error="next") as dataset:
        assert dataset.get_by_key("3")[".cls"] == 3
        with raises(DecodeError, '"2"'):
            dataset.get_by_key("2")


def test_a_subclass_decides_what_a_sample_is(spec: list[str]) -> None:
    """Batches and iterations of a subclass are passed over by its own errors too."""

    class Doubled(ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return {".cls": 2 * sample[".cls"]} if isinstance(sample, dict) else sample

    with Doubled(spec, on_error="skip") as dataset:
        assert numbers(dataset.__getitems__([0, 1, 3])) == [0, 6]
        assert numbers(dataset) == [0, 6, 8, 10, 12, 16]
        assert dataset.num_failed == 1 + 3
    with Doubled(spec, on_error="next") as dataset:
        assert numbers(dataset.__getitems__([0, 1, 3])) == [0, 6, 6]


def test_policies_travel_and_may_be_assigned(spec: list[str]) -> None:
    """A pickle keeps the policy; views share the count; other values are refused."""
    with ShardListDataset(spec) as dataset:
        assert (dataset.on_error, dataset.num_failed) == (None, 0)
        dataset.on_error = "skip"
        view = dataset[1:3]
        assert list(view) == []
        assert dataset.num_failed == 2
        other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
        assert numbers(other) == [0, 3, 4, 5, 6, 8]
        assert (other.on_error, other.num_failed, dataset.num_failed) == ("skip", 5, 2)
        other.close()
        with raises(ValueError, 'expected "skip", "next", a callable or None', "'ignore'"):
            dataset.on_error = "ignore"  # type: ignore[assignment]
        assert dataset.on_error == "skip"


def whole(tmp_path: Path, length: int, num_shards: int = 1) -> list[Any]:
    """Return shards of numbers, with their lengths."""
    shards = []
    for shard in range(num_shards):
        members = [(f"{n:05}.cls", b"%d" % n) for n in range(shard * length, (shard + 1) * length)]
        shards.append((write_tar(tmp_path / f"{shard}.tar", members), length))
    return shards


def mistaken() -> Any:
    raise NameError("jgp is not defined")


def fails(is_bad: Any) -> Any:
    """Return a function of a program that fails for some numbers."""
    return lambda sample: mistaken() if is_bad(sample[".cls"]) else sample


def error_text(samples: Any) -> str:
    """Return the error that ends a pass, with its traceback."""
    try:
        list(samples)
    except TransformError as error:
        text = "".join(traceback.format_exception(error))
        # torch keeps the error and its loader in a cycle, whose workers would take 10 s to end.
        traceback.clear_frames(error.__traceback__)
        return text
    return ""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("policy", ["skip", "next"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mistake_of_the_program_ends_the_epoch(
    tmp_path: Path, policy: Any, num_workers: int
) -> None:
    """A hundred samples that all fail raise with their cause and its traceback."""
    with ShardListDataset(whole(tmp_path, 400), on_error=policy) as dataset:
        list(dataset)  # other views count by themselves
        view = dataset.map(fails(lambda number: number < 200))
        loader = DataLoader(view, batch_size=10, num_workers=num_workers, collate_fn=list)
        expected = ["NameError: jgp is not defined"]
        # With "next" the first sample tries a hundred others.
        expected += ["max_failed=1.0"] if policy == "skip" else ["none of the next 100"]
        text = error_text(loader)
        assert [part for part in expected if part not in text] == []
        assert "in mistaken" in text  # from workers too, as torch passes tracebacks on
        # Each of two workers may read two more batches before the loop gets the error.
        assert view.num_failed <= 150


@pytest.mark.long
def test_more_than_half_of_a_thousand_is_no_damage(tmp_path: Path) -> None:
    """The commonest cause is raised; up to a half is passed over."""
    shards = whole(tmp_path, 1200)

    def unfit(sample: Any) -> Any:
        return sample[".cls"][0] if sample[".cls"] % 40 == 1 else sample

    def count(share: int, **options: Any) -> int:
        with ShardListDataset(shards, on_error="skip", **options) as dataset:
            view = dataset.map(unfit).map(fails(lambda number: number % 20 < share))
            return sum(1 for _ in range(3) for _ in view)

    assert count(9) == 3 * 660
    with raises(TransformError, "NameError", "of 1,0", "most of them so"):
        count(11)
    assert count(11, max_failed=1.0) == 3 * 540
    assert count(20, max_failed=1.0) == 0


@pytest.mark.filterwarnings("ignore:on_error=.skip. on 2 ranks")
@pytest.mark.parametrize("is_announced", [False, True])
def test_each_epoch_is_judged_by_itself(tmp_path: Path, is_announced: bool) -> None:
    """A good epoch does not hide a bad one, whatever the sampler."""
    is_bad = SharedNumber()
    with ShardListDataset(whole(tmp_path, 300), on_error="skip") as dataset:
        view = dataset.map(fails(lambda _: is_bad.value))
        # Ranks read a part of the dataset in each epoch.
        sampler: Any = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=0)
        loader = DataLoader(view, 10, sampler=sampler if is_announced else None, collate_fn=list)
        for _ in range(2):
            assert sum(map(len, loader)) == (150 if is_announced else 300)
        is_bad.set(1)
        with raises(TransformError, "NameError", "100 of 100"):
            list(loader)


def test_a_program_that_reads_one_by_one(tmp_path: Path) -> None:
    """Classes that override ``__getitem__`` are judged too, and good samples count."""

    class Doubled(ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return sample if isinstance(sample, ShardListDataset) else [sample, sample]

    shards = whole(tmp_path, 300)
    for policy in ("skip", "next"):
        options: Any = {"on_error": policy}
        with Doubled(shards, **options) as dataset:
            view = dataset.map(fails(lambda number: number % 2 == 0 or number < 90))
            assert len(list(view)) == (105 if policy == "skip" else 300)
            with raises(TransformError, "NameError"):
                list(dataset.map(fails(lambda number: number < 150)))


def test_broken_shards_are_exceptions_unless_most_are(tmp_path: Path) -> None:
    """Two that come first are passed over; where all are missing, the epoch ends."""
    shards = whole(tmp_path, 400, 6)
    for path, _ in shards[:2]:
        path.unlink()
    with ShardListDataset(shards, on_error="skip") as dataset:
        for _ in range(2):
            assert len(list(dataset)) == 1600
    for path, _ in shards[2:]:
        path.unlink()
    with ShardListDataset(shards, on_error="skip") as dataset:
        with raises(wids.NotFoundError, "0.tar", "801 of 801"):
            list(dataset)
    with ShardListDataset(shards, on_error="skip", max_failed=1.0) as dataset:
        assert list(dataset) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("fork", "    for _ in loader:"),
        ("spawn", "    return wids.ShardListDataset(shards, on_error='skip')"),
    ],
)
def test_a_warning_of_workers_names_the_line_of_the_program_once(
    spec: list[str], tmp_path: Path, method: str, line: str
) -> None:
    """The loop, or in spawned workers the dataset; once for all workers, and never wids itself."""
    program = tmp_path / "train.py"
    program.write_text(f"""
import wids
from torch.utils.data import DataLoader
shards = {[*spec, str(tmp_path / "gone.tar")]}
def made():
    return wids.ShardListDataset(shards, on_error='skip')
if __name__ == "__main__":
    dataset = made()
    # The second worker has a damaged sample, 2, after the first has returned from 1, and warned.
    loader = DataLoader(dataset, batch_sampler=[[1], [0], [3], [2]], num_workers=2,
                        prefetch_factor=1, collate_fn=list, multiprocessing_context="{method}")
    for _ in loader:
        pass
""")
    write_tar(tmp_path / "gone.tar", [("9.cls", b"1")]).write_bytes(b"no tar" * 500)
    found = subprocess.run(
        [sys.executable, program], check=True, capture_output=True, text=True
    ).stderr.splitlines()
    (of_sample,) = [text for text in found if "num_failed counts" in text]
    (of_shard,) = [text for text in found if "num_failed_shards counts" in text]
    number = program.read_text().splitlines().index(line) + 1
    assert of_sample.startswith(f"{program}:{number}: UserWarning: ")
    assert of_shard.startswith(f"{program}:")  # it was found when the samples were counted
