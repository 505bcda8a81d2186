"""Commands on tars that nobody has indexed: what they show, and what that costs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_shards, write_tar
from looks import browse_command
from loopback import Server

from wids.cli import main as cli

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process; return status, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = cli.main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def pattern(server: Server, tmp_path: Path) -> str:
    """The pattern of three shards of 40, 5 and 7 samples, with a large member at first."""
    write_shards(tmp_path, [40, 5, 7]).unlink()
    write_tar(
        tmp_path / "train-000000.tar",
        [("film.mp4", bytes(6_000_000)), ("film.txt", b"a film")]
        + [(f"x{n:02d}.txt", b"text %d" % n) for n in range(39)],
    )
    for path in sorted(tmp_path.glob("*.tar")):
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/train-{{000000..000002}}.tar"


def test_info_shows_the_beginning_of_tars(run: Call, server: Server, pattern: str) -> None:
    """Fields are those of the first samples, counts are not stated, and the command follows."""
    status, out, err = run("info", pattern)
    assert (status, err) == (0, "")
    assert "samples  not stated" in out
    assert re.search(r"first shard: \d+ samples found so far \(1.1 MB of 6.1 MB were read\)", out)
    assert f"wids create '{pattern}' -o train.json counts all" in out
    assert server.num_sent < 1_200_000
    assert set(server.requests) == {"/train-000000.tar"}
    status, out, _ = run("info", f"{server.url}/train-000001.tar")
    assert "first shard: 5 samples" in out
    assert ".txt" in out
    status, out, _ = run("info", "--json", pattern)
    assert '"num_samples": null' in out


def test_sample_reads_headers_and_one_sample(run: Call, server: Server, pattern: str) -> None:
    """Large fields are named and not read; samples are counted through the shards."""
    status, out, err = run("sample", pattern)
    assert (status, err) == (0, "")
    assert "a film" in out
    assert ".mp4 6.0 MB, not read: see --cat" in out
    assert server.num_sent < 1_500_000
    assert "text 12" in run("sample", pattern, 13)[1]
    status, out, _ = run("sample", pattern, 44)
    assert (status, "text 44" in out, "train-000001.tar" in out) == (0, True, True)
    status, out, _ = run("sample", pattern, 6, "--shard", 2)
    assert "text 51" in out
    assert "__shardindex__ 6" in out
    assert run("sample", pattern, "--key", "s00046", "--shard", "2")[0] == 0
    server.log.clear()
    process = subprocess.run(
        [sys.executable, "-m", "wids", "sample", pattern, "0", "--cat", "mp4"],
        capture_output=True,
        check=True,
    )
    assert process.stdout == bytes(6_000_000)


def test_sample_says_what_it_cannot_find(run: Call, pattern: str) -> None:
    """A number beyond the end, from the end, and a key that was not found are errors."""
    status, _, err = run("sample", pattern, 52)
    assert (status, "index 52 is out of range" in err) == (1, True)
    status, _, err = run("sample", pattern, -1)
    assert (status, f"wids create '{pattern}' -o train.json makes an index" in err) == (1, True)
    status, _, err = run("sample", pattern, "--key", "nobody")
    assert (status, "no sample among those that were read has the key 'nobody'" in err) == (1, True)
    assert run("sample", pattern, 0, "--shard", 3)[0] == 1


@pytest.mark.usefixtures("pattern")
def test_sample_of_a_document_with_counts(run: Call, server: Server) -> None:
    """Stated counts lead to the shard of a sample without reading those before."""
    shards = [
        {"url": f"train-{n:06d}.tar", "nsamples": count} for n, count in enumerate((40, 5, 7))
    ]
    spec = server.page("/train.json", {"wids_version": 1, "shardlist": shards})
    assert "text 46" in run("sample", spec, 46)[1]
    assert server.requests == ["/train.json", "/train-000002.tar"]


def test_browse_serves_the_beginning_of_tars(server: Server, pattern: str) -> None:
    """The command reads nothing until somebody looks."""
    with browse_command(pattern) as (client, _):
        assert server.log == []
        assert client.json("about")["num_samples"] is None
        assert client.json("about")["command"] == f"wids create '{pattern}' -o train.json"
        assert "a film" in client.json("shard/0/samples")["cards"][0]["html"]
        assert server.num_sent < 1_500_000


def test_browse_of_indexed_tars_is_a_dataset(run: Call, pattern: str, tmp_path: Path) -> None:
    """With an index, the page has all samples."""
    output = tmp_path / "indexed.json"
    assert run("create", pattern, "-o", output)[0] == 0
    with browse_command(str(output)) as (client, _):
        assert client.json("about")["num_samples"] == 52
