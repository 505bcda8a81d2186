"""Samples and shards that cannot be read: what the errors name, and what ``on_error`` replaces."""

from __future__ import annotations

import functools
import io
import pickle
import shlex
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import num_open, raises, sample_members, write_tar
from PIL import Image
from torch.utils.data import DataLoader

import wids
from wids import (
    DecodeError,
    MismatchError,
    NotFoundError,
    SampleError,
    ShardFormatError,
    ShardListDataset,
    TransformError,
    WidsError,
    load_spec,
)


def corrupt(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"cat"), ("c.cls", b"3")])


def test_decode_error_names_the_sample(tmp_path: Path) -> None:
    """Shard, key, field and index are in the text and in attributes."""
    path = corrupt(tmp_path)
    with ShardListDataset(path) as dataset, pytest.raises(DecodeError) as caught:
        dataset[1]

    error = caught.value
    assert f'{path}: sample "b" (index 1): field ".cls": expected cls data' in str(error)
    assert (error.shard, error.key, error.field, error.index) == (str(path), "b", ".cls", 1)


def test_traceback_of_a_damaged_sample_has_one_cause(tmp_path: Path) -> None:
    """It has the error of what decodes, and the one that names the sample, which repeats it."""
    with ShardListDataset(corrupt(tmp_path)) as dataset, pytest.raises(DecodeError) as caught:
        dataset[1]

    error = caught.value
    assert isinstance(error.__cause__, ValueError)
    assert not isinstance(error.__cause__, WidsError)
    assert error.__suppress_context__
    assert error.__cause__.__cause__ is None


def test_transformation_error_names_the_sample(train: Path) -> None:
    """The exception of a transformation is the cause of an error that names the sample."""
    with ShardListDataset(train) as dataset:
        dataset.add_transform(lambda sample: sample["jpg"])

        with pytest.raises(TransformError) as caught:
            dataset[9]

    assert 'train-000001.tar: sample "s00009" (index 9): a transformation raised KeyError' in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, KeyError)


def test_on_error_replaces_the_sample(tmp_path: Path) -> None:
    """What the callable returns takes the sample's place, alone and in a batch."""
    seen: list[WidsError] = []

    def substitute(error: WidsError) -> None:
        seen.append(error)

    with ShardListDataset(corrupt(tmp_path), on_error=substitute) as dataset:
        assert dataset[1] is None
        assert [sample and sample[".cls"] for sample in dataset.__getitems__([0, 1, 2])] == [
            *(1, None),
            3,
        ]
    assert [type(error) for error in seen] == [DecodeError] * 2
    assert isinstance(seen[0], SampleError)
    assert seen[0].__cause__ is not None


def test_on_error_gets_errors_of_shards_too(tmp_path: Path) -> None:
    """A shard that is missing or not a tar fails each of its samples, and no other."""
    good = write_tar(tmp_path / "a.tar", [("a.cls", b"1")])
    (tmp_path / "b.tar").write_bytes(b"<html>" + b" " * 600)
    shards = [(good, 1), (tmp_path / "b.tar", 1), (tmp_path / "gone.tar", 1)]

    with ShardListDataset(shards, on_error=type) as dataset:
        assert dataset.__getitems__([2, 1, 0])[:2] == [NotFoundError, ShardFormatError]
        assert dataset[0][".cls"] == 1


def test_broken_shard_is_opened_once_a_batch(tmp_path: Path) -> None:
    """A batch opens a broken shard once, and replaces all its samples."""
    (tmp_path / "bad.tar").write_bytes(b"<html>" + b" " * 600)

    with ShardListDataset([(tmp_path / "bad.tar", 50)], on_error=type) as dataset:
        assert dataset.__getitems__(range(50)) == [ShardFormatError] * 50
        assert dataset.get_stats() == (1, 1)


def test_collected_errors_hold_no_files(tmp_path: Path) -> None:
    """An error of a broken shard that is stored does not keep the file open."""
    good = write_tar(tmp_path / "good.tar", sample_members(0, 1))
    data = good.read_bytes()
    (tmp_path / "bad.tar").write_bytes(data[:515])
    (tmp_path / "worse.tar").write_bytes(data[:1024] + b"x" * 600)
    errors: list[WidsError] = []
    shards = [(tmp_path / "bad.tar", 1), (tmp_path / "worse.tar", 1)]
    with ShardListDataset(shards, on_error=errors.append) as dataset:
        for _ in range(20):
            dataset.__getitems__([0, 1])
        assert len(errors) == 40
        assert num_open(tmp_path) == 0


# Shards with another number of samples.


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (3, "the spec says 3 samples, the shard has 4; if the spec is wrong, pass"),
        (8, "the spec says 8 samples, the shard has 4, and 8 is its number of members"),
    ],
)
def test_wrong_count_is_explained(tmp_path: Path, count: int, message: str) -> None:
    """A count that is not the shard's is an error with both numbers, whichever sample is read."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 4))
    with (
        ShardListDataset([(path, count)]) as dataset,
        raises(MismatchError, f"{path}: {message}", "spec.without_counts()", "`wids create`"),
    ):
        dataset[0]
    with ShardListDataset(load_spec([(path, count)]).without_counts()) as dataset:
        assert [sample[".txt"] for sample in dataset] == [f"text {n}" for n in range(4)]


def test_count_by_the_other_rule_is_explained(tmp_path: Path) -> None:
    """Tools that split names at the last dot count differently; the error says what to pass."""
    path = write_tar(tmp_path / "a.tar", [("a.seg.png", b""), ("a.png", b""), ("b.png", b"")])
    with (
        ShardListDataset([(path, 3)]) as dataset,
        raises(MismatchError, "says 3 samples, the shard has 2", 'pass key_split="last"'),
    ):
        dataset[0]
    with ShardListDataset([(path, 3)], key_split="last", transformations=None) as dataset:
        assert [sample["__key__"] for sample in dataset] == ["a.seg", "a", "b"]
    spec = {"key_split": "last", "shardlist": [{"url": "a.tar", "nsamples": 3}]}
    with ShardListDataset(spec, base=tmp_path, transformations=None) as dataset:
        assert dataset[0]["__key__"] == "a.seg"


def test_shard_with_another_count_later_is_noticed(tmp_path: Path) -> None:
    """The count from when the dataset was opened is compared whenever a shard is opened."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 8))
    with ShardListDataset(path) as dataset:
        for members in (sample_members(0, 4), sample_members(0, 9)):
            dataset.close()
            write_tar(path, members)
            with raises(
                MismatchError, "expected 8 samples as when the dataset was opened", "found "
            ):
                pickle.loads(pickle.dumps(dataset))[6]  # noqa: S301 - made here
            with raises(MismatchError, "written again since: open the dataset again"):
                dataset[6]


def test_a_damaged_sample_says_what_to_do(tmp_path: Path) -> None:
    """The error has the command that shows the sample, and the way to read on without it."""
    noise, stream = Image.effect_noise((64, 64), 90), io.BytesIO()
    noise.save(stream, "JPEG")
    members = [("0.cls", b"1"), ("1.jpg", stream.getvalue()[:-600]), ("1.cls", b"2")]
    shards = [
        write_tar(tmp_path / "a.tar", [("a.txt", b"")]),
        write_tar(tmp_path / "b.tar", members),
    ]
    with ShardListDataset(shards) as dataset:
        advice = f"`wids sample {shards[1]} 1 --raw`"
        for read in (
            lambda: dataset[2],
            lambda: dataset.__getitems__([2, 0]),
            lambda: list(dataset),
        ):
            with raises(DecodeError, ".jpg", advice, 'on_error="skip"'):
                read()
        with pytest.raises(TransformError) as caught:  # no damage
            dataset.map(len).map(len)[0]
        assert "on_error" not in str(caught.value)
    words = shlex.split(advice.strip("`"))
    found = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=True
    )
    assert ".cls" in found.stdout
    wids.build_spec(list(map(str, shards)), dataset_index=tmp_path / "a.index").save(
        tmp_path / "a.json"
    )
    data = bytearray(shards[1].read_bytes())
    data[1536 + 700] ^= 1
    shards[1].write_bytes(data)
    with ShardListDataset(tmp_path / "a.json") as dataset, raises(ShardFormatError, advice):
        dataset[2]


def no_return(sample: Any) -> None:
    """Forget to return the sample, as programs do."""


def whole(sample: Any) -> Any:
    return sample


def refused(loader: Any) -> str:
    """Return the error of a loader, whose workers end at once."""
    try:
        next(iter(loader))
    except (TypeError, IndexError) as error:
        traceback.clear_frames(error.__traceback__)  # torch keeps it and the loader in a cycle
        return str(error)
    return ""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_torch_cannot_make(tmp_path: Path, num_workers: int) -> None:
    """The error names the cause in the program, and not a type of torch's table."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    path = write_tar(tmp_path / "a.tar", [("a.png", stream.getvalue()), ("b.png", b"")])
    with ShardListDataset(path)[:1] as dataset:
        for collate in (None, wids.collate):
            options: Any = {"num_workers": num_workers, "collate_fn": collate}
            text = refused(DataLoader(dataset.map(no_return), **options))
            assert "found None" in text
            assert "`return sample`" in text
            text = refused(DataLoader(dataset.to_tuple(".png"), **options))
            assert "pictures of PIL" in text or "found PngImageFile" in text
            assert 'transformations="torch"' in text
        assert 'transformations="torch"' in refused(DataLoader(dataset, num_workers=num_workers))


@pytest.mark.filterwarnings("ignore:Got pickle error")  # by torch, beside the error
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_that_workers_cannot_find(train: Path, method: str) -> None:
    """Where workers are not forked, the error says which function, and what to do."""

    class Step:
        def __call__(self, sample: Any) -> Any:
            return sample

    def opened(**options: Any) -> ShardListDataset:
        return stack.enter_context(ShardListDataset(train, **options))

    with ExitStack() as stack:
        dataset, decoder = opened(), wids.Decoder(decoders={"cls": lambda data: data})
        cases: list[tuple[str, Any, dict[str, Any]]] = [
            ("map", dataset.map(lambda sample: sample), {}),
            ("map", dataset.map(lambda sample, _: sample, seed=0), {}),
            ("map", dataset.map(functools.partial(lambda _, sample: sample, 1)), {}),
            ("map", dataset.map(Step()), {}),
            ("Decoder: decoders", opened(transformations=[decoder]), {}),
            ("on_error", opened(on_error=lambda _: None), {}),
            ("collate_fn or worker_init_fn", dataset, {"collate_fn": lambda _: 1}),
        ]
        for place, view, options in cases:
            loader = DataLoader(view, num_workers=1, multiprocessing_context=method, **options)
            text = refused(loader)
            assert f"{place}: expected a function at the top level" in text
            assert "found test_functions_that_workers_cannot_find.<locals>." in text
            assert 'multiprocessing_context="fork"' in text
        with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
            pickle.dumps(dataset.map(lambda sample: sample))  # as for any object
        pickle.loads(pickle.dumps(dataset.map(whole))).close()  # noqa: S301 - made here


@pytest.mark.long
@pytest.mark.parametrize("place", ["view", "loader"])
def test_functions_of_a_program_without_a_file(train: Path, place: str) -> None:
    """Workers cannot import a notebook: its functions are refused before they start."""
    code = f"""
import wids
from torch.utils.data import DataLoader
def whole(sample):
    return sample
dataset = wids.ShardListDataset({str(train)!r})
view = dataset.map(whole) if {place == "view"} else dataset
collate = list if {place == "view"} else whole
for method in "fork", "forkserver":
    loader = DataLoader(view, 10, num_workers=1, multiprocessing_context=method, collate_fn=collate)
    try:
        print(len(list(loader)))
    except TypeError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = run.stdout.strip().split("\n")
    assert first == "2"
    assert "found whole of __main__; define it in a file" in second


def test_a_random_map_takes_a_generator(train: Path) -> None:
    """A function of one argument is an error at once, and not in the first batch."""
    with ShardListDataset(train) as dataset:
        for function in (whole, lambda sample: sample):
            with raises(TypeError, "map(seed=0)", "two arguments", "(sample"):
                dataset.map(function, seed=0)
        assert dataset.map(max, seed=0)


def test_a_sampler_of_another_dataset(train: Path) -> None:
    """An index that is too large for the dataset asks for the sampler's."""
    with ShardListDataset(train) as dataset:
        loader = DataLoader(dataset[:5], batch_size=30, sampler=wids.ChunkedSampler(dataset))
        assert "was the sampler made for another dataset?" in refused(loader)
        with raises(IndexError, "index 99 is out of range") as caught:
            dataset[99]
        assert "sampler" not in str(caught.value)
