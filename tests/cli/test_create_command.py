"""``wids create``: shards → a spec and a dataset index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import has_record, interrupted, run, write_bare_shards
from conftest import need, sample_members, write_tar
from events import in_time, wait_for
from loopback import Fault, Server

from wids import ShardListDataset, load_spec


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


@pytest.mark.parametrize(
    "form",
    [
        *("pattern", "folder"),
        *(pytest.param(form, marks=pytest.mark.long) for form in ("paths", "stdin")),
    ],
)
def test_create(form: str, shards: Path) -> None:
    """Paths, a pattern, a folder and names on standard input give the same files."""
    names = sorted(map(str, shards.glob("*.tar")))
    arguments = {
        "paths": names[::-1],  # the spec has them sorted
        "pattern": [f"{shards}/train-{{000000..000002}}.tar"],
        "folder": [str(shards)],
        "stdin": ["-"],
    }[form]

    output = shards / "spec.json"
    status, out, err = run("create", *arguments, "-o", output, stdin="\n".join(names))

    assert (status, err) == (0, "")
    assert out == f"{output}: 3 shards, 20 samples\n"
    document = json.loads(output.read_text())
    assert (document["name"], document["index"]) == ("train", "spec.index")
    assert [entry["url"] for entry in document["shardlist"]] == [
        f"train-00000{n}.tar" for n in range(3)
    ]
    data = (shards / "train-000001.tar").read_bytes()
    assert document["shardlist"][1] == {
        "url": "train-000001.tar",
        "nsamples": 5,
        "filesize": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    with ShardListDataset(output) as dataset:
        assert dataset.get_by_key("s00011")[".txt"] == "text 11"
    assert run("verify", output)[0] == 0


def test_create_with_old_options(shards: Path) -> None:
    """The options and the default output of ``widsindex create``."""
    (shards / "about.txt").write_text("a description")

    status, out, _ = run(
        *("create", "train-000000.tar", "train-000001.tar", "-n", "mine", "-i", "about.txt"),
        *("-b", "https://example.com/data/"),
        cwd=shards,
    )

    assert (status, out) == (0, "shardindex.json: 2 shards, 13 samples\n")
    spec = load_spec(shards / "shardindex.json")
    assert (spec.name, spec.extras["info"]) == ("mine", "a description")
    assert spec.shards[1].url == "https://example.com/data/train-000001.tar"
    assert spec.index == "https://example.com/data/shardindex.index"


def test_create_of_remote_shards(server: Server, shards: Path, tmp_path: Path) -> None:
    """The spec has the URLs of a pattern as they are."""
    for path in shards.glob("*.tar"):
        server.page(f"/{path.name}", path.read_bytes())
    output = tmp_path / "remote.json"

    status, out, _ = run("create", f"{server.url}/train-{{000000..000002}}.tar", "-o", output)

    assert (status, out) == (0, f"{output}: 3 shards, 20 samples\n")
    with ShardListDataset(output, access="range") as dataset:
        assert dataset[12][".txt"] == "text 12"


def test_create_of_remote_shards_with_large_members(server: Server, tmp_path: Path) -> None:
    """Only headers are read, unless digests are wanted; the costs are stated."""
    path = write_tar(tmp_path / "film.tar", [(f"{n}.mp4", bytes(3_000_000)) for n in range(4)])
    url, output = server.page("/film.tar", path.read_bytes()), tmp_path / "film.json"
    for option, is_whole in ((), False), (("--digests",), True):
        server.log.clear()
        status, out, err = run("create", url, "-o", output, *option)
        assert (status, out) == (0, f"{output}: 1 shard, 4 samples\n")
        assert (server.num_sent > 12_000_000) == is_whole
        assert ("sha256" in output.read_text()) == is_whole
        nbytes = "12.0 MB" if is_whole else "1.0 MB"
        assert err == f"wids: reading remote shards: {nbytes} in 1 shard\n"
    assert run("verify", output)[0] == 0


def test_create_from_a_document(server: Server, tmp_path: Path) -> None:
    """The shards of a published spec without an index get one; what it says otherwise stays."""
    for number in (1, 0):
        members = sample_members(number * 5, number * 5 + 5)
        path = write_tar(tmp_path / f"part-{number}.tar", members)
        server.page(f"/{path.name}", path.read_bytes())
    shards = [{"url": f"part-{n}.tar", "nsamples": 99, "tag": n} for n in (1, 0)]
    document = {"wids_version": 1, "name": "old", "license": "CC0", "shardlist": shards}
    url, output = server.page("/old.json", document), tmp_path / "new.json"
    status, out, err = run("create", url, "-o", output)
    assert (status, out) == (0, f"{output}: 2 shards, 10 samples\n"), err
    created = json.loads(output.read_text())
    assert (created["name"], created["license"]) == ("old", "CC0")
    assert [s["url"] for s in created["shardlist"]] == [
        f"{server.url}/part-1.tar",
        f"{server.url}/part-0.tar",
    ]
    assert [(s["nsamples"], s["tag"]) for s in created["shardlist"]] == [(5, 1), (5, 0)]
    with ShardListDataset(output, access="range") as dataset:
        assert dataset[0][".txt"] == "text 5"


@pytest.mark.long
def test_an_interrupt_while_headers_are_read(server: Server, tmp_path: Path) -> None:
    """Ctrl-C ends at once though a server is silent; what was indexed is not read again."""
    urls = []
    for number in range(2):
        members = [(f"{number}-{n}.mp4", bytes(3_000_000)) for n in range(4)]
        path = write_tar(tmp_path / f"film-{number}.tar", members)
        urls.append(server.page(f"/{path.name}", path.read_bytes()))
    server.pages["/film-1.tar"].always = Fault(after_nbytes=5000, how="stall")
    output = tmp_path / "film.json"
    command = [sys.executable, "-m", "wids", "create", *urls, "-o", str(output)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: len(server.log) >= 6)  # five for the first shard
        wait_for(lambda: has_record(tmp_path / "film.partial"))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130  # the time-out is 15 s
    assert not output.exists()
    server.pages["/film-1.tar"].always = None
    server.log.clear()
    assert run("create", *urls, "-o", output)[0] == 0
    assert set(server.requests) == {"/film-1.tar"}


@pytest.mark.long
def test_an_interrupted_create_is_resumed(tmp_path: Path) -> None:
    """Ctrl-C leaves no file and no process; the next run reads what is missing."""
    for number in range(40):
        members = sample_members(number * 2000, number * 2000 + 2000)
        write_tar(tmp_path / f"a-{number:03d}.tar", members)
    output, journal = tmp_path / "a.json", tmp_path / "a.partial"

    def press() -> tuple[int, str] | None:
        for name in ("a.json", "a.index"):  # if an earlier attempt came too late
            (tmp_path / name).unlink(missing_ok=True)
        command = ["create", tmp_path, "-o", output, "-j", "2"]
        return interrupted(*command, is_at_work=lambda: has_record(journal))

    status, err = in_time(press)
    assert status == 130, err
    assert err.splitlines()[-1] == "wids: interrupted"
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".tar")}
    assert left == {"a.partial"}
    assert run("create", tmp_path, "-o", output)[0] == 0
    assert load_spec(output).shards[39].num_samples == 2000
    assert not journal.exists()


def test_nothing_to_describe(tmp_path: Path) -> None:
    """An empty folder and a missing shard are errors."""
    assert run("create", tmp_path, "-o", tmp_path / "a.json")[0] == 1
    status, out, err = run("create", tmp_path / "missing.tar", "-o", tmp_path / "a.json")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"wids: .*missing\.tar: .*\n", err)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("output", ["a.tar", "a.index", "a"])
def test_outputs_that_would_overwrite_something_else(output: str, shards: Path) -> None:
    """A spec has to end in .json; a foreign file in place of the journal stays as it is."""
    status, _, err = run("create", shards, "-o", shards / output)
    assert status == 1
    assert "expected a name that ends in .json" in err
    (shards / "b.partial").write_text("mine")
    assert run("create", shards, "-o", shards / "b.json")[0] == 1
    assert (shards / "b.partial").read_text() == "mine"


def test_a_folder_that_is_missing_is_named(shards: Path) -> None:
    """Before a shard is read, by its own name and not by that of a file to be put there."""
    status, _, err = run("create", shards, "-o", shards / "none" / "a.json")
    assert (status, err) == (1, f"wids: {shards / 'none'}: no such folder, for --output\n")


def test_bases(shards: Path) -> None:
    """Shards with the same name cannot share a base; with a local base the dataset index stays."""
    (shards / "x").mkdir()
    shutil.copy(shards / "train-000000.tar", shards / "x")
    names = [shards / "train-000000.tar", shards / "x" / "train-000000.tar"]
    status, _, err = run("create", *names, "-o", shards / "a.json", "-b", "https://h/d/")
    assert status == 1
    assert "found train-000000.tar more than once" in err
    (shards / "specs").mkdir()
    assert run("create", shards, "-o", shards / "specs" / "a.json", "-b", shards)[0] == 0
    assert run("verify", shards / "specs" / "a.json")[0] == 0


def test_names_with_braces(tmp_path: Path) -> None:
    """Files in a folder are taken literally, and once."""
    for number, name in enumerate(("w{1,2}.tar", "w{1.tar")):
        write_tar(tmp_path / name, sample_members(2 * number, 2 * number + 2))
    assert run("create", tmp_path, "-o", tmp_path / "a.json")[0] == 0
    assert load_spec(tmp_path / "a.json").shards[0].num_samples == 2
    both = [tmp_path, f"{tmp_path}/."]
    assert "2 shards" in run("create", *both, "-o", tmp_path / "b.json")[1]


@pytest.mark.long
def test_the_old_library_reads_the_spec(shards: Path) -> None:
    """Wids 0.1.11, run by the interpreter in ``WIDS_OLD_PYTHON``, reads a sample by the spec."""
    old_python = os.environ.get("WIDS_OLD_PYTHON")
    need(old_python, "set WIDS_OLD_PYTHON to an environment with wids==0.1.11")
    spec = shards / "train.json"
    run("create", shards, "-o", spec, "--base", str(shards))
    code = (
        "import sys, wids\n"
        "dataset = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2])\n"
        "print(len(dataset), dataset[12]['.txt'], file=sys.stderr)"
    )

    result = subprocess.run(
        [str(old_python), "-W", "ignore", "-c", code, str(spec), str(shards / "cache")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stderr.splitlines()[-1] == "20 text 12"


def test_options_without_a_value_are_not_refused(tmp_path: Path) -> None:
    """A script may pass ``--name "$NAME"`` also where the name is empty."""
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", [(f"{number}.txt", b"a")])
    spec = str(tmp_path / "a.json")
    assert run("create", str(tmp_path / "0.tar"), "-o", spec, cwd=tmp_path)[0] == 0
    appended = ("create", str(tmp_path / "1.tar"), "-o", spec, "--append", "--name", "")
    assert run(*appended, cwd=tmp_path)[0] == 0
    assert len(load_spec(spec).shards) == 2
