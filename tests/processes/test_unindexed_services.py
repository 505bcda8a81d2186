"""Tars that nobody has indexed, on the servers that people have: what is read, and how much."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import need, write_tar
from looks import peeking
from s3 import Bucket
from servers import free_port, running

import wids

MB = 1_000_000


@pytest.fixture
def films(tmp_path: Path) -> list[Path]:
    """Two shards of 6 films of 3 MB, with titles."""
    (tmp_path / "www").mkdir()
    return [
        write_tar(
            tmp_path / "www" / f"film-{number}.tar",
            [
                member
                for n in range(6)
                for member in [
                    (f"{number}-{n}.mp4", bytes([n]) * (3 * MB)),
                    (f"{number}-{n}.txt", f"film {n}".encode()),
                ]
            ],
        )
        for number in range(2)
    ]


def check(pattern: str, folder: Path) -> None:
    """Look at shards, make the index of one, and describe all of them by their headers."""
    with peeking(pattern, cache_dir=folder / "cache") as client:
        page = client.json("shard/1/samples?start=0&count=48")
        assert [card["index"] for card in page["cards"]] == [0, 1, 2, 3, 4, 5]
        assert "film 5" in page["cards"][5]["html"]
        assert client.request("POST", "shard/0/index")[0] == 200
        part = client.get("shard/0/field/3/.mp4", Range="bytes=1000-1009")[2]
        assert part == bytes([3]) * 10
    costs: list[Any] = []
    spec = wids.build_spec(pattern, pack=folder / "film.index", on_cost=costs.append)
    assert [(shard.num_samples, shard.sha256) for shard in spec.shards] == [(6, None)] * 2
    assert str(costs[0]).startswith("2 remote shards indexed by headers: ")
    with wids.ShardListDataset(spec, access="range", transformations=None) as dataset:
        assert dataset[8][".txt"].getvalue() == b"film 2"


@contextmanager
def nginx(folder: Path, options: str = "") -> Iterator[str]:
    """Serve ``www`` in a folder by nginx; its access log tells what was sent."""
    need(shutil.which("nginx"), "nginx (Debian: nginx-light)")
    port = free_port()
    (folder / "nginx.conf").write_text(f"""
        daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{}}
        http {{
            access_log {folder}/access.log;
            client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
            fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
            server {{ listen 127.0.0.1:{port}; root {folder}/www; {options} }}
        }}
    """)
    with running(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], port):
        yield f"http://127.0.0.1:{port}"


def sent(folder: Path) -> list[int]:
    """Return the bytes of each response in nginx's log."""
    log = (folder / "access.log").read_text()
    return [int(nbytes) for nbytes in re.findall(r'" \d{3} (\d+) "', log)]


@pytest.mark.usefixtures("films")
def test_nginx(tmp_path: Path) -> None:
    """Ranges of nginx: looks and indexes cost a few megabytes of 36 (INDEX-21, INDEX-23)."""
    with nginx(tmp_path) as site:
        check(f"{site}/film-{{0..1}}.tar", tmp_path)
    # One megabyte for each first look, and once more for each of the two indexes of `build_spec`;
    # a sample of a film of three megabytes in the end.
    assert sum(sent(tmp_path)) < 2 * 1.3 * MB + 2 * 1.3 * MB + 3.1 * MB
    assert len(sent(tmp_path)) < 40


@pytest.mark.usefixtures("films")
def test_nginx_without_ranges(tmp_path: Path) -> None:
    """Nginx with ranges turned off: a look ends after some megabytes, and says why."""
    with nginx(tmp_path, "max_ranges 0; limit_rate 20m;") as site:
        samples = wids.peek(f"{site}/film-{{0..1}}.tar")
        assert [sample["__key__"] for sample in samples.only([".txt"])] == ["0-0"]
        assert "sends whole files only: 4.2 MB of 18.0 MB were read" in samples._repr_html_()
    assert sum(sent(tmp_path)) < 12 * MB  # nginx counts what its sockets took
    assert len(sent(tmp_path)) == 1


def test_s3(
    bucket: Bucket, films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of a bucket through fsspec: the same, with the options of the environment."""
    for path in films:
        bucket.system.put_file(str(path), f"{bucket.name}/{path.name}")
    monkeypatch.setenv("WIDS_STORAGE_OPTIONS", bucket.environment()["WIDS_STORAGE_OPTIONS"])
    check(f"{bucket.url}/film-{{0..1}}.tar", tmp_path)
    assert bucket.num_sent < 2 * 1.3 * MB + 2 * 1.3 * MB + 3.1 * MB
    # A read of a part asks for the version before and after it: three requests.
    assert len(bucket.requests) < 150
