"""The plan of a rewriting: the same, whatever is looked at together, in any order."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_shards, write_tar

import wids
from wids import ShardListDataset
from wids.publish.rewriting import rewrite_plan
from wids.publish.rewriting.rewrite import prepare_rewrite
from wids.shards.reader import ShardReader


def cuts(dataset: Any, folder: Path, shuffle: int | None, **limits: Any) -> list[Any]:
    job = prepare_rewrite(
        *(dataset, folder / "new-%d.tar", limits.get("maxcount"), limits.get("maxsize")),
        *(None, None, None),
        resume=True,
        storage_options=None,
        shuffle=shuffle,
    )
    return [(task.samples.view().positions, task.nbytes, task.source) for task in job.tasks]


@pytest.mark.parametrize("limits", [{"maxcount": 5}, {"maxcount": 90}, {"maxsize": 40_960}])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_what_is_looked_at_together_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: int | None, limits: dict[str, Any]
) -> None:
    """Windows of 7 samples, also shorter than a shard, cut as one of all does."""
    lengths = random.Random(0)
    for number in range(8):
        names = [(f"{number}/{n:04}.txt", bytes(lengths.randrange(3000))) for n in range(15)]
        write_tar(tmp_path / f"old-{number}.tar", names)
    with ShardListDataset([tmp_path / f"old-{number}.tar" for number in range(8)]) as dataset:
        for view in (dataset, dataset[::-1], dataset[[*range(0, 120, 3), 7, 1]]):
            whole = cuts(view, tmp_path, shuffle, **limits)
            with monkeypatch.context() as patched:
                patched.setattr(rewrite_plan, "_WINDOW", 7)
                parts = cuts(view, tmp_path, shuffle, **limits)
            assert [list(p) for p, _, _ in parts] == [list(p) for p, _, _ in whole]
            assert [rest for _, *rest in parts] == [rest for _, *rest in whole]


@pytest.mark.parametrize(("shuffle", "times", "kept"), [(None, 2, 4), (3, 1, 20)])
def test_facts_of_shards_that_are_needed_again_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shuffle: int | None,
    times: int,
    kept: int,
) -> None:
    """In a random order those of all shards, which each new shard may need, else of the latest.

    Digests do not depend on it.
    """
    asked: Counter[int] = Counter()
    kept_facts: list[Any] = []
    content = ShardReader.content

    def counted(reader: ShardReader, number: int) -> tuple[Any, ...]:
        asked[number] += 1
        return content(reader, number)

    def cached(most: int | None) -> Any:
        def keep(function: Any) -> Any:
            kept_facts.append(lru_cache(most)(function))
            return kept_facts[-1]

        return keep

    with ShardListDataset(write_shards(tmp_path, [3] * 20)) as dataset:
        expected = [source for _, _, source in cuts(dataset, tmp_path, shuffle, maxcount=5)]
        monkeypatch.setattr("wids.publish.rewriting.rewrite._MAX_FACTS", 4)
        monkeypatch.setattr(ShardReader, "content", counted)
        monkeypatch.setattr("wids.publish.rewriting.rewrite.lru_cache", cached)
        found = [source for _, _, source in cuts(dataset, tmp_path, shuffle, maxcount=5)]
    assert found == expected
    assert sorted(asked) == list(range(20))
    assert max(asked.values()) <= times
    assert [function.cache_info().currsize for function in kept_facts] == [kept]


def test_repeated_keys_are_found_across_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in one new shard, far from each other."""
    monkeypatch.setattr(rewrite_plan, "_WINDOW", 7)
    with (
        ShardListDataset(write_shards(tmp_path, [20, 20])) as dataset,
        raises(wids.RewriteError, 'key "s00001"', "(index 1)"),
    ):
        wids.rewrite(dataset[[*range(40), 1]], tmp_path / "new-%d.tar")
