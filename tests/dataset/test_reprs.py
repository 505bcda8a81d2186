"""What an interpreter shows: public objects say what they are, and complete to what is public."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shards
from recordings import film

import wids
from wids.errors import SampleError, WidsError
from wids.shards.fields.decode import Decoder

FUNCTIONS = {
    *(
        "append_shards",
        "build_spec",
        "collate",
        "collate_packed",
        "diff_specs",
        "load_spec",
        "load_table",
        "pack_folder",
        "peek",
    ),
    *("rewrite", "sampling_cost", "save_table", "stream", "timings", "verify_spec"),
}


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """One instance of each public class, and of what public functions return."""
    path = write_shards(tmp_path, [8, 5, 7])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    with ExitStack() as stack:
        dataset = stack.enter_context(wids.ShardListDataset(path))
        sampler = wids.ChunkedSampler(dataset)
        found = {
            "ShardListDataset": dataset,
            "Decoder": Decoder("torch", at_least=(9, 9)),
            "Audio": wids.Audio(rate=8000),
            "Clips": wids.Clips(4),
            "VideoReader": stack.enter_context(wids.VideoReader(film(4))),
            "ChunkedSampler": sampler,
            "ShardListSampler": wids.ShardListSampler(dataset),
            "ShardedSampler": wids.ShardedSampler(dataset),
            "DistributedChunkedSampler": wids.DistributedChunkedSampler(
                dataset, num_replicas=2, rank=1
            ),
            "MixedSampler": wids.MixedSampler(dataset),
            "BucketBatchSampler": wids.BucketBatchSampler(sampler, [0] * 20, 4),
            "PackedBatchSampler": wids.PackedBatchSampler(sampler, [1] * 20, 4),
            "Prefetcher": wids.Prefetcher(sampler, dataset),
            "DatasetSpec": wids.load_spec(path),
            "ShardSpec": wids.load_spec(path).shards[0],
            "Shard": stack.enter_context(wids.Shard(str(tmp_path / "train-000000.tar"))),
            "TarWriter": stack.enter_context(wids.TarWriter(tmp_path / "a.tar")),
            "ShardWriter": stack.enter_context(wids.ShardWriter(tmp_path / "b-%06d.tar")),
            "Peek": wids.peek(path),
            "PackReport": wids.pack_folder(tmp_path / "files", tmp_path / "packed"),
            "SamplingCost": wids.sampling_cost(wids.load_spec(path), sampler),
            "Problem": wids.Problem("expected 1, found 2", "train-000000.tar"),
            "stream": wids.stream(dataset, sampler),
            "view": dataset[5:9],
            "map": dataset.map(len),
            "augmentation": dataset.map(max, seed=1),
            "tuples": dataset.to_tuple(".txt", ".cls"),
            "part": dataset.split([0.5, 0.5], seed=0)[0],
            "join": dataset.join({sample["__key__"]: {".n": 1} for sample in dataset}),
            "keys": dataset.keys(),
            "reader": dataset.reader,
            "limits": dataset.limits,
            "spec": dataset.spec,
        }
        found["transformations"] = [t for view in found.values() for t in _transformations(view)]
        yield found


def _transformations(view: Any) -> list[Any]:
    return getattr(view, "transformations", [])


def test_every_public_object_says_what_it_is(instances: dict[str, Any]) -> None:
    """No instance of a public class prints its address; each prints its class and its content."""
    for name in wids.__all__:
        public = getattr(wids, name)
        if not isinstance(public, type):
            assert name in FUNCTIONS
        elif issubclass(public, WidsError):
            arguments = {"field": ".jpg"} if issubclass(public, SampleError) else {}
            assert repr(public("what happened", **arguments)) == f"{name}('what happened')"
        else:
            assert isinstance(instances[name], public)
            assert type(instances[name]).__name__ in repr(instances[name])
            assert re.search(r"\d|'", repr(instances[name])), "more than its class"
    for name, instance in instances.items():
        text = repr(instance)
        assert " at 0x" not in text, name
        if name != "transformations":
            assert len(text) < 700, name


def test_datasets_name_their_fields(tmp_path: Path) -> None:
    """``dataset.fields`` and its text have them, and nothing is fetched for it."""
    path = write_shards(tmp_path, [8, 5, 7])
    with wids.ShardListDataset(path) as dataset:
        assert sorted(dataset.fields) == [".cls", ".txt"]
        dataset[0]
        start = "<ShardListDataset 'train': "
        fields = "fields .txt .cls, through Decoder(images='PIL')"
        assert repr(dataset) == f"{start}20 samples, 3 shards, {fields}>"
        assert repr(dataset[5:9]) == f"{start}4 of 20 samples, 3 shards, {fields}>"
        view = dataset.to_tuple(".txt").map(len)
        assert repr(view) == f"{start}20 samples, 3 shards, {fields}, ToTuple('.txt'), len>"
    with wids.ShardListDataset(path, fields=["cls"], transformations=None) as dataset:
        assert repr(dataset) == f"{start}20 samples, 3 shards, fields .cls>"
        assert dataset.fields == [".cls"]
    with (
        wids.ShardListDataset(path, fields=["cls"], transformations=None) as dataset,
        wids.ShardListDataset(path, fields=["txt"]) as texts,
    ):
        assert repr(dataset.join(texts)) == f"{start}20 samples, 3 shards, fields .cls .txt>"
    captions = {f"s{n:05d}": f"a {n}" for n in range(20)}
    for fields in (["cls"], None):  # once from its list of fields, once from an open shard
        with wids.ShardListDataset(path, fields=fields, transformations=None) as dataset:
            joined = dataset.join(captions, prefix="caption")
            joined[0]
            assert ".cls .caption>" in repr(joined)
            assert [*joined.fields][-1] == ".caption"
            assert len(set(joined.fields)) == len(joined.fields)
    assert repr(dataset.reader) == "<ShardReader: 20 samples, 3 shards>"
    remote = wids.ShardListDataset([("http://127.0.0.1:9/a-000000.tar", 5)])
    assert remote.fields == []
    assert repr(remote).startswith("<ShardListDataset: 5 samples, 1 shard, through")


def test_samplers_and_writers_say_how_they_are_set(instances: dict[str, Any]) -> None:
    """The settings, the epoch and the rank of a sampler; how far a writer is; what is ahead."""
    start = "samples, chunksize=2000, seed=0, shuffle=True"
    assert repr(instances["ChunkedSampler"]) == f"<ChunkedSampler: 20 {start}, epoch 0>"
    instances["ChunkedSampler"].set_epoch(3)
    assert repr(instances["ChunkedSampler"]).endswith("epoch 3>")
    assert "chunksize" not in repr(instances["ShardListSampler"])
    assert repr(instances["DistributedChunkedSampler"]) == (
        f"<DistributedChunkedSampler: 20 {start}, drop_last=False, even=True, redeal=False, "
        "epoch 0, rank 1 of 2>"
    )
    assert "weights={'train': " in repr(instances["MixedSampler"])
    part = wids.ChunkedSampler(range(20), num_samples=(5, 10))
    assert "20 samples, indices 5 to 10, " in repr(part)
    assert repr(instances["Prefetcher"]) == "<Prefetcher of ChunkedSampler: 8.6 GB ahead>"
    writer = instances["ShardWriter"]
    writer.write({"__key__": "a", ".txt": "a"})
    assert re.fullmatch(
        r"<ShardWriter '.*b-%06d.tar': 1 samples?, 0 complete shards, open>", repr(writer)
    )
    with wids.TarWriter(io.BytesIO()) as stream:
        stream.write({"__key__": "a", ".txt": "a"})
        assert repr(stream) == "<TarWriter 'BytesIO': 1 sample, 1.0 kB, open>"
    assert repr(stream).endswith("closed>")


def test_no_secret_is_shown() -> None:
    """A signed URL is shown without its signature."""
    spec = wids.load_spec([("https://example.com/a-000000.tar?token=secret", 5)])
    assert "secret" not in repr(spec)
    assert repr(spec) == "<DatasetSpec '': 1 shard, 'https://example.com/a-000000.tar?…'>"


def test_tab_completion_shows_what_is_public(instances: dict[str, Any]) -> None:
    """``dir`` has what documentation names, and of a dataset nothing else but private names."""
    assert dir(wids) == sorted(wids.__all__)
    dataset, sampler = dir(instances["ShardListDataset"]), dir(instances["ChunkedSampler"])
    public = [name for name in dataset if not name.startswith("_")]
    assert public == sorted(
        [
            *("is_view", "locate", "only", "reader", "sample_access", "undecoded"),
            *("add_transform", "check_cache_misses", "classes", "close", "dataset_name"),
            "fetch_shard",
            *("fields", "find_key", "get_by_key", "get_shard", "get_stats", "join", "keys"),
            *("lengths", "limits", "map", "member", "num_failed", "num_failed_shards"),
            *("on_error", "open_field", "positions", "search", "set_epoch"),
            *("shards", "show", "sources", "spec", "split", "stats", "table"),
            *("to_tuple", "total_length"),
            *("transformations", "weights"),
        ]
    )
    assert {
        *("chunksize", "dataset_length", "epoch", "load_state_dict", "seed", "set_epoch"),
        *("shuffle", "shufflefirst", "state_dict"),
    } <= set(sampler)
