"""What `wids.timings` and `dataset.stats` say of loops over all kinds of loaders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import Server
from slow_cases import CASES, Case
from torch.utils.data import DataLoader

import wids


def loader_of(case: Case, dataset: wids.ShardListDataset) -> Any:
    """Return a DataLoader that reads a case as training would."""
    sampler = None
    if case.chunksize is not None:
        sampler = wids.ChunkedSampler(dataset, chunksize=case.chunksize)
    return DataLoader(dataset, sampler=sampler, **case.loader)


@pytest.mark.filterwarnings("ignore:.*chunk")
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_each_case_is_recognised(
    make: Callable[[Path, Server], Case],
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that was made slow on purpose has the bottleneck that docs/slow.md describes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))  # a processor for each rank
    case = make(tmp_path, server)
    with case.dataset() as dataset:
        loader = loader_of(case, dataset)
        with wids.timings(loader) as timings:
            for _ in loader:
                pass
    times = timings.times()
    assert times.bottleneck == case.bottleneck, str(times)
    assert times.counts["samples"] == len(dataset)
    assert times.advice in str(times)
