"""``wids prefetch`` and ``wids cache``: copies of remote shards; and Ctrl-C while downloading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import run, write_bare_shards
from events import LONG_S, wait_for
from loopback import Fault, Server

import wids


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_prefetch_and_cache(server: Server, shards: Path, own_cache: Path) -> None:
    """Shards that are missing are fetched, shown, checked and cleared."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with wids.ShardListDataset(spec, access="download") as dataset:
        assert [dataset[number][".txt"] for number in (0, 8)] == ["text 0", "text 8"]

    assert run("prefetch", spec)[:2] == (0, "3 shards available locally, 1 fetched now\n")
    assert Path(own_cache).is_dir()
    assert len(list((own_cache / "shards").glob("[!.]*train-00000*"))) == 6, "each with its index"
    header, line, total = run("cache")[1].splitlines()
    assert header.split() == ["copies", "size", "last", "used", "shards"]
    assert (line.split()[0], line.split()[-1]) == ("3", "train-*.tar")
    assert " in 6 files in " in total
    assert run("cache", "show", spec)[1].startswith(f"{spec}: 3 of 3 shards in {own_cache}, ")

    assert run("cache", "check", spec)[::2] == (0, "checked copies of 3 of 3 shards\n")
    copy = next(path for path in (own_cache / "shards").iterdir() if path.name.endswith("1.tar"))
    data = bytearray(copy.read_bytes())
    data[600] ^= 1
    copy.write_bytes(data)
    status, out, _ = run("cache", "check", spec)
    assert status == 1
    assert out.startswith(f"{copy}: the spec says the sha256")

    assert run("cache", "clear", "--yes")[1].startswith(f"{own_cache}: deleted 6 files, ")
    assert run("cache", "show")[1].startswith("     0 B  in 0 files in ")
    assert run("cache", "check")[0] == 1


def test_some_samples_of_copies_are_checked(server: Server, shards: Path, own_cache: Path) -> None:
    """``--sample`` reads a share of the samples, and names the member that a flipped bit is in."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    run("prefetch", spec)

    assert run("cache", "check", spec, "--sample", "100%")[::2] == (
        0, "checked 20 samples in copies of 3 of 3 shards\n",
    )  # fmt: skip
    assert "checked 3 samples in copies" in run("cache", "check", spec, "--sample", "1%")[2]
    copy = next(path for path in (own_cache / "shards").iterdir() if path.name.endswith("1.tar"))
    data, status = bytearray(copy.read_bytes()), copy.stat()
    data[data.index(b"text 9")] ^= 1
    copy.chmod(0o644)
    copy.write_bytes(data)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk damages a file
    status, out, _ = run("cache", "check", spec, "--sample", "1.0")
    assert status == 1
    assert out.startswith(f'{copy}: member "s00009.txt": expected bytes with the checksum')
    assert len(out.splitlines()) == 1

    for wrong in ("0%", "101%", "five"):
        status, _, err = run("cache", "check", spec, "--sample", wrong)
        assert status != 0
        assert f"--sample: expected a share such as 5%, found '{wrong}'" in err


@pytest.mark.parametrize("is_stalled", [True, pytest.param(False, marks=pytest.mark.long)])
def test_ctrl_c_ends_prefetch_soon(
    server: Server, shards: Path, own_cache: Path, *, is_stalled: bool
) -> None:
    """Ctrl-C ends it soon, beside a server that hangs or is slow, and leaves no file."""
    run("create", shards, "-o", shards / "train.json", "--base", f"{server.url}/")
    for path in shards.iterdir():
        faults = [Fault(after_nbytes=100, how="stall")] * 99 if is_stalled else []
        server.page(
            f"/{path.name}", path.read_bytes(), faults=faults if path.suffix == ".tar" else []
        )
    server.rate_nbytes = None if is_stalled else 1000
    command = [sys.executable, "-m", "wids", "prefetch", "train.json"]
    process = subprocess.Popen(command, cwd=shards, stderr=subprocess.PIPE)
    wait_for(lambda: len(server.log) >= 3)
    wait_for(lambda: list(own_cache.glob("shards/.*.tmp")))
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONG_S)
    assert time.monotonic() - began_s < 10  # the time-out is 15 s, and a shard takes as long
    assert process.returncode == 130, err
    assert not list((own_cache / "shards").iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        *("prefetch train.json", "verify train.json -j2", "create {urls} -j2 -o b.json"),
    ],
)
def test_downloads_end_with_ctrl_c(command: str, server: Server, shards: Path) -> None:
    """No command waits for its downloads, or for a server that hangs."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", f"{server.url}/")
    for path in shards.iterdir():
        faults = [Fault(after_nbytes=100, how="stall")] * 9 if path.suffix == ".tar" else []
        server.page(f"/{path.name}", path.read_bytes(), faults=faults)
    urls = " ".join(f"{server.url}/train-00000{number}.tar" for number in range(3))
    num_before = len(server.log)
    process = subprocess.Popen(
        [sys.executable, "-m", "wids", *command.format(urls=urls).split()],
        cwd=shards,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # Two requests: all workers have been started. Python may lose a signal that comes while one of
    # them is forked.
    wait_for(lambda: len(server.log) >= num_before + 2)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=40)  # the server hangs for a minute
    assert process.returncode == 130, err
