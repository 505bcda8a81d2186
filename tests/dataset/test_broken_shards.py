"""Whole shards that are broken: ``on_error="skip"`` and ``"next"`` pass over them."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, settle, write_shards, write_tar
from loopback import Fault, Server
from remote_site import Site
from torch.utils.data import DataLoader

import wids
from wids import FetchError, MismatchError, NotFoundError, ShardFormatError, ShardListDataset

HTML = b"<html>" + b"not found " * 200
LENGTHS = [8, 5, 7]
BROKEN = range(8, 13)
GOOD = [f"text {n}" for n in range(20) if n not in BROKEN]

Break = Callable[[bytes], "bytes | None"]


def without_a_sample(body: bytes) -> bytes:
    """Return a tar without its first sample, of the same length."""
    return body[4 * 512 :] + bytes(4 * 512)


def cut(body: bytes) -> bytes:
    """Return a tar that ends in the middle of its second member."""
    return body[: 3 * 512]


BREAKS: dict[str, Break] = {
    "missing": lambda _: None,
    "truncated": cut,
    "html": lambda _: HTML,
    "count": without_a_sample,
}


@pytest.fixture(autouse=True)
def found() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of a test."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("error")
        warnings.filterwarnings("always", ".*dataset.num_failed", UserWarning)
        yield found


def broken(folder: Path, how: str, *, is_stated: bool = True) -> list[Any]:
    """Return three local shards, of which the second is broken."""
    write_shards(folder, LENGTHS)
    paths = [folder / f"train-{number:06d}.tar" for number in range(3)]
    body = BREAKS[how](paths[1].read_bytes())
    if body is None:
        paths[1].unlink()
    else:
        paths[1].write_bytes(body)
    return list(zip(paths, LENGTHS, strict=True)) if is_stated else list(paths)


def texts(samples: Any) -> list[str]:
    return [sample[".txt"] for sample in samples]


@pytest.mark.parametrize("how", BREAKS)
def test_skip_leaves_out_the_samples_of_a_broken_shard(
    tmp_path: Path, how: str, found: list[warnings.WarningMessage]
) -> None:
    """Batches and passes lack them, positions stay, and one warning names the shard (VIEW-7)."""
    with ShardListDataset(broken(tmp_path, how), on_error="skip") as dataset:
        assert (len(dataset), dataset.num_failed_shards) == (20, 0)
        assert texts(dataset.__getitems__([0, 9, 19, 10])) == ["text 0", "text 19"]
        assert dataset.__getitems__([8, 9]) == []
        assert texts(dataset) == GOOD
        assert dataset[13]["__index__"] == 13
        assert (dataset.num_failed, dataset.num_failed_shards) == (4 + 5, 1)
        with raises(wids.WidsError, "train-000001.tar"):
            dataset[9]
        assert dataset.num_failed == 9
    (warning,) = found
    assert "train-000001.tar" in str(warning.message)
    assert "num_failed_shards counts" in str(warning.message)


@pytest.mark.parametrize("how", BREAKS)
def test_next_takes_samples_of_the_next_shard(tmp_path: Path, how: str) -> None:
    """Each sample of the broken shard has another one in its place, in views too (VIEW-6)."""
    with ShardListDataset(broken(tmp_path, how), on_error="next") as dataset:
        others = [f"text {n}" for n in range(13, 18)]
        assert texts(dataset) == [*GOOD[:8], *others, *GOOD[8:]]
        assert texts(dataset.__getitems__([10, 0, -11])) == ["text 15", "text 0", "text 14"]
        assert dataset[8][".txt"] == "text 13"
        assert texts(dataset[[9, 0, 12, 3]]) == ["text 0", "text 0", "text 3", "text 3"]
        assert texts(dataset[:13])[8:] == [f"text {n}" for n in range(5)]
        assert texts(dataset[6:18:2])[1:4] == ["text 14", "text 16", "text 14"]
        assert (dataset.num_failed, dataset.num_failed_shards) == (5 + 2 + 1 + 2 + 5 + 3, 1)
        with raises(wids.WidsError, "train-000001.tar", "none of the next 4 samples"):
            list(dataset[8:13])


@pytest.mark.parametrize("policy", ["skip", "next"])
@pytest.mark.parametrize("how", BREAKS)
def test_a_shard_that_cannot_be_counted_has_no_samples(
    tmp_path: Path, how: str, policy: Any
) -> None:
    """Without stated counts the dataset is that of the other shards, except for counts (VIEW-7)."""
    shards = broken(tmp_path, how, is_stated=False)
    if how == "count":  # nobody says how many there should be
        assert len(ShardListDataset(shards, on_error=policy)) == 19
        return
    with ShardListDataset(shards, on_error=policy) as dataset:
        assert dataset.lengths == [8, 0, 7]
        assert texts(dataset) == GOOD
        assert (dataset.num_failed, dataset.num_failed_shards) == (0, 1)
        assert dataset.get_by_key("s00014")[".txt"] == "text 14"
        assert list(dataset.keys())[8] == "s00013"
        assert len(dataset.table([".txt"])) == 15
        assert len(dataset.join({f"s{n:05d}": n for n in range(20)}, prefix="n")) == 15


def test_a_dataset_of_broken_shards_alone_is_an_error(tmp_path: Path) -> None:
    """Nothing is left to read, so the first error is raised."""
    with raises(NotFoundError, "a.tar"):
        ShardListDataset([tmp_path / "a.tar", tmp_path / "b.tar"], on_error="skip")


@pytest.mark.parametrize("access", ["auto", "download", "range"])
@pytest.mark.parametrize("how", BREAKS)
def test_remote_shards(tmp_path: Path, server: Server, how: str, access: Any) -> None:
    """Shards on servers are passed over as local ones are, and requested once (VIEW-7)."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    body = BREAKS[how](site.bodies[1])
    if body is None:
        del server.pages["/train-1.tar"]
    else:
        server.page("/train-1.tar", body + (b"" if how == "truncated" else bytes(512)))
    url = site.spec(index="train.index")
    with ShardListDataset(url, cache_dir=tmp_path / access, access=access, on_error="skip") as data:
        assert texts(data.__getitems__([0, 9, 19])) == ["text 0", "text 19"]
        num_requests = len(server.log)
        assert data.__getitems__([9, 10]) == []
        assert len(server.log) == num_requests
        assert texts(data) == GOOD
        assert (data.num_failed, data.num_failed_shards) == (1 + 2 + 5, 1)
        data.on_error = "next"
        assert texts(data.__getitems__([8, 12])) == ["text 13", "text 17"]


def test_an_open_shard_that_breaks(tmp_path: Path, server: Server) -> None:
    """It is noted although it was opened before broken shards were to be passed over."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    url = site.spec(index="train.index")
    with ShardListDataset(url, cache_dir=tmp_path / "cache", access="range") as dataset:
        assert dataset[9][".txt"] == "text 9"
        del server.pages["/train-1.tar"]
        dataset.on_error = "skip"
        assert dataset.__getitems__([9, 10]) == []
        num_requests = len(server.log)
        assert dataset.__getitems__([9, 10]) == []
        assert len(server.log) == num_requests
        assert dataset.num_failed_shards == 1


@pytest.mark.parametrize("how", ["missing", "truncated", "html"])
def test_remote_shards_that_cannot_be_counted(tmp_path: Path, server: Server, how: str) -> None:
    """Other shards are downloaded and counted (VIEW-7)."""
    site = Site(tmp_path / "site", server)
    body = BREAKS[how](site.bodies[1])
    if body is None:
        del server.pages["/train-1.tar"]
    else:
        server.page("/train-1.tar", body)
    urls = [f"{server.url}/train-{number}.tar" for number in range(3)]
    with ShardListDataset(urls, on_error="skip") as dataset:
        assert dataset.lengths == [8, 0, 7]
        assert texts(dataset) == GOOD
        assert dataset.num_failed_shards == 1


def test_a_copy_that_is_damaged_is_fetched_again_first(tmp_path: Path, server: Server) -> None:
    """A broken copy of an intact shard is no broken shard."""
    site = Site(tmp_path / "site", server)
    with ShardListDataset(site.spec(), cache_dir=tmp_path / "cache", on_error="skip") as dataset:
        dataset.fetch_shard(1)
        (copy,) = (tmp_path / "cache" / "shards").glob("*.tar")
        copy.write_bytes(HTML)
        assert len(list(dataset)) == 20
        assert dataset.num_failed_shards == 0


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("policy", ["skip", "next"])
def test_a_server_that_refuses_breaks_no_shard(tmp_path: Path, server: Server, policy: Any) -> None:
    """Neither refused access nor a server that is away is passed over (VIEW-7)."""
    site = Site(tmp_path / "site", server)
    for status in (403, 500):
        server.pages["/train-1.tar"].always = Fault(status)
        options: Any = {"retry_s": 1}
        with ShardListDataset(site.spec(), on_error=policy, storage_options=options) as dataset:
            for read in (
                lambda dataset: dataset.__getitems__([0, 9]),
                list,
                lambda dataset: dataset[9],
            ):
                with raises(FetchError, "train-1.tar", str(status)):
                    read(dataset)
            assert (dataset.num_failed, dataset.num_failed_shards) == (0, 0)


@pytest.mark.parametrize("context", [None, "fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_share_what_is_broken(tmp_path: Path, context: str | None) -> None:
    """The counts are those of all workers, also of samples that only one of them read."""
    with ShardListDataset(broken(tmp_path, "html"), on_error="skip") as dataset:
        loader = DataLoader(
            dataset,
            batch_sampler=[[0, 8], [9, 10], [11, 12], [13, 8]],
            collate_fn=wids.collate,
            num_workers=0 if context is None else 2,
            multiprocessing_context=context,
        )
        batches = [batch[".txt"] if batch else [] for batch in loader]
        assert batches == [["text 0"], [], [], ["text 13"]]
        assert (dataset.num_failed, dataset.num_failed_shards) == (6, 1)
        other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
        assert (texts(other), other.num_failed_shards) == (GOOD, 1)


def test_a_shard_that_another_process_found_broken_is_not_opened(
    tmp_path: Path, server: Server
) -> None:
    """A process relies on what another one has found, and its error says so."""
    site = Site(tmp_path / "site", server)
    server.page("/train-1.tar", HTML)
    with ShardListDataset(site.spec(), on_error="skip") as dataset:
        assert in_child(lambda: dataset.__getitems__([9]) == [])
        num_requests = len(server.log)
        with raises(ShardFormatError, "train-1.tar", "another process"):
            dataset[9]
        assert len(server.log) == num_requests


@pytest.mark.parametrize("num_workers", [0, 2])
def test_fetching_ahead_passes_over_too(tmp_path: Path, server: Server, num_workers: int) -> None:
    """A Prefetcher fetches a broken shard once, and the pass goes on without it."""
    site = Site(tmp_path / "site", server)
    server.page("/train-1.tar", HTML)
    with ShardListDataset(site.spec(), on_error="next") as dataset:
        sampler = wids.ChunkedSampler(dataset, shuffle=False)
        loader = DataLoader(
            dataset,
            batch_size=4,
            sampler=wids.Prefetcher(sampler, dataset),
            collate_fn=list,
            num_workers=num_workers,
        )
        read = [sample[".txt"] for batch in loader for sample in batch]
        assert read == [*GOOD[:8], *(f"text {n}" for n in range(13, 18)), *GOOD[8:]]
        assert dataset.num_failed_shards == 1
        # Twice, since the first copy may have been damaged on its way; and by each thread that
        # waits for the download of another one while that fails.
        num_requests = [request.path for request in server.log].count("/train-1.tar")
        assert 2 <= num_requests <= 2 * (2 + num_workers)


def test_ranks_have_equal_numbers_of_steps(tmp_path: Path) -> None:
    """A rank whose shards are broken has as many batches as the others, some empty (VIEW-5)."""
    with ShardListDataset(broken(tmp_path, "missing"), on_error="skip") as dataset:
        steps, keys = [], []
        for rank in range(4):
            sampler = wids.DistributedChunkedSampler(
                dataset, num_replicas=4, rank=rank, chunksize=5, shuffle=False
            )
            loader = DataLoader(dataset, 2, sampler=sampler, collate_fn=wids.collate)
            with pytest.warns(UserWarning, match='"next" keeps batches full'):
                batches = list(loader)
            steps.append(len(batches))
            keys += [key for batch in batches for key in batch.get("__key__", [])]
        assert steps == [3, 3, 3, 3]
        assert sorted(keys) == [f"s{n:05d}" for n in range(20) if n not in BROKEN]


def test_next_gives_up_after_a_hundred_shards(tmp_path: Path) -> None:
    """So many broken shards in a row are no accident; fewer are passed over (VIEW-6)."""
    last = write_tar(tmp_path / "last.tar", [("a.txt", b"good")])
    shards = [(tmp_path / f"{number}.tar", 3) for number in range(120)]
    with ShardListDataset([*shards, (last, 1)], on_error="next") as dataset:
        with raises(NotFoundError, "0.tar", "none of the next 100 samples"):
            dataset[0]
        assert dataset[100][".txt"] == "good"
        assert dataset.num_failed_shards == 120


def test_max_failed(tmp_path: Path) -> None:
    """More samples than this share is an error, as soon as a broken shard has them."""
    shards = broken(tmp_path, "missing")
    for allowed, is_enough in ((0.25, True), (0.24, False)):
        with ShardListDataset(shards, on_error="skip", max_failed=allowed) as dataset:
            if is_enough:
                assert [len(texts(dataset)) for _ in range(4)] == [15] * 4
                continue
            assert texts(dataset.__getitems__([0])) == ["text 0"]
            with raises(NotFoundError, "train-000001.tar", "25.000% of the samples", "max_failed"):
                dataset.__getitems__([9])
            dataset.on_error = "next"
            with raises(NotFoundError, "max_failed"):
                dataset[9]


def test_max_failed_in_the_constructor(tmp_path: Path) -> None:
    """A shard that cannot be counted is taken for one of usual length."""
    shards = broken(tmp_path, "html", is_stated=False)
    ShardListDataset(shards, on_error="skip", max_failed=0.34).close()
    with raises(ShardFormatError, "train-000001.tar", "33.333%", "max_failed"):
        ShardListDataset(shards, on_error="skip", max_failed=0.33)


def test_max_failed_counts_damaged_samples(tmp_path: Path) -> None:
    """Samples that fail count among those read, and at least among those of the dataset."""
    members = [(f"{n:03}.cls", b"cat" if n < 30 else b"1") for n in range(100)]
    path = write_tar(tmp_path / "a.tar", members)
    with ShardListDataset(path, on_error="skip", max_failed=0.3) as dataset:
        for _ in range(3):
            assert len(list(dataset)) == 70
    with (
        ShardListDataset(path, on_error="skip", max_failed=0.29) as dataset,
        raises(wids.DecodeError, '"029" (index 29)', "30.000%"),
    ):
        list(dataset)
    options: Any
    for options in ({"max_failed": 0.1}, {"max_failed": 2, "on_error": "skip"}):
        with raises(ValueError, "max_failed"):
            ShardListDataset(path, **options)


def test_a_joined_dataset_passes_over_shards_of_both_sides(tmp_path: Path) -> None:
    """With indexes the keys are known, and a shard that is missing costs its samples."""
    for side in ("own", "other"):
        folder = tmp_path / side
        folder.mkdir()
        paths = [str(settle(path)) for path in map(Path, map(str, _written(folder)))]
        wids.build_spec(paths, dataset_index=folder / "train.index").save(folder / "train.json")
    for side in ("own", "other"):
        own = ShardListDataset(tmp_path / "own" / "train.json", on_error="skip")
        with own.join(ShardListDataset(tmp_path / "other" / "train.json"), prefix="b") as joined:
            hidden = tmp_path / side / "train-000001.tar"
            os.rename(hidden, tmp_path / "hidden")
            assert texts(joined) == GOOD
            assert (joined.num_failed, joined.num_failed_shards) == (5, 1)
            os.rename(tmp_path / "hidden", hidden)


def _written(folder: Path) -> list[Path]:
    write_shards(folder, LENGTHS)
    return sorted(folder.glob("*.tar"))


def test_a_table_needs_all_shards(tmp_path: Path) -> None:
    """A broken shard is the error of a table, whatever on_error says (TABLE-2)."""
    with ShardListDataset(broken(tmp_path, "truncated"), on_error="skip") as dataset:
        for _ in range(2):
            with raises(ShardFormatError, "train-000001.tar"):
                dataset.table([".txt"])
        assert len(dataset[:8].table([".txt"])) == 8


@pytest.mark.parametrize("how", ["truncated", "count"])
def test_a_shard_that_is_broken_while_it_is_open(tmp_path: Path, how: str) -> None:
    """A local shard that is written again is opened again, and passed over if it is broken."""
    shards = broken(tmp_path, "missing")
    path = write_tar(tmp_path / "train-000001.tar", sample_members(8, 13))
    with ShardListDataset(shards, on_error="skip") as dataset:
        assert len(list(dataset)) == 20
        with path.open("r+b") as file:  # in place
            file.truncate(len(cut(path.read_bytes())) if how == "truncated" else 4 * 512)
        dataset.reader.open(1)._check_after_s = 0.0
        assert dataset.__getitems__([8, 12, 0])[0][".txt"] == "text 0"
        assert dataset.num_failed_shards == 1


def test_a_local_shard_cut_between_members(tmp_path: Path) -> None:
    """A file that is shorter than its spec says is incomplete, though its members are whole."""
    spec = write_shards(tmp_path, LENGTHS)
    wids.build_spec([str(p) for p in sorted(tmp_path.glob("*.tar"))]).save(spec)
    path = tmp_path / "train-000001.tar"
    os.truncate(path, 4 * 4 * 512 + 2 * 512)  # without the last member of the last sample
    with ShardListDataset(spec) as dataset, raises(MismatchError, str(path), "incomplete"):
        dataset[8]
    with ShardListDataset(spec, on_error="skip") as dataset:
        assert texts(dataset) == GOOD


def test_a_subclass_passes_over_broken_shards(tmp_path: Path) -> None:
    """Batches and passes of a class of the caller lack the samples too."""

    class Text(ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[".txt"]

    with Text(broken(tmp_path, "html"), on_error="skip") as dataset:
        assert list(dataset) == GOOD
        assert dataset.__getitems__([9, 0]) == ["text 0"]
        assert (dataset.num_failed, dataset.num_failed_shards) == (6, 1)
