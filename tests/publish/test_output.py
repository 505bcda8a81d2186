"""A dataset that is replaced by a smaller one: killed at any step, readers find one of them."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises
from faults import faults, interrupting, steps
from s3 import Bucket

import wids
from wids import ShardWriter

Write = Callable[..., None]
OLD, NEW = ["old"] * 8, ["new"] * 4


def write(output: str, values: list[str], **options: Any) -> None:
    """Write two samples a shard by a `ShardWriter`."""
    with ShardWriter(f"{output}-%06d.tar", maxcount=2, **options) as writer:
        for number, value in enumerate(values):
            writer.write({"__key__": f"{number}", "txt": value})


def pack(output: str, values: list[str], **options: Any) -> None:
    """Write two samples a shard by `pack_folder`."""
    folder = Path(f"{values[0]}-{len(values)}")
    if not folder.exists():
        folder.mkdir()
        for number, value in enumerate(values):
            (folder / f"{number}.txt").write_text(value)
    wids.pack_folder(folder, output, maxcount=2, seed=None, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


WORKS = pytest.mark.parametrize("work", [write, pack])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where sources and journals are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(spec: str, **options: Any) -> list[str] | None:
    """Return the undecoded texts that a reader finds; None without a spec."""
    with suppress(wids.NotFoundError):
        with wids.ShardListDataset(spec, transformations=[], raw="bytes", **options) as dataset:
            return [sample[".txt"].decode() for sample in dataset]
    return None


def killing(number: int, work: Callable[[], None]) -> bool:
    """Kill a process before one of its steps; return whether it got that far."""

    def counted() -> bool:
        steps = 0

        def before(call: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any, **options: Any) -> Any:
                nonlocal steps
                if steps == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                return call(*arguments, **options)

            return step

        for name in ("replace", "link", "unlink", "fsync"):
            setattr(os, name, before(getattr(os, name)))
        work()
        return True

    return not in_child(counted)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
@WORKS
def test_killed_at_any_step(work: Write, step: int, tmp_path: Path) -> None:
    """Readers find the old dataset, none, or the new one; the next run completes it."""
    (tmp_path / "fresh").mkdir()
    work("fresh/out", NEW)
    seen = set()
    for number in range(0, 100, step):
        folder = tmp_path / str(number)
        folder.mkdir()
        work(f"{number}/out", OLD)
        replace = partial(work, f"{folder}/out", NEW, if_exists="replace")
        was_killed = killing(number, replace)
        found = texts(f"{number}/out.json")
        assert found in (OLD, NEW, None), f"killed at step {number}"
        seen.add(found and found[0])
        if was_killed:
            work(f"{number}/out", NEW, if_exists="replace")
        # Unfinished specs and dataset indexes are deleted once they are a minute old (SPEC-16).
        left = {n: d for n, d in contents(folder).items() if n[0] != "." or n.startswith(".out-0")}
        assert left == contents(tmp_path / "fresh"), f"killed at step {number}"
        if not was_killed:
            break
    assert seen == {"old", None, "new"}
    assert number > 10


@pytest.mark.parametrize("work", [write, pytest.param(pack, marks=pytest.mark.long)])
def test_readers_of_a_bucket(work: Write, bucket: Bucket) -> None:
    """At each request of an undisturbed run, readers find one dataset or none."""
    output, options = f"{bucket.url}/x/out", {"storage_options": bucket.options}
    work(output, OLD, **options)
    seen: list[list[str] | None] = []

    def look(method: str, _: str) -> None:
        if method in ("PUT", "POST", "DELETE"):
            seen.append(stored(bucket))

    bucket.fault = look
    work(output, NEW, if_exists="replace", **options)
    bucket.fault = lambda *_: None
    assert [found for number, found in enumerate(seen) if found not in seen[:number]] == [
        *(OLD, None, NEW)
    ]
    assert texts(f"{output}.json", **options) == NEW
    assert bucket.names() == [
        *("x/out-000000.tar", "x/out-000001.tar"),
        *("x/out.index", "x/out.json"),
    ]


def stored(bucket: Bucket) -> list[str] | None:
    """Return the texts of the dataset in a bucket, read past the proxy; None without a spec."""
    system = bucket.system
    if not system.exists(f"{bucket.name}/x/out.json"):
        return None
    found: list[str] = []
    for entry in json.loads(system.cat(f"{bucket.name}/x/out.json"))["shardlist"]:
        data = system.cat(f"{bucket.name}/x/{entry['url']}")
        found += ["old" if b"old" in data else "new"] * entry["nsamples"]
    return found


# Each line that it reads starts a process, whose number and status it prints.
PROGRAM = """
import importlib, os, sys
folder, name, work, output = sys.argv[1:]
sys.path.insert(0, folder)
module = importlib.import_module(name)
for _ in sys.stdin:
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        getattr(module, work)(output, module.NEW, if_exists="replace")
        break
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.long
@WORKS
def test_killed_while_it_replaces_a_bucket(work: Write, bucket: Bucket) -> None:
    """Readers find one dataset or none, and the next run completes the new one."""
    output, options = f"{bucket.url}/x/out", {"storage_options": bucket.options}
    path = Path(__file__)
    command = [sys.executable, "-c", PROGRAM, str(path.parent), path.stem, work.__name__, output]
    paths = os.pathsep.join(str(path.parents[n]) for n in (1, 2))
    environment = {**os.environ, **bucket.environment(), "PYTHONPATH": paths}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as program:
        number = check_kills(work, program, bucket, output, options)
    assert number > 4


def check_kills(
    work: Write, program: subprocess.Popen[str], bucket: Bucket, output: str, options: Any
) -> int:
    """Have a process killed before each request that changes the bucket; return how many."""
    for number in range(40):
        for name in bucket.names():
            bucket.system.rm_file(f"{bucket.name}/{name}")
        work(output, OLD, **options)
        was_killed = is_killed(program, bucket, number)
        bucket.fault = lambda *_: None
        assert stored(bucket) in (OLD, NEW, None)
        work(output, NEW, if_exists="replace", **options)
        assert texts(f"{output}.json", **options) == NEW
        expected = ["out-000000.tar", "out-000001.tar", "out.index", "out.json"]
        assert bucket.names() == [f"x/{name}" for name in expected], f"killed at request {number}"
        if not was_killed:
            return number
    raise AssertionError("more requests than a replacement has")


def is_killed(program: subprocess.Popen[str], bucket: Bucket, number: int) -> bool:
    """Start a process that is killed before a request; return whether it came to that."""
    child: Future[int] = Future()
    requests = itertools.count()

    def kill(method: str, _: str) -> str | None:
        if method not in ("PUT", "POST", "DELETE") or next(requests) < number:
            return None
        with suppress(ProcessLookupError):
            os.kill(child.result(), signal.SIGKILL)
        return "stall"

    bucket.fault = kill
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    child.set_result(int(program.stdout.readline()))
    status = int(program.stdout.readline())
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_shards_of_others_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only shards that the old spec lists are deleted; others of the names are stated."""
    (tmp_path / "elsewhere").mkdir()
    write("elsewhere/raw", OLD)
    wids.build_spec("elsewhere/", dataset_index="out.index").save("out.json")
    shard = (tmp_path / "elsewhere" / "raw-000000.tar").read_bytes()
    (tmp_path / "out-000007.tar").write_bytes(shard)
    write("out", NEW, if_exists="replace")
    assert len(list((tmp_path / "elsewhere").glob("*.tar"))) == 4
    assert (tmp_path / "out-000007.tar").read_bytes() == shard
    (record,) = caplog.records
    expected = (
        "out.json: 1 shard of an earlier dataset, from out-000007.tar on, not in the spec: mo"
    )
    assert expected in record.message
    assert not (tmp_path / "out.json.replaced").exists()


def nested(spec: Path) -> None:
    """Have a spec refer to another document, which lists its shards."""
    spec.rename("parts.json")
    spec.write_text('{"wids_version": 1, "datasets": [{"source_url": "parts.json"}]}')


def cut(spec: Path) -> None:
    spec.write_text(spec.read_text()[:-3])


def newer(spec: Path) -> None:
    spec.write_text(spec.read_text().replace('"wids_version": 1', '"wids_version": 2'))


@pytest.mark.parametrize("edit", [nested, cut, newer])
def test_the_shards_of_a_spec_that_cannot_be_read_stay(
    edit: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leftover of a killed run deletes no shard of the present dataset."""
    write("out", OLD)
    shutil.copy("out.json", "out.json.replaced")
    edit(tmp_path / "out.json")
    before = contents(tmp_path)
    del before["out.json.replaced"]
    monkeypatch.setattr(os, "fsync", refuse)
    with raises(OSError, "a broken disk"):
        write("out", NEW, if_exists="replace")
    assert contents(tmp_path) == before


def test_a_replaced_spec_of_documents(tmp_path: Path) -> None:
    """Shards that a nested document of the old spec lists are deleted too."""
    write("out", OLD)
    nested(tmp_path / "out.json")
    write("out", NEW, if_exists="replace")
    assert [path.name for path in sorted(tmp_path.glob("out*"))] == [
        *("out-000000.tar", "out-000001.tar", "out.index", "out.json")
    ]


def test_a_replaced_spec_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays under its other name, and so do the shards that it may list."""
    write("out", OLD)
    cut(tmp_path / "out.json")
    write("out", NEW, if_exists="replace")
    assert "out.json.replaced: expected a spec, found: " in caplog.text
    assert "2 shards of an earlier dataset, from out-000002.tar on" in caplog.text
    assert (tmp_path / "out.json.replaced").exists()
    assert len(list(tmp_path.glob("*.tar"))) == 4
    assert texts("out.json") == NEW


def refuse(*_: object, **__: object) -> None:
    raise OSError("a broken disk")


def test_a_spec_without_shards_of_these_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure before the first shard gives the spec its name back."""
    (tmp_path / "elsewhere").mkdir()
    write("elsewhere/raw", OLD)
    wids.build_spec("elsewhere/").save("out.json")
    before = contents(tmp_path)
    assert "out.index" not in before
    monkeypatch.setattr(os, "fsync", refuse)
    with raises(OSError, "a broken disk"):
        write("out", NEW, if_exists="replace")
    assert contents(tmp_path) == before


def test_a_local_spec_of_remote_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a remote shard may have been replaced, the old spec is not published."""
    pattern = "memory://replaced/out-%06d.tar"

    def write_remote(values: list[Any], **options: Any) -> None:
        with ShardWriter(pattern, maxcount=2, spec="out.json", **options) as writer:
            for number, value in enumerate(values):
                writer.write({"__key__": f"{number}", "txt": value})

    write_remote(OLD)
    monkeypatch.setattr("wids.publish.shard_writer.new_dataset_index", refuse)
    with raises(OSError, "a broken disk"):
        write_remote(NEW, if_exists="replace")
    assert not (tmp_path / "out.json").exists()
    assert (tmp_path / "out.json.replaced").exists()


def test_shards_that_cannot_be_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are reported, and the new dataset is complete."""
    write("out", OLD)
    (tmp_path / "out-000003.tar").unlink()
    (tmp_path / "out-000003.tar").mkdir()
    write("out", NEW, if_exists="replace")
    assert "1 shard of an earlier dataset, from out-000003.tar on" in caplog.text
    assert texts("out.json") == NEW


def test_the_first_numbers_are_not_replaced(tmp_path: Path) -> None:
    """Shards before the first one that is written stay."""
    write("out", OLD)
    write("out", NEW, if_exists="replace", start_shard=1)
    assert [path.name for path in sorted(tmp_path.glob("*.tar"))] == [
        f"out-00000{number}.tar" for number in range(3)
    ]
    assert texts("out.json") == NEW


def test_a_writer_that_fails_before_its_first_shard(tmp_path: Path) -> None:
    """The old dataset is as it was, and so it is if no sample is written."""
    write("out", OLD)
    before = contents(tmp_path)
    write("out", [], if_exists="replace")
    assert contents(tmp_path) == before
    with raises(TypeError, "txt"):
        write("out", [object()], if_exists="replace")  # type: ignore[list-item]
    assert contents(tmp_path) == before

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "fsync", refuse)
        with raises(OSError, "a broken disk"):
            write("out", NEW, if_exists="replace")
    assert contents(tmp_path) == before


def test_a_killed_replacement_is_not_resumed(tmp_path: Path) -> None:
    """Shards that exist may be of both datasets, which the error says (SPEC-42)."""
    write("out", OLD)
    (tmp_path / "out.json").rename(tmp_path / "out.json.replaced")
    with raises(FileExistsError, "out.json.replaced: ", 'again with if_exists="replace"'):
        write("out", NEW, if_exists="resume")
    write("out", NEW, if_exists="replace")
    assert texts("out.json") == NEW


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("step", steps(83))
@WORKS
def test_interrupted_at_any_place(work: Write, step: int, tmp_path: Path) -> None:
    """Ctrl-C leaves one dataset or none, and the old one if none of it was replaced."""
    for name, values in (("old", OLD), ("fresh", NEW)):
        (tmp_path / name).mkdir()
        work(f"{name}/out", values)
    shards = {n: data for n, data in contents(tmp_path / "old").items() if n.endswith(".tar")}
    for fault in faults(step, at_least=300):
        folder = tmp_path / f"{fault.number}"
        shutil.copytree("old", folder)
        with interrupting(fault, "publish", "storage", "shards"):
            work(f"{folder}/out", NEW, if_exists="replace")
        left = contents(folder)
        assert texts(f"{folder.name}/out.json") in (OLD, NEW, None), fault.where
        if shards.items() <= left.items():
            assert "out.json" in left, fault.where
        work(f"{folder}/out", NEW, if_exists="replace")
        assert contents(folder) == contents(tmp_path / "fresh"), fault.where
    gc.collect()  # what was interrupted before it was closed is closed here, with a warning
