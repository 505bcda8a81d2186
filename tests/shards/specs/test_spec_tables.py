"""Remote documents are read once on a machine for each of their versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from conftest import raises
from loopback import Server

import wids
from wids.errors import NotFoundError
from wids.shards.specs.shard_table import State, write_table
from wids.shards.specs.spec_tables import LARGE_NBYTES, ShardTable
from wids.storage.files import file_digest

pytestmark = pytest.mark.usefixtures("quick_retries")
NUM_SHARDS = 20_000


def document(name: str = "train") -> bytes:
    """Return a document that is just large enough."""
    entries = [{"url": f"train-{n:06d}.tar", "nsamples": 3} for n in range(NUM_SHARDS)]
    data = json.dumps({"name": name, "shardlist": entries}, indent=1).encode()
    assert len(data) > LARGE_NBYTES
    return data


def opened(url: str, folder: Path) -> tuple[str, int, str]:
    """Open a dataset; return its name, its length and the URL of its last shard."""
    with wids.ShardListDataset(url, cache_dir=folder) as dataset:
        assert isinstance(dataset.spec.shards, ShardTable)
        return dataset.spec.name, len(dataset), dataset.spec.shards[-1].url


def new_processes(count: int) -> Executor:
    """Return an executor of spawned processes."""
    return ProcessPoolExecutor(count, get_context("spawn"))


@pytest.mark.parametrize(
    "pool_of",
    [ThreadPoolExecutor, pytest.param(new_processes, marks=pytest.mark.long)],
)
def test_one_download_for_all_processes(
    server: Server, tmp_path: Path, pool_of: Callable[[int], Executor]
) -> None:
    """Of processes that open a document at once one downloads it; later ones ask for a byte."""
    url = server.page("/train.json", document())
    wanted = ("train", 3 * NUM_SHARDS, server.url + "/train-019999.tar")
    with pool_of(3) as pool:
        assert list(pool.map(partial(opened, url), [tmp_path] * 3)) == [wanted] * 3
    downloads = [r for r in server.log if r.is_download and r.path == "/train.json"]
    # Each process also begins to read it, to learn that it is large.
    assert len(downloads) <= 3 + 1
    del server.log[:]
    assert opened(url, tmp_path) == wanted
    assert [(r.path, r.range) for r in server.log] == [("/train.json", "bytes=0-0")]


def test_another_version_is_read(server: Server, tmp_path: Path) -> None:
    """A document that was published again is noticed by its tag."""
    url = server.page("/train.json", document())
    assert opened(url, tmp_path)[0] == "train"
    server.page("/train.json", document("later"))
    assert opened(url, tmp_path)[0] == "later"
    assert opened(url, tmp_path)[0] == "later"


def test_a_published_table_with_long_facts_is_used(server: Server, tmp_path: Path) -> None:
    """A document with a long description is not read if its table is beside it."""
    url = server.page("/train.json", document())
    path, facts = tmp_path / "train.shards", {"name": "train", "info": "i" * 200_000}
    state = State(len(document()), server.pages["/train.json"].tag)
    with path.open("w+b") as file:
        write_table(file, json.loads(document())["shardlist"], facts, bytes(32), state)
    server.page("/train.shards", path.read_bytes())
    opened(url, tmp_path / "cache")
    assert len([r for r in server.log if r.path == "/train.json"]) == 1


@pytest.mark.parametrize("has_tag", [True, False])
def test_a_published_table_spares_the_document(
    server: Server, tmp_path: Path, *, has_tag: bool
) -> None:
    """By its tag the document is not read at all, and without the tag it is not parsed."""
    data = document()
    url = server.page("/train.json", data)
    path = tmp_path / "train.json"
    path.write_bytes(data)
    sha256 = bytes.fromhex(file_digest(str(path), "sha256"))
    state = State(len(data), server.pages["/train.json"].tag if has_tag else "")
    with (tmp_path / "train.shards").open("w+b") as file:
        write_table(file, json.loads(data)["shardlist"], {"name": "published"}, sha256, state)
    server.page("/train.shards", (tmp_path / "train.shards").read_bytes())
    with wids.ShardListDataset(url, cache_dir=tmp_path / "cache") as dataset:
        assert dataset.spec.name == "published"
    ranges = [r.range for r in server.log if r.path == "/train.json"]
    assert len(ranges) == (1 if has_tag else 2)


def test_a_short_document_is_one_request(server: Server, tmp_path: Path) -> None:
    """Nothing is kept of it, and nothing looked for."""
    url = server.page("/train.json", {"shardlist": [{"url": "0.tar", "nsamples": 1}]})
    for _ in range(2):
        wids.ShardListDataset(url, cache_dir=tmp_path).close()
    assert server.requests == ["/train.json"] * 2
    assert not list(tmp_path.iterdir())
    with raises(NotFoundError, "/none.json"):
        wids.ShardListDataset(server.url + "/none.json", cache_dir=tmp_path)


@pytest.mark.parametrize("option", ["has_tag", "has_length"])
def test_a_server_without_versions(server: Server, tmp_path: Path, option: str) -> None:
    """A document whose length or tag is unknown is read as a whole each time."""
    url = server.page("/train.json", document(), **{option: False})
    for _ in range(2):
        with wids.ShardListDataset(url, cache_dir=tmp_path) as dataset:
            assert len(dataset) == 3 * NUM_SHARDS
    assert server.requests == ["/train.json"] * 2
