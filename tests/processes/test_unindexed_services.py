"""Tars that nobody has indexed, on the servers that people have: what is read, and how much."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hub
import pytest
from conftest import need, write_tar
from events import wait_for
from looks import browse_command, peeking, photos, tar_of
from loopback import Server
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
    spec = wids.build_spec(pattern, dataset_index=folder / "film.index", on_cost=costs.append)
    assert [(shard.num_samples, shard.sha256) for shard in spec.shards] == [(6, None)] * 2
    assert list(map(str, costs)) == ["2.1 MB in 2 shards"], "no whole one"
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
    """Ranges of nginx: looks and indexes cost a few megabytes of 36."""
    with nginx(tmp_path) as site:
        check(f"{site}/film-{{0..1}}.tar", tmp_path)
    # One megabyte for each first look, and once more for each of the two indexes of `build_spec`;
    # a sample of a film of three megabytes in the end.
    assert sum(sent(tmp_path)) < 2 * 1.3 * MB + 2 * 1.3 * MB + 3.1 * MB
    assert len(sent(tmp_path)) < 40


@pytest.mark.usefixtures("films")
def test_nginx_without_ranges(tmp_path: Path) -> None:
    """Nginx with ranges turned off: a look ends after some megabytes, and says why."""
    # It is slow after what is read, so that a reader that stalls does not take much more.
    with nginx(tmp_path, "max_ranges 0; limit_rate_after 3200k; limit_rate 300k;") as site:
        samples = wids.peek(f"{site}/film-{{0..1}}.tar")
        assert [sample["__key__"] for sample in samples.only([".txt"])] == ["0-0"]
        assert "sends whole files only: 3.1 MB of 18.0 MB were read" in samples._repr_html_()
        wait_for(lambda: sent(tmp_path), "a line in the log of nginx")
    assert sum(sent(tmp_path)) < 12 * MB  # nginx counts what its sockets took
    assert len(sent(tmp_path)) == 1


@pytest.mark.long
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


# The first page of `wids browse`, on each server.


def cpu_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_first_page(named: str, environment: Mapping[str, str], num_shards: int) -> None:
    """Request what the page requests at first; it takes less than a second of the server's time."""
    with browse_command(named, environment) as (client, pid):
        before_s = cpu_s(pid)
        assert client.json("about")["num_shards"] == num_shards
        known = client.json("shard/0/about")["known"]
        page = client.json("shard/0/samples?start=0&count=48")
        assert cpu_s(pid) - before_s < 1
        assert "found so far" in known
        assert len(page["cards"]) >= 25
        assert "caption 24" in page["cards"][24]["html"]


@pytest.fixture(scope="module")
def body() -> bytes:
    """A shard of 100 MB: photos of 110 kB, with captions."""
    return tar_of(photos(110_000), 100 * MB)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads times from /proc")
@pytest.mark.parametrize("kind", ["nginx", "no ranges", "hub", "s3"])
def test_the_first_page_on_every_server(
    kind: str, body: bytes, server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of shards of 100 MB, under 10 MB of one shard are read."""
    names = [f"train-{number:06d}.tar" for number in range(64)]
    pattern = "train-{000000..000063}.tar"
    if kind == "nginx":
        (tmp_path / "www").mkdir()
        first = tmp_path / "www" / names[0]
        first.write_bytes(body)
        for name in names[1:]:
            (tmp_path / "www" / name).hardlink_to(first)
        with nginx(tmp_path) as site:
            check_first_page(f"{site}/{pattern}", {}, 64)
        num_requests, num_sent = len(sent(tmp_path)), sum(sent(tmp_path))
    elif kind == "s3":  # it keeps all objects in memory
        bucket: Bucket = request.getfixturevalue("bucket")
        for name in names[:3]:
            bucket.system.pipe_file(f"{bucket.name}/{name}", body)
        check_first_page(f"{bucket.url}/", bucket.environment(), 3)
        num_requests, num_sent = len(bucket.requests), bucket.num_sent
    elif kind == "hub":
        need(find_spec("huggingface_hub"), "huggingface_hub (pip install '.[test-all]')")
        hub.publish(server, "org/name", dict.fromkeys(names, body))
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
        check_first_page("hf://datasets/org/name/", environment, 64)
        num_requests, num_sent = len(server.log), server.num_sent
    else:
        # Without a rate, the kernel's buffers take ten megabytes or more that nobody reads.
        server.rate_nbytes = MB
        for name in names:
            server.page(f"/{name}", body, has_ranges=False)
        check_first_page(f"{server.url}/{pattern}", {}, 64)
        num_requests, num_sent = len(server.log), server.num_sent
    print(f"{kind}: {num_requests} requests, {num_sent / MB:.1f} MB")  # noqa: T201 - with -s
    assert num_sent < 10 * MB
    assert num_requests < 30
