"""Servers that send whole files only, and servers that send something else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Server

import wids

SHARD_NBYTES = 215_040


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Four shards of a hundred samples, and the dataset index."""
    paths = [
        write_tar(tmp_path / f"{n}.tar", sample_members(n * 100, n * 100 + 100)) for n in range(4)
    ]
    wids.build_spec([str(path) for path in paths], dataset_index=tmp_path / "all.index")
    return paths


def published(server: Server, shards: list[Path], *, has_ranges: bool) -> dict[str, object]:
    urls = [server.page(f"/{p.name}", p.read_bytes(), has_ranges=has_ranges) for p in shards]
    shardlist = [{"url": url, "nsamples": 100} for url in urls]
    return {"shardlist": shardlist, "index": str(shards[0].parent / "all.index")}


def test_one_warning_says_what_it_costs(
    server: Server, shards: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """One for each server, with bytes; each shard is downloaded once."""
    with wids.ShardListDataset(published(server, shards, has_ranges=False)) as dataset:
        assert [dataset[n][".txt"] for n in (5, 6, 150, 399)] == [
            *("text 5", "text 6", "text 150", "text 399")
        ]

    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == (
        f"{server.url}: the server sends whole files only, without byte ranges: a single sample "
        f"costs the download of its shard, such as 215.0 kB of {server.url}/0.tar"
    )
    # The first attempt at a part is cut off; the other shards are not asked for parts.
    assert [request.is_download for request in server.log] == [False, True, True, True]
    assert sum(request.num_sent for request in server.log[1:]) == 3 * SHARD_NBYTES


def test_a_server_with_ranges_is_not_warned_about(
    server: Server, shards: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A sample costs its own bytes."""
    with wids.ShardListDataset(published(server, shards, has_ranges=True)) as dataset:
        for n in (5, 6, 150, 399):
            assert dataset[n][".txt"] == f"text {n}"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(server.log) == 4
    assert server.num_sent < 10_000


PAGES = {
    "login": b"<!DOCTYPE html>\n<html><title>Log in</title></html>",
    "s3": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>' + b" " * 1000,
}


@pytest.mark.parametrize("page", PAGES)
def test_html_where_a_tar_was_expected(page: str, server: Server, own_cache: Path) -> None:
    """The error shows the page, with status 200 too, and nothing of it is stored."""
    url = server.page("/train-0.tar", PAGES[page])
    begin = PAGES[page][:15].decode()

    for work in (wids.ShardListDataset, wids.build_spec):
        with raises(wids.ShardFormatError, url, "found HTML or XML (perhaps a login page", begin):
            work([url])
    (problem,) = wids.verify_spec([url])
    assert "found HTML or XML" in str(problem)
    with wids.ShardListDataset([(url, 5)]) as dataset:
        with raises(wids.ShardFormatError, url, begin):
            dataset[0]

    assert not [path for path in own_cache.glob("shards/*") if path.stat().st_size]
