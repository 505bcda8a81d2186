"""The servers that people have: nginx, S3, FTP. Each is started here, on loopback.

nginx is Debian's package `nginx-light`, started with a configuration of its own in the foreground;
S3 is `moto_server`, from the Python package `moto[server]`, reached through `s3fs`; FTP is
`python -m pyftpdlib`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import need, raises, sample_members, write_tar

import wids
from wids.transport import retry

EXPECTED = [f"text {n}" for n in range(3000)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another without much waiting."""
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.01)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three shards of a thousand samples, with spec and pack, in one folder."""
    folder = tmp_path / "www"
    folder.mkdir()
    paths = []
    for number in range(3):
        members = sample_members(number * 1000, number * 1000 + 1000)
        paths.append(write_tar(folder / f"train {number}.tar", members))
    wids.build_spec(list(map(str, paths)), pack=folder / "train.index")
    return paths


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int, **about: Any) -> Iterator[None]:
    """Run a server until the block ends, which begins when the server answers."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **about
    )
    try:
        until_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until_s:
                    process.kill()
                    pytest.fail(f"{command[0]} does not answer: {process.communicate()[0]}")
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)


def check(urls: list[str], index: str, **about: Any) -> None:
    """Read a dataset in every way that there is, by URL."""
    spec = {"shardlist": [{"url": u, "nsamples": 1000} for u in urls], "index": index}
    with wids.ShardListDataset(spec, access="range", **about) as dataset:
        assert dataset[1500][".txt"] == "text 1500"
        assert [s[".txt"] for s in dataset.__getitems__([7, 2999, 8])] == [
            "text 7",
            "text 2999",
            "text 8",
        ]
        assert dataset.get_by_key("s02000")[".txt"] == "text 2000"
    with wids.ShardListDataset(spec, **about) as dataset:
        assert [sample[".txt"] for sample in dataset] == EXPECTED
    missing = [(urls[0].replace("train", "nothing"), 5)]
    with wids.ShardListDataset(missing, **about) as dataset:
        with raises(wids.NotFoundError, "nothing"):
            dataset[0]


def test_nginx(shards: list[Path], tmp_path: Path) -> None:
    """Ranges, redirects and gzip as a usual web server does them."""
    need(shutil.which("nginx"), "nginx (Debian: nginx-light)")
    port = free_port()
    (tmp_path / "nginx.conf").write_text(f"""
        daemon off; worker_processes 1; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{}}
        http {{
            access_log {tmp_path}/access.log;
            gzip on; gzip_types *; gzip_min_length 1;
            client_body_temp_path {tmp_path}/a; proxy_temp_path {tmp_path}/b;
            fastcgi_temp_path {tmp_path}/c; uwsgi_temp_path {tmp_path}/d;
            scgi_temp_path {tmp_path}/e;
            server {{
                listen 127.0.0.1:{port};
                root {tmp_path}/www;
                location /old/ {{ rewrite ^/old/(.*)$ /$1 redirect; }}
                location /loop/ {{ return 302 $request_uri; }}
            }}
        }}
    """)
    command = ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    with running(command, port):
        site = f"http://127.0.0.1:{port}"
        for prefix in ("", "/old"):
            check(
                [f"{site}{prefix}/{path.name.replace(' ', '%20')}" for path in shards],
                f"{site}{prefix}/train.index",
                cache_dir=tmp_path / f"cache{prefix}",
            )
        with wids.ShardListDataset([(f"{site}/loop/a.tar", 5)]) as dataset:
            with raises(wids.FetchError, "more than 10 redirects"):
                dataset[0]
    log = (tmp_path / "access.log").read_text()
    assert '"GET /train%20' in log
    assert " 206 " in log


def test_s3(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 by way of fsspec: keys in storage_options or in the environment, in workers too."""
    need(find_spec("moto") and find_spec("s3fs"), "moto[server] and s3fs (pip install '.[test]')")
    import s3fs
    from torch.utils.data import DataLoader

    port = free_port()
    server = Path(sys.executable).with_name("moto_server")
    keys = {"key": "test", "secret": "test"}
    options = {**keys, "endpoint_url": f"http://127.0.0.1:{port}"}
    with running([str(server), "-H", "127.0.0.1", "-p", str(port)], port):
        s3 = s3fs.S3FileSystem(**options)
        s3.mkdir("bucket")
        for path in [*shards, shards[0].with_name("train.index")]:
            s3.put(str(path), f"bucket/{path.name}")
        urls = [f"s3://bucket/{path.name}" for path in shards]
        check(urls, "s3://bucket/train.index", storage_options=options)
        check(urls, "s3://bucket/train.index", storage_options={"s3://bucket/": options},
              cache_dir=tmp_path / "other")  # fmt: skip
        monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        dataset = wids.ShardListDataset([(url, 1000) for url in urls], cache_dir=tmp_path / "third")
        dataset[0]
        loader = DataLoader(dataset, batch_size=500, num_workers=2, collate_fn=list)
        assert [sample[".txt"] for batch in loader for sample in batch] == EXPECTED
        dataset.close()
        # An object that is written anew is another length or another tag.
        s3.put(str(shards[1]), "bucket/train 0.tar")
        with wids.ShardListDataset([(urls[0], 1000)], cache_dir=tmp_path / "fourth") as changed:
            assert changed[0][".txt"] == "text 1000"


def test_ftp(shards: list[Path]) -> None:
    """FTP by way of fsspec, which needs nothing but the standard library."""
    need(find_spec("pyftpdlib"), "pyftpdlib (pip install '.[test]')")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1", "-p",
               str(port), "-d", str(shards[0].parent)]  # fmt: skip
    with running(command, port):
        site = f"ftp://127.0.0.1:{port}"
        with wids.ShardListDataset([(f"{site}/{p.name}", 1000) for p in shards]) as dataset:
            assert [sample[".txt"] for sample in dataset] == EXPECTED
        with wids.ShardListDataset([(f"{site}/nothing.tar", 5)]) as dataset:
            with raises(wids.NotFoundError, "nothing.tar"):
                dataset[0]


def test_a_connection_that_is_refused() -> None:
    """Nobody there: the error says so, in a few seconds."""
    with pytest.raises(wids.FetchError) as caught:
        with wids.ShardListDataset([(f"http://127.0.0.1:{free_port()}/a.tar", 5)]) as dataset:
            dataset[0]
    assert "refused" in str(caught.value)
