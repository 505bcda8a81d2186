"""Fields that no shard has: an error or a warning, and no more silently empty samples."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_tar
from events import LONG_S
from loopback import Server
from remote_site import Site
from torch.utils.data import DataLoader

import wids
from wids.shards import counted_shards


@pytest.fixture(autouse=True)
def long_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards are looked at in time, however slow the machine is."""
    monkeypatch.setattr(counted_shards, "_LOOK_S", LONG_S)


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Shards with different fields; the first is empty."""
    return [
        write_tar(tmp_path / "0.tar", []),
        write_tar(tmp_path / "1.tar", [("a.txt", b"a"), ("a.cls", b"1")]),
        write_tar(tmp_path / "2.tar", [("b.jpeg", b"b"), ("b.cls", b"2")]),
    ]


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path / "site", server)


def test_dot_may_be_left_out(train: Path) -> None:
    """Both spellings of a field mean the field, which keeps its dot in the sample."""
    for fields in (["cls"], [".cls"], ["cls", ".cls", "__key__"]):
        with wids.ShardListDataset(train, fields=fields) as dataset:
            assert [name for name in dataset[3] if name[0] == "."] == [".cls"]
            assert dataset[3]["__key__"] == "s00003"
    with wids.ShardListDataset(train) as dataset, dataset.only(["cls"]) as view:
        assert view[3][".cls"] == b"3"


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_field_that_no_shard_has_is_an_error(mixed: list[Path], num_workers: int) -> None:
    """The error of the first read names what exists, the nearest name first."""
    message = 'found ".jepg", which no shard has; the shards have ".jpeg", '
    counted: list[Any] = [(path, n) for path, n in zip(mixed, [0, 1, 1], strict=True)]
    # The caller's stand-ins are for samples, and here every sample would be one.
    with wids.ShardListDataset(
        counted, fields=[".cls", ".jepg"], on_error=lambda _: None
    ) as dataset:
        for read in (lambda: dataset[0], lambda: dataset.__getitems__([1]), lambda: list(dataset)):
            with raises(ValueError, "fields: expected fields of the dataset", message):
                read()
        with raises(ValueError, message):
            list(DataLoader(dataset, num_workers=num_workers))  # type: ignore[var-annotated]


def test_shards_that_are_counted_are_checked_at_once(mixed: list[Path]) -> None:
    """The constructor opens shards without a stated count, and knows their fields."""
    with raises(ValueError, 'found ".jepg", which no shard has'):
        wids.ShardListDataset(mixed, fields=["jepg"])


def test_field_of_some_shards_is_no_mistake(mixed: list[Path]) -> None:
    """A field may be in one shard only, which the first read looks for; later ones do not."""
    with wids.ShardListDataset(mixed, fields=[".jpeg"], transformations=None) as dataset:
        other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
        assert ".jpeg" not in dataset[0]
        assert dataset[1][".jpeg"].read() == other[1][".jpeg"].read() == b"b"
        other.close()


def test_no_fields_are_no_mistake(train: Path) -> None:
    """An empty collection asks for keys alone."""
    with wids.ShardListDataset(train, fields=[]) as dataset:
        assert dataset[3]["__key__"] == "s00003"


def test_shard_that_cannot_be_read_proves_nothing(mixed: list[Path]) -> None:
    """Where some index is unknown, a read warns; the damage is reported when it is read."""
    mixed[2].write_bytes(b"x" * 2000)
    counted: list[Any] = [(path, n) for path, n in zip(mixed, [0, 1, 1], strict=True)]
    with wids.ShardListDataset(counted, fields=["jepg"]) as dataset:
        with pytest.warns(UserWarning, match=r'no shard whose index is known has "\.jepg"'):
            assert dataset[0]["__key__"] == "a"
        with pytest.raises(wids.ShardFormatError):
            dataset[1]


def test_looking_takes_little_time(mixed: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that are not looked at in time are not known, and the read goes on."""
    monkeypatch.setattr(counted_shards, "_LOOK_S", -1.0)
    counted: list[Any] = [(path, n) for path, n in zip(mixed, [0, 1, 1], strict=True)]
    with wids.ShardListDataset(counted, fields=["jepg"]) as dataset:
        with pytest.warns(UserWarning, match=r'"\.jepg"; they have "\.cls", "\.txt"'):
            dataset[0]
        dataset[1]  # once is enough


def test_remote_shards_are_not_fetched_for_it(site: Site) -> None:
    """The first shard that is opened is checked; nothing is known of the others."""
    spec = site.spec()
    with wids.ShardListDataset(spec, fields=["text"]) as dataset:
        with pytest.warns(UserWarning, match=r'"\.text"; they have "\.txt", "\.cls"'):
            dataset[0]
        dataset[9]
    assert site.asked() == ["/train-0.tar", "/train-1.tar"]


def test_dataset_index_knows_the_fields_of_all_shards(site: Site) -> None:
    """With a published index a wrong field of remote shards is an error, and no shard is read."""
    site.dataset_index()
    with wids.ShardListDataset(site.spec(index="train.index"), fields=["text"]) as dataset:
        with raises(ValueError, 'found ".text", which no shard has; the shards have ".txt"'):
            dataset[0]
    assert site.asked() == []


def test_message_shows_a_dozen_names(tmp_path: Path) -> None:
    """A shard with many fields does not fill the screen."""
    path = write_tar(tmp_path / "a.tar", [(f"a.f{n:02d}", b"") for n in range(50)])
    with raises(ValueError, '".f42", ', "and 38 more"):
        wids.ShardListDataset(path, fields=[".f42x"])


def test_later_opens_cost_nothing(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One check for each dataset, whatever the number of shards that are opened again."""
    checked: list[int] = []
    monkeypatch.setattr(counted_shards.FieldCheck, "_check", lambda *args: checked.append(args[2]))
    with wids.ShardListDataset(train, fields=[".cls"], lru_size=1) as dataset:
        for index in (9, 0, 9, 19, 0):
            dataset[index]
    assert checked == [1]
