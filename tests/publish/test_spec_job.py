"""Specs that are made of shards by one run, in parts, or by appending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Server

import wids
from wids.publish.journal import JobPart
from wids.publish.spec_job import SpecJob, prepare_spec
from wids.shards.costs import DownloadCost


def job_of(names: list[str], output: Path, **options: Any) -> SpecJob:
    """Return the job of describing shards with the defaults of the command."""
    arguments = {
        "base": None,
        "is_new": True,
        "key_split": None,
        "digests": False,
        "on_cost": lambda _: None,
        "storage_options": {},
        **options,
    }
    return prepare_spec(names, str(output), **arguments)


def run(job: SpecJob) -> wids.DatasetSpec:
    """Run a job without processes."""
    return job.run(None, lambda _: None, name=None, info="of tests", has_index=True)


def test_a_job_says_that_another_one_wrote_the_spec(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two jobs with one output that both succeed, the later one says that it replaced it."""
    write_tar(tmp_path / "train-0.tar", sample_members(0, 2))
    jobs = [job_of([str(tmp_path / "train-0.tar")], tmp_path / "a.json") for _ in range(2)]
    run(jobs[0])
    assert not caplog.records
    run(jobs[1])
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}/a.json: another process wrote it while this one described the shards; "
        "this one replaces it"
    )
    run(job_of([str(tmp_path / "train-0.tar")], tmp_path / "a.json"))
    assert len(caplog.records) == 1, "what was there before is replaced on purpose"


def test_a_job_makes_a_spec_with_its_dataset_index(tmp_path: Path) -> None:
    """The journal is there until the spec is saved, and the next job may append to it."""
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", sample_members(2 * number, 2 * number + 2))
    first = job_of([str(tmp_path / "train-[01].tar")], tmp_path / "a.json")
    assert len(run(first).shards) == 2
    more = job_of([str(tmp_path / "train-2.tar")], tmp_path / "a.json", is_new=False)
    more.append(None, lambda _: None)
    spec = wids.load_spec(tmp_path / "a.json")
    assert (spec.name, spec.extras["info"]) == ("train", "of tests")
    assert [shard.num_samples for shard in spec.shards] == [2, 2, 2]
    assert {path.suffix for path in tmp_path.glob("a*")} == {".json", ".index"}


def test_parts_are_merged(tmp_path: Path) -> None:
    """Each part describes its own shards, and the run after the merge describes none again."""
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", sample_members(2 * number, 2 * number + 2))
    job = job_of([str(tmp_path)], tmp_path / "a.json")
    parts = [JobPart.parse("1/2"), JobPart.parse("2/2")]
    described = [len(job.run_part(part, None)) for part in parts]
    assert described == [len(job.shards(part)) for part in parts]
    assert sum(described) == 3
    job.merge()
    assert len(run(job).shards) == 3


def test_servers_are_asked_before_anything_is_read(server: Server, tmp_path: Path) -> None:
    """The caller hears what will be downloaded, of the shards of a part if there is one."""
    body = write_tar(tmp_path / "a.tar", sample_members(0, 2)).read_bytes()
    names = [server.page(f"/{number}.tar", body) for number in range(2)]
    asked: list[DownloadCost] = []
    job = job_of(names, tmp_path / "a.json", digests=True)
    assert [shard.nbytes for shard in job.measured(asked.append).named.shards] == [len(body)] * 2
    job.measured(asked.append, JobPart.parse("1/2"))
    assert [cost.nbytes for cost in asked] == [2 * len(body), len(body)]
    assert server.num_sent == 0


def test_a_digest_of_another_version_is_not_kept(server: Server, tmp_path: Path) -> None:
    """A document's digest belongs to a shard of the length that it states, whatever servers say."""
    tar = write_tar(tmp_path / "a.tar", [("a.bin", bytes(6 << 20)), ("a.txt", b"text")])
    url = server.page("/a.tar", tar.read_bytes())
    for more, expected in ((0, "ab" * 32), (512, None)):
        entry = {"url": url, "filesize": tar.stat().st_size + more, "sha256": "ab" * 32}
        (tmp_path / "old.json").write_text(json.dumps({"shardlist": [entry]}))
        job = job_of([str(tmp_path / "old.json")], tmp_path / "a.json").measured(lambda _: None)
        assert run(job).shards[0].sha256 == expected


def test_what_would_fail_later_is_refused_first(tmp_path: Path) -> None:
    """No shard is read for an output that cannot be written, or that readers could not follow."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_tar(tmp_path / folder / "a.tar", sample_members(0, 1))
    names = [str(tmp_path / folder) for folder in ("x", "y")]
    with raises(ValueError, "--output: expected a name that ends in .json"):
        job_of(names, tmp_path / "a.txt")
    with raises(FileNotFoundError, "no such folder, for --output"):
        job_of(names, tmp_path / "none" / "a.json")
    with raises(ValueError, "--base: expected shards with different names for one folder"):
        job_of(names, tmp_path / "a.json", base="https://example.com/")
