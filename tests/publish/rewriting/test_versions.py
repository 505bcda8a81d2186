"""A run that calls functions resumes by its version, and otherwise writes all shards again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_shards

import wids
from wids import ShardListDataset
from wids.publish import shard_job

Sample = dict[str, Any]
Change = Callable[[str], None]


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[ShardListDataset]:
    with ShardListDataset(write_shards(tmp_path, [6])) as found:
        yield found


TEXT = "old"


def by_global(sample: Sample) -> Sample:
    """Write the text of a global variable."""
    return {**sample, ".txt": TEXT}


class Model:
    """A text among its weights, and one of its class."""

    text = "old"

    def __init__(self) -> None:
        self.weights = {"text": "old"}

    def by_attribute(self, sample: Sample) -> Sample:
        """Write the text of the class."""
        return {**sample, ".txt": self.text}

    def by_weights(self, sample: Sample) -> Sample:
        """Write the text among the weights."""
        return {**sample, ".txt": self.weights["text"]}


def by_closure(texts: dict[str, str]) -> Callable[[Sample], Sample]:
    """Return a function that writes the text in a dict."""
    return lambda sample: {**sample, ".txt": texts["text"]}


def changing_map(name: str, patches: pytest.MonkeyPatch) -> tuple[Any, Callable[[], None]]:
    """Return a map, and what makes it write another text without a change of its code."""
    if name == "global":
        return by_global, lambda: patches.setitem(globals(), "TEXT", "new")
    model = Model()
    if name == "class":
        return model.by_attribute, lambda: patches.setattr(Model, "text", "new")
    if name == "weights":
        return model.by_weights, lambda: model.weights.update(text="new")
    texts = {"text": "old"}
    return by_closure(texts), lambda: texts.update(text="new")


STOP = [-1]


def run(dataset: Any, folder: Path, function: Any, **options: Any) -> wids.DatasetSpec:
    """Rewrite with a map, until the sample where it is stopped."""

    def stopping(sample: Sample) -> Any:
        if sample["__index__"] in STOP:
            raise KeyboardInterrupt
        return function(sample)

    return wids.rewrite(dataset, folder / "new-%06d.tar", maxcount=2, map=stopping, **options)


def interrupted(dataset: Any, folder: Path, function: Any, at: int = 2, **options: Any) -> None:
    """Leave the shards before a sample."""
    STOP[0] = at
    with pytest.raises(KeyboardInterrupt):
        run(dataset, folder, function, **options)
    STOP[0] = -1


def texts(folder: Path) -> list[str]:
    with ShardListDataset(folder / "new.json") as written:
        return [sample[".txt"] for sample in written]


@pytest.mark.parametrize("name", ["global", "class", "weights", "closure"])
def test_a_map_that_changed_unseen_does_not_resume(
    name: str,
    dataset: ShardListDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a version a run starts over, says so, and no shard is of the old map (REWRITE-8)."""
    function, change = changing_map(name, monkeypatch)
    interrupted(dataset, tmp_path / "out", function, at=4)
    assert len(list((tmp_path / "out").glob("*.tar"))) == 2
    change()
    assert not caplog.records
    run(dataset, tmp_path / "out", function)
    assert texts(tmp_path / "out") == ["new"] * 6
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    expected = "new.json: started over: an interrupted run left complete shards (2), which may"
    assert expected in record.message
    assert "pass version= (--version) to resume" in record.message
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(f"new-00000{number}.tar" for number in range(3)),
        *("new.index", "new.json"),
    ]


def test_an_equal_version_resumes(dataset: ShardListDataset, tmp_path: Path) -> None:
    """Complete shards are kept, also where the function is another object (REWRITE-8)."""
    old, new = by_closure({"text": "old"}), by_closure({"text": "new"})
    interrupted(dataset, tmp_path / "out", old, version="1")
    run(dataset, tmp_path / "out", new, version="1")
    assert texts(tmp_path / "out") == ["old"] * 2 + ["new"] * 4


def test_another_version_does_not_resume(dataset: ShardListDataset, tmp_path: Path) -> None:
    """It is refused as other options are, and ``resume=False`` starts over (REWRITE-8)."""
    old, new = by_closure({"text": "old"}), by_closure({"text": "new"})
    interrupted(dataset, tmp_path / "out", old, version="1")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    for options in ({"version": "2"}, {}):
        with raises(FileExistsError, "samples, options or version", "resume=False (--restart)"):
            run(dataset, tmp_path / "out", new, **options)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before
    run(dataset, tmp_path / "out", new, version="2", resume=False)
    assert texts(tmp_path / "out") == ["new"] * 6


def test_new_keys_come_from_a_function_too(
    dataset: ShardListDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version, shards with keys of another ``rename`` are written again (REWRITE-8)."""
    pattern = tmp_path / "out" / "new-%06d.tar"
    monkeypatch.setattr(shard_job, "write_dataset_index", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wids.rewrite(dataset, pattern, rename=lambda labels: "old" + labels["__key__"])
    monkeypatch.undo()
    wids.rewrite(dataset, pattern, rename=lambda labels: "new" + labels["__key__"])
    with ShardListDataset(tmp_path / "out" / "new.json") as written:
        assert [key[:3] for key in list(written.keys())] == ["new"] * 6


def interrupt(*_: object) -> None:
    """Stop the program as Ctrl-C does."""
    raise KeyboardInterrupt


def test_shards_that_the_new_map_leaves_out_are_not_left_behind(
    dataset: ShardListDataset, tmp_path: Path
) -> None:
    """No shard of the earlier run stays beside the new ones (REWRITE-8)."""
    interrupted(dataset, tmp_path / "out", by_closure({"text": "old"}), at=4)
    # As after a kill between the publication of a shard and its record.
    (tmp_path / "out" / "new-000002.tar").write_bytes(
        (tmp_path / "out" / "new-000000.tar").read_bytes()
    )
    run(dataset, tmp_path / "out", lambda sample: sample if sample["__index__"] < 2 else None)
    assert [path.name for path in (tmp_path / "out").glob("*.tar")] == ["new-000000.tar"]


@pytest.mark.parametrize("version", ["", 2])
def test_a_version_is_a_text(version: Any, dataset: ShardListDataset, tmp_path: Path) -> None:
    """An empty one, such as that of an unset shell variable, is an error."""
    with raises(ValueError, f'version: expected a text such as "2", found {version!r}'):
        run(dataset, tmp_path / "out", by_global, version=version)
    assert not (tmp_path / "out").exists()
