"""What programs written for the old library pass and call, beside what every program does."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_shards, write_tar
from loopback import Server

from wids import NotFoundError, ShardListDataset, ShardSpec, SpecError


def test_options_may_be_none(train: Path) -> None:
    """Entries of ``options`` are refused, with what to write instead."""
    for nothing in (None, {}):
        with ShardListDataset(train, options=nothing) as dataset:
            assert len(dataset) == 20
    with raises(ValueError, "options: expected None, found {'name': 'x'}", "change the document"):
        ShardListDataset(train, options={"name": "x"})
    document = {**json.loads(train.read_text()), "name": "other"}
    with ShardListDataset(document, base=train.parent) as dataset:
        assert dataset[0]["__dataset__"] == "other"


def test_keep_wins_over_a_limit(server: Server, tmp_path: Path, own_cache: Path) -> None:
    """One warning, and no copy is deleted."""
    for number in range(3):
        path = write_tar(tmp_path / f"{number}.tar", [("a.txt", b"x" * 30_000)])
        server.page(f"/{number}.tar", path.read_bytes())
    shards = [{"url": f"{server.url}/{n}.tar", "nsamples": 1} for n in range(3)]

    with pytest.warns(UserWarning, match="keep=True never deletes a copy, so cache_size=50000"):
        dataset = ShardListDataset(shards, keep=True, cache_size=50_000)
    with dataset:
        assert len(dataset.__getitems__([0, 1, 2])) == 3
    assert len(list((own_cache / "shards").glob("*.tar"))) == 3


def test_limit_that_counts_shards_is_told_from_bytes(server: Server, tmp_path: Path) -> None:
    """The old library documented ``cache_size`` as a number of shards, and ignored it."""
    body = write_tar(tmp_path / "0.tar", [("a.txt", b"x")]).read_bytes()
    shard: dict[str, Any] = {"url": server.page("/0.tar", body), "nsamples": 1}
    hint = 'cache_size counts bytes, and 100 looks like a number of shards: pass such as "200GB"'

    with raises(ValueError, "two largest shards", "found 100;", hint):
        ShardListDataset([{**shard, "filesize": len(body)}], cache_size=100)
    with pytest.warns(UserWarning, match=f"no shard fits into 100 bytes; {hint}"):
        ShardListDataset([shard], cache_size=100).close()
    ShardListDataset(tmp_path / "0.tar", cache_size=100).close()  # nothing is cached


def test_names_among_callables(train: Path) -> None:
    """A name in the list stands for its decoder, in its place."""
    with ShardListDataset(train, transformations=["PIL", lambda sample: sample[".cls"]]) as dataset:
        assert dataset[7] == 7
    with ShardListDataset(
        train, transformations=[lambda sample: sample[".cls"].read()], raw="stream"
    ) as dataset:
        assert dataset[7] == b"7"
    ShardListDataset(train, transformations=["PIL"], allow_pickle=True).close()
    with raises(ValueError, "transformations: expected a list of callables", "jax"):
        ShardListDataset(train, transformations=[len, "jax"])


def test_class_takes_an_annotation(train: Path) -> None:
    """``ShardListDataset[dict]`` is the class, to call and to inherit from."""

    class Mine(ShardListDataset[dict]):  # type: ignore[misc,type-arg]
        pass

    with ShardListDataset[dict](train) as dataset, Mine(train) as mine:  # type: ignore[misc]
        assert type(dataset) is ShardListDataset
        assert dataset[3] == mine[3]


def test_sum_is_a_concatenation(train: Path, tmp_path: Path) -> None:
    """``a + b`` is torch's ``ConcatDataset``."""
    (tmp_path / "other").mkdir()
    with ShardListDataset(train) as a, ShardListDataset(write_shards(tmp_path / "other", [3])) as b:
        both = a + b
        assert len(both) == 23
        assert [both[19][".txt"], both[20][".txt"]] == ["text 19", "text 0"]


IS_TORCHS = {
    "torch first": "import torch; from wids import ShardListDataset",
    "wids first": "from wids import ShardListDataset; import torch",
    "a subclass, wids first": (
        "from wids import ShardListDataset as Base\n"
        "class ShardListDataset(Base): pass\n"
        "import torch"
    ),
    "a subclass of both": (
        "import torch, wids\n"
        "class ShardListDataset(torch.utils.data.Dataset, wids.ShardListDataset):\n"
        "    __getitem__ = wids.ShardListDataset.__getitem__\n"
        "    __init__ = wids.ShardListDataset.__init__"
    ),
}


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(
            start, id=name, marks=[] if name == "a subclass, wids first" else pytest.mark.long
        )
        for name, start in IS_TORCHS.items()
    ],
)
def test_dataset_is_torchs_where_torch_is_imported(train: Path, start: str) -> None:
    """Programs check it with ``isinstance``; copies, pickles and views are datasets too."""
    code = (
        f"{start}\n"
        "import copy, pickle\n"
        f"with ShardListDataset({str(train)!r}) as dataset:\n"
        "    for one in (dataset, dataset[2:], copy.copy(dataset)):\n"
        "        assert isinstance(one, torch.utils.data.Dataset)\n"
        "        assert one[3]['.cls'] == pickle.loads(pickle.dumps(one))[3]['.cls']\n"
        "    print(len(dataset + dataset))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("40\n", "")


def test_localname_names_the_file_of_a_local_shard(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it names is read if it exists; otherwise the shard, which is never copied."""
    (tmp_path / "fast").mkdir()
    first = train.parent / "train-000000.tar"
    os.rename(first, tmp_path / "fast" / first.name)

    def localname(url: str) -> str:
        return str(tmp_path / "fast" / os.path.basename(url))

    with ShardListDataset(train, localname=localname) as dataset:
        assert [sample["__index__"] for sample in dataset] == list(range(20))
        assert dataset[0]["__shard__"] == str(first)
        assert dataset.get_shard(0)[0].path == localname(str(first))
    with ShardListDataset(train, localname=lambda _: None) as dataset:
        assert dataset[19][".cls"] == 9
    named: list[str] = []
    shards = [
        ShardSpec(f"file://{train.parent}/train-000001.tar", 5),
        ShardSpec("train-000002.tar", 7),
    ]
    monkeypatch.chdir(train.parent)
    with ShardListDataset(shards, localname=named.append) as dataset:
        assert (dataset[0][".cls"], dataset[5][".cls"]) == (8, 3)
    assert os.listdir(tmp_path / "fast") == [first.name]
    paths = [str(train.parent / f"train-00000{n}.tar") for n in (1, 2)]
    assert sorted(set(named)) == paths  # as docs/migration.md says


@pytest.mark.parametrize("count", [8, None])
def test_a_missing_shard_names_the_path_of_localname(tmp_path: Path, count: int | None) -> None:
    """Neither the shard nor the file that stands for it exists; the error names both."""
    shard, named = str(tmp_path / "a.tar"), str(tmp_path / "b.tar")
    shards = [(shard, count)] if count else [shard]
    with pytest.raises(NotFoundError) as error:
        ShardListDataset(shards, localname=lambda _: named)[0]
    assert f"{shard}: no such file" in str(error.value)
    assert f"localname returned {named}" in str(error.value)


@pytest.mark.parametrize(
    ("localname", "found"),
    [(lambda _: 3, "TypeError: expected str"), (lambda url: {}[url], "KeyError: ")],
)
def test_an_error_of_localname_names_it(
    train: Path, server: Server, localname: Callable[[str], str], found: str
) -> None:
    """The function is named, the shard, and what went wrong, for local and remote shards."""
    url = server.page("/0.tar", (train.parent / "train-000000.tar").read_bytes())
    for shards in ([(str(train.parent / "train-000000.tar"), 8)], [(url, 8)]):
        with pytest.raises(SpecError, match="expected localname to return") as error:
            ShardListDataset(shards, localname=localname)[0]
        assert found in str(error.value)


def test_cache_misses_are_logged(train: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``check_cache_misses`` warns of a random order with too few open shards."""
    with ShardListDataset(train, lru_size=1) as dataset:
        dataset.check_cache_misses()
        for _ in range(60):
            dataset[0], dataset[19]
        with caplog.at_level(logging.WARNING, "wids"):
            dataset.check_cache_misses()
    (record,) = caplog.records
    assert "120 of 120 accesses had to open their shard" in record.getMessage()
    assert "lru_size" in record.getMessage()
