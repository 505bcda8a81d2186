"""What a command downloads is said before, and more than a gigabyte takes consent."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_in_terminal
from conftest import sample_members, write_tar
from loopback import Fault, Server

import wids
from wids.cli import main as cli


@pytest.fixture
def shards(server: Server, tmp_path: Path) -> str:
    """A pattern of three remote shards."""
    for number in range(3):
        path = write_tar(
            tmp_path / f"train-{number}.tar", sample_members(number * 5, number * 5 + 5)
        )
        server.page(f"/{path.name}", path.read_bytes())
        path.unlink()
    return f"{server.url}/train-{{0..2}}.tar"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask from a kilobyte on."""
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 1000)


def arguments(command: str, shards: str, tmp_path: Path) -> list[str]:
    output = ["-o", str(tmp_path / "out.json")] if command == "create" else []
    return [command, shards, "-j", "1", *output]


@pytest.mark.parametrize("command", ["create", "verify"])
def test_the_bytes_are_stated(
    command: str, shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, before they are downloaded; no question for so few."""
    assert cli.main(arguments(command, shards, tmp_path)) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("wids: reading remote shards")
    assert ": 61.4 kB in 3 shards\n" in captured.err


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("command", ["create", "verify"])
def test_without_a_terminal_it_takes_an_option(
    command: str,
    shards: str,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody can be asked: status 2, and nothing was downloaded."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments(command, shards, tmp_path))
    assert "61.4 kB in 3 shards; pass --yes" in capsys.readouterr().err
    assert server.log == []
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*arguments(command, shards, tmp_path), "--yes"]) == 0
    assert len(server.log) == 3


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_part_that_may_not_download_leaves_nothing(
    is_whole: bool, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if the first bytes of shards are too much, nor if whole shards are."""
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 20_000 if is_whole else 1000)
    if is_whole:  # after a look at first bytes that are not enough
        monkeypatch.setattr("wids.publish.new_spec.FIRST_NBYTES", 2048)
    part = [*arguments("create", shards, tmp_path), "--part", "1/1"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(part)
    assert list(tmp_path.iterdir()) == []
    few = [text.replace("2}", "1}") for text in part]
    assert cli.main([*few, "--yes"]) == 0
    before = set(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        cli.main(part)
    assert set(tmp_path.rglob("*")) == before  # what is finished stays


def test_create_asks_for_what_is_read_whole(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Headers of large members need no consent; shards that are read whole do."""
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 4_000_000)
    for name, nbytes in (("films", 2_000_000), ("notes", 100_000)):
        path = tmp_path / f"{name}.tar"
        write_tar(path, ((f"{n}.bin", bytes(nbytes)) for n in range(6_000_000 // nbytes)))
        server.page(f"/{name}.tar", path.read_bytes())
    output = str(tmp_path / "out.json")
    assert cli.main(["create", f"{server.url}/films.tar", "-o", output]) == 0
    with pytest.raises(SystemExit, match="2"):
        cli.main(["create", f"{server.url}/films.tar", "-o", output, "--digests"])
    server.log.clear()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["create", f"{server.url}/notes.tar", "-o", output])
    assert "reading remote shards: 6.1 MB in 1 shard; pass --yes" in capsys.readouterr().err
    assert server.num_sent == 1 << 20
    assert cli.main(["create", f"{server.url}/notes.tar", "-o", output, "--yes"]) == 0


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("", 1), ("no", 1)])
def test_a_terminal_is_asked(
    answer: str,
    status: int,
    shards: str,
    server: Server,
    tmp_path: Path,
) -> None:
    """Only a yes downloads."""
    found, shown = run_in_terminal(arguments("verify", shards, tmp_path), answer)
    assert found == status
    assert "61.4 kB in 3 shards. Continue? [y/N]" in shown
    assert len(server.log) == (3 if status == 0 else 0)


def test_local_shards_cost_nothing(
    train: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of them."""
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 0)
    assert cli.main(["verify", str(train), "-j", "1"]) == 0
    assert "download" not in capsys.readouterr().err


@pytest.mark.usefixtures("small_limit")
def test_verify_asks_where_shards_are_missing(
    shards: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing and refused shards are problems, and the others are counted."""
    server.pages["/train-1.tar"].always = Fault(403)
    wrong = shards.replace("2}", "4}")
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments("verify", wrong, tmp_path))
    assert "41.0 kB in 5 shards and 1 of unknown length; pass" in capsys.readouterr().err
    assert [request for request in server.log if request.num_sent > 100] == []
    assert cli.main([*arguments("verify", wrong, tmp_path), "--yes"]) == 1
    shown = capsys.readouterr().out
    assert "train-1.tar: expected HTTP status 200, found 403" in shown
    assert "train-3.tar: not found" in shown


def test_prefetch_says_what_it_downloads(
    shards: str, server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is there to download, and does not ask; what is in the cache is not counted."""
    output = tmp_path / "out.json"
    assert cli.main(["create", shards, "-o", str(output), "-j", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["prefetch", str(output)]) == 0
    assert "wids: downloading 61.4 kB in 3 shards\n" in capsys.readouterr().err
    num_requests = len(server.log)
    assert cli.main(["prefetch", str(output)]) == 0
    assert "downloading" not in capsys.readouterr().err
    assert len(server.log) == num_requests


def test_create_with_a_wrong_upper_bound(
    shards: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names what is missing and downloads nothing."""
    wrong = shards.replace("{0..2}", "{0..5}")
    assert cli.main(arguments("create", wrong, tmp_path)) == 1
    assert f"expected {wrong}; 0 to 2 exist, 3 and 2 more do not" in capsys.readouterr().err
    assert (server.log, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.usefixtures("small_limit")
def test_what_a_journal_has_costs_nothing(
    shards: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that resumes states, and asks for, only what is left."""
    journal = tmp_path / "out.partial"
    wids.build_spec(shards.replace("2}", "1}"), journal=journal)
    server.log.clear()
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments("create", shards, tmp_path))
    assert ": 20.5 kB in 1 shard; pass --yes" in capsys.readouterr().err
    wids.build_spec(shards, journal=journal)
    assert cli.main(arguments("create", shards, tmp_path)) == 0
    assert "reading remote shards" not in capsys.readouterr().err
    assert len(server.log) == 1


def test_wildcards_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quoted pattern, a list and a folder are as good as names from the shell (SPEC-20)."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", sample_members(number * 5, number * 5 + 5))
    for names in (["train-*.tar"], ["."], ["train-[02].tar", "train-1.tar", "train-*"]):
        assert cli.main(["create", *names, "-j", "1"]) == 0
        assert "3 shards, 15 samples" in capsys.readouterr().out
        (tmp_path / "shardindex.index").unlink()
        (tmp_path / "shardindex.json").unlink()
    assert cli.main(["create", "trian-*.tar"]) == 1
    assert "the nearest names are train-0.tar, train-1.tar, train-2.tar" in capsys.readouterr().err
    assert cli.main(["sample", "train-*.tar", "14"]) == 0
    assert "text 14" in capsys.readouterr().out
