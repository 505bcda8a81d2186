"""nginx as a cache between a cluster and its bucket, configured as docs/remote.md shows."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import need, raises, write_tar
from loopback import Server
from servers import free_port, running

import wids
from wids.storage.fetch import Fetcher

PAGE = Path(__file__).parents[2] / "docs" / "remote.md"
NUM_SHARDS, NUM_SAMPLES, SAMPLE_NBYTES = 4, 20, 500_000

NODE = """
import json, sys
from torch.utils.data import DataLoader
import wids

spec, seed = sys.argv[1:]
with wids.ShardListDataset(spec, transformations=None, raw="bytes") as dataset:
    sampler = wids.ChunkedSampler(dataset, chunksize=20, shuffle=True, seed=int(seed))
    loader = DataLoader(dataset, sampler=wids.Prefetcher(sampler, dataset), collate_fn=list)
    keys = [sample["__key__"] for batch in loader for sample in batch]
    assert sorted(keys) == [f"{n:06d}" for n in range(80)], keys
"""


@contextmanager
def proxy(folder: Path, port: int, origin: str) -> Iterator[None]:
    """Run nginx with the settings of docs/remote.md, in a folder, in front of another server."""
    need(shutil.which("nginx"), "nginx (Debian: nginx-light)")
    blocks = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    settings = blocks[0]
    for shown, ours in (
        ("/data/shards", f"{folder}/shards"),
        ("listen 8080", f"listen 127.0.0.1:{port}"),
        ("https://s3.eu-west-1.amazonaws.com", origin),
        ("/etc/ssl/certs/ca-certificates.crt", f"{folder}/none.crt"),
    ):
        assert settings.count(shown) == 1
        settings = settings.replace(shown, ours)
    (folder / "nginx.conf").write_text(f"""
        daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
            fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
            {settings}
        }}
    """)
    with running(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], port):
        yield


def published(folder: Path, server: Server) -> int:
    """Publish a dataset of 40 MB in a bucket of a server; return the bytes of all its files."""
    numbers = random.Random(0)
    for shard in range(NUM_SHARDS):
        write_tar(
            folder / f"train-{shard}.tar",
            [
                (f"{shard * NUM_SAMPLES + n:06d}.bin", numbers.randbytes(SAMPLE_NBYTES))
                for n in range(NUM_SAMPLES)
            ],
        )
    spec = wids.build_spec(
        [str(folder / f"train-{shard}.tar") for shard in range(NUM_SHARDS)],
        dataset_index=folder / "train.index",
    )
    spec.save(folder / "train.json")
    paths = [path for path in folder.iterdir() if path.is_file()]
    for path in paths:
        server.page(f"/bucket/{path.name}", path.read_bytes())
    return sum(path.stat().st_size for path in paths)


@pytest.mark.long
@pytest.mark.parametrize("way", ["WDS_REWRITE", "storage_options"])
def test_four_nodes_read_the_bucket_once(
    way: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket sends at most 1.1 times the dataset to four nodes with a cache folder each.

    While the proxy is away, what needs it is an error that names it, and nobody asks the bucket;
    copies are read. When it is back, the bucket sends nothing that it has sent before.
    """
    if way == "storage_options":
        need(find_spec("obstore"), "obstore (pip install '.[test-all]')")
    (tmp_path / "files").mkdir()
    nbytes = published(tmp_path / "files", server)
    server.rate_nbytes = 60e6  # so that nodes want what is still arriving
    port = free_port()
    if way == "WDS_REWRITE":
        environment = {"WDS_REWRITE": f"^s3://=http://127.0.0.1:{port}/"}
    else:
        options = {"s3://bucket/": {"endpoint_url": f"http://127.0.0.1:{port}", "anon": True}}
        environment = {"WIDS_STORAGE_OPTIONS": json.dumps(options)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = "s3://bucket/train.json"

    with proxy(tmp_path, port, server.url):
        nodes = [
            subprocess.Popen(
                [sys.executable, "-c", NODE, url, str(number)],
                env={**os.environ, "WIDS_CACHE": str(tmp_path / f"node-{number}")},
                stderr=subprocess.PIPE,
            )
            for number in range(4)
        ]
        for node in nodes:
            _, errors = node.communicate(timeout=120)
            assert node.returncode == 0, errors.decode()
    print(f"{server.num_sent / nbytes:.3f} times the dataset")  # noqa: T201 - with -s
    assert server.num_sent <= 1.1 * nbytes
    assert server.num_sent >= nbytes - 1_000_000  # all shards, and through it

    num_sent = server.num_sent
    with raises(wids.FetchError, f"127.0.0.1:{port}" if way == "WDS_REWRITE" else "bucket"):
        wids.load_spec(url)
    with proxy(tmp_path, port, server.url), wids.ShardListDataset(url, access="download") as data:
        assert data[79]["__key__"] == "000079"
    with proxy(tmp_path, port, server.url):
        dataset = wids.ShardListDataset(url, cache_dir=tmp_path / "node-0")
    with dataset:
        assert dataset[79]["__key__"] == "000079"
    assert server.num_sent == num_sent


@pytest.mark.long
@pytest.mark.usefixtures("quick_retries")
def test_slices_of_two_versions_make_no_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is replaced when the proxy has its beginning is an error, and never mixed."""
    body = bytes(9_000_000)
    server.page("/bucket/a.tar", body)
    port = free_port()
    monkeypatch.setenv("WDS_REWRITE", f"^s3://=http://127.0.0.1:{port}/")
    with proxy(tmp_path, port, server.url):
        assert len(Fetcher().read_start("s3://bucket/a.tar", 100).data) == 100
        server.page("/bucket/a.tar", b"1" * len(body))
        with raises(wids.FetchError, f"127.0.0.1:{port}/bucket/a.tar"):
            Fetcher().save("s3://bucket/a.tar", io.BytesIO())
