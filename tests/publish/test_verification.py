"""Copies in a cache folder, compared with what is known of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import sample_members, write_tar
from loopback import Server

import wids
from wids.publish.verification import check_copies


@pytest.mark.parametrize("share", [None, 1.0])
def test_a_damaged_copy_is_found(server: Server, tmp_path: Path, share: float | None) -> None:
    """Each copy is compared, with its digest or sample by sample; other shards are not fetched."""
    body = write_tar(tmp_path / "a.tar", sample_members(0, 5)).read_bytes()
    urls = [server.page(f"/{number}.tar", body) for number in range(2)]
    spec = wids.build_spec(urls)
    folder = tmp_path / "cache"
    with wids.ShardListDataset(spec, cache_dir=folder, access="download") as dataset:
        dataset[0]
        (copy,) = folder.rglob("*.tar")
    num_requests = len(server.log)
    num_samples = 0 if share is None else 5
    assert check_copies(spec, str(folder), share) == (1, num_samples, [])
    damaged = bytearray(copy.read_bytes())
    damaged[512] ^= 1
    copy.write_bytes(damaged)
    _, _, (problem,) = check_copies(spec, str(folder), share)
    assert str(copy) in str(problem) or urls[0] in str(problem)
    assert len(server.log) == num_requests


@pytest.mark.parametrize("share", [None, 1.0])
def test_a_shard_that_is_named_twice(server: Server, tmp_path: Path, share: float | None) -> None:
    """Its copy is one copy, with the samples that it has and what is damaged in it."""
    body = write_tar(tmp_path / "a.tar", sample_members(0, 5)).read_bytes()
    spec = wids.build_spec([server.page("/a.tar", body)] * 2)
    folder = tmp_path / "cache"
    with wids.ShardListDataset(spec, cache_dir=folder, access="download") as dataset:
        assert len(dataset) == 10
        assert dataset[9][".txt"] == dataset[4][".txt"]
    (copy,) = folder.rglob("*.tar")
    assert check_copies(spec, str(folder), share) == (1, 0 if share is None else 5, [])
    copy.write_bytes(body.replace(b"text 3", b"TEXT 3"))
    assert len(check_copies(spec, str(folder), share)[2]) == 1
