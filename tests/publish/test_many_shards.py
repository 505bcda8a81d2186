"""A coordinator of many shards keeps a few numbers of each, and publishes the same bytes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import write_tar

import wids
from wids.publish import executors
from wids.publish.describe import ShardRecord, describe_shard
from wids.publish.journal import JobPart
from wids.publish.new_spec import first_places
from wids.publish.rewriting import rewrite_plan
from wids.publish.rewriting.rewrite import prepare_rewrite
from wids.publish.spec_job import SpecJob, prepare_spec
from wids.shards.indexes import dataset_index_writer
from wids.shards.specs import saved_document, shard_columns
from wids.storage.transport import urls


class Answering(Executor):
    """Answers each task at once with a description, as a cluster would."""

    def __init__(self, describe: Callable[[Any], ShardRecord]) -> None:
        self._describe = describe

    def submit(self, _: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that has its result."""
        future: Future[Any] = Future()
        future.set_result(self._describe(*args, **kwargs))
        return future


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept in memory at a time is that of a few shards."""
    monkeypatch.setattr(saved_document, "_NUM_PIECES", 1)
    monkeypatch.setattr(shard_columns, "_MAX_MADE", 16)
    monkeypatch.setattr(shard_columns, "_BLOCK_LENGTH", 256)
    monkeypatch.setattr(dataset_index_writer, "_SPOOLED_NBYTES", 512)
    monkeypatch.setattr(executors, "_MAX_SUBMITTED", 16)
    monkeypatch.setattr(rewrite_plan, "_WINDOW", 100)
    # What is found in the latest 4,096 URLs is kept otherwise.
    monkeypatch.setattr(urls, "scheme", urls.scheme.__wrapped__)  # type: ignore[attr-defined]


def job_of(names: list[str], output: Path, **options: Any) -> SpecJob:
    """Return the job of ``wids create``."""
    defaults: dict[str, Any] = {"storage_options": {}, "on_problem": print}
    return prepare_spec(names, str(output), **(defaults | options))


def created(shards: list[Path], output: Path, **options: Any) -> wids.DatasetSpec:
    """Describe shards as ``wids create`` does."""
    return job_of(list(map(str, shards)), output, name="all", info="words", **options).run(None)


@pytest.mark.parametrize(
    ("work", "part", "expected"),
    [
        ("create", None, {"new.json", "new.index"}),
        ("create", JobPart(1, 2), {"new.partial"}),
        ("create as stated", None, {"new.json"}),
        ("rewrite", None, {"new.json", "new.index"}),
        ("rewrite", JobPart(1, 2), {"new.partial"}),
    ],
)
def test_many_shards_take_space_where_the_output_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    part: JobPart | None,
    expected: set[str],
) -> None:
    """Nothing of them is in the system's folder of temporary files, which may be small."""
    tars = [str(write_tar(tmp_path / f"{n}.tar", [(f"{n}.txt", b"a")])) for n in range(12)]
    output = tmp_path / "out"
    output.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with wids.ShardListDataset(tars) as dataset:
        if work.startswith("create"):
            job: Any = job_of(tars, output / "new.json")
            run = partial(job.run, None)
            if work.endswith("stated"):
                sizes = {Path(tar).name: 1 for tar in tars}
                (tmp_path / "sizes.json").write_text(json.dumps(sizes))
                run = job.run_as_stated
        else:
            job = prepare_rewrite(
                *(dataset, output / "new-%d.tar", 1, None, None, None, None),
                resume=True,
                storage_options=None,
            )
            run = partial(job.run, None)
        shards = run().shards if part is None else job.run_part(part, executor=None)
    assert len(shards) == (12 if part is None else 6)
    left = {path.name for path in output.iterdir() if path.suffix not in (".tar", ".lock")}
    assert left == expected


@pytest.mark.usefixtures("small")
def test_rewriting_to_many_shards_is_resumed(tmp_path: Path) -> None:
    """A run that lost a worker continues, and has the bytes of one that did not."""
    tar = write_tar(tmp_path / "a.tar", [(f"{n:02d}.txt", b"%d" % n) for n in range(40)])
    num_done = 0

    class Failing(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            nonlocal num_done
            future: Future[Any] = Future()
            num_done += 1
            if num_done > 25:
                future.set_exception(OSError("gone"))
            else:
                future.set_result(fn(*args, **kwargs))
            return future

    def run(name: str, executor: Executor | None) -> wids.DatasetSpec:
        (tmp_path / name).mkdir(exist_ok=True)
        with wids.ShardListDataset(str(tar)) as dataset:
            return wids.rewrite(
                dataset, tmp_path / name / "new-%02d.tar", maxcount=1, executor=executor
            )

    with pytest.raises(wids.LostTaskError):
        run("one", Failing())
    again, expected = run("one", None), run("two", None)
    assert len(again.shards) == 40
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    assert [s.sha256 for s in again.shards] == [s.sha256 for s in expected.shards]


def test_the_first_of_equal_items() -> None:
    """Items count once, also if another item has their hash."""
    items = ["b", "a", "b", -1, -2, "a", -2]  # the last numbers have one hash
    assert first_places(items).tolist() == [0, 1, 3, 4]
    assert first_places([]).tolist() == []


def peak_nbytes(work: Callable[[], object]) -> int:
    """Return the peak of what is allocated."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]  # what others left is not traced
    finally:
        tracemalloc.stop()


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", [None, JobPart(1, 2)])
@pytest.mark.parametrize("work", ["create", "rewrite"])
def test_a_shard_takes_few_bytes(tmp_path: Path, work: str, part: JobPart | None) -> None:
    """A coordinator keeps numbers of each shard: no name, no task, no entry.

    With one sample in each shard, 120 B of these are the keys of the dataset index, up to a
    million.
    """
    sizes = 1200, 2400
    tar = write_tar(tmp_path / "a.tar", [(f"{n:05d}.txt", b"a") for n in range(sizes[1])])
    records = {
        number: describe_shard(str(write_tar(tmp_path / "b.tar", [(f"{number}.txt", b"b")])))
        for number in range(sizes[1])
    }
    entries = [{"url": f"{n:05d}.tar", "filesize": 10240} for n in range(sizes[1])]

    def described(url: str, source: str = "") -> ShardRecord:
        number = int(url[-9:-4])
        return replace(records[number], url=url, identity=None, source=source)

    def create(count: int) -> Callable[[], object]:
        job = job_of([f"{tmp_path}/{count}.json"], tmp_path / f"new-{count}.json")
        executor = Answering(lambda task: described(task.path))
        if part is not None:
            return partial(job.run_part, part, executor)
        return partial(job.run, executor)

    def rewrite(count: int) -> Callable[[], object]:
        job = prepare_rewrite(
            *(dataset[:count], tmp_path / f"new-{count}-%05d.tar", 1, None, None, None, None),
            resume=True,
            storage_options=None,
        )

        def noted(task: Any) -> ShardRecord:
            job.output.journal.add(described(task.path, task.source))  # as workers do
            return described(task.path, task.source)

        executor = Answering(noted)
        if part is None:
            return partial(job.run, executor=executor)
        return partial(job.run_part, part, executor=executor)

    with wids.ShardListDataset(str(tar)) as dataset:
        peaks = []
        for count in (10, *sizes):
            spec = wids.load_spec({"shardlist": entries[:count]}, base=tmp_path)
            spec.save(tmp_path / f"{count}.json")
            # The document has been parsed: that takes 500 B a shard for a moment.
            peaks.append(peak_nbytes((create if work == "create" else rewrite)(count)))
    assert peaks[2] - peaks[1] < 250 * (sizes[1] - sizes[0]), peaks
