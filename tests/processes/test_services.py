"""The servers that people have: nginx, S3, FTP. Each is started here, on loopback.

nginx is Debian's package `nginx-light`, started with a configuration of its own in the foreground;
S3 is `moto_server`, from the Python package `moto[server]`, which s3fs fills; FTP is
`python -m pyftpdlib`. The hub of Hugging Face is `hub.py`, which answers as its client asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hub
import pytest
from conftest import need, raises, sample_members, write_tar
from loopback import Server
from relay import relayed
from servers import free_port, running

import wids
from wids.cli import main as cli

pytestmark = pytest.mark.usefixtures("quick_retries")

EXPECTED = [f"text {n}" for n in range(3000)]


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three shards of a thousand samples, with spec and dataset index, in one folder."""
    folder = tmp_path / "www"
    folder.mkdir()
    paths = []
    for number in range(3):
        members = sample_members(number * 1000, number * 1000 + 1000)
        paths.append(write_tar(folder / f"train {number}.tar", members))
    wids.build_spec(list(map(str, paths)), dataset_index=folder / "train.index")
    return paths


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
        check_costs(site, port, tmp_path)
        with wids.ShardListDataset([(f"{site}/loop/a.tar", 5)]) as dataset:
            with raises(wids.FetchError, "more than 10 redirects"):
                dataset[0]
    log = (tmp_path / "access.log").read_text()
    assert '"GET /train%20' in log
    assert " 206 " in log


def check_costs(site: str, port: int, folder: Path) -> None:
    """What would be downloaded is known from 64 small requests (SPEC-26)."""
    for number in range(64):
        with (folder / "www" / f"big-{number:02d}.tar").open("wb") as file:
            file.truncate(100_000_000)
    with relayed(port) as relay:
        pattern = f"{relay.url}/big-{{00..{{last}}}}.tar"
        with raises(wids.SpecError, "6.4 GB in 64 shards would be downloaded now"):
            wids.ShardListDataset(pattern.replace("{last}", "63"))
        # Eight more for files that other programs write beside shards in a root (SPEC-50).
        assert [request.split()[0] for request in relay.requests] == ["GET"] * (8 + 64)
        assert relay.num_received < (8 + 64) * 400
        relay.reset()
        with raises(wids.NotFoundError, "00 to 63 exist, 64 and 35 more do not"):
            wids.ShardListDataset(pattern.replace("{last}", "99"))
        assert len(relay.requests) == 8 + 100
        assert relay.num_received < (8 + 100) * 600
    with raises(wids.FetchError, "plain HTTP"):
        wids.load_spec(f"{site}/big-*.tar")


@pytest.mark.long
def test_s3(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 by way of fsspec: keys in storage_options or in the environment, in workers too."""
    need(
        find_spec("moto") and find_spec("s3fs"), "moto[server] and s3fs (pip install '.[test-all]')"
    )
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
        check_listing(port, options)
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


def check_listing(port: int, options: dict[str, str]) -> None:
    """A bucket is listed with a few requests, and never by reading shards (SPEC-20, SPEC-21)."""
    import s3fs

    expected = [f"s3://bucket/train {n}.tar" for n in range(3)]
    with relayed(port) as relay:
        options = {**options, "endpoint_url": relay.url}
        for name in ("s3://bucket/", "s3://bucket", "s3://bucket/train*.tar"):
            relay.reset()
            spec = wids.load_spec(name, storage_options=options)
            assert [shard.url for shard in spec.shards] == expected
            assert len(relay.requests) <= 3
            assert relay.num_received < 10_000
        with raises(wids.NotFoundError, "has 3 .tar, 1 .index", "nearest names are train 0.tar"):
            wids.load_spec("s3://bucket/trane*.tar", storage_options=options)
        with raises(wids.NotFoundError, "s3://bucket/nothing/"):
            wids.load_spec("s3://bucket/nothing/", storage_options=options)
        relay.reset()
        for work in (wids.ShardListDataset, wids.build_spec):
            with raises(wids.NotFoundError, "train {0..4}.tar; 0 to 2 exist, 3 and 1 more do not"):
                work("s3://bucket/train {0..4}.tar", storage_options=options)
        assert relay.num_received < 50_000  # a shard has two megabytes
        # The command, with its options.
        arguments = [f"--storage-option={name}={value}" for name, value in options.items()]
        assert cli.main(["info", "--json", "s3://bucket/", *arguments]) == 0
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.long
def test_a_bucket_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to pass, at once and without the keys."""
    need(
        find_spec("moto") and find_spec("s3fs"), "moto[server] and s3fs (pip install '.[test-all]')"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    port = free_port()
    server = Path(sys.executable).with_name("moto_server")
    # After this many requests, moto compares signatures with the keys that it knows.
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "0"}
    with running([str(server), "-H", "127.0.0.1", "-p", str(port)], port, env=environment):
        options = {"endpoint_url": f"http://127.0.0.1:{port}"}
        wrong = {**options, "key": "wrong-key", "secret": "wrong-secret"}
        for some, reason in ((wrong, "found: 403"), (options, "expected credentials")):
            # moto answers 500 to signatures in addresses; test_object_store has keys for those.
            for work in (wids.load_spec, *[wids.build_spec] * (some is options)):
                shards = "s3://bucket/data/" if work is wids.load_spec else ["s3://bucket/a.tar"]
                with pytest.raises(wids.FetchError) as caught:
                    work(shards, storage_options=some)
                assert reason in str(caught.value)
                assert "WIDS_STORAGE_OPTIONS" in str(caught.value)
                assert "wrong-" not in str(caught.value)
                assert "tried" not in str(caught.value)


@pytest.mark.long
def test_hub(shards: list[Path], server: Server, tmp_path: Path) -> None:
    """``hf:`` lists a repository, and a sample costs its own bytes and four requests."""
    need(find_spec("huggingface_hub"), "huggingface_hub (pip install '.[test-all]')")
    files = {f"data/{path.name}": path.read_bytes() for path in shards}
    hub.publish(server, "org/name", {**files, "README.md": b"about"})
    hub.refuse(server, "org/private")
    program = f"""
        import wids
        for name in ("hf://datasets/org/name/data/", "hf://datasets/org/name@main/*/train*.tar"):
            spec = wids.load_spec(name)
            assert [s.nbytes for s in spec.shards] == {[len(data) for data in files.values()]}
        for name, text in (("name", "such as hf://datasets/org/name/data/"),
                           ("private", "if it is private, log in or set HF_TOKEN")):
            try:
                wids.load_spec("hf://datasets/org/" + name)
            except wids.NotFoundError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        shardlist = [{{"url": s.url, "nsamples": 1000}} for s in spec.shards]
        document = {{"shardlist": shardlist, "index": {str(shards[0].parent / "train.index")!r}}}
        try:
            wids.ShardListDataset("hf://datasets/org/name/data/train {{0..3}}.tar")
        except wids.NotFoundError as error:
            assert "0 to 2 exist, 3 does not" in str(error), error
        else:
            raise AssertionError
        print("---", flush=True)
        input()
        dataset = wids.ShardListDataset(document, access="range")
        assert dataset[1500][".txt"] == "text 1500"
        print("---", flush=True)
        input()
        dataset = wids.ShardListDataset(document)
        assert [sample[".txt"] for sample in dataset] == [f"text {{n}}" for n in range(3000)]
    """
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"),
                   "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        counted = []
        for _ in range(2):
            process.stdout.readline()
            paths = [path for path in server.requests if "agent" not in path]
            counted.append((len(paths), server.num_sent))
            server.log.clear()
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(60) == 0
    (listing, listing_nbytes), (sample, sample_nbytes) = counted
    # Nine are for files that other programs write beside shards (SPEC-50), and each of nine threads
    # may ask what the repository is.
    assert listing <= 18 + 2 * 9
    assert listing_nbytes < 10_000
    assert sample <= 6  # the first time; three later on
    assert sample_nbytes < 5_000
    assert sum("/storage/" in path for path in server.requests) == 3


@pytest.mark.long
def test_ftp(shards: list[Path]) -> None:
    """FTP by way of fsspec, which needs nothing but the standard library."""
    need(find_spec("pyftpdlib"), "pyftpdlib (pip install '.[test-all]')")
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
        # A login that is refused is not tried again, which could lock the account.
        wrong = {"username": "me", "password": "wrong-word"}
        with pytest.raises(wids.FetchError) as caught:
            with wids.ShardListDataset([(f"{site}/a.tar", 5)], storage_options=wrong) as dataset:
                dataset[0]
        assert isinstance(caught.value, PermissionError)
        assert "found: error_perm: 530" in str(caught.value)
        assert "pass keys or tokens as storage_options" in str(caught.value)
        assert "attempt" not in str(caught.value)
        assert "wrong-word" not in str(caught.value)


def test_a_connection_that_is_refused() -> None:
    """Nobody there: the error says so, in a few seconds."""
    with pytest.raises(wids.FetchError) as caught:
        with wids.ShardListDataset([(f"http://127.0.0.1:{free_port()}/a.tar", 5)]) as dataset:
            dataset[0]
    assert "refused" in str(caught.value)
