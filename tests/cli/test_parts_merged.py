"""``--part K/N`` and ``--merge``: the bytes of an undivided run, or an error that says why."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import run
from conftest import in_child, write_shards
from hypothesis import given
from hypothesis import strategies as st
from loopback import Server

import wids
from wids.cli.main import main
from wids.publish.journal import JobPart

LONG = pytest.mark.long
LENGTHS = [4, 0, 3, 5, 2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with shards, and a folder each for what a test and an undivided run write."""
    (tmp_path / "in").mkdir()
    write_shards(tmp_path / "in", LENGTHS)
    (tmp_path / "in" / "train.json").rename(tmp_path / "train.json")
    for name in ("out", "expected"):
        (tmp_path / name).mkdir()
    wids.build_spec(tmp_path / "in").save(tmp_path / "train.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def create(output: str, *options: str) -> tuple[int, str, str]:
    """Describe the shards."""
    return run("create", "in/", "-o", f"{output}/new.json", "-n", "new", "-j", "1", *options)


def rewrite(output: str, *options: str) -> tuple[int, str, str]:
    """Shuffle the samples into new shards, by other options than these if they are passed."""
    usual = {"--shuffle": "0", "--maxcount": "3", "-j": "1"}
    others = [text for pair in usual.items() if pair[0] not in options for text in pair]
    return run("rewrite", "train.json", f"{output}/new", *others, *options)


WORKS = pytest.mark.parametrize("work", [create, rewrite])
Work = Callable[..., tuple[int, str, str]]


@given(st.integers(0, 40), st.integers(1, 20))
def test_parts_divide_the_work(num_items: int, count: int) -> None:
    """Each item is in one part, in order, and parts differ by at most one item."""
    parts = [JobPart(number, count).of(range(num_items)) for number in range(1, count + 1)]
    assert [item for part in parts for item in part] == list(range(num_items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@WORKS
@pytest.mark.parametrize("count", [3, pytest.param(1, marks=LONG), pytest.param(16, marks=LONG)])
def test_merged_parts_are_an_undivided_run(work: Work, count: int, folder: Path) -> None:
    """In any order, and more parts than shards: the same files, byte for byte."""
    undivided = work("expected")
    assert undivided[0] == 0
    num_samples = 0
    for number in reversed(range(1, count + 1)):
        status, printed, err = work("out", "--part", f"{number}/{count}")
        assert (status, err) == (0, "")
        assert f"part {number}/{count}: " in printed
        num_samples += int(printed.split(", ")[-1].split()[0])
        assert not {"new.json", "new.index"} & set(os.listdir("out"))
    assert num_samples == sum(LENGTHS)

    merged = work("out", "--merge")

    assert (merged[0], merged[2]) == (0, undivided[2])
    assert merged[1] == undivided[1].replace("expected/", "out/")
    assert contents(folder / "out") == contents(folder / "expected")
    assert wids.verify_spec("out/new.json") == []


@WORKS
def test_a_part_that_is_run_again(work: Work, folder: Path) -> None:
    """A complete part is found as it is; so is what a merge has published."""
    work("out", "--part", "1/1")
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.tar")}
    assert work("out", "--part", "1/1")[0] == 0
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.tar")}
    assert before == after
    merged = work("out", "--merge")
    assert merged[0] == 0
    status, printed, err = work("out", "--merge")
    if work is create:  # which may describe other bytes under the same names
        assert (status, "found none; run each part first" in err) == (1, True)
    else:
        assert (status, printed) == merged[:2]
        assert "out/new.json: already published, and no part is left to merge" in err


@pytest.mark.parametrize("options", [[], ["--map", f"{__name__}:large", "--version", "1"]])
def test_a_merge_that_was_killed_at_its_very_end(options: list[str], folder: Path) -> None:
    """Spec and dataset index are published, and the journal is gone: the merge is done."""
    for output in ("expected", "out"):
        assert rewrite(output, "--part", "1/1", *options)[0] == 0
    printed = rewrite("expected", "--merge", *options)[1]

    def killed() -> bool:
        unlink = os.unlink
        os.unlink = lambda path: (
            os.kill(os.getpid(), signal.SIGKILL) if path.endswith(".lock") else unlink(path)
        )
        rewrite("out", "--merge", *options)
        return True

    assert not in_child(killed)
    assert [name for name in os.listdir("out") if name.endswith(".lock")]
    status, again, _ = rewrite("out", "--merge", *options)
    assert (status, again) == (0, printed.replace("expected/", "out/"))
    assert contents(folder / "out") == contents(folder / "expected")


def large(sample: dict[str, bytes]) -> dict[str, bytes] | None:
    """Keep the samples of some classes."""
    return sample if int(sample[".cls"]) > 2 else None


@pytest.mark.parametrize("change", ["count", "shard", "part", "spec"])
def test_another_dataset_is_no_merge(change: str, folder: Path) -> None:
    """With other counts, a missing shard, a part or another spec it is an error."""
    rewrite("out")
    options = ["--maxcount", "4"] if change == "count" else []
    if change == "shard":
        (folder / "out" / "new-000001.tar").unlink()
    if change == "part":
        (folder / "out" / "new.partial").mkdir()
        (folder / "out" / "new.partial" / "plan").write_text("of other work")
    if change == "spec":
        (folder / "out" / "new.json").write_text("{}")
    before = contents(folder / "out")
    status, _, err = rewrite("out", "--merge", *options)
    assert (status, "parts" in err or "one of others" in err) == (1, True)
    assert contents(folder / "out") == before


@WORKS
def test_parts_that_do_not_fit(work: Work, folder: Path) -> None:
    """Missing parts, and parts of other shards or options, are named; divisions may be mixed."""
    for part in ("1/3", "3/3"):
        work("out", "--part", part)
    before = contents(folder / "out")
    status, _, err = work("out", "--merge")
    assert (status, "expected 5 finished shards, found 3; missing: part 2/3:" in err) == (1, True)
    work("out", "--part", "5/5")
    status, _, err = work("out", "--merge")
    assert (status, "missing: part 2/3 or 2/5, 3/5: run these again" in err) == (1, True)

    other = ("--digests",) if work is create else ("--shuffle", "1")
    for option in (("--part", "3/3"), ("--merge",)):
        status, _, err = work("out", *option, *other)
        assert (status, "new.partial: expected a journal of these shards" in err) == (1, True)
    work("out", "--part", "2/3")
    assert before.items() <= contents(folder / "out").items()
    assert work("out", "--merge")[0] == 0


def test_a_shard_that_changes_between_part_and_merge(folder: Path) -> None:
    """It is named with its part, and that part can be run again."""
    for part in ("1/2", "2/2"):
        create("out", "--part", part)
    shard = folder / "in" / "train-000003.tar"
    shard.write_bytes((folder / "in" / "train-000002.tar").read_bytes())

    status, _, err = create("out", "--merge")

    assert (status, "train-000003.tar: expected it as part 2/2 found it" in err) == (1, True)
    assert create("out", "--part", "2/2")[0] == 0
    assert create("out", "--merge")[0] == 1, "keys in several shards"
    assert [shard.num_samples for shard in wids.load_spec("out/new.json").shards] == [4, 0, 3, 3, 2]


@pytest.mark.parametrize("part", ["0/16", "17/16", "3", "3/", "-1/4", "a/b", "1/0", "1/4/2"])
@pytest.mark.parametrize("command", ["create", "rewrite"])
def test_parts_that_do_not_exist(
    command: str, part: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are wrong usage, and nothing is written."""
    with pytest.raises(SystemExit, match="2"):
        main([command, "train.json", f"--part={part}", "-o" if command == "create" else "new"])
    assert f"expected K/N with K from 1 to N, such as 1/16 to 16/16, found '{part}'" in (
        capsys.readouterr().err
    )
    assert os.listdir(folder / "out") == []


def test_options_that_do_not_fit_parts(folder: Path) -> None:
    """A part neither appends nor starts over, and is not the merge."""
    assert folder
    for option in ("--part=1/2", "--merge"):
        assert "expected it without --append" in create("out", option, "--append")[2]
        assert "expected it without --part and --merge" in rewrite("out", option, "--restart")[2]
    assert create("out", "--merge", "--part", "1/2")[0] == 2


@WORKS
def test_what_exists_is_not_overwritten(work: Work, folder: Path) -> None:
    """A dataset that exists stays as it is; `wids create` may describe it anew, as undivided."""
    work("out")
    before = contents(folder / "out")
    status, _, err = work("out", "--part", "1/1")
    if work is rewrite:
        assert (status, "new.json: already exists" in err) == (1, True)
    else:
        assert (status, err) == (0, "")
        assert work("out", "--merge")[0] == 0
    assert contents(folder / "out") == before


def test_parts_make_their_folder(folder: Path) -> None:
    """As an undivided run does."""
    for part in ("1/2", "2/2"):
        assert rewrite("another/folder", "--part", part)[0] == 0
    assert rewrite("another/folder", "--merge")[0] == 0
    assert (folder / "another" / "folder" / "new.json").exists()


def test_a_part_in_whose_way_a_file_is(folder: Path) -> None:
    """It is an error before anything is written, as in an undivided run."""
    (folder / "out" / "new-000001.tar").write_bytes(b"of others")
    before = contents(folder / "out")
    for part in ("1/2", "2/2"):
        status, _, err = rewrite("out", "--part", part)
        assert (status, "new-000001.tar: already exists" in err) == (1, True)
        assert contents(folder / "out") == before
        assert not (folder / "out" / "new.partial").exists()


def test_a_part_deletes_what_killed_parts_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is old, by one look at the folder; the merge deletes the rest."""
    left = [folder / "out" / f".new-00000{n}.tar.{'a' * 16}.tmp" for n in range(2)]
    for path in left:
        path.touch()
    os.utime(left[0], (0, 0))
    num_looks = 0
    scandir = os.scandir

    def counting(path: str) -> Any:
        nonlocal num_looks
        num_looks += Path(path) == folder / "out"
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", counting)
        assert rewrite("out", "--part", "1/1", "--maxcount", "1")[0] == 0
    assert len(list((folder / "out").glob("*.tar"))) == sum(LENGTHS)
    assert num_looks < 10
    assert [path.exists() for path in left] == [False, True]
    assert rewrite("out", "--merge", "--maxcount", "1")[0] == 0
    assert not left[1].exists()


@WORKS
@pytest.mark.parametrize("steps", [[4], pytest.param(range(1, 40), marks=LONG)])
def test_killed_parts_and_merges(work: Work, steps: Sequence[int], folder: Path) -> None:
    """Killed wherever they write to a journal or wait for the disk, they resume."""
    work("expected")
    work("out", "--part", "1/2")
    begun = folder / "begun"
    shutil.copytree("out", begun)
    for option in ("--part=2/2", "--merge"):
        for number in steps:
            shutil.rmtree("out")
            shutil.copytree(begun, "out")
            if not killed_at(number, partial(work, "out", option)):
                break
            # The next run, whichever command it is, leaves nothing but its files.
            if not (folder / "out" / "new.partial" / "plan").exists():  # the merge was complete
                shutil.rmtree(folder / "out" / "new.partial", ignore_errors=True)
                for lock in (folder / "out").glob(".*.lock"):
                    lock.unlink()
            else:
                assert work("out", option)[0] == 0
                if option != "--merge":
                    assert work("out", "--merge")[0] == 0
            assert contents(folder / "out") == contents(folder / "expected"), number
        assert 3 < number < 39
        shutil.rmtree(begun)
        shutil.copytree("out", begun)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Kill a process at one of its steps; return whether it came so far."""
    from wids.publish.journal import Journal

    steps = 0

    def step() -> None:
        nonlocal steps
        if steps == number:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    def killing(function: Callable[..., object]) -> Callable[..., object]:
        def stepping(*args: object, **kwargs: object) -> object:
            step()
            return function(*args, **kwargs)

        return stepping

    def killed() -> bool:
        os.fsync = killing(os.fsync)
        Journal._store = killing(Journal._store)
        unlink = os.unlink
        os.unlink = lambda path: (path.endswith(".lock") or step(), unlink(path))
        work()
        return True

    return not in_child(killed)


def test_remote_shards(folder: Path, server: Server) -> None:
    """A part reads its own shards only, and the merge reads none."""
    urls = [server.page(f"/{p.name}", p.read_bytes()) for p in sorted(folder.glob("in/*.tar"))]
    command = ["create", *urls, "-n", "new", "--base", server.url, "-j", "1"]
    assert run(*command, "-o", "expected/new.json")[0] == 0
    server.log.clear()
    assert run(*command, "-o", "out/new.json", "--part", "2/2")[0] == 0
    assert {request.path for request in server.log} == {f"/train-00000{n}.tar" for n in (2, 3, 4)}
    assert run(*command, "-o", "out/new.json", "--part", "1/2")[0] == 0
    server.log.clear()
    assert run(*command, "-o", "out/new.json", "--merge")[0] == 0
    assert server.log == []
    assert contents(folder / "out") == contents(folder / "expected")


@LONG
def test_parts_at_the_same_time(folder: Path) -> None:
    """Commands that know nothing of each other write one dataset."""
    rewrite("expected")
    command = [sys.executable, "-m", "wids", "rewrite", "train.json", "out/new", "-j", "1"]
    command += ["--shuffle", "0", "--maxcount", "3"]
    parts = [subprocess.Popen([*command, "--part", f"{n}/3"]) for n in (1, 2, 3)]
    assert [part.wait(120) for part in parts] == [0, 0, 0]
    assert rewrite("out", "--merge")[0] == 0
    assert contents(folder / "out") == contents(folder / "expected")


def test_a_restart_after_a_killed_merge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that was killed before it published its spec can be started over (REWRITE-8)."""
    rewrite("expected")
    for part in ("1/2", "2/2"):
        assert rewrite("out", "--part", part)[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(wids.DatasetSpec, "save", lambda *_, **__: os.kill(os.getpid(), 9))
        assert in_killed_child(partial(rewrite, "out", "--merge"))
    assert rewrite("out", "--restart")[0] == 0
    expected = contents(folder / "expected")
    assert {n: b for n, b in contents(folder / "out").items() if n in expected} == expected


def in_killed_child(work: Callable[[], object]) -> bool:
    """Do something in a forked process; return whether it was killed."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
