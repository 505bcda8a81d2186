"""Specs that are made of shards by one run, in parts, or by appending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Server

import wids
from wids.publish import new_spec
from wids.publish.journal import JobPart
from wids.publish.spec_job import SpecJob, prepare_spec
from wids.shards.costs import DownloadCost


def job_of(names: list[str], output: Path, **options: Any) -> SpecJob:
    """Return the job of describing shards with the defaults of the command."""
    arguments = {
        "storage_options": {},
        "info": "of tests",
        "on_problem": lambda _: None,
        **options,
    }
    return prepare_spec(names, str(output), **arguments)


def test_a_job_makes_a_spec_with_its_dataset_index(tmp_path: Path) -> None:
    """The journal is there until the spec is saved, and the next job may append to it."""
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", sample_members(2 * number, 2 * number + 2))
    first = job_of([str(tmp_path / "train-[01].tar")], tmp_path / "a.json")
    assert len(first.run(None).shards) == 2
    more = job_of([str(tmp_path / "train-2.tar")], tmp_path / "a.json", is_new=False)
    more.run(None)
    spec = wids.load_spec(tmp_path / "a.json")
    assert (spec.name, spec.extras["info"]) == ("train", "of tests")
    assert [shard.num_samples for shard in spec.shards] == [2, 2, 2]
    assert {path.suffix for path in tmp_path.glob("a*")} == {".json", ".index"}


def test_parts_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part describes its own shards, and the merge describes none again."""
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", sample_members(2 * number, 2 * number + 2))
    job = job_of([str(tmp_path)], tmp_path / "a.json")
    described = [job.run_part(JobPart(number, 2), None) for number in (1, 2)]
    assert sorted(map(len, described)) == [1, 2]
    monkeypatch.setattr(new_spec, "describe_shard", None)
    assert len(job.merge().shards) == 3


@pytest.mark.parametrize("digests", [False, True])
def test_the_caller_hears_what_will_be_downloaded(
    digests: bool, server: Server, tmp_path: Path
) -> None:
    """Before anything is read, of the shards of a part if there is one; an error ends the work."""
    body = write_tar(tmp_path / "a.tar", sample_members(0, 2)).read_bytes()
    names = [server.page(f"/{number}.tar", body) for number in range(2)]
    asked: list[DownloadCost] = []

    def refuse(cost: DownloadCost) -> None:
        asked.append(cost)
        raise InterruptedError

    job = job_of(names, tmp_path / "a.json", digests=digests, on_cost=refuse)
    with pytest.raises(InterruptedError):
        job.run(None)
    with pytest.raises(InterruptedError):
        job.run_part(JobPart(1, 2), None)
    assert [cost.nbytes for cost in asked] == [2 * len(body), len(body)]
    assert server.num_sent == 0


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
