"""The docstrings of public names have examples, which run as they stand."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import wids

RETURNED = ("PackReport", "Problem", "SamplingCost")

# What raises these errors has the examples.
ELSEWHERE = {
    name
    for name in wids.__all__
    if name.endswith("Error") and name not in {"WidsError", "SampleError"}
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the shards that the examples of methods read."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "cat"):
        with wids.TarWriter(f"{name}.tar" if name == "train" else "cats.tar") as writer:
            for n in range(3):
                key = f"{n:06d}" if name == "train" else f"cat{n}"
                writer.write({"__key__": key, "txt": f"text {n}", "cls": n})
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", sorted({*wids.__all__, *RETURNED} - ELSEWHERE))
def test_public_name_has_an_example_that_runs(name: str) -> None:
    """Each public class and function shows how to use it, and the example prints what it shows."""
    public: Any = getattr(wids, name)
    assert ">>> " in (inspect.getdoc(public) or "")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with wids.ShardListDataset("train.tar") as dataset:
        for example in doctest.DocTestFinder().find(
            public, name, module=False, globs={"dataset": dataset, "wids": wids}
        ):
            runner.run(example)
    assert runner.failures == 0
    assert runner.tries > 0
